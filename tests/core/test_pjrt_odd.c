/* Plugins that break their promises: one clear error each, no crash, nothing leaked, and all is well once they behave. */
#include "pjrt/pjrt.h"
#include "run_tools.h"

static fake_plugin_misbehave_fn *misbehave;

static void find_misbehave(void) {
  void *lib = dlopen(getenv("TTC_FAKE_PLUGIN"), RTLD_NOW);
  void *found = lib != NULL ? dlsym(lib, "fake_plugin_misbehave") : NULL;
  CHECK(found != NULL);
  memcpy(&misbehave, &found, sizeof found);
}

/* Before a device is open: the same process tries again and again. */
static void test_opening(void) {
  static const struct {
    const char *how, *says;
  } cases[] = {
      {"null client", "PJRT_Client_Create: the plugin "},
      {"no devices", "has no device"},
      {"null devices", "PJRT_Client_AddressableDevices: the plugin "},
      {"null device", "PJRT_Client_AddressableDevices: the plugin "},
      {"many devices", "claims to have 18446744073709551615 devices"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ttc_device *d = NULL;
    misbehave(cases[i].how);
    ttc_status st = ttc_device_open(0, &d, &err);
    if (st == TTC_OK || strstr(err.message, cases[i].says) == NULL) {
      fprintf(stderr, "%s: %s\n", cases[i].how, st == TTC_OK ? "opened" : err.message);
    }
    CHECK(st != TTC_OK && strstr(err.message, cases[i].says) != NULL);
  }
  misbehave("null kind"); /* harmless: an empty name */
}

/* One op with fresh shapes, so that it is compiled. */
static ttc_status one_op(int64_t n) {
  float host[64] = {0};
  ten y = {0}, x = empty(TTC_F32, DIMS(n));
  ttc_status st = put(&x, host);
  st = st != TTC_OK ? st : add(&x, &x, 1, NULL, &y);
  if (st == TTC_OK) {
    st = get(&y, host);
  }
  ttc_store_release(x.store);
  ttc_store_release(y.store);
  ttc_error more;
  CHECK(ttc_device_synchronize(dev, &more) == TTC_OK || st != TTC_OK); /* told once, by whoever comes first */
  return st;
}

static void test_running(void) {
  static const struct {
    const char *how, *says; /* says NULL: no error is due */
  } cases[] = {
      {"null program", "PJRT_Client_Compile: the plugin "},
      {"more outputs", "gives 8 results, expected 1"},
      {"huge outputs", "results, expected 1"},
      {"no outputs", "gives 0 results, expected 1"},
      {"null description", "PJRT_Device_GetDescription: the plugin "},
      {"null result", "gives no result 0"},
      {"null buffer", "PJRT_Client_BufferFromHostBuffer: the plugin "},
      {"null event", "PJRT_Buffer_ReadyEvent: the plugin "},
      {"null pointer", "PJRT_Buffer_UnsafePointer: the plugin "},
      {"small buffer", "expected to read within 1 bytes"},
      {"negative memory", NULL},
      {"huge kind", NULL},
      {"no such thing", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t n = (int64_t)i + 3;
    misbehave(cases[i].how);
    ttc_status st = one_op(n);
    bool good = cases[i].says == NULL ? st == TTC_OK : st != TTC_OK && strstr(err.message, cases[i].says) != NULL;
    if (!good) {
      fprintf(stderr, "%s: %s\n", cases[i].how, st == TTC_OK ? "no error" : err.message);
    }
    CHECK(good);
    misbehave(NULL);
    OK(one_op(n));
    CHECK_EQ(stats().live_nbyte, 0);
  }
}

/* Errors that say nothing, or too much. */
static void test_errors(void) {
  static const char *const how[] = {"null message", "huge message", "bad code"};
  for (int i = 0; i < 3; i++) {
    misbehave(how[i]);
    fake_fail("PJRT_LoadedExecutable_Execute", 1);
    ttc_status st = one_op(40);
    CHECK(st == (i == 2 ? TTC_UNKNOWN : TTC_INTERNAL));
    CHECK(strstr(err.message, "PJRT_LoadedExecutable_Execute: ") != NULL);
    misbehave(NULL);
    OK(one_op(40));
  }
}

/* Programs that cannot be kept are compiled all the same. */
static void test_serializing(void) {
  static const char text[] = "module { func.func @main() -> tensor<2xf32> { } }";
  pjrt_plugin *p;
  pjrt_client *c;
  OK(pjrt_plugin_load(getenv("TTC_FAKE_PLUGIN"), &p, &err));
  OK(pjrt_client_new(p, 1, &c, &err));
  pjrt_exe *exe;
  OK(pjrt_compile(c, 0, text, sizeof text - 1, NULL, &exe, &err));
  long live = fake_live();
  char *bytes = NULL;
  size_t n = 0;
  misbehave("null bytes");
  IS(pjrt_exe_serialize(exe, &bytes, &n, &err), TTC_INTERNAL);
  misbehave("huge bytes");
  IS(pjrt_exe_serialize(exe, &bytes, &n, &err), TTC_RESOURCE_EXHAUSTED);
  CHECK(bytes == NULL && n == 0);
  misbehave(NULL);
  CHECK_EQ(fake_live(), live);
  OK(pjrt_exe_serialize(exe, &bytes, &n, &err));
  free(bytes);
  pjrt_exe_free(exe);
  pjrt_client_free(c);
}

int main(void) {
  (void)choose_fake();
  find_misbehave();
  test_opening();
  open_fake();
  misbehave(NULL);
  long live = fake_live();
  test_running();
  test_errors();
  CHECK_EQ(fake_live() - live, (long)stats().plans);
  test_serializing();
  return CHECK_DONE();
}
