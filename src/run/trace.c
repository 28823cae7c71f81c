/* A trace of what ran: one span a launched program, for profilers. Nothing is noted, and next to nothing paid, unless asked for. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run/run.h"

typedef struct span {
  struct span *next;
  uint64_t tag;
  uint32_t op;
  int64_t launch_ns;
  _Atomic int64_t done_ns; /* 0: not yet */
} span;

struct ttc__trace {
  span *first, **last;
  size_t n;
};

static _Thread_local uint64_t tag;

void ttc_trace_tag(uint64_t t) {
  tag = t;
}
uint64_t ttc__trace_tag(void) {
  return tag;
}

static void came(void *ctx) {
  atomic_store(&((span *)ctx)->done_ns, ttc__now_ns());
}

void ttc__trace_launched(ttc_device *dev, const record *r, pjrt_buffer *const *outs, int64_t launch_ns) {
  span *s = malloc(sizeof *s);
  if (s == NULL) {
    return; /* a gap in the trace */
  }
  *s = (span){.tag = r->tag, .op = r->plan->op, .launch_ns = launch_ns};
  *dev->trace->last = s;
  dev->trace->last = &s->next;
  dev->trace->n++;
  ttc_error ignored;
  pjrt_event *ev;
  if (r->plan->low.nproduct == 0 || pjrt_buffer_event(dev->client, outs[0], &ev, &ignored) != TTC_OK) {
    came(s);
  } else if (pjrt_event_done(dev->client, ev)) {
    came(s);
    pjrt_event_free(dev->client, ev);
  } else {
    pjrt_event_then(dev->client, ev, true, came, s);
  }
}

ttc_status ttc_trace_start(ttc_device *dev, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  struct ttc__trace *t = calloc(1, sizeof *t);
  if (t == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  t->last = &t->first;
  ttc_status st = ttc__compute_all(dev, err); /* what was called before is not part of it */
  if (st == TTC_OK) {
    st = ttc__launch_take(dev, err);
  }
  if (st == TTC_OK && dev->trace != NULL) {
    st = TTC_FAIL(err, TTC_FAILED_PRECONDITION, "tpu:%d is being profiled already", dev->index);
    ttc__lock_drop(&dev->launch);
  } else if (st == TTC_OK) {
    dev->trace = t;
    atomic_store(&dev->tracing, true);
    ttc__lock_drop(&dev->launch);
    return TTC_OK;
  }
  free(t);
  return st;
}

/* A result may be known before the callback for it has run. */
static int64_t when_done(span *s) {
  struct timespec nap = {0, 100000};
  for (int i = 0; i < 10000 && atomic_load(&s->done_ns) == 0; i++) {
    nanosleep(&nap, NULL);
  }
  return atomic_load(&s->done_ns);
}

static int by_done(const void *a, const void *b) {
  const ttc_span *x = a, *y = b;
  return (x->done_ns > y->done_ns) - (x->done_ns < y->done_ns);
}

/* A program starts when it is launched and, a device running one at a time, those that finish before it have. */
static void set_starts(ttc_span *spans, size_t n) {
  qsort(spans, n, sizeof *spans, by_done);
  int64_t free_ns = 0;
  for (size_t i = 0; i < n; i++) {
    spans[i].start_ns = spans[i].start_ns > free_ns ? spans[i].start_ns : free_ns;
    free_ns = spans[i].done_ns;
  }
}

ttc_status ttc_trace_stop(ttc_device *dev, ttc_span **spans, size_t *n, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(ttc__compute_all(dev, err));
  TTC_TRY(ttc__launch_take(dev, err));
  struct ttc__trace *t = dev->trace;
  dev->trace = NULL;
  atomic_store(&dev->tracing, false);
  ttc__lock_drop(&dev->launch);
  ttc_span *out = calloc((t != NULL ? t->n : 0) + 1, sizeof *out);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t to_epoch = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - ttc__now_ns();
  size_t k = 0;
  for (span *s = t != NULL ? t->first : NULL, *next; s != NULL; s = next) {
    next = s->next;
    int64_t done = when_done(s);
    const ttc_op_row *row = ttc__op_row(s->op);
    if (out != NULL && done != 0) {
      out[k] = (ttc_span){.tag = s->tag, .start_ns = s->launch_ns + to_epoch, .done_ns = done + to_epoch};
      strncpy(out[k++].op, row != NULL ? row->name : "?", sizeof out->op - 1);
    }
    if (done != 0) {
      free(s); /* else its callback is still to come */
    }
  }
  free(t);
  if (out == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  set_starts(out, k);
  *spans = out;
  *n = k;
  return TTC_OK;
}

void ttc_trace_free(ttc_span *spans) {
  free(spans);
}
