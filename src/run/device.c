/* Opening a device, the end of the process, forks, counters. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "run/run.h"

#define MAX_DEVICES 64
enum { THREADS_OF_A_CLIENT = 12 };

static ttc__lock open_lock = TTC__LOCK_INIT(TTC__RANK_OPEN);
static ttc_device *devices[MAX_DEVICES];
static pjrt_client *shared_client;
static pjrt_plugin *shared_plugin;
static pjrt_choice choice;
static char *search_path;
static atomic_bool forked, ended;
static bool (*_Atomic interrupt_check)(void);
atomic_int ttc__matmul_precision;

void ttc_set_interrupt_check(bool (*fn)(void)) {
  atomic_store(&interrupt_check, fn);
}
static bool (*_Atomic no_return)(void);

void ttc_set_no_return(bool (*fn)(void)) {
  atomic_store(&no_return, fn);
}

void ttc__leave(void) {
  bool (*fn)(void) = atomic_load_explicit(&no_return, memory_order_relaxed);
  while (fn != NULL && fn()) {
    pause();
  }
}

void ttc_set_matmul_precision(int level) {
  atomic_store(&ttc__matmul_precision, level < 0 ? 0 : (level > 2 ? 2 : level));
}

static _Thread_local bool own_thread;
void ttc__never_interrupt(void) {
  own_thread = true;
}

bool ttc__own_thread(void) {
  return own_thread;
}

bool ttc__interrupted(void) {
  bool (*fn)(void) = atomic_load(&interrupt_check);
  return fn != NULL && !own_thread && fn();
}

bool ttc__forked(void) {
  return atomic_load_explicit(&forked, memory_order_relaxed);
}

ttc_status ttc__usable(ttc_device *dev, ttc_error *err) {
  (void)dev;
  ttc__leave();
  if (atomic_load_explicit(&forked, memory_order_relaxed)) {
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION,
                    "the tpu device cannot be used in a process forked after it was opened. Start workers with "
                    "multiprocessing's 'spawn' or 'forkserver' method, or keep tensors on the cpu in them");
  }
  if (atomic_load_explicit(&ended, memory_order_relaxed)) {
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION, "the tpu device was shut down: the process is ending");
  }
  return TTC_OK;
}

static void in_child(void) {
  atomic_store(&forked, true);
}

void ttc_set_plugin_search_path(const char *dirs) {
  ttc__lock_take(&open_lock);
  free(search_path);
  search_path = dirs != NULL ? strdup(dirs) : NULL;
  ttc__lock_drop(&open_lock);
}

/* Open lock held. */
static ttc_status discover(ttc_error *err) {
  if (choice.path[0] != '\0') {
    return TTC_OK;
  }
  return pjrt_discover(search_path, &choice, err);
}

static bool simulating(void) {
  const char *slash = strrchr(choice.path, '/');
  bool libtpu = choice.source == PJRT_FROM_LIBTPU || strncmp(slash != NULL ? slash + 1 : choice.path, "libtpu", 6) == 0;
  return !libtpu || choice.ntpu == 0;
}

/* The chips there are, or as many as TORCH_TPU_SIM_DEVICES says. Open lock held, the plugin chosen. */
static ttc_status wanted_devices(int *out, ttc_error *err) {
  const char *sim = getenv("TORCH_TPU_SIM_DEVICES");
  if (!simulating() || sim == NULL || sim[0] == '\0') {
    *out = simulating() ? 1 : choice.ntpu;
    return TTC_OK;
  }
  char *end;
  long n = strtol(sim, &end, 10);
  if (*end != '\0' || n < 1 || n > MAX_DEVICES) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT,
                    "TORCH_TPU_SIM_DEVICES=%.40s: expected the number of tpu devices to simulate, 1 to %d", sim, MAX_DEVICES);
  }
  *out = (int)n;
  return TTC_OK;
}

/* Open lock held, the client made. A simulator that does not heed how many were asked for makes more than that. */
static int client_devices(void) {
  ttc_error ignored;
  int n = pjrt_client_ndevice(shared_client), wanted = n;
  return simulating() && wanted_devices(&wanted, &ignored) == TTC_OK && wanted < n ? wanted : n;
}

int ttc_device_count(void) {
  ttc_error err;
  int n = 0;
  if (atomic_load(&forked)) {
    return pjrt_client_ndevice(shared_client);
  }
  ttc__lock_take(&open_lock);
  if (shared_client != NULL) {
    n = client_devices();
  } else if (discover(&err) != TTC_OK || wanted_devices(&n, &err) != TTC_OK) {
    n = 0; /* ttc_device_open says why */
  }
  ttc__lock_drop(&open_lock);
  return n;
}

static void init_locks(ttc_device *dev) {
  ttc__lock_init(&dev->dispatch, TTC__RANK_DISPATCH);
  ttc__lock_init(&dev->launch, TTC__RANK_LAUNCH);
  ttc__lock_init(&dev->plan_lock, TTC__RANK_PLAN);
  ttc__lock_init(&dev->pool_lock, TTC__RANK_POOL);
  ttc__lock_init(&dev->store_lock, TTC__RANK_STORE);
  ttc__cond_init(&dev->plan_done);
  ttc__cond_init(&dev->pool_wake);
  ttc__cond_init(&dev->later_wake);
  ttc__cond_init(&dev->later_done);
  ttc__cond_init(&dev->wake);
  ttc__cond_init(&dev->room);
  pthread_mutex_init(&dev->wake_mutex, NULL);
  dev->last_job = &dev->jobs;
}

/* XLA:CPU takes each result from malloc. By default glibc maps and unmaps blocks above 128 KiB, so that every megabyte-sized result
 * pays its page faults anew, several times what the op costs. Keeping freed memory is what device allocators do anyway.
 * TORCH_TPU_TUNE_MALLOC=0 leaves malloc as it is. */
static void tune_malloc(void) {
#ifdef __GLIBC__
  const char *s = getenv("TORCH_TPU_TUNE_MALLOC");
  if (s == NULL || strcmp(s, "0") != 0) {
    if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0) {
      mallopt(M_MMAP_THRESHOLD, 32 << 20); /* what older glibc allows */
    }
    mallopt(M_TRIM_THRESHOLD, 2000 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_ARENA_MAX, 1); /* other arenas give blocks above 64 MiB straight to the kernel; a program's scratch memory is one */
    mallopt(M_MXFAST, 0);    /* fast bins are merged whenever a block at the end of the heap is freed, that is, by every op */
  }
#endif
}

/* Open lock held. */
static ttc_status open_client(ttc_error *err) {
  if (shared_client != NULL) {
    return TTC_OK;
  }
  int n = 0;
  TTC_TRY(discover(err));
  TTC_TRY(wanted_devices(&n, err));
  if (simulating()) {
    tune_malloc(); /* before the plugin starts threads */
  }
  TTC_TRY(pjrt_plugin_load(choice.path, &shared_plugin, err));
  if (!ttc__threads_to_be_had(THREADS_OF_A_CLIENT)) {
    return TTC_FAIL(err, TTC_UNAVAILABLE,
                    "%d threads could not be started, which the device needs: too many threads (ulimit -u) or too little memory",
                    THREADS_OF_A_CLIENT);
  }
  TTC_TRY(pjrt_client_new(shared_plugin, n, &shared_client, err));
  pthread_atfork(NULL, NULL, in_child);
  return TTC_OK;
}

/* A device that could not be made. */
static void free_parts(ttc_device *dev) {
  ttc__map_free(dev->plans);
  free(dev->queue);
  free(dev->numbers);
  free(dev->lengths);
  ttc__cache_free(dev->cache);
  free(dev);
}

static ttc_status make_device(int index, ttc_device **out, ttc_error *err) {
  TTC_TRY(open_client(err));
  int n = client_devices();
  if (index < 0 || index >= n) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "invalid device ordinal: tpu:%d does not exist, this process has %d tpu device%s",
                    index, n, n == 1 ? "" : "s");
  }
  ttc_device *dev = calloc(1, sizeof *dev);
  if (dev == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  dev->index = index;
  dev->plugin = shared_plugin;
  dev->client = shared_client;
  dev->plans = ttc__map_new();
  dev->queue = calloc(QUEUE_CAP, sizeof *dev->queue);
  dev->numbers = calloc(NUMBER_CACHE, sizeof *dev->numbers);
  dev->cache = ttc__cache_open(NULL, shared_plugin, shared_client);
  const char *lengths = getenv("TORCH_TPU_EAGER_LENGTHS"); /* 0: eager calls have a program for each length */
  dev->lengths = lengths == NULL || strcmp(lengths, "0") != 0 ? calloc(1, sizeof *dev->lengths) : NULL;
  dev->wide.lengths = dev->lengths;
  if (dev->plans == NULL || dev->queue == NULL || dev->numbers == NULL || dev->cache == NULL) {
    free_parts(dev);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  init_locks(dev);
  pjrt_client_info(shared_client, &dev->info);
  dev->info.simulated = strcmp(dev->info.platform, "tpu") != 0;
  dev->for_tpu = !dev->info.simulated;
  ttc_status st = ttc__options_from_environment(dev, err);
  if (st != TTC_OK) {
    free_parts(dev);
    return st;
  }
  if (dev->info.memory_limit_nbyte == 0 || (dev->info.simulated && dev->info.memory_limit_nbyte > ttc__machine_nbyte())) {
    dev->info.memory_limit_nbyte = ttc__machine_nbyte();
  }
  st = ttc__memory_init(dev, err);
  if (st != TTC_OK) {
    free_parts(dev);
    return st;
  }
  /* Without a thread for it, work still runs whenever a result is read. */
  dev->launcher_started = pthread_create(&dev->launcher, NULL, ttc__launcher_main, dev) == 0;
  *out = dev;
  return TTC_OK;
}

ttc_status ttc_device_open(int index, ttc_device **out, ttc_error *err) {
  TTC_TRY(ttc__usable(NULL, err));
  ttc_status st = TTC_OK;
  ttc__lock_take(&open_lock);
  if (index >= 0 && index < MAX_DEVICES && devices[index] != NULL) {
    *out = devices[index];
  } else {
    ttc_device *dev = NULL;
    st = make_device(index, &dev, err);
    if (st == TTC_OK) {
      *out = devices[index] = dev;
    }
  }
  ttc__lock_drop(&open_lock);
  return st;
}

int ttc_device_index(const ttc_device *dev) {
  return dev->index;
}

ttc_device *ttc_store_find(const void *p) {
  ttc_device *found = NULL;
  for (int i = 0; i < MAX_DEVICES && found == NULL && !ttc__forked(); i++) {
    ttc__lock_take(&open_lock);
    ttc_device *dev = devices[i];
    ttc__lock_drop(&open_lock);
    ttc_error ignored;
    if (dev == NULL || ttc__usable(dev, &ignored) != TTC_OK || ttc__launch_all(dev, &ignored) != TTC_OK) {
      continue;
    }
    ttc__lock_take(&dev->store_lock);
    for (const ttc_store *s = dev->live; s != NULL && found == NULL; s = s->next) {
      found = s == p ? dev : NULL;
    }
    ttc__lock_drop(&dev->store_lock);
    ttc__lock_drop(&dev->launch);
  }
  return found;
}

void ttc_device_get_info(ttc_device *dev, ttc_device_info *out) {
  *out = dev->info;
}

void ttc_device_get_stats(ttc_device *dev, ttc_stats *out) {
  ttc__cache_stats c;
  if (atomic_load(&forked)) {
    *out = (ttc_stats){0};
    return;
  }
  ttc__cache_get_stats(dev->cache, &c);
  ttc__lock_take(&dev->dispatch);
  size_t plans = ttc__map_count(dev->plans);
  ttc__lock_drop(&dev->dispatch);
  *out = (ttc_stats){.calls = atomic_load(&dev->calls),
                     .programs_compiled = c.compiled,
                     .programs_loaded = c.loaded,
                     .compile_ns = c.compile_ns,
                     .plans = plans,
                     .cache_errors = c.errors,
                     .live_nbyte = atomic_load(&dev->live_nbyte),
                     .peak_nbyte = atomic_load(&dev->peak_nbyte),
                     .limit_nbyte = atomic_load(&dev->limit_nbyte),
                     .live_nbuffer = atomic_load(&dev->live_nbuffer),
                     .peak_nbuffer = atomic_load(&dev->peak_nbuffer),
                     .made_nbyte = atomic_load(&dev->made_nbyte) - atomic_load(&dev->reset_nbyte),
                     .made_nbuffer = atomic_load(&dev->made_nbuffer) - atomic_load(&dev->reset_nbuffer),
                     .queue_wait_ns = atomic_load(&dev->queue_wait_ns)};
}

void ttc_device_reset_peak(ttc_device *dev) {
  ttc__lock_take(&dev->store_lock);
  atomic_store(&dev->peak_nbyte, atomic_load(&dev->live_nbyte));
  atomic_store(&dev->peak_nbuffer, atomic_load(&dev->live_nbuffer));
  ttc__lock_drop(&dev->store_lock);
}

/* What is alive counts as made, so that what was freed since stays made less alive. */
void ttc_device_reset_made(ttc_device *dev) {
  atomic_store(&dev->reset_nbyte, atomic_load(&dev->made_nbyte) - (uint64_t)atomic_load(&dev->live_nbyte));
  atomic_store(&dev->reset_nbuffer, atomic_load(&dev->made_nbuffer) - (uint64_t)atomic_load(&dev->live_nbuffer));
}

/* At least a moment: a thread that has nothing left to do needs no longer to end. */
static void join(pthread_t thread, int64_t until_ns) {
  int64_t left = until_ns - ttc__now_ns();
  left = left < 20000000 ? 20000000 : left;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  left += until.tv_nsec;
  until.tv_sec += left / 1000000000;
  until.tv_nsec = left % 1000000000;
  (void)pthread_timedjoin_np(thread, NULL, &until);
}

static bool busy(ttc_device *dev) {
  ttc__lock_take(&dev->pool_lock);
  bool compiling = dev->nworker > dev->nworker_idle;
  ttc__lock_drop(&dev->pool_lock);
  return compiling || (dev->launcher_started && atomic_load(&dev->head) != atomic_load(&dev->tail));
}

/* The plugin works still: what its destructors would take down is in use, so none are run. */
static void leave_at_once(int status, void *unused) {
  (void)unused;
  fflush(NULL);
  _exit(status);
}

/* Let our threads finish what they have, until until_ns. A thread in a plugin call that might never return is left behind. */
static void wind_down(ttc_device *dev, int64_t until_ns) {
  ttc__fuse_cut(dev, TTC_CUT_SYNC);
  ttc__pool_forget_later(dev);
  while (busy(dev) && ttc__now_ns() < until_ns) {
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
  atomic_store(&dev->stop, true);
  pthread_mutex_lock(&dev->wake_mutex);
  pthread_cond_signal(&dev->wake);
  pthread_cond_broadcast(&dev->room);
  pthread_mutex_unlock(&dev->wake_mutex);
  ttc__pool_stop(dev);
  if (dev->launcher_started) {
    join(dev->launcher, until_ns);
  }
  /* The plugin's threads may be in the code of a program. A launcher that has not ended holds the lock. */
  bool launched = ttc__lock_try(&dev->launch);
  if (!launched || !ttc__computed_by(dev, until_ns)) {
    (void)on_exit(leave_at_once, NULL);
  }
  if (launched) {
    ttc__lock_drop(&dev->launch);
  }
  if (dev->later_started) {
    join(dev->later_thread, ttc__now_ns()); /* nobody needs what it compiles */
    ttc__lock_take(&dev->pool_lock);
    bool compiling = dev->later_busy;
    ttc__lock_drop(&dev->pool_lock);
    if (compiling) {
      (void)on_exit(leave_at_once, NULL);
    }
  }
  for (int i = 0; i < dev->nworker; i++) {
    join(dev->workers[i], until_ns);
  }
}

void ttc_shutdown(int timeout_ms) {
  if (atomic_load(&forked) || atomic_exchange(&ended, true)) {
    return;
  }
  int64_t until = ttc__now_ns() + (int64_t)timeout_ms * 1000000;
  for (int i = 0; i < MAX_DEVICES; i++) {
    if (devices[i] != NULL) {
      wind_down(devices[i], until);
    }
  }
}
