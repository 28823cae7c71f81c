/* The funnel's slow paths: a call that failed or that the plugin lacks. */
#include "pjrt/call.h"

#include "base/log.h"

ttc_status ttc__pjrt_error(const pjrt_plugin *p, PJRT_Error *e, const char *call, const char *file, int line, ttc_error *err) {
  PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = e};
  p->api->PJRT_Error_Message(&text);
  PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = e};
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE};
  destroy.error = p->api->PJRT_Error_GetCode(&code);
  ttc_status status = TTC_UNKNOWN;
  if (destroy.error != NULL) {
    p->api->PJRT_Error_Destroy(&destroy);
  } else if ((int)code.code > TTC_OK && (int)code.code <= TTC_UNAUTHENTICATED) {
    status = (ttc_status)code.code;
  }
  size_t n = text.message == NULL ? 0 : text.message_size;
  while (n > 0 && (text.message[n - 1] == '\n' || text.message[n - 1] == ' ')) {
    n--;
  }
  n = n < sizeof err->message ? n : sizeof err->message; /* longer ones end in "..." */
  ttc__fail_at(err, status, file, line, "%s: %.*s", call, (int)n, text.message == NULL ? "" : text.message);
  destroy.error = e;
  p->api->PJRT_Error_Destroy(&destroy);
  return status;
}

ttc_status ttc__pjrt_nothing(const pjrt_plugin *p, const char *call, const char *file, int line, ttc_error *err) {
  return ttc__fail_at(err, TTC_INTERNAL, file, line,
                      "%s: the plugin %s (PJRT %d.%d) says it succeeded but gives nothing; use another", call, p->path, p->major,
                      p->minor);
}

ttc_status ttc__pjrt_absent(const pjrt_plugin *p, const char *call, const char *file, int line, ttc_error *err) {
  return ttc__fail_at(err, TTC_UNIMPLEMENTED, file, line,
                      "%s: the plugin %s (PJRT %d.%d) does not have this call; use a newer plugin", call, p->path, p->major,
                      p->minor);
}
