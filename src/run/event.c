/* Points in the device's work: what an event waits for, and what synchronizing waits for.
 *
 * Programs are launched in order but finish in any: XLA:CPU runs them on a pool, as their inputs come. So a point is reached when
 * every result launched before it is there: those that stores hold, and those let go of while still being computed, whose plugin
 * events are kept for this alone. A result known to be there is never asked again, so a point costs what is new since the last. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run/run.h"

#define FEWEST_DROPPED 64u /* dropped results kept before the finished ones are weeded out */

struct ttc_event {
  atomic_int refs;
  ttc_device *dev;
  atomic_int left;       /* results still to come, and 1 until it is launched */
  _Atomic int64_t t_ns;  /* when the last of them came; 0 before */
  pthread_mutex_t mutex; /* for sleepers; callbacks of the plugin's threads take it, so nothing is called under it */
  pthread_cond_t cond;
  ttc_event *next; /* the one launched after this, which cannot be reached before it: one reference. Under the mutex */
};

/* One thing less to wait for; takes a reference. */
static void count_down(ttc_event *ev) {
  while (ev != NULL) {
    ttc_event *next = NULL;
    if (atomic_fetch_sub(&ev->left, 1) == 1) {
      pthread_mutex_lock(&ev->mutex);
      atomic_store(&ev->t_ns, ttc__now_ns());
      next = ev->next;
      ev->next = NULL;
      pthread_cond_broadcast(&ev->cond);
      pthread_mutex_unlock(&ev->mutex);
    }
    ttc_event_release(ev);
    ev = next;
  }
}

static void result_came(void *ctx) {
  count_down(ctx);
}

static bool reached(ttc_event *ev) {
  return atomic_load(&ev->t_ns) != 0;
}

/* `of` belongs to the caller; `until` gets one more thing to wait for. */
static void await_with(ttc_event *until, pjrt_client *client, pjrt_event *of, bool own) {
  atomic_fetch_add(&until->left, 1);
  atomic_fetch_add(&until->refs, 1);
  pjrt_event_then(client, of, own, result_came, until);
}

/* ------------------------------------------------------------------------------------------ results let go of early */

static void keep_dropped(ttc_device *dev, pjrt_event **events, uint32_t n) {
  ttc__lock_take(&dev->store_lock);
  if (dev->ndropped + n > dev->dropped_cap) {
    uint32_t cap = 2 * (dev->ndropped + n) + FEWEST_DROPPED;
    pjrt_event **p = realloc(dev->dropped, cap * sizeof(pjrt_event *));
    if (p != NULL) {
      dev->dropped = p;
      dev->dropped_cap = cap;
    }
  }
  if (dev->ndropped + n <= dev->dropped_cap) {
    memcpy(dev->dropped + dev->ndropped, events, n * sizeof(pjrt_event *));
    dev->ndropped += n;
    n = 0;
  }
  ttc__lock_drop(&dev->store_lock);
  for (uint32_t i = 0; i < n; i++) { /* out of memory: forget them rather than fail a free */
    pjrt_event_free(dev->client, events[i]);
  }
}

/* Free the events of finished results; `until`, if given, waits for the others. Returns how many are unfinished. Launch lock held,
 * so that nobody else finds the list empty meanwhile. */
static uint32_t visit_dropped(ttc_device *dev, ttc_event *until) {
  ttc__lock_take(&dev->store_lock);
  pjrt_event **events = dev->dropped;
  uint32_t n = dev->ndropped, kept = 0;
  dev->dropped = NULL;
  dev->ndropped = dev->dropped_cap = 0;
  ttc__lock_drop(&dev->store_lock);
  for (uint32_t i = 0; i < n; i++) {
    if (pjrt_event_done(dev->client, events[i])) {
      pjrt_event_free(dev->client, events[i]);
      continue;
    }
    if (until != NULL) {
      await_with(until, dev->client, events[i], false);
    }
    events[kept++] = events[i];
  }
  if (kept != 0) {
    keep_dropped(dev, events, kept);
  }
  free(events);
  return kept;
}

void ttc__result_dropped(ttc_device *dev, pjrt_buffer *buf) {
  ttc_error ignored;
  pjrt_event *ev;
  if (pjrt_buffer_event(dev->client, buf, &ev, &ignored) != TTC_OK) {
    return;
  }
  if (pjrt_event_done(dev->client, ev)) {
    pjrt_event_free(dev->client, ev);
    return;
  }
  keep_dropped(dev, &ev, 1);
}

void ttc__weed_dropped(ttc_device *dev) {
  uint32_t left = visit_dropped(dev, NULL);
  dev->weed_at = 2 * left < FEWEST_DROPPED ? FEWEST_DROPPED : 2 * left;
}

/* --------------------------------------------------------------------------------------------------- results held */

/* The next store from `at` on that is not known to be computed, with a reference; NULL at the end. Launch lock held, which keeps
 * stores from getting and changing buffers; but a store may be freed by its last owner, hence the store lock. */
static ttc_store *next_unawaited(ttc_device *dev, ttc_store *at) {
  ttc_store *found = NULL;
  ttc__lock_take(&dev->store_lock);
  for (ttc_store *s = at != NULL ? at->next : dev->live; s != NULL && found == NULL;) {
    uint64_t refs = s->awaited ? 0 : atomic_load(&s->refs);
    while ((refs & STORE_IN_USE) != 0 && !atomic_compare_exchange_weak(&s->refs, &refs, refs + STORE_OWNED)) {
    }
    found = (refs & STORE_IN_USE) != 0 ? s : NULL;
    if (found == NULL && !s->awaited && s->lags) { /* its last owner is about to put its event among the dropped: let it */
      ttc__lock_drop(&dev->store_lock);
      sched_yield();
      ttc__lock_take(&dev->store_lock);
      s = at != NULL ? at->next : dev->live;
    } else {
      s = s->next;
    }
  }
  ttc__lock_drop(&dev->store_lock);
  return found;
}

typedef enum outcome { COMPUTED, UNFINISHED, LOST } outcome;

/* What became of the store's contents. LOST: it is poisoned now, and the error noted. */
static outcome look_at(ttc_store *s, ttc_event *until) {
  ttc_device *dev = s->dev;
  ttc_error why = {0};
  pjrt_event *ev;
  ttc_status st = pjrt_buffer_event(dev->client, s->buf, &ev, &why);
  if (st == TTC_OK && !pjrt_event_done(dev->client, ev)) {
    if (until != NULL) {
      await_with(until, dev->client, ev, true);
    } else {
      pjrt_event_free(dev->client, ev);
    }
    return UNFINISHED;
  }
  if (st == TTC_OK) {
    st = pjrt_event_await(dev->client, ev, &why);
  }
  if (st == TTC_OK) {
    s->awaited = true;
    return COMPUTED;
  }
  ttc__poison *p = ttc__poison_by(s->writer, &why);
  ttc__note_error(dev, p);
  ttc__store_poison(s, p, s->writer);
  ttc__poison_release(p);
  return LOST;
}

/* Look at all results launched so far; `until`, if given, waits for the unfinished. Returns how many these are. Launch lock held.
 */
static uint32_t visit_results(ttc_device *dev, ttc_event *until) {
  uint32_t unfinished = 0;
  for (ttc_store *s = next_unawaited(dev, NULL), *next; s != NULL; s = next) {
    outcome o = look_at(s, until);
    unfinished += o == UNFINISHED;
    /* A poisoned store leaves the list, and with it the place to go on from. */
    next = next_unawaited(dev, o == LOST ? NULL : s);
    ttc_store_release(s);
  }
  return unfinished + visit_dropped(dev, until); /* last: a result dropped since the walk began is found here */
}

/* -------------------------------------------------------------------------------------------------------- events */

static ttc_status new_event(ttc_device *dev, ttc_event **out, ttc_error *err) {
  ttc_event *ev = calloc(1, sizeof *ev);
  if (ev == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  atomic_init(&ev->refs, 1);
  atomic_init(&ev->left, 1);
  ev->dev = dev;
  pthread_mutex_init(&ev->mutex, NULL);
  ttc__cond_init(&ev->cond);
  *out = ev;
  return TTC_OK;
}

void ttc_event_release(ttc_event *ev) {
  if (ev != NULL && atomic_fetch_sub(&ev->refs, 1) == 1) {
    pthread_cond_destroy(&ev->cond);
    pthread_mutex_destroy(&ev->mutex);
    free(ev);
  }
}

/* Append a record for ev, which it takes a reference of, and see to it that it is launched soon. */
static ttc_status enqueue(ttc_device *dev, record_kind kind, ttc_event *ev, ttc_error *err) {
  TTC_TRY(ttc__queue_reserve_after(dev, TTC_CUT_EVENT, err));
  record *r = ttc__queue_slot(dev);
  r->kind = (uint8_t)kind;
  r->plan = NULL;
  r->event = ev;
  r->nstore = 0;
  r->nnumber = 0;
  r->stores = r->inline_stores;
  r->numbers = r->inline_numbers;
  atomic_fetch_add(&ev->refs, 1);
  ttc__queue_publish(dev, false);
  ttc__lock_drop(&dev->dispatch);
  ttc__queue_hurry(dev);
  return TTC_OK;
}

ttc_status ttc_event_record(ttc_device *dev, ttc_event **out, ttc_error *err) {
  ttc_event *ev;
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(new_event(dev, &ev, err));
  ttc_status st = enqueue(dev, RECORD_EVENT, ev, err);
  if (st != TTC_OK) {
    ttc_event_release(ev);
    return st;
  }
  *out = ev;
  return TTC_OK;
}

/* A result may be known to be there before the callbacks of those who waited for it have run, so events wait for each other too. */
static void follow(ttc_device *dev, ttc_event *ev) {
  ttc_event *before = dev->last_event;
  if (before != NULL) {
    pthread_mutex_lock(&before->mutex);
    if (!reached(before)) {
      atomic_fetch_add(&ev->left, 1);
      atomic_fetch_add(&ev->refs, 1);
      before->next = ev;
    }
    pthread_mutex_unlock(&before->mutex);
    ttc_event_release(before);
  }
  atomic_fetch_add(&ev->refs, 1);
  dev->last_event = ev;
}

void ttc__event_launch(ttc_device *dev, ttc_event *ev) {
  follow(dev, ev);
  visit_results(dev, ev);
  count_down(ev);
}

/* Until ev is reached, or for a tenth of a second. */
static void sleep_a_piece(ttc_event *ev) {
  int64_t until_ns = ttc__now_ns() + 100000000;
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  int rc = 0;
  pthread_mutex_lock(&ev->mutex);
  while (!reached(ev) && rc == 0) {
    rc = pthread_cond_timedwait(&ev->cond, &ev->mutex, &until);
  }
  pthread_mutex_unlock(&ev->mutex);
}

/* Sleep until ev is reached. No lock held. */
static ttc_status sleep_until(ttc_event *ev, ttc_error *err) {
  while (!reached(ev)) {
    sleep_a_piece(ev);
    if (!reached(ev)) {
      TTC_TRY(ttc__usable(ev->dev, err));
    }
    if (!reached(ev) && ttc__interrupted()) {
      return TTC_FAIL(err, TTC_CANCELLED, "interrupted while waiting for the device");
    }
  }
  return TTC_OK;
}

/* With the launch lock held no handler of a signal may run, so a reader gives up after a piece of sleep, to come again. */
ttc_status ttc__event_block(ttc_event *ev, ttc_error *err) {
  do {
    sleep_a_piece(ev);
  } while (!reached(ev) && ttc__own_thread() && !atomic_load(&ev->dev->stop));
  if (!reached(ev)) {
    return TTC_FAIL(err, TTC_CANCELLED, "another device's work is still to come");
  }
  ttc_event_release(ev);
  return TTC_OK;
}

ttc_status ttc_event_order(ttc_device *dev, ttc_event *ev, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  if (ev->dev == dev || reached(ev)) { /* one queue: what comes later is launched later */
    return TTC_OK;
  }
  return enqueue(dev, RECORD_WAIT, ev, err);
}

/* All that is queued is launched; false when given up. */
static ttc_status launch_all(ttc_device *dev, ttc_error *err) {
  ttc__fuse_cut(dev, TTC_CUT_SYNC);
  TTC_TRY(ttc__launch_all(dev, err));
  ttc__lock_drop(&dev->launch);
  return TTC_OK;
}

ttc_status ttc_device_flush(ttc_device *dev, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  return launch_all(dev, err);
}

ttc_status ttc_event_query(ttc_event *ev, bool *done, ttc_error *err) {
  err->op[0] = '\0';
  *done = reached(ev);
  if (*done) {
    return TTC_OK;
  }
  TTC_TRY(ttc__usable(ev->dev, err));
  if (!ev->dev->launcher_started) {
    TTC_TRY(launch_all(ev->dev, err));
    *done = reached(ev);
  }
  return TTC_OK;
}

/* What went wrong so far and nobody has read. Launch lock held. */
static ttc_status told(ttc_device *dev, bool late, ttc_error *err) {
  ttc_status st = ttc__report_fault(dev, late, err);
  return st == TTC_OK ? ttc__report_error(dev, err) : st;
}

static ttc_status report(ttc_device *dev, bool late, ttc_error *err) {
  TTC_TRY(ttc__launch_take(dev, err));
  visit_results(dev, NULL);
  ttc_status st = told(dev, late, err);
  ttc__lock_drop(&dev->launch);
  ttc__leave();
  return st;
}

ttc_status ttc_event_wait(ttc_event *ev, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(ev->dev, err));
  if (!reached(ev)) {
    TTC_TRY(launch_all(ev->dev, err));
    TTC_TRY(sleep_until(ev, err));
  }
  return report(ev->dev, true, err);
}

ttc_status ttc_event_elapsed(ttc_event *from, ttc_event *to, int64_t *ns, ttc_error *err) {
  err->op[0] = '\0';
  if (!reached(from) || !reached(to)) {
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION,
                    "both events must be completed before the time between them is asked; synchronize first");
  }
  *ns = atomic_load(&to->t_ns) - atomic_load(&from->t_ns);
  return TTC_OK;
}

ttc_status ttc_device_query(ttc_device *dev, bool *idle, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  *idle = false;
  ttc__fuse_cut(dev, TTC_CUT_SYNC);
  if (!dev->launcher_started) {
    TTC_TRY(launch_all(dev, err));
  }
  /* With nothing queued the launch lock is held for a moment only. */
  if (atomic_load(&dev->head) == atomic_load(&dev->tail) && ttc__lock_take_ns(&dev->launch, 10000000)) {
    *idle = atomic_load(&dev->head) == atomic_load(&dev->tail) && visit_results(dev, NULL) == 0;
    ttc__lock_drop(&dev->launch);
  } else {
    ttc__queue_hurry(dev);
  }
  return TTC_OK;
}

/* Launch lock held. An event for what `visit` finds unfinished; NULL when there is nothing to wait for, or no memory. */
static ttc_event *event_of_launched(ttc_device *dev) {
  ttc_error ignored;
  ttc_event *ev = NULL;
  if (visit_results(dev, NULL) != 0 && new_event(dev, &ev, &ignored) == TTC_OK) {
    atomic_fetch_add(&ev->refs, 1);
    ttc__event_launch(dev, ev);
  }
  return ev;
}

ttc_status ttc__compute_all(ttc_device *dev, ttc_error *err) {
  ttc__fuse_cut(dev, TTC_CUT_SYNC);
  for (bool last = false; !last;) {
    TTC_TRY(ttc__launch_all(dev, err));
    ttc_event *ev = event_of_launched(dev);
    last = ev != NULL || visit_results(dev, NULL) == 0;
    ttc__lock_drop(&dev->launch); /* others may launch while this thread sleeps */
    if (ev != NULL) {
      ttc_status st = sleep_until(ev, err);
      ttc_event_release(ev);
      TTC_TRY(st);
    }
  }
  return TTC_OK;
}

void ttc__compute_launched(ttc_device *dev) {
  ttc_event *ev = event_of_launched(dev);
  while (ev != NULL && !reached(ev)) {
    sleep_a_piece(ev);
  }
  ttc_event_release(ev);
  visit_results(dev, NULL);
}

bool ttc__computed_by(ttc_device *dev, int64_t until_ns) {
  while (visit_results(dev, NULL) != 0) {
    if (ttc__now_ns() >= until_ns) {
      return false;
    }
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
  return true;
}

ttc_status ttc__compute_store(ttc_store *s, bool *settled, ttc_error *err) {
  ttc_device *dev = s->dev;
  ttc_error ignored;
  pjrt_event *of;
  ttc_event *ev;
  *settled = true; /* what goes wrong in asking, the read meets again */
  if (s->poison != NULL || s->buf == NULL || s->awaited || pjrt_buffer_event(dev->client, s->buf, &of, &ignored) != TTC_OK) {
    return TTC_OK;
  }
  if (pjrt_event_done(dev->client, of) || new_event(dev, &ev, &ignored) != TTC_OK) {
    pjrt_event_free(dev->client, of);
    return TTC_OK;
  }
  *settled = false;
  await_with(ev, dev->client, of, true);
  atomic_fetch_add(&ev->refs, 1);
  count_down(ev);
  ttc__lock_drop(&dev->launch);
  ttc_status st = sleep_until(ev, err);
  ttc_event_release(ev);
  return st;
}

static ttc_status finish(ttc_device *dev, bool late, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(ttc__compute_all(dev, err));
  return report(dev, late, err);
}

ttc_status ttc_device_synchronize(ttc_device *dev, ttc_error *err) {
  return finish(dev, true, err);
}
ttc_status ttc__settle(ttc_device *dev, ttc_error *err) {
  return finish(dev, false, err);
}
