#include "base/lock.h"

#include <time.h>

#include "base/error.h"

void ttc__lock_init(ttc__lock *l, ttc__rank rank) {
  pthread_mutex_init(&l->mutex, NULL);
  l->rank = rank;
}

void ttc__lock_destroy(ttc__lock *l) {
  pthread_mutex_destroy(&l->mutex);
}

static struct timespec after_ns(int64_t ns) {
  int64_t until = ttc__now_ns() + ns;
  return (struct timespec){.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
}

#ifdef TTC_CHECK_LOCKS
/* A bit per rank that this thread holds. */
static _Thread_local uint32_t held;

static void note_taken(const ttc__lock *l) {
  TTC_ASSERT((held >> l->rank) == 0);
  held |= 1u << l->rank;
}

void ttc__lock_take(ttc__lock *l) {
  note_taken(l);
  pthread_mutex_lock(&l->mutex);
}

bool ttc__lock_try(ttc__lock *l) {
  if (pthread_mutex_trylock(&l->mutex) != 0) {
    return false;
  }
  note_taken(l);
  return true;
}

void ttc__lock_drop(ttc__lock *l) {
  held &= ~(1u << l->rank);
  pthread_mutex_unlock(&l->mutex);
}
#endif

bool ttc__lock_take_ns(ttc__lock *l, int64_t timeout_ns) {
#ifdef __SANITIZE_THREAD__ /* which does not know clocklock */
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int64_t ns = until.tv_nsec + timeout_ns;
  until = (struct timespec){.tv_sec = until.tv_sec + ns / 1000000000, .tv_nsec = ns % 1000000000};
  bool taken = pthread_mutex_timedlock(&l->mutex, &until) == 0;
#else
  struct timespec until = after_ns(timeout_ns);
  bool taken = pthread_mutex_clocklock(&l->mutex, CLOCK_MONOTONIC, &until) == 0;
#endif
  if (!taken) {
    return false;
  }
#ifdef TTC_CHECK_LOCKS
  note_taken(l);
#endif
  return true;
}

void ttc__cond_init(pthread_cond_t *c) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
}

void ttc__cond_wait_ns(pthread_cond_t *c, ttc__lock *l, int64_t timeout_ns) {
  struct timespec ts = after_ns(timeout_ns);
  pthread_cond_timedwait(c, &l->mutex, &ts);
}

int64_t ttc__now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}
