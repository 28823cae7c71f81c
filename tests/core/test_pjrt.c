/* src/pjrt against the fake plugin (TTC_FAKE_PLUGIN): finding, loading, versions, every call failing once, and nothing left behind.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fake_plugin.h"
#include "pjrt/call.h"

static ttc_error err;
static char root[512]; /* a folder of this run */
static fake_plugin_live_fn *live;
static fake_plugin_fail_fn *fail;
static fake_plugin_count_fn *count;

#define OK(call)                                       \
  do {                                                 \
    bool ok_ = (call) == TTC_OK;                       \
    if (!ok_) {                                        \
      fprintf(stderr, "%s: %s\n", #call, err.message); \
    }                                                  \
    CHECK(ok_);                                        \
  } while (0)
#define SAYS(text) CHECK((strstr(err.message, (text)) != NULL) || (fprintf(stderr, "message: %s\n", err.message), false))

static const char twice[] =
    "module @m {\n"
    "  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 1 : i32}, %arg1: tensor<i64>)"
    " -> (tensor<4xcomplex<f32>> {jax.result_info = \"(tensor<9xf32>)\"}, tensor<2x3xf32>) {\n  }\n}\n";

/* ---- files */

static const char *in_root(const char *name) {
  static char path[4][1024];
  static int turn;
  char *p = path[turn++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", root, name);
  return p;
}

/* Make `name` and the folders above it below root, with that content. */
static void write_file(const char *name, const char *content, size_t n) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", root, name);
  for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  FILE *f = fopen(path, "wb");
  CHECK(f != NULL && fwrite(content, 1, n, f) == n && fclose(f) == 0);
}

/* A copy of (at most the first bytes of) the fake plugin, which the loader takes for another plugin. */
static const char *copy_plugin(const char *name, long most) {
  FILE *f = fopen(getenv("TTC_FAKE_PLUGIN"), "rb");
  long n = 0;
  char *bytes = NULL;
  if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0 && (bytes = malloc((size_t)n)) != NULL) {
    rewind(f);
    n = n < most ? n : most;
    CHECK(fread(bytes, 1, (size_t)n, f) == (size_t)n);
    write_file(name, bytes, (size_t)n);
  }
  CHECK(bytes != NULL);
  free(bytes);
  if (f != NULL) {
    fclose(f);
  }
  return in_root(name);
}

/* ---- finding */

static void test_discover(void) {
  pjrt_choice choice = {.ntpu = -7};
  unsetenv("TORCH_TPU_PLUGIN");
  unsetenv("TPU_LIBRARY_PATH");
  bool tpu = pjrt_count_tpus() > 0; /* then libtpu is asked for instead */
  CHECK_EQ(pjrt_discover("", &choice, &err), TTC_NOT_FOUND);
  SAYS(tpu ? "pip install libtpu" : "pip install lammps-jax-pjrt-cpu==0.11.2 (x86_64) or xla-cpu-pjrt==0.0.1");
  CHECK_EQ(pjrt_discover(NULL, &choice, &err), TTC_NOT_FOUND);
  CHECK_EQ(choice.ntpu, -7); /* untouched by failures */
  write_file("b/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "x", 1);
  char dirs[2048];
  snprintf(dirs, sizeof dirs, ":%s/none:%s/b::%s/c", root, root, root);
  if (!tpu) {
    OK(pjrt_discover(dirs, &choice, &err));
    CHECK_EQ(choice.source, PJRT_FROM_XLA_CPU);
    CHECK_EQ(choice.ntpu, 0);
    write_file("c/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "x", 1);
    OK(pjrt_discover(dirs, &choice, &err)); /* preferred, though in a later folder */
    CHECK_EQ(choice.source, PJRT_FROM_LAMMPS);
    CHECK_STR(choice.path, in_root("c/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"));
  }
  setenv("TPU_LIBRARY_PATH", getenv("TTC_FAKE_PLUGIN"), 1);
  OK(pjrt_discover(dirs, &choice, &err));
  CHECK_EQ(choice.source, PJRT_FROM_VARIABLE);
  CHECK_STR(choice.path, getenv("TTC_FAKE_PLUGIN"));
  setenv("TORCH_TPU_PLUGIN", in_root("none.so"), 1); /* comes first, and is never passed over */
  CHECK_EQ(pjrt_discover(dirs, &choice, &err), TTC_NOT_FOUND);
  SAYS("TORCH_TPU_PLUGIN=");
  SAYS("none.so: no such file. Set it to a PJRT plugin's .so, or unset it");
  setenv("TORCH_TPU_PLUGIN", root, 1);
  CHECK_EQ(pjrt_discover(dirs, &choice, &err), TTC_NOT_FOUND);
  SAYS(": not a file.");
  unsetenv("TORCH_TPU_PLUGIN");
  unsetenv("TPU_LIBRARY_PATH");
}

static void test_count_tpus(void) {
  CHECK_EQ(ttc__pjrt_count_tpus(in_root("machine")), 0);
  write_file("machine/sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n", 7);
  write_file("machine/sys/bus/pci/devices/0000:00:02.0/vendor", "0x1ae0\n", 7); /* a network card of the same vendor */
  write_file("machine/sys/bus/pci/devices/0000:00:02.0/class", "0x020000\n", 9);
  write_file("machine/dev/vfio/vfio", "", 0);
  write_file("machine/dev/vfio/0", "", 0);
  CHECK_EQ(ttc__pjrt_count_tpus(in_root("machine")), 0);
  write_file("machine/sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n", 7);
  write_file("machine/sys/bus/pci/devices/0000:00:04.0/class", "0x120000\n", 9);
  write_file("machine/sys/bus/pci/devices/0000:00:05.0/vendor", "0x1ae0\n", 7);
  CHECK_EQ(ttc__pjrt_count_tpus(in_root("machine")), 1); /* two chips, one given to us */
  write_file("machine/dev/vfio/1", "", 0);
  CHECK_EQ(ttc__pjrt_count_tpus(in_root("machine")), 2);
  write_file("machine/dev/accel0", "", 0);
  CHECK_EQ(ttc__pjrt_count_tpus(in_root("machine")), 1);
}

/* ---- loading */

static void test_load_errors(void) {
  pjrt_plugin *p = NULL;
  CHECK_EQ(pjrt_plugin_load("", &p, &err), TTC_INVALID_ARGUMENT);
  CHECK_EQ(pjrt_plugin_load(in_root("none.so"), &p, &err), TTC_NOT_FOUND);
  SAYS("No such file");
  CHECK_EQ(pjrt_plugin_load(root, &p, &err), TTC_INVALID_ARGUMENT);
  SAYS("is a directory");
  write_file("garbage.so", "not an ELF file, not at all", 27);
  CHECK_EQ(pjrt_plugin_load(in_root("garbage.so"), &p, &err), TTC_INVALID_ARGUMENT);
  SAYS("cannot be loaded as a PJRT plugin");
  for (long n = 1; n < 10000; n *= 3) { /* cut short */
    CHECK(pjrt_plugin_load(copy_plugin("short.so", n), &p, &err) != TTC_OK);
    SAYS(n < 64 ? "cannot be loaded" : "is cut short");
  }
  Dl_info libc;
  CHECK(dladdr((void *)(uintptr_t)&getenv, &libc) != 0); /* some shared library that is no plugin */
  CHECK_EQ(pjrt_plugin_load(libc.dli_fname, &p, &err), TTC_INVALID_ARGUMENT);
  SAYS("GetPjrtApi");
  CHECK(p == NULL);
}

static void check_version(const char *major, const char *minor, ttc_status expected, const char *says) {
  static int n;
  char name[32];
  pjrt_plugin *p = NULL;
  snprintf(name, sizeof name, "version%d.so", n++);
  setenv("FAKE_PLUGIN_MAJOR", major, 1);
  setenv("FAKE_PLUGIN_MINOR", minor, 1);
  CHECK_EQ(pjrt_plugin_load(copy_plugin(name, LONG_MAX), &p, &err), expected);
  unsetenv("FAKE_PLUGIN_MAJOR");
  unsetenv("FAKE_PLUGIN_MINOR");
  if (expected != TTC_OK) {
    SAYS(says);
    CHECK(p == NULL);
    return;
  }
  /* An older plugin has no CreateUninitializedBuffer: zeros from the host instead. */
  pjrt_client *c = NULL;
  pjrt_buffer *b = NULL;
  const int64_t dims[1] = {5};
  unsigned char back[5] = {1, 1, 1, 1, 1};
  OK(pjrt_client_new(p, 1, &c, &err));
  OK(pjrt_buffer_new(c, 0, TTC_U8, 1, dims, &b, &err));
  OK(pjrt_buffer_to_host(c, b, 0, 5, back, &err));
  CHECK_EQ(back[0] == 0 && back[4] == 0, !PJRT_HAS(p, PJRT_Client_CreateUninitializedBuffer));
  pjrt_buffer_free(c, b);
  pjrt_client_free(c);
  pjrt_client_free(NULL);
}

static void test_versions(void) {
  check_version("1", "81", TTC_FAILED_PRECONDITION, "speaks PJRT 1.81");
  check_version("0", "53", TTC_FAILED_PRECONDITION, "speaks PJRT 0.53, which is too old");
  check_version("0", "54", TTC_OK, NULL);
  check_version("0", "4000", TTC_OK, NULL);
}

static pjrt_plugin *load_fake(void) {
  pjrt_plugin *p = NULL, *same = NULL;
  const char *path = copy_plugin("fake.so", LONG_MAX);
  setenv("TF_CPP_MIN_LOG_LEVEL", "1", 1);
  OK(pjrt_plugin_load(path, &p, &err));
  CHECK_STR(getenv("TF_CPP_MIN_LOG_LEVEL"), "1");
  OK(pjrt_plugin_load(path, &same, &err));
  CHECK(p == same && p != NULL);
  int major = -1, minor = -1;
  pjrt_plugin_version(p, &major, &minor);
  CHECK_EQ(major, PJRT_API_MAJOR);
  CHECK_EQ(minor, PJRT_API_MINOR);
  void *library = dlopen(pjrt_plugin_path(p), RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != NULL);
  *(void **)(&live) = dlsym(library, "fake_plugin_live");
  *(void **)(&fail) = dlsym(library, "fake_plugin_fail");
  *(void **)(&count) = dlsym(library, "fake_plugin_count");
  return p;
}

/* ---- client, programs, buffers */

static void test_client(pjrt_plugin *p) {
  pjrt_client *c = NULL;
  CHECK_EQ(pjrt_client_new(p, 0, &c, &err), TTC_INVALID_ARGUMENT);
  OK(pjrt_client_new(p, 3, &c, &err));
  CHECK_EQ(pjrt_client_ndevice(c), 3);
  ttc_device_info info;
  pjrt_client_info(c, &info);
  CHECK_STR(info.platform, "cpu");
  CHECK_STR(info.platform_version, "fake 1");
  CHECK_STR(info.device_kind, "fake chip");
  CHECK_STR(info.plugin_path, pjrt_plugin_path(p));
  CHECK_EQ(info.memory_limit_nbyte, 1 << 30);
  CHECK(info.simulated);
  pjrt_client_free(c);
  setenv("FAKE_PLUGIN_STRICT", "1", 1);
  OK(pjrt_client_new(p, 3, &c, &err)); /* the option is dropped */
  CHECK_EQ(pjrt_client_ndevice(c), 4);
  pjrt_client_free(c);
  unsetenv("FAKE_PLUGIN_STRICT");
  CHECK(pjrt_client_new(p, 99, &c, &err) != TTC_OK);
  SAYS("PJRT_Client_Create: bad device count");
  CHECK_EQ(err.message[strlen(err.message) - 1], 't'); /* the plugin's line end is gone */
  CHECK_EQ(live(), 0);
}

/* Everything once on device 1, from a client to freeing it. The first failure, with nothing left behind. */
static ttc_status scenario(pjrt_plugin *p) {
  static const float host[6] = {1, 2, 3, 4, 5, 6};
  const int64_t dims[2] = {2, 3}, keep = 0, step = 7;
  pjrt_client *c = NULL;
  pjrt_exe *e = NULL, *twin = NULL;
  pjrt_buffer *args[2] = {NULL, NULL}, *outs[2] = {NULL, NULL}, *more[2] = {NULL, NULL}, *blank = NULL;
  char *bytes = NULL;
  size_t nbyte = 0;
  float back[6] = {0};
  ttc_status s = pjrt_client_new(p, 2, &c, &err);
  s = s ? s : pjrt_compile(c, 1, twice, sizeof twice - 1, NULL, &e, &err);
  s = s ? s : pjrt_buffer_from_host(c, 1, TTC_F32, 2, dims, host, &args[0], &err);
  s = s ? s : pjrt_buffer_from_host(c, 1, TTC_S64, 0, NULL, &step, &args[1], &err);
  s = s ? s : pjrt_buffer_new(c, 1, TTC_F32, 2, dims, &blank, &err);
  s = s ? s : pjrt_execute(e, args, 2, &keep, 1, outs, &err);
  s = s ? s : pjrt_buffer_await(c, outs[0], &err);
  s = s ? s : pjrt_buffer_to_host(c, args[0], 4, 8, back, &err);
  CHECK(s || (back[0] == 2.0f && back[1] == 3.0f));
  s = s ? s : pjrt_buffer_to_host(c, args[0], 0, sizeof back, back, &err);
  CHECK(s || memcmp(back, host, sizeof host) == 0);
  s = s ? s : pjrt_exe_serialize(e, &bytes, &nbyte, &err);
  s = s ? s : pjrt_exe_deserialize(c, 1, bytes, nbyte, &twin, &err);
  s = s ? s : pjrt_execute(twin, args, 2, NULL, 0, more, &err);
  free(bytes);
  pjrt_buffer *all[] = {args[0], args[1], outs[0], outs[1], more[0], more[1], blank};
  for (size_t i = 0; c != NULL && i < sizeof all / sizeof *all; i++) {
    pjrt_buffer_free(c, all[i]);
  }
  pjrt_exe_free(e);
  pjrt_exe_free(twin);
  pjrt_client_free(c);
  return s;
}

/* The nth call fails, for every n: an error that says so (unless it was a call that frees), and nothing alive afterwards. */
static void sweep(pjrt_plugin *p) {
  long before = count("any");
  fail(NULL, 0);
  OK(scenario(p));
  CHECK_EQ(live(), 0);
  long calls = count("any") - before, failed = 0;
  CHECK(calls > 20);
  for (long n = 1; n <= calls; n++) {
    err.message[0] = '\0';
    fail("any", n);
    if (scenario(p) != TTC_OK) {
      failed++;
      SAYS("made to fail: PJRT_");
      CHECK(strncmp(err.message, "PJRT_", 5) == 0);
      CHECK_EQ(err.code, TTC_INTERNAL);
    }
    CHECK_EQ(live(), 0);
  }
  fail(NULL, 0);
  CHECK(failed > 15);
}

static void test_failures(pjrt_plugin *p) {
  sweep(p);
  setenv("FAKE_PLUGIN_PLATFORM", "tpu", 1); /* the same with contents read by copying */
  long copies = count("PJRT_Buffer_ToHostBuffer");
  sweep(p);
  CHECK(count("PJRT_Buffer_ToHostBuffer") > copies);
  unsetenv("FAKE_PLUGIN_PLATFORM");
  CHECK_EQ(count("PJRT_No_Such_Call"), -1);
}

static bool deleted(const pjrt_client *c, pjrt_buffer *b) {
  PJRT_Buffer_IsDeleted_Args args = {.buffer = ttc__pjrt_raw(b)};
  OK(PJRT_CALL(c->plugin, PJRT_Buffer_IsDeleted, &args, &err));
  return args.is_deleted;
}

static void test_execute(pjrt_plugin *p) {
  pjrt_client *c = NULL;
  pjrt_exe *e = NULL;
  const int64_t dims[2] = {2, 3}, keep = 0, step = 7;
  const float host[6] = {0};
  float back[8];
  pjrt_buffer *args[2] = {NULL, NULL}, *outs[2] = {NULL, NULL};
  OK(pjrt_client_new(p, 2, &c, &err));
  CHECK_EQ(pjrt_compile(c, 0, "nonsense", 8, NULL, &e, &err), TTC_INVALID_ARGUMENT);
  SAYS("PJRT_Client_Compile: no @main");
  CHECK_EQ(pjrt_exe_deserialize(c, 0, "nonsense", 8, &e, &err), TTC_INVALID_ARGUMENT);
  const char *const flags[] = {"a=1", "b=true", NULL}, *const bad[] = {"=1", NULL};
  CHECK_EQ(pjrt_compile(c, 0, twice, sizeof twice - 1, bad, &e, &err), TTC_INVALID_ARGUMENT);
  OK(pjrt_compile(c, 0, twice, sizeof twice - 1, flags, &e, &err));
  CHECK_EQ(pjrt_exe_nout(e), 2);
  OK(pjrt_buffer_from_host(c, 0, TTC_F32, 2, dims, host, &args[0], &err));
  OK(pjrt_buffer_from_host(c, 0, TTC_S64, 0, NULL, &step, &args[1], &err));
  CHECK_EQ(pjrt_execute(e, args, 1, NULL, 0, outs, &err), TTC_INVALID_ARGUMENT);
  CHECK(outs[0] == NULL && outs[1] == NULL);
  OK(pjrt_execute(e, args, 2, &keep, 1, outs, &err));
  CHECK(!deleted(c, args[0]));
  size_t nbyte = 0;
  OK(pjrt_buffer_nbyte(c, outs[0], &nbyte, &err));
  CHECK_EQ(nbyte, 32); /* 4 of complex<f32> */
  OK(pjrt_buffer_to_host(c, outs[0], 0, 32, back, &err));
  CHECK(back[0] == 0.0f && back[7] == 0.0f);
  CHECK_EQ(pjrt_buffer_to_host(c, outs[0], 28, 8, back, &err), TTC_OUT_OF_RANGE);
  CHECK_EQ(pjrt_buffer_to_host(c, outs[0], SIZE_MAX, 8, back, &err), TTC_OUT_OF_RANGE);
  fail("PJRT_Event_Await", 1); /* a computation that failed shows when it is awaited */
  CHECK_EQ(pjrt_buffer_await(c, outs[0], &err), TTC_INTERNAL);
  SAYS("PJRT_Event_Await");
  pjrt_buffer_free(c, outs[0]);
  pjrt_buffer_free(c, outs[1]);
  OK(pjrt_execute(e, args, 2, NULL, 0, outs, &err));
  CHECK(deleted(c, args[0]) && !deleted(c, args[1]));
  CHECK(pjrt_buffer_await(c, args[0], &err) != TTC_OK);
  CHECK(pjrt_buffer_to_host(c, args[0], 0, 4, back, &err) != TTC_OK);
  pjrt_buffer *untouched[2] = {NULL, NULL};
  CHECK_EQ(pjrt_execute(e, args, 2, NULL, 0, untouched, &err), TTC_INVALID_ARGUMENT);
  CHECK(untouched[0] == NULL);
  for (int i = 0; i < 2; i++) {
    pjrt_buffer_free(c, args[i]);
    pjrt_buffer_free(c, outs[i]);
  }
  pjrt_exe_free(e);
  pjrt_exe_free(NULL);
  pjrt_client_free(c);
  CHECK_EQ(live(), 0);
}

static void check_dtype(const pjrt_plugin *p, pjrt_client *c, ttc_dtype d, size_t nbyte) {
  const int64_t dims[3] = {2, 3, 1}, none[2] = {0, 4};
  unsigned char in[96], back[96] = {0};
  pjrt_buffer *b = NULL;
  size_t n = 0;
  for (size_t i = 0; i < sizeof in; i++) {
    in[i] = (unsigned char)(i * 37 + (size_t)d);
  }
  OK(pjrt_buffer_from_host(c, 0, d, 3, dims, in, &b, &err));
  OK(pjrt_buffer_nbyte(c, b, &n, &err));
  CHECK_EQ(n, 6 * nbyte);
  OK(pjrt_buffer_to_host(c, b, 0, n, back, &err));
  CHECK(memcmp(in, back, n) == 0);
  OK(pjrt_buffer_to_host(c, b, nbyte, nbyte, back, &err));
  CHECK(memcmp(in + nbyte, back, nbyte) == 0);
  pjrt_buffer_free(c, b);
  OK(pjrt_buffer_from_host(c, 0, d, 2, none, NULL, &b, &err));
  OK(pjrt_buffer_to_host(c, b, 0, 0, NULL, &err));
  pjrt_buffer_free(c, b);
  CHECK(p == c->plugin);
}

static void test_dtypes(pjrt_plugin *p) {
  for (int copying = 0; copying < 2; copying++) {
    pjrt_client *c = NULL;
    if (copying) {
      setenv("FAKE_PLUGIN_PLATFORM", "tpu", 1);
    }
    OK(pjrt_client_new(p, 1, &c, &err));
    CHECK_EQ(c->on_host, !copying);
#define CHECK_DTYPE(dtype, name, mlir, nbyte, class, pjrt) check_dtype(p, c, dtype, nbyte);
    TTC__DTYPES(CHECK_DTYPE)
#undef CHECK_DTYPE
    pjrt_buffer_free(c, NULL);
    pjrt_client_free(c);
    unsetenv("FAKE_PLUGIN_PLATFORM");
  }
  CHECK_EQ(live(), 0);
}

int main(void) {
  const char *tmp = getenv("TMPDIR");
  snprintf(root, sizeof root, "%s/ttc_pjrt_XXXXXX", tmp == NULL ? P_tmpdir : tmp);
  if (getenv("TTC_FAKE_PLUGIN") == NULL) {
    printf("1 skipped: TTC_FAKE_PLUGIN does not name the fake plugin (ctest sets it)\n");
    return 0;
  }
  if (mkdtemp(root) == NULL) {
    perror(root);
    return 1;
  }
  test_discover();
  test_count_tpus();
  test_load_errors();
  test_versions();
  pjrt_plugin *p = load_fake();
  if (p != NULL && live != NULL && fail != NULL && count != NULL) {
    test_client(p);
    test_failures(p);
    test_execute(p);
    test_dtypes(p);
  }
  char command[600];
  snprintf(command, sizeof command, "rm -r '%s'", root);
  CHECK_EQ(system(command), 0);
  return CHECK_DONE();
}
