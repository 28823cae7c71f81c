/* Connectionist temporal classification (Graves et al. 2006): the probability of a label sequence summed over all alignments of it
 * to T frames. The rows of the table are in loss.c.
 *
 * log_probs [T, B, C]. Labels of a sample with blanks between them and around: L = 2 S + 1 places l(s), of which 2 t + 1 count for
 * a sample with t labels. alpha [B, T, L]: log-probability of all ways to be at place s in frame t, given the frames up to t; beta
 * the same of all ways to go on from there, frame t included. A loop over frames turns the array of log_probs[t, b, l(s)] into
 * alphas (betas) in place. Lengths are tensors: a new batch is no new program. */
#include "op/ctc.h"

#include <math.h>

#include "op/elem.h"
#include "op/reduce.h"

typedef struct ctc {
  ttc_dtype d;
  int64_t frames, batch, classes, places, blank; /* T, B, C, L */
  ttc_val lp;                                    /* [T, B, C] */
  ttc_val labels;                                /* l(s), s64 [B, L] */
  ttc_val emit;                                  /* log_probs[t, b, l(s)], [T, B, L] */
  ttc_val skips;                                 /* bool [B, L]: place s may follow s - 2 */
  ttc_val place;                                 /* s64 [1, L] */
  ttc_val nframe, nlabel;                        /* lengths, s64 [B, 1] */
} ctc;

static ttc_val integer(shlo *b, int64_t v) {
  return shlo_const_i(b, TTC_S64, v, 0, NULL);
}
static ttc_val minus_inf(shlo *b, const ctc *p) {
  return shlo_const_f(b, p->d, -INFINITY, 0, NULL);
}
/* [B, L] moved `by` places along L, `fill` coming in. */
static ttc_val moved(shlo *b, ttc_val x, int64_t by, ttc_val fill) {
  int64_t lo[2] = {0, by}, hi[2] = {0, -by};
  return shlo_pad(b, x, fill, lo, hi, NULL);
}

/* Targets as s64 [B, S]: as given, or one sample's labels after another's. */
static ttc_val targets_of(shlo *b, ttc_lower *c, const ctc *p, int i) {
  ttc_val t = op_in_as(c, i, TTC_S64);
  if (op_in_ndim(c, i) == 2) {
    return t;
  }
  int64_t n = op_in_dim(c, i, 0), square[2] = {p->batch, p->batch}, dims[2] = {p->batch, n};
  if (n == 0) {
    return shlo_const_i(b, TTC_S64, 0, 2, dims);
  }
  const int column = 1, row = 0;
  ttc_val before = shlo_compare(b, SHLO_LT, shlo_iota(b, TTC_S64, 1, 2, square), shlo_iota(b, TTC_S64, 0, 2, square));
  ttc_val lengths = shlo_broadcast_in_dim(b, shlo_reshape(b, p->nlabel, 1, &p->batch), 2, square, &column);
  ttc_val start = shlo_reduce(b, SHLO_SUM, shlo_select(b, before, lengths, integer(b, 0)), 1, &column);
  ttc_val at = shlo_add(b, shlo_broadcast_in_dim(b, start, 2, dims, &row), shlo_iota(b, TTC_S64, 1, 2, dims));
  return shlo_take(b, t, shlo_2(b, SHLO_MIN, at, integer(b, n - 1)), 0);
}

/* blank, t0, blank, t1, .. blank */
static ttc_val with_blanks(shlo *b, const ctc *p, ttc_val targets) {
  int64_t lo[2] = {0, 1}, hi[2] = {0, 1}, between[2] = {0, 1}, dims[2] = {p->batch, p->places};
  if (p->places == 1) {
    return shlo_const_i(b, TTC_S64, p->blank, 2, dims);
  }
  return shlo_pad(b, targets, integer(b, p->blank), lo, hi, between);
}

/* log_probs at `first`, targets, lengths of frames and of targets after it, blank at `iblank`. False: refused. */
static bool load(shlo *b, ttc_lower *c, int first, int iblank, ctc *p) {
  p->d = op_in_dtype(c, first);
  if (p->d != TTC_F32 && p->d != TTC_F64) { /* as on CPU */
    op_refuse(c, "%s of %s", op_name(c), ttc_dtype_name(p->d));
    return false;
  }
  const int64_t *sizes = op_in_sizes(c, first);
  p->frames = sizes[0], p->batch = sizes[1], p->classes = sizes[2];
  p->places = 2 * op_in_dim(c, first + 1, -1) + 1;
  p->blank = op_int(c, iblank, 0);
  int64_t column[2] = {p->batch, 1}, row[2] = {1, p->places};
  p->lp = op_in(c, first);
  p->nframe = shlo_reshape(b, op_in_as(c, first + 2, TTC_S64), 2, column);
  p->nlabel = shlo_reshape(b, op_in_as(c, first + 3, TTC_S64), 2, column);
  p->labels = with_blanks(b, p, targets_of(b, c, p, first + 1));
  p->place = shlo_iota(b, TTC_S64, 1, 2, row);
  ttc_val differs = shlo_compare(b, SHLO_NE, p->labels, moved(b, p->labels, 2, integer(b, p->blank)));
  p->skips = elem_and(b, differs, shlo_compare(b, SHLO_NE, p->labels, integer(b, p->blank)));
  static const shlo_gather_spec spec = {.noffset = 1,
                                        .offset_dims = {0},
                                        .ncollapsed = 1,
                                        .collapsed = {2},
                                        .nbatch = 1,
                                        .operand_batch = {1},
                                        .index_batch = {0},
                                        .nindex = 1,
                                        .index_map = {2},
                                        .index_vector_axis = 2};
  shlo_gather_spec g = spec;
  g.slice_sizes[0] = p->frames, g.slice_sizes[1] = g.slice_sizes[2] = 1;
  p->emit = shlo_gather(b, p->lp, shlo_unsqueeze(b, p->labels, 2), &g);
  return true;
}

/* log(e^x + e^y + e^z) */
static ttc_val log_sum(shlo *b, ttc_val x, ttc_val y, ttc_val z) {
  ttc_val m = shlo_2(b, SHLO_MAX, x, shlo_2(b, SHLO_MAX, y, z));
  m = elem_select_f(b, elem_cmp(b, SHLO_EQ, m, -INFINITY), 0, m);
  ttc_val sum = shlo_1(b, SHLO_EXP, shlo_sub(b, x, m));
  sum = shlo_add(b, sum, shlo_1(b, SHLO_EXP, shlo_sub(b, y, m)));
  sum = shlo_add(b, sum, shlo_1(b, SHLO_EXP, shlo_sub(b, z, m)));
  return shlo_add(b, shlo_1(b, SHLO_LOG, sum), m);
}

/* Loop state: frames done (s32), the last frame's values [B, L], the array [T, B, L] of log-probabilities, replaced in place. */
enum { DONE, LAST, WHOLE, NSTATE };
typedef struct walk {
  const ctc *p;
  bool back;
} walk;

static void frames_left(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const walk *w = ctx;
  out[0] = shlo_compare(b, SHLO_LT, s[DONE], shlo_const_i(b, TTC_S32, w->p->frames, 0, NULL));
}

/* alpha: begins at places 0 and 1 of frame 0. beta: ends at the last two places of the last frame, that is log 1 there. */
static ttc_val step_values(shlo *b, const walk *w, ttc_val frame, ttc_val last) {
  const ctc *p = w->p;
  ttc_val never = minus_inf(b, p), zero = shlo_const_f(b, p->d, 0, 0, NULL);
  ttc_val two = shlo_mul(b, p->nlabel, integer(b, 2));
  if (!w->back) {
    ttc_val skip = shlo_select(b, p->skips, moved(b, last, 2, never), never);
    ttc_val v = log_sum(b, last, moved(b, last, 1, never), skip);
    ttc_val start = elem_and(b, elem_cmp(b, SHLO_LT, p->place, 2), shlo_compare(b, SHLO_LE, p->place, two));
    return shlo_select(b, elem_cmp(b, SHLO_EQ, frame, 0), shlo_select(b, start, zero, never), v);
  }
  ttc_val may = moved(b, p->skips, -2, shlo_const_i(b, TTC_BOOL, 0, 0, NULL));
  ttc_val skip = shlo_select(b, may, moved(b, last, -2, never), never);
  ttc_val v = log_sum(b, last, moved(b, last, -1, never), skip);
  ttc_val end =
      elem_and(b, shlo_compare(b, SHLO_GE, p->place, shlo_sub(b, two, integer(b, 1))), shlo_compare(b, SHLO_LE, p->place, two));
  ttc_val at_end = shlo_compare(b, SHLO_EQ, frame, shlo_sub(b, p->nframe, integer(b, 1)));
  v = shlo_select(b, at_end, shlo_select(b, end, zero, never), v);
  ttc_val counts = elem_and(b, shlo_compare(b, SHLO_LT, frame, p->nframe), shlo_compare(b, SHLO_LE, p->place, two));
  return shlo_select(b, counts, v, never);
}

static void step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const walk *w = ctx;
  const ctc *p = w->p;
  int64_t one[3] = {1, p->batch, p->places}, flat[2] = {p->batch, p->places};
  ttc_val zero = shlo_const_i(b, TTC_S32, 0, 0, NULL), frame = s[DONE];
  if (w->back) {
    frame = shlo_sub(b, shlo_const_i(b, TTC_S32, p->frames - 1, 0, NULL), frame);
  }
  ttc_val at[3] = {frame, zero, zero};
  ttc_val emit = shlo_reshape(b, shlo_dynamic_slice(b, s[WHOLE], at, one), 2, flat);
  ttc_val v = step_values(b, w, shlo_convert(b, frame, TTC_S64), s[LAST]);
  v = shlo_broadcast_to(b, shlo_add(b, v, emit), 2, flat);
  out[DONE] = shlo_add(b, s[DONE], shlo_const_i(b, TTC_S32, 1, 0, NULL));
  out[LAST] = v;
  out[WHOLE] = shlo_dynamic_update_slice(b, s[WHOLE], shlo_reshape(b, v, 3, one), at);
}

static ttc_val run(shlo *b, const ctc *p, bool back) {
  walk w = {p, back};
  int64_t flat[2] = {p->batch, p->places};
  ttc_val init[NSTATE] = {shlo_const_i(b, TTC_S32, 0, 0, NULL), shlo_const_f(b, p->d, -INFINITY, 2, flat), p->emit}, done[NSTATE];
  shlo_while(b, NSTATE, init, frames_left, step, &w, done);
  return done[WHOLE];
}

/* _ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> negative log-likelihood [B], alpha
 */
void ttc__lower_ctc(shlo *b, ttc_lower *c) {
  ctc p;
  if (!load(b, c, 0, 4, &p)) {
    return;
  }
  int64_t all[3] = {p.frames, p.batch, p.places}, each[3] = {1, p.batch, 1}, row[3] = {1, 1, p.places};
  ttc_val alpha = ttc__once(b, run(b, &p, false));
  /* e^alpha at the last two places of each sample's last frame. */
  ttc_val frame = shlo_iota(b, TTC_S64, 0, 3, all), place = shlo_reshape(b, p.place, 3, row);
  ttc_val nframe = shlo_reshape(b, p.nframe, 3, each);
  ttc_val two = shlo_mul(b, shlo_reshape(b, p.nlabel, 3, each), integer(b, 2));
  ttc_val ends =
      elem_and(b, shlo_compare(b, SHLO_GE, place, shlo_sub(b, two, integer(b, 1))), shlo_compare(b, SHLO_LE, place, two));
  ttc_val there = elem_and(b, ends, shlo_compare(b, SHLO_EQ, frame, shlo_sub(b, nframe, integer(b, 1))));
  ttc_val v = shlo_select(b, there, alpha, minus_inf(b, &p));
  ttc__axes ax = {.n = 2, .at = {0, 2}};
  ttc_val m = ttc__reduce_keep(b, SHLO_AMAX, v, &ax);
  m = ttc__once(b, elem_select_f(b, elem_cmp(b, SHLO_EQ, m, -INFINITY), 0, m));
  ttc_val sum = ttc__reduce_keep(b, SHLO_SUM, shlo_1(b, SHLO_EXP, shlo_sub(b, v, m)), &ax);
  ttc_val nll = shlo_1(b, SHLO_NEG, shlo_add(b, shlo_1(b, SHLO_LOG, sum), m));
  /* No frames can only say no labels. */
  ttc_val silent = elem_and(b, elem_cmp(b, SHLO_EQ, nframe, 0), elem_cmp(b, SHLO_EQ, two, 0));
  op_ret(c, 0, shlo_reshape(b, elem_select_f(b, silent, 0, nll), 1, &p.batch));
  const int order[3] = {1, 0, 2};
  op_ret(c, 1, shlo_transpose(b, alpha, order));
}

/* _ctc_loss_backward.Tensor(grad, log_probs, targets, input_lengths, target_lengths, nll, alpha, blank, zero_infinity): with
 * q[t, b, c] the chance of being at a place of class c, e^(alpha + beta + nll - log_probs) summed over its places,
 * (e^log_probs - q) · grad. */
void ttc__lower_ctc_backward(shlo *b, ttc_lower *c) {
  ctc p;
  if (!load(b, c, 1, 7, &p)) {
    return;
  }
  const int order[3] = {1, 0, 2};
  int64_t all[3] = {p.frames, p.batch, p.classes}, each[3] = {1, p.batch, 1};
  ttc_val beta = run(b, &p, true), alpha = shlo_transpose(b, op_in_as(c, 6, p.d), order);
  ttc_val nll = shlo_reshape(b, op_in_as(c, 5, p.d), 3, each), grad = shlo_reshape(b, op_in_as(c, 0, p.d), 3, each);
  ttc_val both = shlo_add(b, alpha, beta), never = minus_inf(b, &p);
  /* Places beyond a sample's last have an alpha, but no beta. */
  ttc_val q = shlo_1(b, SHLO_EXP, shlo_sub(b, shlo_add(b, both, nll), p.emit));
  q = shlo_select(b, shlo_compare(b, SHLO_EQ, beta, never), shlo_const_f(b, p.d, 0, 0, NULL), q);
  const shlo_scatter_spec spec = {.nwindow = 1,
                                  .update_window = {0},
                                  .ninserted = 1,
                                  .inserted = {2},
                                  .nbatch = 1,
                                  .operand_batch = {1},
                                  .index_batch = {0},
                                  .nindex = 1,
                                  .index_map = {2},
                                  .index_vector_axis = 2};
  ttc_val none = shlo_const_f(b, p.d, 0, 3, all);
  q = shlo_scatter(b, SHLO_SCATTER_ADD, none, shlo_unsqueeze(b, p.labels, 2), ttc__once(b, q), &spec);
  ttc_val g = shlo_mul(b, shlo_sub(b, shlo_1(b, SHLO_EXP, p.lp), q), grad);
  g = elem_select_f(b, elem_cmp(b, SHLO_EQ, p.lp, -INFINITY), NAN, g); /* as on CPU: q is taken relative to log_probs */
  ttc_val impossible = elem_cmp(b, SHLO_EQ, nll, INFINITY);
  g = elem_select_f(b, impossible, op_bool(c, 8) ? 0 : NAN, g);
  ttc_val counts = shlo_compare(b, SHLO_LT, shlo_iota(b, TTC_S64, 0, 3, all), shlo_reshape(b, p.nframe, 3, each));
  op_ret(c, 0, shlo_select(b, counts, g, shlo_const_f(b, p.d, 0, 0, NULL)));
}

/* nll [B], alpha [B, T, L] */
ttc_status ttc__infer_ctc(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 6 || max < 2 || a[0].kind != TTC_ARG_TENSOR || a[1].kind != TTC_ARG_TENSOR || a[0].tensor->ndim != 3) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_ctc_loss: expected 3-d log-probabilities and a tensor of targets");
  }
  const ttc_tensor *lp = a[0].tensor, *t = a[1].tensor;
  if (t->ndim != 1 && !(t->ndim == 2 && t->sizes[0] == lp->sizes[1])) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "_ctc_loss: expected targets of 1 axis, or of 2 with the batch first");
  }
  ttc_dtype d = (ttc_dtype)lp->dtype;
  specs[0] = (ttc_spec){.dtype = d, .ndim = 1, .sizes = {lp->sizes[1]}};
  specs[1] = (ttc_spec){.dtype = d, .ndim = 3, .sizes = {lp->sizes[1], lp->sizes[0], 2 * t->sizes[t->ndim - 1] + 1}};
  ttc__spec_dense(&specs[0]);
  ttc__spec_dense(&specs[1]);
  *nout = 2;
  return TTC_OK;
}
