/* Foreign modules as ops through ttc_module.h on the fake plugin: loaded, run, written in place, and refused; and calls as modules.
 */
#include "run_tools.h"
#include "ttc_module.h"

/* (x, count) -> (count + 1 in count's memory, x + x) as far as the fake plugin can tell */
static const char text[] =
    "module @m {\n  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<i64> {tf.aliasing_output = 0 : i32}) -> "
    "(tensor<i64>, tensor<2x3xf32>) {\n    return %arg1, %arg0 : tensor<i64>, tensor<2x3xf32>\n  }\n}\n";
static ttc_spec ins[2], outs[2];
static const int32_t writes[2] = {1, -1};

static ttc_status load(const char *module, size_t nbyte, uint32_t nin, uint32_t nout, const int32_t *into, uint32_t *op) {
  return ttc_module_load("module", module, nbyte, nin, ins, nout, outs, into, op, &err);
}

static ttc_status call(uint32_t op, const ten *x, const ten *count, const ten *into, ttc_result *res) {
  ttc_tensor t[3] = {as_arg(x), as_arg(count), {0}};
  ttc_arg args[2] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[0]}, {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[1]}};
  const ttc_tensor *targets[2] = {NULL, NULL};
  if (into != NULL) {
    t[2] = as_arg(into);
    targets[0] = &t[2];
  }
  ttc_call c = {.op = op, .narg = 2, .args = args, .ninto = 2, .into = targets};
  ttc_status st = ttc_call_run(dev, &c, res, &err);
  was_hit = st == TTC_OK;
  return st == TTC_NOT_FOUND ? ttc_call_define(dev, &c, 2, outs, res, &err) : st;
}

static void test_run(void) {
  ten x = empty(TTC_F32, DIMS(2, 3)), count = empty(TTC_S64, SCALAR), wide = empty(TTC_F32, DIMS(2, 4));
  float host[8] = {0};
  int64_t n = 0;
  uint32_t op = 0;
  OK(load(text, sizeof text - 1, 2, 2, writes, &op));
  OK(put(&x, host));
  OK(put(&count, &n));
  OK(put(&wide, host));
  ttc_result res;
  for (int i = 0; i < 2; i++) {
    OK(call(op, &x, &count, &count, &res));
    CHECK_EQ(was_hit, i);
    CHECK(res.stores[0] == NULL && res.stores[1] != NULL);
    ten out = of_spec(res.stores[1], &res.specs[1]);
    OK(get(&out, host));
    OK(get(&count, &n));
    ttc_store_release(res.stores[1]);
    ttc_result_done(&res);
  }
  CHECK_STR(ttc_last_module(), text);

  /* Views are refused with a code of their own; what is not the module's, with another. */
  int64_t sizes[2] = {2, 3}, strides[2] = {4, 1}, transposed[2] = {1, 2};
  ten part = view(&wide, 0, 2, sizes, strides), turned = view(&x, 0, 2, sizes, transposed), other = empty(TTC_S64, SCALAR);
  IS(call(op, &part, &count, &count, &res), TTC_UNIMPLEMENTED);
  IS(call(op, &turned, &count, &count, &res), TTC_UNIMPLEMENTED);
  IS(call(op, &wide, &count, &count, &res), TTC_INVALID_ARGUMENT);
  IS(call(op, &count, &count, &count, &res), TTC_INVALID_ARGUMENT);
  IS(call(op, &x, &count, NULL, &res), TTC_INVALID_ARGUMENT);
  IS(call(op, &x, &count, &other, &res), TTC_INVALID_ARGUMENT);
  OK(call(op, &x, &count, &count, &res)); /* and it goes on */
  ttc_store_release(res.stores[1]);
  ttc_result_done(&res);
  ttc_store_release(other.store);
  ttc_store_release(x.store);
  ttc_store_release(count.store);
  ttc_store_release(wide.store);
}

static void test_load_refused(void) {
  uint32_t op = 77;
  int32_t twice[2] = {1, 1}, wrong[2] = {0, -1}, none[2] = {-1, -1}, beyond[2] = {2, -1};
  IS(load(text, 0, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  IS(load(text, sizeof text - 1, 2, 0, writes, &op), TTC_INVALID_ARGUMENT);
  IS(load(text, sizeof text - 1, 2, 2, twice, &op), TTC_INVALID_ARGUMENT);
  IS(load(text, sizeof text - 1, 2, 2, wrong, &op), TTC_INVALID_ARGUMENT);
  IS(load(text, sizeof text - 1, 2, 2, beyond, &op), TTC_INVALID_ARGUMENT);
  IS(load(text, sizeof text - 1, 2, 2, none, &op), TTC_INVALID_ARGUMENT); /* it takes memory */
  IS(load(text, sizeof text - 1, 2, 2, NULL, &op), TTC_INVALID_ARGUMENT);
  ttc_spec good = ins[0];
  ins[0].sizes[0] = -1;
  IS(load(text, sizeof text - 1, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  ins[0].sizes[0] = INT64_MAX;
  IS(load(text, sizeof text - 1, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  ins[0] = good;
  ins[0].ndim = TTC_MAX_NDIM + 1;
  IS(load(text, sizeof text - 1, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  ins[0] = good;
  ins[0].dtype = TTC_NDTYPE;
  IS(load(text, sizeof text - 1, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  ins[0] = good;
  ins[0].strides[1] = 2;
  IS(load(text, sizeof text - 1, 2, 2, writes, &op), TTC_INVALID_ARGUMENT);
  ins[0] = good;
  CHECK_EQ(op, 77);
}

/* The compiled program gives other sizes, types or numbers of results than was said: told when a result is read. */
static void test_results_are_compared(void) {
  static const char *const gives[] = {"tensor<i64>, tensor<2x4xf32>", "tensor<i64>, tensor<2x3xf64>", "tensor<i64>, tensor<6xf32>",
                                      "tensor<i64>"};
  ten x = empty(TTC_F32, DIMS(2, 3)), count = empty(TTC_S64, SCALAR);
  float host[6] = {0};
  int64_t n = 0;
  for (size_t i = 0; i < sizeof gives / sizeof *gives; i++) {
    char module[512];
    uint32_t op = 0;
    ttc_result res;
    int len = snprintf(module, sizeof module,
                       "module @m {\n  func.func public @main(%%arg0: tensor<2x3xf32>, %%arg1: tensor<i64>) -> (%s) {\n  }\n}\n",
                       gives[i]);
    OK(load(module, (size_t)len, 2, 2, writes, &op));
    OK(put(&x, host));
    OK(put(&count, &n));
    OK(call(op, &x, &count, &count, &res));
    ten out = of_spec(res.stores[1], &res.specs[1]);
    IS(get(&out, host), i < 3 ? TTC_INVALID_ARGUMENT : TTC_INTERNAL);
    ttc_store_release(res.stores[1]);
    ttc_result_done(&res);
    CHECK(ttc_device_synchronize(dev, &err) == TTC_OK); /* it was told */
  }
  ttc_store_release(x.store);
  ttc_store_release(count.store);
}

/* x[2, 3], unused[4] -> x + x: every tensor is a parameter, the result may take the first's memory. */
static void test_export(void) {
  int64_t four = 4, one = 1;
  ttc_graph *g = ttc_graph_new("exported");
  int32_t x = ttc_graph_input(g, &ins[0]), id = -1;
  (void)ttc_graph_input(g, &ins[1]);
  ttc_tensor t = {.sizes = ins[0].sizes, .strides = ins[0].strides, .value = x, .dtype = TTC_F32, .ndim = 2};
  ttc_scalar k = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 1};
  ttc_arg node[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &k}};
  ttc_call add = {.op = ttc_op_find("add.Tensor"), .narg = 3, .args = node};
  OK(ttc_graph_node(g, &add, 1, ins, &id, &err));
  uint32_t op = 0;
  OK(ttc_graph_finish(g, 1, &id, &op, &err));

  ttc_tensor args[2] = {{.sizes = ins[0].sizes, .strides = ins[0].strides, .value = -2, .dtype = TTC_F32, .ndim = 2},
                        {.sizes = &four, .strides = &one, .value = -2, .dtype = TTC_BF16, .ndim = 1}};
  ttc_arg list[2] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &args[0]}, {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &args[1]}};
  ttc_call c = {.op = op, .narg = 2, .args = list};
  int32_t first = 0;
  char *module = NULL;
  OK(ttc_call_export(&c, 1, ins, &first, 0, &module, &err));
  CHECK(strstr(module,
               "@main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4xbf16>) -> (tensor<2x3xf32>)") != NULL);
  ttc_text_free(module);

  /* Numbers given at run time and random ones make no program that stands alone. */
  node[0].tensor = node[1].tensor = &args[0];
  k.re = 3;
  IS(ttc_call_export(&add, 1, ins, NULL, 0, &module, &err), TTC_UNIMPLEMENTED);
  const uint64_t rng[2] = {1, 2};
  list[1] = (ttc_arg){.kind = TTC_ARG_RNG, .n = 2, .rng = rng};
  IS(ttc_call_export(&c, 1, ins, NULL, 0, &module, &err), TTC_UNIMPLEMENTED);
}

/* Each new plan's module in a file of its own. */
static void test_dump(void) {
  char dir[] = "/tmp/ttc_dump_XXXXXX", path[64];
  CHECK(mkdtemp(dir) != NULL);
  ten x = empty(TTC_F32, DIMS(5, 3)), out = {0};
  float host[15] = {0};
  OK(put(&x, host));
  ttc_set_dump(dir);
  OK(add(&x, &x, 1, NULL, &out));
  ttc_set_dump(NULL);
  snprintf(path, sizeof path, "%s/add.Tensor.000000.mlir", dir);
  FILE *f = fopen(path, "r");
  CHECK(f != NULL && fgets(path, sizeof path, f) != NULL && strstr(path, "module @add_Tensor") != NULL);
  if (f != NULL) {
    fclose(f);
  }
  snprintf(path, sizeof path, "%s/add.Tensor.000000.mlir", dir);
  CHECK_EQ(remove(path), 0);
  CHECK_EQ(remove(dir), 0);
  ttc_store_release(x.store);
  ttc_store_release(out.store);
}

int main(void) {
  open_fake();
  ins[0] = outs[1] = dense(TTC_F32, DIMS(2, 3));
  ins[1] = outs[0] = dense(TTC_S64, SCALAR);
  test_run();
  test_load_refused();
  test_results_are_compared();
  test_export();
  test_dump();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  return CHECK_DONE();
}
