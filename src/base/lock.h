/* Mutexes with ranks: a thread takes them in rising rank only, checked when built with TTC_CHECK_LOCKS. No lock is held across
 * a PJRT call, a wait or a callback, but for the launch lock, whose purpose is to order PJRT calls. */
#ifndef TTC_BASE_LOCK_H
#define TTC_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum ttc__rank {
  TTC__RANK_OPEN = 1, /* opening devices */
  TTC__RANK_PLUGIN,   /* the list of loaded plugins; held while one loads, so that it loads once */
  TTC__RANK_LAUNCH,   /* the right to take records off the queue and launch them */
  TTC__RANK_DISPATCH, /* keys, plans, stores' base shapes, appending to the queue */
  TTC__RANK_PLAN,     /* one plan's compile state */
  TTC__RANK_POOL,     /* the compile pool's jobs */
  TTC__RANK_CACHE,    /* executable cache */
  TTC__RANK_STORE,    /* the list of live stores */
  TTC__RANK_LOG
} ttc__rank;

typedef struct ttc__lock {
  pthread_mutex_t mutex;
  ttc__rank rank;
} ttc__lock;

#define TTC__LOCK_INIT(r) {PTHREAD_MUTEX_INITIALIZER, (r)}
void ttc__lock_init(ttc__lock *l, ttc__rank rank);
void ttc__lock_destroy(ttc__lock *l);

#ifdef TTC_CHECK_LOCKS
void ttc__lock_take(ttc__lock *l);
bool ttc__lock_try(ttc__lock *l);
bool ttc__lock_take_ns(ttc__lock *l, int64_t timeout_ns);
void ttc__lock_drop(ttc__lock *l);
#else
static inline void ttc__lock_take(ttc__lock *l) {
  pthread_mutex_lock(&l->mutex);
}
static inline bool ttc__lock_try(ttc__lock *l) {
  return pthread_mutex_trylock(&l->mutex) == 0;
}
bool ttc__lock_take_ns(ttc__lock *l, int64_t timeout_ns); /* false if it could not be had in that time */
static inline void ttc__lock_drop(ttc__lock *l) {
  pthread_mutex_unlock(&l->mutex);
}
#endif

/* Wait on c for at most timeout_ns (monotonic conditions only, see ttc__cond_init); the lock is released meanwhile. */
void ttc__cond_init(pthread_cond_t *c);
void ttc__cond_wait_ns(pthread_cond_t *c, ttc__lock *l, int64_t timeout_ns);

int64_t ttc__now_ns(void); /* monotonic */

#endif
