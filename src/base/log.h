/* One line to stderr, at levels chosen by TORCH_TPU_LOG (0 errors, 1 warnings (default), 2 info, 3 debug). any thread */
#ifndef TTC_BASE_LOG_H
#define TTC_BASE_LOG_H

typedef enum ttc__log_level { TTC__LOG_ERROR, TTC__LOG_WARN, TTC__LOG_INFO, TTC__LOG_DEBUG } ttc__log_level;

void ttc__log(ttc__log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
