/* Forks, and the end of the process. Each case runs in a child of its own, made before its device is opened; a case that hangs is
 * killed. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "run_tools.h"

static void in_child(const char *name, void (*test)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    check_passed = check_failed = 0;
    open_fake();
    test();
    fflush(NULL);
    _exit(check_failed != 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  if (status != 0) {
    fprintf(stderr, "%s: status %x\n", name, (unsigned)status);
  }
  CHECK_EQ(status, 0);
}

static void refused(const ten *a) {
  float host[4] = {0};
  ttc_device *again;
  ttc_store *s;
  IS(put(a, host), TTC_FAILED_PRECONDITION);
  IS(get(a, host), TTC_FAILED_PRECONDITION);
  IS(add(a, a, 1, NULL, NULL), TTC_FAILED_PRECONDITION);
  IS(ttc_device_synchronize(dev, &err), TTC_FAILED_PRECONDITION);
  IS(ttc_store_resize(a->store, 8, &err), TTC_FAILED_PRECONDITION);
  IS(ttc_store_new(dev, 8, NULL, &s, &err), TTC_FAILED_PRECONDITION);
  IS(ttc_device_open(0, &again, &err), TTC_FAILED_PRECONDITION);
  CHECK(err.message[0] != '\0');
  CHECK(ttc_device_count() >= 1);
  (void)stats();
}

/* Forked in the midst of work: the child is told, lets go of its tensors and ends; the parent goes on. */
static void test_fork(void) {
  float host[4] = {0};
  ten y, a = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  OK(add(&a, &a, 1, &a, NULL));
  OK(ttc_device_synchronize(dev, &err));
  for (int i = 0; i < 20; i++) {
    OK(add(&a, &a, 1, &a, NULL));
    OK(add(&a, &a, 1, NULL, &y));
    long calls = fake_count("any");
    pid_t pid = fork();
    if (pid == 0) {
      alarm(5);
      calls = fake_count("any");
      refused(&a);
      ttc_store_release(a.store);
      ttc_store_release(y.store);
      ttc_shutdown(1000);
      CHECK_EQ(fake_count("any"), calls); /* the plugin is left alone */
      _exit(check_failed != 0);
    }
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK(fake_count("any") >= calls);
    ttc_store_release(y.store);
  }
  OK(get(&a, host));
  ttc_store_release(a.store);
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
}

/* Work in flight is done; then all is refused; stores are let go in any order. */
static void test_shutdown(void) {
  float host[4] = {0};
  ten a = empty(TTC_F32, DIMS(4)), never = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  OK(add(&a, &a, 1, &a, NULL));
  OK(get(&a, host));
  long before = fake_count("PJRT_LoadedExecutable_Execute");
  for (int i = 0; i < 500; i++) {
    OK(add(&a, &a, 1, &a, NULL));
  }
  ttc_shutdown(5000);
  CHECK_EQ(fake_count("PJRT_LoadedExecutable_Execute") - before, 500);
  refused(&a);
  long calls = fake_count("any");
  ttc_store_release(a.store);
  ttc_store_release(never.store);
  CHECK_EQ(fake_count("any"), calls);
  ttc_shutdown(5000);
}

/* A compile that takes longer than the end may. */
static void test_shutdown_timeout(void) {
  float host[4] = {0};
  ten y, a = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  fake_delay("PJRT_Client_Compile", 3000);
  OK(add(&a, &a, 1, NULL, &y));
  int64_t t0 = ttc__now_ns();
  ttc_shutdown(200);
  CHECK(ttc__now_ns() - t0 < 1500000000);
  ttc_store_release(y.store);
  ttc_store_release(a.store);
}

/* A launch that never comes back, as far as the end can tell. */
static void test_shutdown_stuck(void) {
  float host[4] = {0};
  ten y, a = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  fake_delay("PJRT_LoadedExecutable_Execute", 3000);
  OK(add(&a, &a, 1, NULL, &y));
  int64_t t0 = ttc__now_ns();
  ttc_shutdown(200);
  CHECK(ttc__now_ns() - t0 < 1500000000);
  ttc_store_release(y.store);
  ttc_store_release(a.store);
}

/* The queue is full when the end comes: its callers are let go. */
static void *fill(void *arg) {
  const ten *a = arg;
  ttc_error e;
  ttc_status st = TTC_OK;
  for (int i = 0; i < 5000 && st == TTC_OK; i++) {
    st = add_err(a, a, 1, a, NULL, &e);
  }
  CHECK_EQ(st, TTC_FAILED_PRECONDITION);
  return NULL;
}
static void test_shutdown_full(void) {
  float host[4] = {0};
  ten a = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  fake_delay("PJRT_Client_Compile", 4000);
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, fill, &a), 0);
  nap_ms(100);
  ttc_shutdown(100);
  pthread_join(thread, NULL);
}

int main(void) {
  in_child("fork", test_fork);
  in_child("shutdown", test_shutdown);
  in_child("timeout", test_shutdown_timeout);
  in_child("stuck", test_shutdown_stuck);
  in_child("full", test_shutdown_full);
  return CHECK_DONE();
}
