/* The launch queue: one ring a device. Callers append under the dispatch lock; whoever holds the launch lock takes off.
 *
 * Waking a sleeping thread for every small op would cost more than the op, so the launch thread naps when it finds nothing, each
 * time twice as long as before, and sleeps for good after a while. Callers signal it only from its sleep, or out of a nap when
 * there is enough to do. A reader never waits for it: it takes the launch lock and drains the queue itself. */
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "run/fuse.h"

#define NAP_NS 40000
#define LONGEST_NAP_NS 1500000
#define RECORDS_END_NAP 16
#define PATIENCE_NS 100000000 /* of launching without a look at what else there is */
#define IDLE_NAP_NS 4000000
#define IDLE_NAPS 5 /* without a call, until what is kept back is launched */

static uint32_t queued(ttc_device *dev) {
  return atomic_load_explicit(&dev->head, memory_order_acquire) - atomic_load_explicit(&dev->tail, memory_order_acquire);
}

static uint32_t in_trace(ttc_device *dev) {
  return atomic_load_explicit(&dev->open, memory_order_relaxed);
}

static uint32_t kept_back(ttc_device *dev) {
  return in_trace(dev) - atomic_load_explicit(&dev->sent, memory_order_relaxed);
}

static void wake_launcher(ttc_device *dev) {
  pthread_mutex_lock(&dev->wake_mutex);
  atomic_store(&dev->wake_at, 0);
  pthread_cond_signal(&dev->wake);
  pthread_mutex_unlock(&dev->wake_mutex);
}

/* Wait until the launch thread has caught up half-way; without one, do its work. */
static ttc_status wait_for_room(ttc_device *dev, ttc_error *err) {
  int64_t t0 = ttc__now_ns();
  ttc_status st = TTC_OK;
  if (!dev->launcher_started) {
    TTC_TRY(ttc__launch_all(dev, err));
    ttc__lock_drop(&dev->launch);
    return TTC_OK;
  }
  wake_launcher(dev);
  pthread_mutex_lock(&dev->wake_mutex);
  atomic_fetch_add(&dev->waiting_for_room, 1);
  while (queued(dev) > QUEUE_HIGH / 2 && !atomic_load(&dev->stop)) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&dev->room, &dev->wake_mutex, &until) != ETIMEDOUT) {
      continue;
    }
    /* The check may wait for the interpreter's lock, whose holder may want this mutex. */
    pthread_mutex_unlock(&dev->wake_mutex);
    bool stop = ttc__interrupted();
    pthread_mutex_lock(&dev->wake_mutex);
    if (stop) {
      st = TTC_FAIL(err, TTC_CANCELLED, "interrupted while the launch queue was full");
      break;
    }
  }
  atomic_fetch_sub(&dev->waiting_for_room, 1);
  pthread_mutex_unlock(&dev->wake_mutex);
  atomic_fetch_add(&dev->queue_wait_ns, (uint64_t)(ttc__now_ns() - t0));
  return st;
}

ttc_status ttc__queue_reserve(ttc_device *dev, ttc_error *err) {
  for (;;) {
    if (queued(dev) >= QUEUE_HIGH) {
      TTC_TRY(wait_for_room(dev, err));
      TTC_TRY(ttc__usable(dev, err));
    }
    ttc__lock_take(&dev->dispatch);
    if (queued(dev) + kept_back(dev) < QUEUE_CAP) {
      return TTC_OK;
    }
    ttc__lock_drop(&dev->dispatch);
  }
}

ttc_status ttc__queue_reserve_after(ttc_device *dev, ttc_cut reason, ttc_error *err) {
  TTC_TRY(ttc__queue_reserve(dev, err));
  if (in_trace(dev) != 0) {
    ttc__fuse_cut_locked(dev, reason);
  }
  return TTC_OK;
}

record *ttc__queue_slot(ttc_device *dev) {
  record *r = ttc__trace_record(dev, in_trace(dev));
  atomic_store_explicit(&r->shell, SHELL_NONE, memory_order_relaxed);
  return r;
}

void ttc__queue_wake_if_due(ttc_device *dev) {
  uint32_t wake_at = atomic_load(&dev->wake_at);
  if (wake_at != 0 && queued(dev) >= wake_at) {
    wake_launcher(dev);
  }
}

void ttc__queue_publish(ttc_device *dev, bool quiet) {
  atomic_store_explicit(&dev->head, atomic_load_explicit(&dev->head, memory_order_relaxed) + 1, memory_order_release);
  if (!quiet) {
    ttc__queue_wake_if_due(dev);
  }
}

void ttc__queue_prompt(ttc_device *dev, bool ready) {
  if (ready && queued(dev) == 1 && ttc__lock_try(&dev->launch)) {
    ttc_error err;
    (void)ttc__drain(dev, &err); /* cancelled: it stays queued */
    ttc__lock_drop(&dev->launch);
  }
  ttc__queue_wake_if_due(dev);
}

void ttc__queue_opened(ttc_device *dev) {
  if (atomic_load(&dev->wake_at) == 1) {
    wake_launcher(dev);
  }
}

void ttc__queue_hurry(ttc_device *dev) {
  if (atomic_load(&dev->wake_at) != 0) {
    wake_launcher(dev);
  }
}

ttc_status ttc__launch_take(ttc_device *dev, ttc_error *err) {
  if (ttc__lock_try(&dev->launch)) {
    return TTC_OK;
  }
  while (!ttc__lock_take_ns(&dev->launch, 100000000)) {
    if (ttc__interrupted()) {
      return TTC_FAIL(err, TTC_CANCELLED, "interrupted while waiting for the device");
    }
  }
  return TTC_OK;
}

/* Read by adding nothing, so that who begins to wait after this sees the tail as it is now. */
static void signal_room(ttc_device *dev) {
  if (atomic_fetch_add(&dev->waiting_for_room, 0) != 0) {
    pthread_mutex_lock(&dev->wake_mutex);
    pthread_cond_broadcast(&dev->room);
    pthread_mutex_unlock(&dev->wake_mutex);
  }
}

ttc_status ttc__drain(ttc_device *dev, ttc_error *err) {
  uint32_t end = atomic_load(&dev->head);
  uint32_t tail = atomic_load_explicit(&dev->tail, memory_order_relaxed);
  int64_t until_ns = 0;
  while ((int32_t)(end - tail) > 0) {
    record *r = &dev->queue[tail & (QUEUE_CAP - 1)];
    TTC_TRY(ttc__launch(dev, r, err));
    bool slow = r->plan != NULL && r->plan->lags && !ttc__own_thread();
    ttc__record_done(r);
    atomic_store_explicit(&dev->tail, ++tail, memory_order_release);
    if (slow) { /* the plugin lets a launch wait when many are under way: leave time to look for Ctrl-C */
      int64_t now_ns = ttc__now_ns();
      until_ns = until_ns == 0 ? now_ns + PATIENCE_NS : until_ns;
      if (now_ns > until_ns && (int32_t)(end - tail) > 0) {
        return TTC_FAIL(err, TTC_CANCELLED, "more calls are queued");
      }
    }
    if (end - tail == QUEUE_HIGH / 4) {
      signal_room(dev);
    }
  }
  signal_room(dev);
  if (atomic_load_explicit(&dev->ndropped, memory_order_relaxed) > dev->weed_at) {
    ttc__weed_dropped(dev);
  }
  return TTC_OK;
}

ttc_status ttc__launch_all(ttc_device *dev, ttc_error *err) {
  for (;;) {
    ttc__fuse_cut(dev, TTC_CUT_READ);
    TTC_TRY(ttc__launch_take(dev, err));
    if (ttc__drain(dev, err) == TTC_OK) {
      return TTC_OK;
    }
    ttc__lock_drop(&dev->launch);
    TTC_TRY(ttc__usable(dev, err));
    if (ttc__interrupted()) {
      return TTC_FAIL(err, TTC_CANCELLED, "interrupted while a program was being compiled");
    }
  }
}

/* Sleep until `records` are queued, or for at most nap_ns; 0: for good. */
static void sleep_until_called(ttc_device *dev, uint32_t records, int64_t nap_ns) {
  int64_t until_ns = ttc__now_ns() + nap_ns;
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  int rc = 0;
  /* Under the dispatch lock, so that who appends a record from here on sees wake_at, and what was appended before is seen here. */
  ttc__lock_take(&dev->dispatch);
  pthread_mutex_lock(&dev->wake_mutex);
  atomic_store(&dev->wake_at, records);
  ttc__lock_drop(&dev->dispatch);
  while (rc == 0 && queued(dev) < records && atomic_load(&dev->wake_at) != 0 && !(nap_ns == 0 && in_trace(dev) != 0) &&
         !atomic_load(&dev->stop)) {
    rc = nap_ns != 0 ? pthread_cond_timedwait(&dev->wake, &dev->wake_mutex, &until)
                     : pthread_cond_wait(&dev->wake, &dev->wake_mutex);
  }
  atomic_store(&dev->wake_at, 0);
  pthread_mutex_unlock(&dev->wake_mutex);
}

/* What is kept back while nothing is called should run: the device has nothing else to do. */
typedef struct idle_watch {
  uint64_t recorded;
  int naps; /* since then */
} idle_watch;

static void cut_if_idle(ttc_device *dev, idle_watch *w) {
  uint64_t recorded = atomic_load_explicit(&dev->recorded, memory_order_relaxed);
  w->naps = recorded == w->recorded ? w->naps + 1 : 0;
  w->recorded = recorded;
  if (w->naps < IDLE_NAPS) {
    sleep_until_called(dev, RECORDS_END_NAP, IDLE_NAP_NS);
    return;
  }
  w->naps = 0;
  ttc__lock_take(&dev->dispatch);
  if (atomic_load_explicit(&dev->recorded, memory_order_relaxed) == recorded) {
    ttc__fuse_cut_locked(dev, TTC_CUT_IDLE);
  }
  ttc__lock_drop(&dev->dispatch);
}

void *ttc__launcher_main(void *arg) {
  ttc_device *dev = arg;
  int64_t nap_ns = NAP_NS;
  idle_watch idle = {0};
  ttc__never_interrupt();
  prctl(PR_SET_TIMERSLACK, 1000UL); /* naps as short as asked for */
  prctl(PR_SET_NAME, "ttc-launch");
  while (!atomic_load_explicit(&dev->stop, memory_order_relaxed)) {
    ttc_error err;
    if (queued(dev) != 0) {
      nap_ns = NAP_NS;
      ttc__lock_take(&dev->launch);
      (void)ttc__drain(dev, &err); /* cancelled only when stopping */
      ttc__lock_drop(&dev->launch);
    } else if (nap_ns <= LONGEST_NAP_NS && kept_back(dev) == 0) {
      sleep_until_called(dev, RECORDS_END_NAP, nap_ns);
      nap_ns *= 2;
    } else if (in_trace(dev) != 0) {
      cut_if_idle(dev, &idle);
    } else {
      sleep_until_called(dev, 1, 0);
      nap_ns = NAP_NS;
    }
  }
  return NULL;
}
