/* Events: asking, waiting, being told. */
#include <stdlib.h>

#include "base/log.h"
#include "pjrt/call.h"

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

/* ---- for src/run. A pjrt_event is never defined: its address is the plugin's PJRT_Event. */

ttc_status pjrt_buffer_event(pjrt_client *c, pjrt_buffer *b, pjrt_event **out, ttc_error *err) {
  PJRT_Buffer_ReadyEvent_Args ready = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_ReadyEvent, &ready, err));
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Buffer_ReadyEvent, ready.event, err));
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
