/* Graphs through ttc.h on the fake plugin: built, run, keyed, and refused. Their values are tested in test_run_cpu.c. */
#include "run_tools.h"

static ttc_tensor value(int32_t id, const ten *like) {
  ttc_tensor t = as_arg(like);
  t.store = NULL;
  t.value = id;
  return t;
}

/* x + k·y as one node; its value id in *id. */
static ttc_status node_add(ttc_graph *g, const ten *like, int32_t x, int32_t y, ttc_scalar k, int32_t *id) {
  ttc_tensor t[2] = {value(x, like), value(y, like)};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[0]},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[1]},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &k}};
  ttc_call call = {.op = ttc_op_find("add.Tensor"), .narg = 3, .args = args};
  ttc_spec spec = dense(TTC_F32, like->ndim, like->sizes);
  return ttc_graph_node(g, &call, 1, &spec, id, &err);
}

static const ttc_scalar two = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 2};

static ttc_status run_graph(uint32_t op, uint32_t narg, const ttc_arg *args, uint32_t nout, const ttc_spec *specs,
                            ttc_result *res) {
  ttc_call call = {.op = op, .narg = narg, .args = args};
  ttc_status st = ttc_call_run(dev, &call, res, &err);
  was_hit = st == TTC_OK;
  return st == TTC_NOT_FOUND ? ttc_call_define(dev, &call, nout, specs, res, &err) : st;
}

/* (x, y, k) -> x + 2y, (x + 2y) + k·y: three parameters, one program. */
static void test_build_and_run(void) {
  ten x = empty(TTC_F32, DIMS(3, 4)), y = empty(TTC_F32, DIMS(3, 4)), longer = empty(TTC_F32, DIMS(3, 5));
  float host[12] = {0};
  ttc_spec spec = dense(TTC_F32, DIMS(3, 4)), specs[2] = {spec, spec};
  ttc_graph *g = ttc_graph_new("two adds");
  int32_t gx = ttc_graph_input(g, &spec), gy = ttc_graph_input(g, &spec), gk = ttc_graph_input_scalar(g, TTC_SCALAR_FLOAT);
  int32_t outs[2];
  OK(node_add(g, &x, gx, gy, two, &outs[0]));
  OK(node_add(g, &x, outs[0], gy, (ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 2, .i = gk}, &outs[1]));
  uint32_t op = 0;
  OK(ttc_graph_finish(g, 2, outs, &op, &err));

  OK(put(&x, host));
  OK(put(&y, host));
  ttc_tensor tx = as_arg(&x), ty = as_arg(&y);
  ttc_scalar k = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 3};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &tx},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &ty},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &k}};
  ttc_result res;
  long launches = fake_count("PJRT_LoadedExecutable_Execute");
  for (int i = 0; i < 2; i++) {
    OK(run_graph(op, 3, args, 2, specs, &res));
    CHECK_EQ(was_hit, i);
    CHECK_EQ(res.nout, 2);
    for (int j = 0; j < 2; j++) {
      ten out = of_spec(res.stores[j], &res.specs[j]);
      OK(get(&out, host));
      ttc_store_release(res.stores[j]);
    }
    ttc_result_done(&res);
    k.re = 4; /* a runtime number */
  }
  CHECK_EQ(fake_count("PJRT_LoadedExecutable_Execute") - launches, 2);

  /* What does not fit the graph is an error at the call. */
  CHECK(run_graph(op, 2, args, 2, specs, &res) != TTC_OK);
  args[2] = args[0];
  CHECK(run_graph(op, 3, args, 2, specs, &res) != TTC_OK);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
  ttc_store_release(longer.store);
}

static void test_refused(void) {
  ten x = empty(TTC_F32, DIMS(3));
  ttc_spec spec = dense(TTC_F32, DIMS(3));
  ttc_graph *g = ttc_graph_new("refused");
  int32_t gx = ttc_graph_input(g, &spec), id = -7;
  uint32_t op = 99;
  IS(node_add(g, &x, gx, 5, two, &id), TTC_INVALID_ARGUMENT); /* not made yet */
  IS(node_add(g, &x, -3, gx, two, &id), TTC_INVALID_ARGUMENT);
  CHECK_EQ(id, -7);
  IS(ttc_graph_finish(g, 1, &id, &op, &err), TTC_INVALID_ARGUMENT);
  id = 1;
  IS(ttc_graph_finish(g, 1, &id, &op, &err), TTC_INVALID_ARGUMENT);
  CHECK_EQ(op, 99);

  ttc_tensor t = value(gx, &x);
  ttc_scalar from = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 2}, to = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 1};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &from},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &to}};
  ttc_call call = {.op = ttc_op_find("uniform"), .narg = 3, .args = args};
  IS(ttc_graph_node(g, &call, 1, &spec, &id, &err), TTC_UNIMPLEMENTED); /* from > to */
  call.narg = 1;
  call.op = 1u << 30;
  IS(ttc_graph_node(g, &call, 1, &spec, &id, &err), TTC_INVALID_ARGUMENT);
  call.op = ttc_op_find("neg");
  const ttc_tensor *into[1] = {&t};
  call.ninto = 1;
  call.into = into;
  IS(ttc_graph_node(g, &call, 1, &spec, &id, &err), TTC_INVALID_ARGUMENT); /* in place */

  /* Refusals leave the graph as it was. */
  OK(node_add(g, &x, gx, gx, two, &id));
  OK(ttc_graph_finish(g, 1, &id, &op, &err));
  ttc_store_release(x.store);
  ttc_graph_free(ttc_graph_new("never finished"));
}

/* A graph within a graph. */
static void test_nested(void) {
  ten x = empty(TTC_F32, DIMS(6));
  float host[6] = {0};
  ttc_spec spec = dense(TTC_F32, DIMS(6));
  ttc_graph *inner = ttc_graph_new("inner"), *outer = ttc_graph_new("outer");
  int32_t in = ttc_graph_input(inner, &spec), id, mid;
  uint32_t inner_op = 0, outer_op = 0;
  OK(node_add(inner, &x, in, in, two, &id));
  OK(ttc_graph_finish(inner, 1, &id, &inner_op, &err));
  in = ttc_graph_input(outer, &spec);
  ttc_tensor t = value(in, &x);
  ttc_arg args[1] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t}};
  ttc_call call = {.op = inner_op, .narg = 1, .args = args};
  OK(ttc_graph_node(outer, &call, 1, &spec, &mid, &err));
  OK(node_add(outer, &x, mid, in, two, &id));
  OK(ttc_graph_finish(outer, 1, &id, &outer_op, &err));
  OK(put(&x, host));
  t = as_arg(&x);
  ttc_result res;
  OK(run_graph(outer_op, 1, args, 1, &spec, &res));
  ten out = of_spec(res.stores[0], &res.specs[0]);
  OK(get(&out, host));
  ttc_store_release(out.store);
  ttc_result_done(&res);
  ttc_store_release(x.store);
}

/* Nodes that draw random numbers take their shares of the graph's, in order; numbers given at run time are not looked at. */
static void test_random(void) {
  ten x = empty(TTC_F32, DIMS(6));
  ttc_spec spec = dense(TTC_F32, DIMS(6));
  ttc_graph *g = ttc_graph_new("random");
  int32_t in = ttc_graph_input(g, &spec), number = ttc_graph_input_scalar(g, TTC_SCALAR_FLOAT), ids[2];
  ttc_scalar zero = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1}, one = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 1};
  ttc_scalar open = {.kind = TTC_SCALAR_FLOAT, .wrapped = 2, .i = number, .re = 0};
  ttc_tensor t = value(in, &x);
  ttc_arg node[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &one},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &zero}};
  ttc_call call = {.op = ttc_op_find("cauchy"), .narg = 3, .args = node};
  node[1].scalar = &zero;
  node[2].scalar = &open; /* 0 would be refused */
  CHECK_EQ(ttc_graph_random(g), 0);
  for (int k = 0; k < 2; k++) {
    OK(ttc_graph_node(g, &call, 1, &spec, &ids[k], &err));
    CHECK_EQ(ttc_graph_random(g), (k + 1) * 12);
  }
  CHECK_EQ(ttc_call_random(&call), 12);
  uint32_t op = 0;
  OK(ttc_graph_finish(g, 2, ids, &op, &err));

  float host[6] = {0};
  OK(put(&x, host));
  t = as_arg(&x);
  uint64_t words[2] = {7, 100};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &one},
                     {.kind = TTC_ARG_RNG, .n = 2, .rng = words}};
  ttc_spec specs[2] = {spec, spec};
  ttc_result res;
  IS(run_graph(op, 2, args, 2, specs, &res), TTC_UNIMPLEMENTED);
  for (int i = 0; i < 2; i++) {
    OK(run_graph(op, 3, args, 2, specs, &res));
    CHECK_EQ(was_hit, i); /* seed and offset are in no key */
    words[1] += 24;
    ttc_store_release(res.stores[0]);
    ttc_store_release(res.stores[1]);
    ttc_result_done(&res);
  }
  ttc_store_release(x.store);
}

int main(void) {
  open_fake();
  test_build_and_run();
  test_refused();
  test_random();
  test_nested();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  return CHECK_DONE();
}
