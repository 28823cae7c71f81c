/* Family "rnn": the fused cells PyTorch asks of a device for nn.LSTM and nn.GRU. The matrix products are done before; a cell gets
 * the input's and the hidden state's gates [B, G·H] and does the pointwise rest.
 *
 * The workspace is the device's own affair: LSTM keeps the activated gates i, f, g, o [B, 4H]; GRU keeps r, z, n, the hidden state
 * h and the hidden part of the new gate hn [B, 5H]. */
#include "op/window.h"

/* The k-th of the gates [B, n·H]. */
static ttc_val gate(shlo *b, ttc_val gates, int64_t h, int k) {
  return ttc__take_strided(b, gates, 1, k * h, h, 1);
}

static ttc_val sigmoid(shlo *b, ttc_val x) {
  return shlo_1(b, SHLO_LOGISTIC, x);
}

/* d(sigmoid)/dx and d(tanh)/dx by the function's value. */
static ttc_val dsigmoid(shlo *b, ttc_val y) {
  return shlo_mul(b, y, shlo_sub(b, shlo_const_like(b, y, 1), y));
}
static ttc_val dtanh(shlo *b, ttc_val y) {
  return shlo_sub(b, shlo_const_like(b, y, 1), shlo_mul(b, y, y));
}

/* Argument i plus the bias [G·H] that may be at ibias. */
static ttc_val biased(shlo *b, ttc_lower *c, int i, int ibias, ttc_dtype d) {
  ttc_val v = op_in_as(c, i, d);
  return op_given(c, ibias) ? shlo_add(b, v, op_in_as(c, ibias, d)) : v;
}

static ttc_val or_zeros(shlo *b, ttc_lower *c, int i, int like, ttc_dtype d) {
  return op_given(c, i) ? op_in_as(c, i, d) : shlo_const_f(b, d, 0, op_in_ndim(c, like), op_in_sizes(c, like));
}

/* aten::_thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias) -> hy, cy, workspace */
static void lower_lstm(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  int64_t h = op_in_dim(c, 2, 1);
  ttc_val sum = shlo_add(b, biased(b, c, 0, 3, d), biased(b, c, 1, 4, d));
  ttc_val i = sigmoid(b, gate(b, sum, h, 0)), f = sigmoid(b, gate(b, sum, h, 1));
  ttc_val g = shlo_1(b, SHLO_TANH, gate(b, sum, h, 2)), o = sigmoid(b, gate(b, sum, h, 3));
  ttc_val cy = shlo_add(b, shlo_mul(b, f, op_in_as(c, 2, d)), shlo_mul(b, i, g));
  ttc_val parts[4] = {i, f, g, o};
  op_ret(c, 0, shlo_mul(b, o, shlo_1(b, SHLO_TANH, cy)));
  op_ret(c, 1, cy);
  op_ret(c, 2, shlo_concat(b, 4, parts, 1));
}

/* aten::_thnn_fused_lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, workspace, has_bias) -> grad_gates, grad_cx, grad_bias */
static void lower_lstm_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 4));
  const int batch = 0;
  int64_t h = op_in_dim(c, 2, 1);
  ttc_val gh = or_zeros(b, c, 0, 2, d), gc = or_zeros(b, c, 1, 2, d), ws = op_in_as(c, 4, d), cx = op_in_as(c, 2, d);
  ttc_val i = gate(b, ws, h, 0), f = gate(b, ws, h, 1), g = gate(b, ws, h, 2), o = gate(b, ws, h, 3);
  ttc_val t = shlo_1(b, SHLO_TANH, op_in_as(c, 3, d));
  gc = shlo_add(b, gc, shlo_mul(b, shlo_mul(b, gh, o), dtanh(b, t)));
  ttc_val parts[4] = {shlo_mul(b, shlo_mul(b, gc, g), dsigmoid(b, i)), shlo_mul(b, shlo_mul(b, gc, cx), dsigmoid(b, f)),
                      shlo_mul(b, shlo_mul(b, gc, i), dtanh(b, g)), shlo_mul(b, shlo_mul(b, gh, t), dsigmoid(b, o))};
  ttc_val gates = shlo_concat(b, 4, parts, 1);
  op_ret(c, 0, gates);
  op_ret(c, 1, shlo_mul(b, gc, f));
  if (op_bool(c, 5)) {
    op_ret(c, 2, shlo_reduce(b, SHLO_SUM, gates, 1, &batch));
  }
}

/* aten::_thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias) -> hy, workspace
 * r = σ(ir + hr), z = σ(iz + hz), n = tanh(in + r·hn), hy = n + z·(hx - n) */
static void lower_gru(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  int64_t h = op_in_dim(c, 2, 1);
  ttc_val x = biased(b, c, 0, 3, d), y = biased(b, c, 1, 4, d), hx = op_in_as(c, 2, d);
  ttc_val r = sigmoid(b, shlo_add(b, gate(b, x, h, 0), gate(b, y, h, 0)));
  ttc_val z = sigmoid(b, shlo_add(b, gate(b, x, h, 1), gate(b, y, h, 1)));
  ttc_val hn = gate(b, y, h, 2), n = shlo_1(b, SHLO_TANH, shlo_add(b, gate(b, x, h, 2), shlo_mul(b, r, hn)));
  ttc_val parts[5] = {r, z, n, hx, hn};
  op_ret(c, 0, shlo_add(b, n, shlo_mul(b, z, shlo_sub(b, hx, n))));
  op_ret(c, 1, shlo_concat(b, 5, parts, 1));
}

/* aten::_thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias)
 * -> grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias, grad_hidden_bias */
static void lower_gru_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  const int batch = 0;
  int64_t h = op_in_dim(c, 0, 1);
  ttc_val gy = op_in_as(c, 0, d), ws = op_in_as(c, 1, d);
  ttc_val r = gate(b, ws, h, 0), z = gate(b, ws, h, 1), n = gate(b, ws, h, 2), hx = gate(b, ws, h, 3), hn = gate(b, ws, h, 4);
  ttc_val gz = shlo_mul(b, shlo_mul(b, gy, shlo_sub(b, hx, n)), dsigmoid(b, z));
  ttc_val gn = shlo_mul(b, shlo_mul(b, gy, shlo_sub(b, shlo_const_like(b, z, 1), z)), dtanh(b, n));
  ttc_val gr = shlo_mul(b, shlo_mul(b, gn, hn), dsigmoid(b, r));
  ttc_val in[3] = {gr, gz, gn}, hidden[3] = {gr, gz, shlo_mul(b, gn, r)};
  ttc_val gi = shlo_concat(b, 3, in, 1), gh = shlo_concat(b, 3, hidden, 1);
  op_ret(c, 0, gi);
  op_ret(c, 1, gh);
  op_ret(c, 2, shlo_mul(b, gy, z));
  if (op_bool(c, 2)) {
    op_ret(c, 3, shlo_reduce(b, SHLO_SUM, gi, 1, &batch));
    op_ret(c, 4, shlo_reduce(b, SHLO_SUM, gh, 1, &batch));
  }
}

/* ---- results: PyTorch has no Meta kernels for the GRU cell, and one for the LSTM cell that wants biases */

static void dense_spec(ttc_spec *s, ttc_dtype dtype, int ndim, int64_t d0, int64_t d1) {
  *s = (ttc_spec){.dtype = dtype, .ndim = ndim, .sizes = {d0, d1}};
  ttc__dense_strides(ndim, s->sizes, s->strides);
}

static ttc_status infer_lstm(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 5 || max < 3 || a[2].kind != TTC_ARG_TENSOR || a[2].tensor->ndim != 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_thnn_fused_lstm_cell: expected a 2-d cell state");
  }
  const ttc_tensor *cx = a[2].tensor;
  for (int k = 0; k < 3; k++) {
    dense_spec(&specs[k], (ttc_dtype)cx->dtype, 2, cx->sizes[0], (k == 2 ? 4 : 1) * cx->sizes[1]);
  }
  *nout = 3;
  return TTC_OK;
}

static ttc_status infer_lstm_backward(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 6 || max < 3 || a[2].kind != TTC_ARG_TENSOR || a[2].tensor->ndim != 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_thnn_fused_lstm_cell_backward_impl: expected a 2-d cell state");
  }
  const ttc_tensor *cx = a[2].tensor;
  ttc_dtype d = (ttc_dtype)cx->dtype;
  dense_spec(&specs[0], d, 2, cx->sizes[0], 4 * cx->sizes[1]);
  dense_spec(&specs[1], d, 2, cx->sizes[0], cx->sizes[1]);
  dense_spec(&specs[2], a[5].i ? d : TTC_DTYPE_INVALID, 1, 4 * cx->sizes[1], 0);
  *nout = 3;
  return TTC_OK;
}

static ttc_status infer_gru(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 5 || max < 2 || a[2].kind != TTC_ARG_TENSOR || a[2].tensor->ndim != 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_thnn_fused_gru_cell: expected a 2-d hidden state");
  }
  const ttc_tensor *hx = a[2].tensor;
  dense_spec(&specs[0], (ttc_dtype)hx->dtype, 2, hx->sizes[0], hx->sizes[1]);
  dense_spec(&specs[1], (ttc_dtype)hx->dtype, 2, hx->sizes[0], 5 * hx->sizes[1]);
  *nout = 2;
  return TTC_OK;
}

static ttc_status infer_gru_backward(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 3 || max < 5 || a[0].kind != TTC_ARG_TENSOR || a[0].tensor->ndim != 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_thnn_fused_gru_cell_backward: expected a 2-d gradient");
  }
  const ttc_tensor *g = a[0].tensor;
  ttc_dtype d = (ttc_dtype)g->dtype;
  int64_t n = g->sizes[0], h = g->sizes[1];
  dense_spec(&specs[0], d, 2, n, 3 * h);
  dense_spec(&specs[1], d, 2, n, 3 * h);
  dense_spec(&specs[2], d, 2, n, h);
  for (int k = 3; k < 5; k++) {
    dense_spec(&specs[k], a[2].i ? d : TTC_DTYPE_INVALID, 1, 3 * h, 0);
  }
  *nout = 5;
  return TTC_OK;
}

const ttc_op_row ttc__rnn_rows[] = {
    {"_thnn_fused_lstm_cell", lower_lstm, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_lstm, NULL, 0, PAD_CANNOT},
    {"_thnn_fused_lstm_cell_backward_impl", lower_lstm_backward, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_lstm_backward, NULL, 0,
     PAD_CANNOT},
    {"_thnn_fused_gru_cell", lower_gru, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_gru, NULL, 0, PAD_CANNOT},
    {"_thnn_fused_gru_cell_backward", lower_gru_backward, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_gru_backward, NULL, 0, PAD_CANNOT},
};
TTC_FAMILY(rnn)
