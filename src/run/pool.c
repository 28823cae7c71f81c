/* The compile pool: threads that turn lowered plans into executables, several at once; started when first needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "graph/graph.h"
#include "run/fuse.h"

#define INLINE_NELEM 1024 /* elements read and written up to which a straight-line program takes microseconds */

/* May the program still run when its launch returns? Small ones are run by the launching thread itself. Wrong guesses cost a
 * microsecond, or an event that comes some microseconds early. */
static bool lags(const ttc_plan *plan) {
  int64_t n = 0;
  for (uint32_t i = 0; i < plan->low.nparam; i++) {
    const ttc__param *q = &plan->low.params[i];
    n += q->kind == TTC__PARAM_STORE ? ttc__nelem(plan->bases[q->i].ndim, plan->bases[q->i].dims) : 0;
  }
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    n += ttc__nelem(plan->low.products[k].base.ndim, plan->low.products[k].base.dims);
  }
  return n > INLINE_NELEM || strstr(plan->low.text, "while") != NULL || strstr(plan->low.text, "custom_call") != NULL;
}

static void finish(ttc_plan *plan, pjrt_exe *exe, const ttc_error *err) {
  ttc_device *dev = plan->dev;
  ttc__poison *poison = exe == NULL ? ttc__poison_new(err) : NULL;
  bool lagging = exe != NULL && lags(plan);
  ttc__lock_take(&dev->plan_lock); /* after keeps_texts was set under it no text goes away */
  if (plan->recipe != NULL || (!plan->keeps_text && !atomic_load(&dev->keeps_texts))) {
    free(plan->low.text);
    plan->low.text = NULL;
  }
  plan->lags = lagging;
  plan->exe = exe;
  plan->error = poison;
  atomic_store(&plan->state, exe != NULL ? PLAN_READY : PLAN_FAILED);
  pthread_cond_broadcast(&dev->plan_done);
  ttc__lock_drop(&dev->plan_lock);
}

static const char no_threads[] = "no thread could be started to compile in: too many threads (ulimit -u) or too little memory";
enum { THREADS_OF_A_COMPILE = 3 }; /* that XLA starts */

static ttc_status make(ttc_plan *plan, pjrt_exe **exe, ttc_error *err) {
  if (plan->dump != NULL) {
    return ttc__dump_compile(plan, exe, err);
  }
  return ttc__cache_get(plan->dev->cache, plan->dev->index, plan->low.text, plan->low.text_nbyte, ttc__options(plan->options), exe,
                        err);
}

/* Is what a foreign program gives what its results' stores are taken to hold? Reading them would else read other memory. */
static ttc_status check_foreign(const ttc_plan *plan, const pjrt_exe *exe, ttc_error *err) {
  size_t n = plan->low.nproduct;
  ttc_dtype *dtypes = calloc(n + 1, sizeof *dtypes);
  int *ndims = calloc(n + 1, sizeof *ndims);
  const int64_t **dims = calloc(n + 1, sizeof *dims);
  ttc_status st = TTC_OK;
  if (dtypes == NULL || ndims == NULL || dims == NULL) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  for (size_t k = 0; k < n && st == TTC_OK; k++) {
    const ttc__base *base = &plan->low.products[k].base;
    dtypes[k] = (ttc_dtype)base->dtype;
    ndims[k] = base->ndim;
    dims[k] = base->dims;
  }
  st = st == TTC_OK ? pjrt_exe_check_results(exe, n, dtypes, ndims, dims, err) : st;
  free(dtypes);
  free(ndims);
  free(dims);
  return st;
}

static void compile(ttc_plan *plan) {
  ttc_error err = {0};
  pjrt_exe *exe = NULL;
  const ttc_op_row *row = ttc__op_row(plan->op);
  snprintf(err.op, sizeof err.op, "%s", row != NULL ? row->name : "?");
  if (!ttc__threads_to_be_had(THREADS_OF_A_COMPILE)) {
    (void)TTC_FAIL(&err, TTC_UNAVAILABLE, "%s", no_threads);
  } else if (plan->recipe != NULL && ttc__recipe_join(plan, &err) != TTC_OK) {
    exe = NULL;
  } else if (make(plan, &exe, &err) != TTC_OK) {
    ttc__log(TTC__LOG_DEBUG, "compiling %s failed: %s\n%s", err.op, err.message, plan->low.text);
    size_t n = strlen(err.message);
    ttc__graph_place(plan->op, err.message + n, sizeof err.message - n);
    exe = NULL;
  } else if ((uint32_t)pjrt_exe_nout(exe) != plan->low.nproduct) { /* a launch would write past our array of results */
    (void)TTC_FAIL(&err, TTC_INTERNAL, "the compiled program gives %d results, expected %u", pjrt_exe_nout(exe),
                   plan->low.nproduct);
    pjrt_exe_free(exe);
    exe = NULL;
  } else if (plan->low.foreign && check_foreign(plan, exe, &err) != TTC_OK) {
    pjrt_exe_free(exe);
    exe = NULL;
  }
  finish(plan, exe, &err);
}

static void *worker_main(void *arg) {
  ttc_device *dev = arg;
  ttc__never_interrupt();
  ttc__lock_take(&dev->pool_lock);
  while (!atomic_load(&dev->stop)) {
    ttc_plan *plan = dev->jobs;
    if (plan == NULL) {
      dev->nworker_idle++;
      pthread_cond_wait(&dev->pool_wake, &dev->pool_lock.mutex);
      dev->nworker_idle--;
      continue;
    }
    dev->jobs = plan->next_job;
    if (dev->jobs == NULL) {
      dev->last_job = &dev->jobs;
    }
    dev->njob--;
    ttc__lock_drop(&dev->pool_lock);
    compile(plan);
    ttc__plan_release(plan);
    ttc__lock_take(&dev->pool_lock);
  }
  dev->nworker_idle++; /* for good */
  ttc__lock_drop(&dev->pool_lock);
  return NULL;
}

/* Pool lock held. Another thread, where those that wait do not suffice for the jobs (a woken one counts as waiting until it has
 * taken its job). */
static void start_worker(ttc_device *dev) {
  if (dev->workers == NULL) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    dev->nworker_max = n < 1 ? 1 : (n > 16 ? 16 : (int)n);
    dev->workers = calloc((size_t)dev->nworker_max, sizeof *dev->workers);
  }
  if (dev->workers != NULL && dev->nworker_idle <= dev->njob && dev->nworker < dev->nworker_max &&
      pthread_create(&dev->workers[dev->nworker], NULL, worker_main, dev) == 0) {
    dev->nworker++;
  }
}

void ttc__pool_submit(ttc_device *dev, ttc_plan *plan) {
  ttc__lock_take(&dev->pool_lock);
  start_worker(dev);
  bool alone = dev->nworker == 0;
  if (!alone) {
    atomic_fetch_add(&plan->refs, 1);
    plan->next_job = NULL;
    *dev->last_job = plan;
    dev->last_job = &plan->next_job;
    dev->njob++;
    pthread_cond_signal(&dev->pool_wake);
  }
  ttc__lock_drop(&dev->pool_lock);
  if (alone) { /* no thread to be had: fail the plan rather than hang its readers */
    ttc_error err = {0};
    (void)TTC_FAIL(&err, TTC_UNAVAILABLE, "%s", no_threads);
    finish(plan, NULL, &err);
  }
}

/* ------------------------------------------------------------------------------------------- plans nobody waits for */

#define LATER_NICENESS 10 /* a tenth of a core beside a thread that wants it all */

static void *later_main(void *arg) {
  ttc_device *dev = arg;
  ttc__never_interrupt();
  (void)setpriority(PRIO_PROCESS, 0, LATER_NICENESS); /* of this thread alone, on Linux */
  ttc__lock_take(&dev->pool_lock);
  while (!atomic_load(&dev->stop)) {
    ttc_plan *plan = dev->later;
    if (plan == NULL) {
      pthread_cond_wait(&dev->later_wake, &dev->pool_lock.mutex);
      continue;
    }
    dev->later = plan->next_job;
    if (dev->later == NULL) {
      dev->last_later = &dev->later;
    }
    dev->later_busy = true;
    ttc__lock_drop(&dev->pool_lock);
    compile(plan);
    ttc__plan_release(plan);
    ttc__lock_take(&dev->pool_lock);
    dev->later_busy = false;
    dev->nlater--;
    pthread_cond_broadcast(&dev->later_done);
  }
  ttc__lock_drop(&dev->pool_lock);
  return NULL;
}

void ttc__pool_submit_later(ttc_device *dev, ttc_plan *plan) {
  ttc__lock_take(&dev->pool_lock);
  if (!dev->later_started && pthread_create(&dev->later_thread, NULL, later_main, dev) == 0) {
    dev->later_started = true;
    dev->last_later = &dev->later;
  }
  bool started = dev->later_started;
  if (started) {
    atomic_fetch_add(&plan->refs, 1);
    plan->next_job = NULL;
    *dev->last_later = plan;
    dev->last_later = &plan->next_job;
    dev->nlater++;
    pthread_cond_signal(&dev->later_wake);
  }
  ttc__lock_drop(&dev->pool_lock);
  if (!started) {
    ttc_error err = {0};
    (void)TTC_FAIL(&err, TTC_UNAVAILABLE, "%s", no_threads);
    finish(plan, NULL, &err);
  }
}

void ttc__pool_forget_later(ttc_device *dev) {
  ttc__lock_take(&dev->pool_lock);
  while (dev->later != NULL) {
    ttc_plan *plan = dev->later;
    dev->later = plan->next_job;
    dev->nlater--;
    ttc__plan_release(plan);
  }
  dev->last_later = &dev->later;
  ttc__lock_drop(&dev->pool_lock);
}

uint32_t ttc__pool_nlater(ttc_device *dev) {
  ttc__lock_take(&dev->pool_lock);
  uint32_t n = dev->nlater;
  ttc__lock_drop(&dev->pool_lock);
  return n;
}

void ttc__pool_wait_later(ttc_device *dev, int64_t timeout_ns) {
  ttc__lock_take(&dev->pool_lock);
  if (dev->nlater != 0) {
    ttc__cond_wait_ns(&dev->later_done, &dev->pool_lock, timeout_ns);
  }
  ttc__lock_drop(&dev->pool_lock);
}

void ttc__pool_stop(ttc_device *dev) {
  ttc__lock_take(&dev->pool_lock);
  pthread_cond_broadcast(&dev->pool_wake);
  pthread_cond_broadcast(&dev->later_wake);
  ttc__lock_drop(&dev->pool_lock);
  ttc__lock_take(&dev->plan_lock);
  pthread_cond_broadcast(&dev->plan_done); /* whoever waits for a compile sees that it will not come */
  ttc__lock_drop(&dev->plan_lock);
}

ttc_status ttc__plan_wait(ttc_plan *plan, ttc_error *err) {
  ttc_device *dev = plan->dev;
  if (atomic_load_explicit(&plan->state, memory_order_acquire) != PLAN_COMPILING) {
    return TTC_OK;
  }
  ttc__progress progress = {.since_ns = ttc__now_ns()};
  bool given_up = false;
  ttc__lock_take(&dev->plan_lock);
  while (atomic_load(&plan->state) == PLAN_COMPILING && !given_up) {
    ttc__cond_wait_ns(&dev->plan_done, &dev->plan_lock, 100000000);
    given_up = atomic_load(&plan->state) == PLAN_COMPILING && (atomic_load(&dev->stop) || !ttc__own_thread());
    if (ttc__own_thread()) {
      ttc__lock_drop(&dev->plan_lock);
      ttc__progress_show(&progress, plan);
      ttc__lock_take(&dev->plan_lock);
    }
  }
  ttc__lock_drop(&dev->plan_lock);
  ttc__progress_end(&progress);
  return given_up ? TTC_FAIL(err, TTC_CANCELLED, "a program is still being compiled") : TTC_OK;
}

void ttc__plan_release(ttc_plan *plan) {
  if (plan == NULL || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  if (plan->exe != NULL && !atomic_load(&plan->dev->stop) && !ttc__forked()) {
    pjrt_exe_free(plan->exe);
  }
  ttc__poison_release(plan->error);
  ttc__lowered_free(&plan->low);
  ttc__plan_release(plan->bare);
  free(plan->outs);
  free(plan->bases);
  free(plan->dump);
  ttc__recipe_free(plan->recipe);
  free(plan);
}
