/* Which calls share a plan: sharing one that must not be shared gives wrong numbers in silence, and not sharing one that could be
 * costs a compile. Each pair has sizes of its own, so that no pair meets another's plans. */
#include "run_tools.h"

static int64_t n = 10; /* a size nobody has had */

static bool defined(const what *w) {
  ten out = {0};
  OK(run(w, &out));
  if (out.store != NULL) {
    ttc_store_release(out.store);
  }
  return !was_hit;
}

/* Run a, then b: does b have a's plan? */
static bool share(const what *a, const what *b) {
  CHECK(defined(a));
  CHECK(!defined(a));
  return !defined(b);
}

static what add_of(const ten *a, const ten *b, double alpha) {
  what w = {.op = "add.Tensor", .spec = dense(a->dtype, a->ndim, a->sizes)};
  tensor_arg(&w, a);
  tensor_arg(&w, b);
  number_arg(&w, alpha);
  return w;
}

/* A what holds pointers into itself: point them anew after a copy. */
static void settle(what *w) {
  uint32_t t = 0, s = 0;
  for (uint32_t i = 0; i < w->narg; i++) {
    if (w->args[i].kind == TTC_ARG_TENSOR || w->args[i].kind == TTC_ARG_TENSORS) {
      w->args[i].tensor = &w->tensors[t];
      t += w->args[i].n;
    } else if (w->args[i].kind == TTC_ARG_SCALAR || w->args[i].kind == TTC_ARG_SCALARS) {
      w->args[i].scalar = &w->numbers[s];
      s += w->args[i].n;
    }
  }
}
#define ADD(w, a, b, alpha)           \
  what w = add_of((a), (b), (alpha)); \
  settle(&w)

static void test_tensors(void) {
  ten a = empty(TTC_F32, DIMS(++n, 4)), b = empty(TTC_F32, a.ndim, a.sizes), wide = empty(TTC_F64, a.ndim, a.sizes);
  ten longer = empty(TTC_F32, DIMS(n, 5));
  ADD(ab, &a, &b, 2);
  ADD(ba, &b, &a, 2);
  CHECK(share(&ab, &ba)); /* which stores they are does not matter */
  ADD(aa, &a, &a, 2);
  CHECK(defined(&aa)); /* one store twice */
  ADD(bb, &b, &b, 2);
  CHECK(!defined(&bb));
  ADD(aw, &a, &wide, 2);
  aw.spec.dtype = TTC_F64;
  CHECK(defined(&aw));
  ADD(wa, &wide, &a, 2);
  CHECK(defined(&wa));
  ADD(ll, &longer, &longer, 2);
  CHECK(defined(&ll));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(wide.store);
  ttc_store_release(longer.store);
}

static void test_views(void) {
  n += 2;
  n += n % 2;
  ten base = empty(TTC_F32, DIMS(n, n)), other = empty(TTC_F32, DIMS(n, n)), one = empty(TTC_F32, DIMS(1));
  const int64_t dense1[] = {1}, every[] = {n}, second[] = {2};
  ten row0 = view(&base, 0, DIMS(n), dense1), row1 = view(&base, n, DIMS(n), dense1), column = view(&base, 0, DIMS(n), every);
  ten skipping = view(&base, 0, DIMS(n), second), of_other = view(&other, n, DIMS(n), dense1);
  ADD(r0, &row0, &one, 2);
  ADD(r1, &row1, &one, 2);
  ADD(c, &column, &one, 2);
  ADD(k, &skipping, &one, 2);
  ADD(o, &of_other, &one, 2);
  CHECK(!share(&r0, &r1)); /* another offset */
  CHECK(!defined(&o));     /* the same view of another such base */
  CHECK(defined(&c));      /* another stride */
  CHECK(defined(&k));
  ten flat = empty(TTC_F32, DIMS(n * n)), same = view(&flat, 0, DIMS(n), dense1);
  ADD(f, &same, &one, 2);
  CHECK(defined(&f)); /* the same view of another base */
  ten alone = empty(TTC_F32, DIMS(n));
  ADD(w, &alone, &one, 2);
  CHECK(defined(&w)); /* a base of its own */
  ADD(two, &row0, &row1, 2);
  CHECK(defined(&two));
  ten elsewhere = view(&other, n, DIMS(n), dense1);
  ADD(apart, &row0, &elsewhere, 2);
  CHECK(defined(&apart)); /* the same views, but of two stores */
  ten integers = view(&base, 0, DIMS(n), dense1);
  integers.dtype = TTC_S32;
  ADD(i, &integers, &one, 2);
  i.spec.dtype = TTC_F32;
  CHECK(defined(&i)); /* the same bytes as another dtype */
  ttc_store_release(base.store);
  ttc_store_release(other.store);
  ttc_store_release(one.store);
  ttc_store_release(flat.store);
  ttc_store_release(alone.store);
}

static void test_numbers(void) {
  ten a = empty(TTC_F32, DIMS(++n)), b = empty(TTC_F32, DIMS(n));
  ADD(two, &a, &b, 2);
  ADD(three, &a, &b, 3);
  ADD(one, &a, &b, 1);
  ADD(zero, &a, &b, 0);
  CHECK(share(&two, &three)); /* runtime numbers */
  CHECK(defined(&one));       /* but alpha = 1 is a program of its own, */
  CHECK(defined(&zero));      /* and so is 0 */
  ADD(integer, &a, &b, 2);
  integer.numbers[0] = (ttc_scalar){.kind = TTC_SCALAR_INT, .wrapped = 1, .i = 2};
  CHECK(defined(&integer)); /* kinds decide about promotion */
  ADD(firm, &a, &b, 2);
  firm.numbers[0].dtype = TTC_F64;
  firm.numbers[0].wrapped = 0;
  CHECK(defined(&firm)); /* a 0-d tensor's number is not a Python number */

  /* pow.Tensor_Scalar's exponent is static. */
  what p = {.op = "pow.Tensor_Scalar", .spec = dense(TTC_F32, DIMS(n))}, q;
  tensor_arg(&p, &a);
  number_arg(&p, 2.5);
  q = p;
  settle(&q);
  q.numbers[0].re = 3.5;
  CHECK(!share(&p, &q));

  /* An absent optional. clamp(x, min, max) */
  what c = {.op = "clamp", .spec = dense(TTC_F32, DIMS(n))}, d;
  tensor_arg(&c, &a);
  number_arg(&c, -1);
  number_arg(&c, 1);
  d = c;
  settle(&d);
  d.args[2] = (ttc_arg){.kind = TTC_ARG_NONE};
  CHECK(!share(&c, &d));
  what e = c;
  settle(&e);
  e.args[1] = (ttc_arg){.kind = TTC_ARG_NONE};
  e.numbers[1].re = -1;
  CHECK(defined(&e)); /* the other is absent */
  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

static void test_into(void) {
  ten a = empty(TTC_F32, DIMS(++n)), b = empty(TTC_F32, DIMS(n)), c = empty(TTC_F32, DIMS(n)), d = empty(TTC_F64, DIMS(n));
  ADD(fresh, &a, &b, 2);
  ADD(into_a, &a, &b, 2);
  into_a.into = &a;
  CHECK(!share(&fresh, &into_a));
  ADD(into_c, &a, &b, 2);
  into_c.into = &c;
  CHECK(defined(&into_c)); /* out= elsewhere is not in place */
  ADD(into_b, &a, &b, 2);
  into_b.into = &b;
  CHECK(defined(&into_b));
  ADD(swapped, &b, &a, 2);
  swapped.into = &b;
  CHECK(!defined(&swapped)); /* the pattern is what counts */
  ADD(into_d, &a, &b, 2);
  into_d.into = &d;
  CHECK(defined(&into_d)); /* converted on the way */
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(c.store);
  ttc_store_release(d.store);
}

static void test_tensor_lists(void) {
  ten a = empty(TTC_F32, DIMS(2, ++n, 3)), b = empty(TTC_F32, a.ndim, a.sizes);
  const int64_t ten_rows[] = {4, n, 3};
  what two = {.op = "cat", .narg = 2, .ntensor = 2, .spec = dense(TTC_F32, 3, ten_rows)}, again, three, along;
  two.tensors[0] = as_arg(&a);
  two.tensors[1] = as_arg(&b);
  two.args[0] = (ttc_arg){.kind = TTC_ARG_TENSORS, .n = 2, .tensor = two.tensors};
  two.args[1] = (ttc_arg){.kind = TTC_ARG_INT, .i = 0};
  again = two;
  settle(&again);
  again.tensors[1] = as_arg(&a); /* one store twice */
  CHECK(!share(&two, &again));
  three = two;
  settle(&three);
  three.args[0].n = 3;
  three.tensors[2] = as_arg(&b);
  three.spec = dense(TTC_F32, DIMS(6, n, 3));
  CHECK(defined(&three)); /* another length */
  along = two;
  settle(&along);
  along.args[1].i = 2; /* a static int */
  along.spec = dense(TTC_F32, DIMS(2, n, 6));
  CHECK(defined(&along));

  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

static void test_ints(void) {
  ten a = empty(TTC_F32, DIMS(2, ++n, 3));
  /* sum.dim_IntList(x, int[] dim, bool keepdim, dtype) */
  int64_t dims[2] = {0, 2};
  what s = {.op = "sum.dim_IntList", .spec = dense(TTC_F32, DIMS(n))}, t;
  tensor_arg(&s, &a);
  s.args[s.narg++] = (ttc_arg){.kind = TTC_ARG_INTS, .n = 2, .ints = dims};
  s.args[s.narg++] = (ttc_arg){.kind = TTC_ARG_BOOL, .i = 0};
  s.args[s.narg++] = (ttc_arg){.kind = TTC_ARG_NONE};
  t = s;
  settle(&t);
  t.args[1].n = 1;
  t.spec = dense(TTC_F32, DIMS(n, 3));
  CHECK(!share(&s, &t));
  t.args[3] = (ttc_arg){.kind = TTC_ARG_DTYPE, .i = TTC_F64};
  t.spec.dtype = TTC_F64;
  CHECK(defined(&t));
  t.args[1].ints = &dims[1];
  t.spec = dense(TTC_F64, DIMS(2, n));
  CHECK(defined(&t));
  ttc_store_release(a.store);
}

static void test_strings(void) {
  ten a = empty(TTC_F32, DIMS(++n)), b = empty(TTC_F32, DIMS(n));
  what d = {.op = "div.Tensor_mode", .spec = dense(TTC_F32, DIMS(n))}, e;
  tensor_arg(&d, &a);
  tensor_arg(&d, &b);
  d.args[d.narg++] = (ttc_arg){.kind = TTC_ARG_STRING, .n = 5, .str = "floor"};
  e = d;
  settle(&e);
  e.args[2].str = "trunc";
  CHECK(!share(&d, &e));
  e.args[2] = (ttc_arg){.kind = TTC_ARG_NONE};
  CHECK(defined(&e));
  char own[] = "floor and more";
  e.args[2] = (ttc_arg){.kind = TTC_ARG_STRING, .n = 5, .str = own};
  CHECK(!defined(&e)); /* the same text from elsewhere */
  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

/* State of the process that programs depend on. */
static void test_precision(void) {
  ten a = empty(TTC_F32, DIMS(++n)), b = empty(TTC_F32, DIMS(n));
  ADD(w, &a, &b, 2);
  CHECK(defined(&w));
  ttc_set_matmul_precision(2);
  CHECK(defined(&w));
  ttc_set_matmul_precision(0);
  CHECK(!defined(&w));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

/* A store without dtype and shape takes those of the tensor that first overwrites it whole. */
static void test_adopted_shape(void) {
  ten a = empty(TTC_F32, DIMS(++n, 2)), b = empty(TTC_F32, a.ndim, a.sizes);
  ten flat = empty_flat(ten_nbyte(&a), TTC_F32, a.ndim, a.sizes);
  ADD(typed, &a, &b, 2);
  typed.into = &b;
  ADD(untyped, &a, &flat, 2);
  untyped.into = &flat;
  CHECK(share(&typed, &untyped));
  CHECK(!defined(&untyped));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(flat.store);
}

int main(void) {
  open_fake();
  test_tensors();
  test_views();
  test_numbers();
  test_into();
  if (ttc_op_find("cat") != UINT32_MAX) {
    test_tensor_lists();
  } else {
    printf("skipped 1: there is no cat\n");
  }
  test_ints();
  test_strings();
  test_precision();
  test_adopted_shape();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  return CHECK_DONE();
}
