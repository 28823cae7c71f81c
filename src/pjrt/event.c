/* Events: asking, waiting, being told. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/lock.h"
#include "base/log.h"
#include "pjrt/call.h"

static bool (*_Atomic interrupt_check)(void);

void pjrt_set_interrupt_check(bool (*fn)(void)) {
  atomic_store(&interrupt_check, fn);
}

static void destroy(const pjrt_plugin *p, PJRT_Event *ev) {
  PJRT_DESTROY(p, PJRT_Event_Destroy, event, ev);
}

ttc_status ttc__pjrt_await(const pjrt_plugin *p, PJRT_Event *ev, ttc_error *err) {
  PJRT_Event_Await_Args await = {.event = ev};
  ttc_status status = PJRT_CALL(p, PJRT_Event_Await, &await, err);
  destroy(p, ev);
  return status;
}

bool ttc__pjrt_done(const pjrt_plugin *p, PJRT_Event *ev) {
  ttc_error ignored;
  PJRT_Event_IsReady_Args ask = {.event = ev};
  return PJRT_CALL(p, PJRT_Event_IsReady, &ask, &ignored) == TTC_OK && ask.is_ready;
}

/* ---- being told */

typedef struct listener {
  const pjrt_plugin *plugin;
  PJRT_Event *event; /* to destroy, or NULL */
  void (*fn)(void *ctx);
  void *ctx;
} listener;

/* In a thread of the plugin's. The error is the event's, which whoever reads the result meets again. */
static void told(PJRT_Error *error, void *arg) {
  listener *l = arg;
  ttc_error ignored;
  if (error != NULL) {
    (void)ttc__pjrt_error(l->plugin, error, "PJRT_Event_OnReady", __FILE__, __LINE__, &ignored);
  }
  l->fn(l->ctx);
  if (l->event != NULL) {
    destroy(l->plugin, l->event);
  }
  free(l);
}

static bool listen(const pjrt_plugin *p, PJRT_Event *ev, bool own, void (*fn)(void *), void *ctx) {
  ttc_error ignored;
  listener *l = malloc(sizeof *l);
  if (l == NULL) {
    return false;
  }
  *l = (listener){.plugin = p, .event = own ? ev : NULL, .fn = fn, .ctx = ctx};
  PJRT_Event_OnReady_Args args = {.event = ev, .callback = told, .user_arg = l};
  if (PJRT_CALL(p, PJRT_Event_OnReady, &args, &ignored) != TTC_OK) {
    free(l);
    return false;
  }
  return true;
}

void pjrt_event_then(pjrt_client *c, pjrt_event *ev, bool own, void (*fn)(void *), void *ctx) {
  if (listen(c->plugin, (PJRT_Event *)ev, own, fn, ctx)) {
    return;
  }
  ttc_error ignored;
  PJRT_Event_Await_Args await = {.event = (PJRT_Event *)ev};
  (void)PJRT_CALL(c->plugin, PJRT_Event_Await, &await, &ignored);
  fn(ctx);
  if (own) {
    pjrt_event_free(c, ev);
  }
}

/* ---- waiting in pieces */

typedef struct sleeper { /* shared by the one who waits and the one who tells; the last frees it */
  atomic_int refs;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  bool told;
} sleeper;

static void let_go(sleeper *s) {
  if (atomic_fetch_sub(&s->refs, 1) == 1) {
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->mutex);
    free(s);
  }
}

static void wake(void *ctx) {
  sleeper *s = ctx;
  pthread_mutex_lock(&s->mutex);
  s->told = true;
  pthread_cond_signal(&s->cond);
  pthread_mutex_unlock(&s->mutex);
  let_go(s);
}

/* A tenth of a second at most. */
static bool doze(sleeper *s) {
  int64_t until_ns = ttc__now_ns() + 100000000;
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  pthread_mutex_lock(&s->mutex);
  int rc = 0;
  while (!s->told && rc == 0) {
    rc = pthread_cond_timedwait(&s->cond, &s->mutex, &until);
  }
  bool told_now = s->told;
  pthread_mutex_unlock(&s->mutex);
  return told_now;
}

/* False if interrupted. The check may wait for the interpreter's lock, so it is made outside the mutex. */
static bool wait_in_pieces(const pjrt_plugin *p, PJRT_Event *ev, bool (*stop)(void)) {
  sleeper *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return true; /* the plugin's own wait has to do */
  }
  atomic_init(&s->refs, 2);
  pthread_mutex_init(&s->mutex, NULL);
  ttc__cond_init(&s->cond);
  bool done = false, stopped = false;
  if (!listen(p, ev, false, wake, s)) {
    let_go(s);
    done = true;
  }
  while (!done && !stopped) {
    done = doze(s);
    stopped = !done && stop();
  }
  let_go(s);
  return !stopped;
}

ttc_status ttc__pjrt_await_or_stop(const pjrt_plugin *p, PJRT_Event *ev, ttc_error *err) {
  bool (*stop)(void) = atomic_load_explicit(&interrupt_check, memory_order_relaxed);
  if (stop != NULL && !ttc__pjrt_done(p, ev) && !wait_in_pieces(p, ev, stop)) {
    destroy(p, ev);
    return TTC_FAIL(err, TTC_CANCELLED, "interrupted while waiting for the device");
  }
  return ttc__pjrt_await(p, ev, err);
}

/* ---- for src/run. A pjrt_event is never defined: its address is the plugin's PJRT_Event. */

ttc_status pjrt_buffer_event(pjrt_client *c, pjrt_buffer *b, pjrt_event **out, ttc_error *err) {
  PJRT_Buffer_ReadyEvent_Args ready = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_ReadyEvent, &ready, err));
  *out = (pjrt_event *)ready.event;
  return TTC_OK;
}

bool pjrt_event_done(pjrt_client *c, pjrt_event *ev) {
  return ttc__pjrt_done(c->plugin, (PJRT_Event *)ev);
}

ttc_status pjrt_event_await(pjrt_client *c, pjrt_event *ev, ttc_error *err) {
  return ttc__pjrt_await(c->plugin, (PJRT_Event *)ev, err);
}

void pjrt_event_free(pjrt_client *c, pjrt_event *ev) {
  destroy(c->plugin, (PJRT_Event *)ev);
}
