/* Each PJRT call of a step fails once: exactly one error surfaces, nothing leaks or hangs, and the same step works right after. */
#include "run_step.h"

/* Calls whose failing is nobody's error: things are gone all the same, or there is another way to wait. */
static bool harmless(const char *call) {
  size_t n = strlen(call), tail = strlen("_Destroy");
  return (n > tail && strcmp(call + n - tail, "_Destroy") == 0) || strcmp(call, "PJRT_Event_IsReady") == 0 ||
         strcmp(call, "PJRT_Executable_GetCompiledMemoryStats") == 0;
}

/* Asked of a result that is wanted, it is the reader's error; of one just let go of, nobody's. */
static bool expected(const char *call, int nerror) {
  return nerror == !harmless(call) || (nerror == 0 && strcmp(call, "PJRT_Buffer_ReadyEvent") == 0);
}

/* fresh: shapes of its own for each n, so that compiles are among what fails. */
static void fail_each(bool fresh) {
  long n;
  CHECK_EQ(step(3), 0);
  CHECK_EQ(step(3), 0);
  long live = fake_live();
  uint64_t plans = stats().plans;
  for (n = 1; n < STEP_MAX_N - 4; n++) {
    int64_t size = fresh ? 3 + n : 3;
    fake_fail("any", n);
    int nerror = step(size);
    const char *failed = fake_failed();
    fake_fail(NULL, 0);
    if (failed == NULL) {
      break;
    }
    if (!expected(failed, nerror)) {
      fprintf(stderr, "%s failing as call %ld: %d errors (%s)\n", failed, n, nerror, err.message);
    }
    CHECK(expected(failed, nerror));
    CHECK(nerror == 0 || strstr(err.message, failed) != NULL);
    CHECK_EQ(stats().live_nbyte, 0);
    CHECK_EQ(step(size), 0);
    CHECK_EQ(stats().live_nbyte, 0);
    CHECK_EQ(fake_live() - live, (long)(stats().plans - plans));
  }
  CHECK(n > 30 && n < STEP_MAX_N - 4);
}

int main(void) {
  setenv("TORCH_TPU_EAGER_LENGTHS", "0",
         1); /* what is counted here are plans and what they own: a length is a number, which a device keeps */
  open_fake();
  make_wide_op();
  fail_each(false);
  fail_each(true);
  return CHECK_DONE();
}
