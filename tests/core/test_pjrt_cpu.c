/* src/pjrt against a real XLA:CPU plugin; skipped without one. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/lock.h"
#include "check.h"
#include "pjrt/call.h"
#include "real_plugin.h"

static pjrt_client *client;
static ttc_error err;

/* CHECK that a call worked, with its message if not. */
#define OK(call)                                       \
  do {                                                 \
    bool ok_ = (call) == TTC_OK;                       \
    if (!ok_) {                                        \
      fprintf(stderr, "%s: %s\n", #call, err.message); \
    }                                                  \
    CHECK(ok_);                                        \
  } while (0)

static const char add16[] =
    "module @add {\n"
    "  func.func public @main(%a: tensor<16xf32>, %b: tensor<16xf32>) -> tensor<16xf32> {\n"
    "    %0 = stablehlo.add %a, %b : tensor<16xf32>\n    return %0 : tensor<16xf32>\n  }\n}\n";

/* The first argument's memory becomes the result's. */
static const char donating[] =
    "module @donate {\n"
    "  func.func public @main(%a: tensor<1024xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<1024xf32>) -> tensor<1024xf32> {\n"
    "    %0 = stablehlo.add %a, %b : tensor<1024xf32>\n    return %0 : tensor<1024xf32>\n  }\n}\n";

static long resident_kb(void) {
  long pages = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f != NULL) {
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) {
      resident = 0;
    }
    fclose(f);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static pjrt_exe *compile(const char *text) {
  pjrt_exe *e = NULL;
  OK(pjrt_compile(client, 0, text, strlen(text), NULL, &e, &err));
  return e;
}

static pjrt_buffer *ramp(int64_t n, float start) {
  float host[1024];
  pjrt_buffer *b = NULL;
  for (int64_t i = 0; i < n; i++) {
    host[i] = start + (float)i;
  }
  OK(pjrt_buffer_from_host(client, 0, TTC_F32, 1, &n, host, &b, &err));
  return b;
}

static uintptr_t address(pjrt_buffer *b) {
  PJRT_Buffer_UnsafePointer_Args at = {.buffer = ttc__pjrt_raw(b)};
  OK(PJRT_CALL(client->plugin, PJRT_Buffer_UnsafePointer, &at, &err));
  return at.buffer_pointer;
}

static bool deleted(pjrt_buffer *b) {
  PJRT_Buffer_IsDeleted_Args args = {.buffer = ttc__pjrt_raw(b)};
  OK(PJRT_CALL(client->plugin, PJRT_Buffer_IsDeleted, &args, &err));
  return args.is_deleted;
}

static void check_sum(pjrt_exe *e) {
  pjrt_buffer *args[2] = {ramp(16, 1.0f), ramp(16, 100.0f)}, *out = NULL;
  float host[16] = {0};
  CHECK_EQ(pjrt_exe_nout(e), 1);
  OK(pjrt_execute(e, args, 2, NULL, 0, &out, &err));
  OK(pjrt_buffer_to_host(client, out, 0, sizeof host, host, &err));
  for (int i = 0; i < 16; i++) {
    CHECK(host[i] == 101.0f + 2.0f * (float)i);
  }
  OK(pjrt_buffer_to_host(client, out, 8, 8, host, &err)); /* elements 2 and 3 */
  CHECK(host[0] == 105.0f && host[1] == 107.0f);
  CHECK_EQ(pjrt_buffer_to_host(client, out, 60, 8, host, &err), TTC_OUT_OF_RANGE);
  size_t nbyte = 0;
  OK(pjrt_buffer_nbyte(client, out, &nbyte, &err));
  CHECK_EQ(nbyte, 64);
  pjrt_buffer_free(client, args[0]);
  pjrt_buffer_free(client, args[1]);
  pjrt_buffer_free(client, out);
}

static void test_add(void) {
  pjrt_exe *e = compile(add16);
  check_sum(e);
  pjrt_exe_free(e);
}

static void test_donation(void) {
  pjrt_exe *e = compile(donating);
  pjrt_buffer *args[2] = {ramp(1024, 0.0f), ramp(1024, 1.0f)}, *out = NULL;
  uintptr_t before = address(args[0]);
  int64_t keep = 0;
  OK(pjrt_execute(e, args, 2, &keep, 1, &out, &err)); /* kept: a copy */
  OK(pjrt_buffer_await(client, out, &err));
  CHECK(address(out) != before && !deleted(args[0]));
  pjrt_buffer_free(client, out);
  OK(pjrt_execute(e, args, 2, NULL, 0, &out, &err));
  float host[4];
  OK(pjrt_buffer_to_host(client, out, 0, sizeof host, host, &err));
  CHECK(host[0] == 1.0f && host[3] == 7.0f);
  CHECK(address(out) == before);
  CHECK(deleted(args[0]));
  pjrt_buffer *again = NULL;
  CHECK(pjrt_execute(e, args, 2, NULL, 0, &again, &err) != TTC_OK && again == NULL);
  CHECK(pjrt_buffer_to_host(client, args[0], 0, 4, host, &err) != TTC_OK);
  pjrt_buffer_free(client, args[0]);
  pjrt_buffer_free(client, args[1]);
  pjrt_buffer_free(client, out);
  pjrt_exe_free(e);
}

static void check_dtype(ttc_dtype d, const char *mlir, size_t nbyte) {
  char text[512];
  unsigned char in[6 * 16], back[6 * 16] = {0};
  const int64_t dims[2] = {2, 3};
  /* transposed twice by the program, so that the plugin really knows the type */
  snprintf(text, sizeof text,
           "module @t { func.func public @main(%%a: tensor<2x3x%s>) -> tensor<3x2x%s> {\n"
           " %%0 = stablehlo.transpose %%a, dims = [1, 0] : (tensor<2x3x%s>) -> tensor<3x2x%s>\n return %%0 : tensor<3x2x%s> } }",
           mlir, mlir, mlir, mlir, mlir);
  for (size_t i = 0; i < 6 * nbyte; i++) {
    in[i] = d == TTC_BOOL ? (unsigned char)(i % 2) : (unsigned char)(i + 1);
  }
  pjrt_exe *e = compile(text);
  pjrt_buffer *arg = NULL, *out = NULL;
  OK(pjrt_buffer_from_host(client, 0, d, 2, dims, in, &arg, &err));
  OK(pjrt_execute(e, &arg, 1, NULL, 0, &out, &err));
  OK(pjrt_buffer_to_host(client, out, 0, 6 * nbyte, back, &err));
  bool same = true;
  for (size_t i = 0; i < 6; i++) { /* element (i / 3, i % 3) is now at (i % 3, i / 3) */
    same = same && memcmp(back + ((i % 3) * 2 + i / 3) * nbyte, in + i * nbyte, nbyte) == 0;
  }
  CHECK(same);
  pjrt_buffer_free(client, arg);
  pjrt_buffer_free(client, out);
  pjrt_exe_free(e);
}

static void test_dtypes(void) {
#define CHECK_DTYPE(dtype, name, mlir, nbyte, class, pjrt) check_dtype(dtype, mlir, nbyte);
  TTC__DTYPES(CHECK_DTYPE)
#undef CHECK_DTYPE
}

static void test_shapes(void) {
  const int64_t none[2] = {3, 0}, negative = -1, huge[3] = {INT64_MAX, INT64_MAX, 4};
  pjrt_buffer *b = NULL;
  float host = 2.5f, back = 0;
  size_t nbyte = 99;
  OK(pjrt_buffer_from_host(client, 0, TTC_F32, 0, NULL, &host, &b, &err)); /* 0-d */
  OK(pjrt_buffer_to_host(client, b, 0, 4, &back, &err));
  CHECK(back == 2.5f);
  pjrt_buffer_free(client, b);
  OK(pjrt_buffer_from_host(client, 0, TTC_F32, 2, none, NULL, &b, &err)); /* empty */
  OK(pjrt_buffer_nbyte(client, b, &nbyte, &err));
  CHECK_EQ(nbyte, 0);
  OK(pjrt_buffer_to_host(client, b, 0, 0, NULL, &err));
  pjrt_buffer_free(client, b);
  OK(pjrt_buffer_new(client, 0, TTC_BF16, 2, none, &b, &err));
  OK(pjrt_buffer_await(client, b, &err));
  pjrt_buffer_free(client, b);
  const int64_t some[2] = {3, 5};
  OK(pjrt_buffer_new(client, 0, TTC_C128, 2, some, &b, &err));
  OK(pjrt_buffer_nbyte(client, b, &nbyte, &err));
  CHECK_EQ(nbyte, 240);
  pjrt_buffer_free(client, b);
  b = NULL;
  CHECK_EQ(pjrt_buffer_new(client, 0, TTC_F32, 1, &negative, &b, &err), TTC_INVALID_ARGUMENT);
  CHECK_EQ(pjrt_buffer_new(client, 0, TTC_F32, 3, huge, &b, &err), TTC_RESOURCE_EXHAUSTED);
  CHECK_EQ(pjrt_buffer_new(client, 7, TTC_F32, 0, NULL, &b, &err), TTC_INVALID_ARGUMENT);
  CHECK_EQ(pjrt_buffer_new(client, 0, TTC_DTYPE_INVALID, 0, NULL, &b, &err), TTC_INVALID_ARGUMENT);
  CHECK(b == NULL);
  pjrt_exe *e = compile(
      "module @e { func.func public @main(%a: tensor<3x0xf32>) -> tensor<0x3xf32> {\n"
      " %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<3x0xf32>) -> tensor<0x3xf32>\n return %0 : tensor<0x3xf32> } }");
  pjrt_buffer *out = NULL;
  OK(pjrt_buffer_from_host(client, 0, TTC_F32, 2, none, NULL, &b, &err));
  OK(pjrt_execute(e, &b, 1, NULL, 0, &out, &err));
  OK(pjrt_buffer_to_host(client, out, 0, 0, NULL, &err));
  pjrt_buffer_free(client, b);
  pjrt_buffer_free(client, out);
  pjrt_exe_free(e);
}

static void test_errors(void) {
  pjrt_exe *e = NULL;
  CHECK(pjrt_compile(client, 0, "garbage", 7, NULL, &e, &err) != TTC_OK);
  CHECK(strncmp(err.message, "PJRT_Client_Compile: ", 21) == 0);
  CHECK(pjrt_compile(client, 0, "", 0, NULL, &e, &err) != TTC_OK);
  CHECK_EQ(pjrt_compile(client, 9, add16, sizeof add16 - 1, NULL, &e, &err), TTC_INVALID_ARGUMENT);
  const char *const unknown[] = {"no_such_flag=1", NULL}, *const malformed[] = {"flag", NULL};
  CHECK(pjrt_compile(client, 0, add16, sizeof add16 - 1, unknown, &e, &err) != TTC_OK);
  CHECK(strstr(err.message, "no_such_flag") != NULL);
  CHECK_EQ(pjrt_compile(client, 0, add16, sizeof add16 - 1, malformed, &e, &err), TTC_INVALID_ARGUMENT);
  CHECK(pjrt_exe_deserialize(client, 0, "garbage", 7, &e, &err) != TTC_OK);
  CHECK(e == NULL);
  const char *const flags[] = {"xla_backend_optimization_level=1", "xla_cpu_enable_fast_math=false", NULL};
  OK(pjrt_compile(client, 0, add16, sizeof add16 - 1, flags, &e, &err));
  check_sum(e);
  pjrt_buffer *arg = ramp(16, 0.0f), *out = NULL;
  CHECK(pjrt_execute(e, &arg, 1, NULL, 0, &out, &err) != TTC_OK && out == NULL);
  CHECK(strncmp(err.message, "PJRT_LoadedExecutable_Execute: ", 31) == 0);
  pjrt_buffer_free(client, arg);
  pjrt_exe_free(e);
}

static void test_serialize(void) {
  pjrt_exe *e = compile(add16), *twin = NULL;
  char *bytes = NULL;
  size_t nbyte = 0;
  OK(pjrt_exe_serialize(e, &bytes, &nbyte, &err));
  CHECK(nbyte > 0);
  pjrt_exe_free(e);
  OK(pjrt_exe_deserialize(client, 0, bytes, nbyte, &twin, &err));
  check_sum(twin);
  pjrt_exe_free(twin);
  free(bytes);
}

/* Programs run on the device they were compiled or loaded for, also when their bytes come from another one. */
static void test_devices(pjrt_plugin *plugin) {
  pjrt_client *two = NULL;
  pjrt_exe *e = NULL, *moved = NULL;
  pjrt_buffer *args[2] = {NULL, NULL}, *out = NULL;
  const int64_t n = 16;
  float host[16] = {1.0f}, back[16];
  char *bytes = NULL;
  size_t nbyte = 0;
  OK(pjrt_client_new(plugin, 2, &two, &err));
  CHECK_EQ(pjrt_client_ndevice(two), 2);
  OK(pjrt_compile(two, 1, add16, sizeof add16 - 1, NULL, &e, &err));
  for (int i = 0; i < 2; i++) {
    OK(pjrt_buffer_from_host(two, 1, TTC_F32, 1, &n, host, &args[i], &err));
  }
  OK(pjrt_execute(e, args, 2, NULL, 0, &out, &err));
  OK(pjrt_buffer_to_host(two, out, 0, sizeof back, back, &err));
  CHECK(back[0] == 2.0f && back[1] == 0.0f);
  pjrt_buffer_free(two, out);
  OK(pjrt_exe_serialize(e, &bytes, &nbyte, &err));
  pjrt_exe_free(e);
  OK(pjrt_compile(two, 0, add16, sizeof add16 - 1, NULL, &e, &err));
  CHECK(pjrt_execute(e, args, 2, NULL, 0, &out, &err) != TTC_OK); /* buffers of device 1 */
  pjrt_exe_free(e);
  OK(pjrt_exe_deserialize(client, 0, bytes, nbyte, &moved, &err));
  check_sum(moved);
  pjrt_exe_free(moved);
  free(bytes);
  pjrt_buffer_free(two, args[0]);
  pjrt_buffer_free(two, args[1]);
  pjrt_client_free(two);
}

/* A result too large to be computed within the launch: reads wait for it. */
static void test_waiting(void) {
  enum { N = 512 };
  pjrt_exe *e = compile(
      "module @mm { func.func public @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {\n"
      " %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>)"
      " -> tensor<512x512xf32>\n return %0 : tensor<512x512xf32> } }");
  const int64_t dims[2] = {N, N};
  float *host = malloc(sizeof(float) * N * N), last = 0;
  pjrt_buffer *arg = NULL, *out = NULL;
  for (int i = 0; host != NULL && i < N * N; i++) {
    host[i] = 1.25f;
  }
  OK(pjrt_buffer_from_host(client, 0, TTC_F32, 2, dims, host, &arg, &err));
  free(host); /* ours again */
  for (int i = 0; i < 20; i++) {
    OK(pjrt_execute(e, &arg, 1, NULL, 0, &out, &err));
    OK(pjrt_buffer_to_host(client, out, sizeof(float) * (N * N - 1), sizeof last, &last, &err));
    CHECK(last == 800.0f); /* 512 * 1.25 * 1.25 */
    pjrt_buffer_free(client, out);
    OK(pjrt_execute(e, &arg, 1, NULL, 0, &out, &err));
    pjrt_buffer_free(client, out); /* while it is being computed */
  }
  pjrt_buffer_free(client, arg);
  pjrt_exe_free(e);
}

static void *work(void *failures) {
  ttc_error own;
  float host[16] = {3.0f}, back[16];
  const int64_t n = 16;
  for (int round = 0; round < 3; round++) {
    pjrt_exe *e = NULL;
    bool ok = pjrt_compile(client, 0, add16, sizeof add16 - 1, NULL, &e, &own) == TTC_OK;
    for (int i = 0; ok && i < 500; i++) {
      pjrt_buffer *args[2] = {NULL, NULL}, *out = NULL;
      ok = pjrt_buffer_from_host(client, 0, TTC_F32, 1, &n, host, &args[0], &own) == TTC_OK;
      args[1] = args[0];
      ok = ok && pjrt_execute(e, args, 2, NULL, 0, &out, &own) == TTC_OK &&
           pjrt_buffer_to_host(client, out, 0, sizeof back, back, &own) == TTC_OK && back[0] == 6.0f;
      pjrt_buffer_free(client, args[0]);
      pjrt_buffer_free(client, out);
    }
    pjrt_exe_free(e);
    *(int *)failures += !ok;
  }
  return NULL;
}

/* Compiling, launching and reading from several threads at once. */
static void test_threads(void) {
  pthread_t threads[3];
  int failures[3] = {0};
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, work, &failures[i]), 0);
  }
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    CHECK_EQ(failures[i], 0);
  }
}

static void test_speed(void) {
  enum { WARM = 2000, N = 100000 };
  pjrt_exe *e = compile(add16);
  pjrt_buffer *args[2] = {ramp(16, 1.0f), ramp(16, 100.0f)};
  bool ok = true;
  long before = 0;
  int64_t start = 0, best = INT64_MAX;
  for (int i = 0; i < WARM + N; i++) {
    if (i == WARM) {
      before = resident_kb();
      start = ttc__now_ns();
    }
    pjrt_buffer *out = NULL;
    int64_t t = ttc__now_ns();
    ok = pjrt_execute(e, args, 2, NULL, 0, &out, &err) == TTC_OK && ok;
    pjrt_buffer_free(client, out);
    t = ttc__now_ns() - t;
    best = t < best ? t : best;
  }
  int64_t mean = (ttc__now_ns() - start) / N;
  long growth = resident_kb() - before;
  CHECK(ok);
  float host[16];
  start = ttc__now_ns();
  for (int i = 0; i < N / 10; i++) {
    ok = pjrt_buffer_to_host(client, args[0], 0, sizeof host, host, &err) == TTC_OK && ok;
  }
  int64_t read = (ttc__now_ns() - start) / (N / 10);
  CHECK(ok);
  printf(
      "execute and free, 16 f32: mean %lld ns, least %lld ns; read 64 bytes: mean %lld ns; %d executes grew the process by %ld "
      "kB\n",
      (long long)mean, (long long)best, (long long)read, N, growth);
#if !defined(__SANITIZE_ADDRESS__) /* its quarantine keeps freed memory */
  CHECK(growth < 2048);
#endif
  pjrt_buffer_free(client, args[0]);
  pjrt_buffer_free(client, args[1]);
  pjrt_exe_free(e);
}

int main(void) {
  char path[1024];
  pjrt_plugin *plugin = NULL, *same = NULL;
  if (!find_plugin(path, sizeof path)) {
    return 0;
  }
  OK(pjrt_plugin_load(path, &plugin, &err));
  if (plugin == NULL) {
    return CHECK_DONE();
  }
  OK(pjrt_plugin_load(path, &same, &err));
  CHECK(same == plugin);
  CHECK_EQ(pjrt_client_new(plugin, 0, &client, &err), TTC_INVALID_ARGUMENT);
  OK(pjrt_client_new(plugin, 1, &client, &err));
  ttc_device_info info;
  pjrt_client_info(client, &info);
  printf("%s\n%s, %s, %s, PJRT %d.%d, %lld bytes\n", info.plugin_path, info.platform, info.platform_version, info.device_kind,
         info.pjrt_api_major, info.pjrt_api_minor, (long long)info.memory_limit_nbyte);
  CHECK_STR(info.platform, "cpu");
  CHECK(info.simulated && info.memory_limit_nbyte > 0 && info.device_kind[0] != '\0');
  CHECK_EQ(pjrt_client_ndevice(client), 1);
  test_add();
  test_donation();
  test_dtypes();
  test_shapes();
  test_errors();
  test_serialize();
  test_devices(plugin);
  test_waiting();
  test_threads();
  test_speed();
  pjrt_client_free(client);
  return CHECK_DONE();
}
