/* Stores, plans, the launch queue: shared inside src/run only.
 *
 * Two orders matter. Dispatch order is the order of calls; it is decided under the dispatch lock, which guards stores' base shapes,
 * plans and the queue's head. Launch order is the same order, later: whoever holds the launch lock takes records off the queue's
 * tail and runs them; it guards stores' buffers. The launch thread does that in the background, a reader does it itself. */
#ifndef TTC_RUN_RUN_H
#define TTC_RUN_RUN_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/map.h"
#include "cache/cache.h"
#include "graph/key.h"
#include "graph/lengths.h"
#include "pjrt/pjrt.h"
#include "run/store.h"
#include "ttc_fuse.h"
#include "ttc_trace.h"

typedef struct ttc__recipe ttc__recipe;
typedef enum plan_state { PLAN_COMPILING, PLAN_READY, PLAN_FAILED } plan_state;

struct ttc_plan {
  atomic_int refs;
  atomic_int state; /* plan_state */
  ttc_device *dev;
  uint64_t serial; /* no other plan has it */
  uint32_t op;
  uint32_t options; /* ttc__options */
  uint32_t nout;
  ttc_spec *outs;
  ttc__base *bases;    /* [slots] what each store holds before the call */
  ttc__lowered low;    /* text is kept until compiled, and longer where it may become part of a fused program */
  uint32_t nnumber;    /* NUMBER and RNG parameters */
  int64_t fresh_nbyte; /* of the fresh results */
  char *dump;          /* folder to put what is made of it into, or NULL */
  bool placed;         /* some of its numbers are where parts of stores that are not open begin */
  ttc__opened opened;  /* how results are open; its length, where that is always the same, else 0: the call's (lengths.h) */
  bool refuses;        /* the call cannot be wide: a mark under its wide key, never run */
  bool closes;         /* it writes an open store, which then is no more */
  bool keeps_text;     /* its text could not be made again */
  bool lags;           /* READY: too much work to be done by the time a launch returns */
  pjrt_exe *exe;       /* READY */
  ttc__poison *error;  /* FAILED */
  uint64_t last_use;   /* the device's count of calls then, under the dispatch lock */
  struct ttc_plan *next_job;
  struct ttc_plan *bare; /* the same without the checks of low.verify, once those were seen to be settled often enough */
  uint32_t nsettled;     /* how often; both under the dispatch lock */
  ttc__recipe *recipe;   /* of a fused program (fuse.h), whose text, bases and op are there when it is READY; or NULL */
};

/* A number as it travels in a record: encoded in its parameter's dtype (Philox words as u64). */
typedef struct number {
  unsigned char bytes[16];
} number;

typedef enum record_kind { RECORD_LAUNCH, RECORD_UPLOAD, RECORD_RESIZE, RECORD_PREFIX, RECORD_EVENT, RECORD_WAIT } record_kind;

typedef struct ttc__prefix ttc__prefix;
typedef struct ttc__fuse ttc__fuse;

#define RECORD_INLINE_STORES 8
#define RECORD_INLINE_NUMBERS 4
/* What is left of a record that runs before its trace is cut: NOTED: the trace needs it still; LAUNCHED: nobody else does. */
enum { SHELL_NONE, SHELL_NOTED, SHELL_LAUNCHED };

typedef struct record {
  uint8_t kind;          /* record_kind */
  _Atomic uint8_t shell; /* SHELL_* */
  uint64_t tag;          /* of a trace */
  uint32_t nstore, nnumber;
  ttc_plan *plan; /* LAUNCH */
  union {
    pjrt_buffer *buf;    /* UPLOAD: becomes stores[0]'s contents */
    ttc_event *event;    /* EVENT, WAIT: one reference */
    ttc__prefix *prefix; /* PREFIX: freed once launched */
  };
  ttc__base base;     /* UPLOAD, RESIZE, PREFIX: what the store holds from here on */
  ttc_store **stores; /* one reference each: the call's slots, then one a fresh output (NULL: nobody) */
  number *numbers;
  ttc_store *inline_stores[RECORD_INLINE_STORES];
  number inline_numbers[RECORD_INLINE_NUMBERS];
} record;

#define QUEUE_CAP 4096u  /* a power of two; holds the open trace too (fuse.h) */
#define QUEUE_HIGH 1024u /* callers help from here on */

#define MAX_ERRORS 16

#define NUMBER_CACHE 1024u /* a power of two */
typedef struct cached_number {
  pjrt_buffer *buf;
  uint8_t dtype;
  number value;
} cached_number;

struct ttc_device {
  int index;
  pjrt_plugin *plugin;
  pjrt_client *client;
  ttc__cache *cache;
  ttc_device_info info;
  bool for_tpu;

  ttc__lock dispatch;
  ttc__map *plans;
  ttc__site site;
  ttc__wide wide;        /* the call as plans.c made it wide .. */
  bool widened;          /* .. if it did */
  ttc__lengths *lengths; /* NULL: they are never numbers */
  int precision;         /* of products, as the key in site has it */
  uint32_t options;      /* ttc__options, likewise */
  uint32_t nmade;        /* times a plan was to be made */
  _Atomic uint64_t calls;
  _Atomic uint32_t epoch; /* of what is known of stores; a new one begins when a fault was told or a check did not run */

  record *queue;               /* [QUEUE_CAP] */
  _Atomic uint32_t head, tail; /* free running */
  _Atomic uint32_t open;       /* records of the open trace, under the dispatch lock .. */
  _Atomic uint32_t sent;       /* .. and how many of them, the first, are before head; the others are kept back */
  _Atomic uint64_t recorded;   /* records of all traces so far */
  ttc__fuse *fuse;             /* NULL until some call is to be kept back */
  _Atomic bool keeps_texts;    /* so are lowered texts, from then on */
  _Atomic bool asks_lines;     /* who calls is asked which line of Python that is (where.c) */

  ttc__lock launch;
  cached_number *numbers; /* [NUMBER_CACHE], under the launch lock */
  pjrt_buffer *fault;     /* s64[TTC__FAULT_WORDS], NULL: no program has checked anything since the last was told */
  bool fault_is_new;      /* some program has given it back since it was last read */
  ttc_plan *checker;      /* the last that did, with a reference, once a fused one has; and how many different ones */
  uint32_t ncheckers;
  const char *line;                /* of Python, "" or NULL, that the call being launched comes from */
  ttc__poison *errors[MAX_ERRORS]; /* since the last synchronize, oldest first, under the launch lock */
  int nerror;
  pjrt_buffer **scratch; /* three arrays of scratch_cap: arguments, results, leftovers; under the launch lock */
  int64_t *kept;         /* [scratch_cap] numbers of the arguments that keep their memory */
  uint32_t scratch_cap;

  pthread_t launcher;
  bool launcher_started;
  _Atomic bool stop;
  _Atomic uint32_t wake_at; /* records queued from which a caller wakes the launch thread; 0 while it is awake */
  pthread_mutex_t wake_mutex;
  pthread_cond_t wake, room;
  _Atomic int waiting_for_room;

  ttc__lock plan_lock; /* plans' states change under it */
  pthread_cond_t plan_done;

  ttc__lock pool_lock;
  pthread_cond_t pool_wake;
  ttc_plan *jobs, **last_job;
  ttc_plan *later, **last_later; /* nobody waits for these: one thread of low priority makes them */
  uint32_t nlater;
  pthread_t later_thread;
  bool later_started, later_busy;
  pthread_cond_t later_wake, later_done;
  pthread_t *workers;
  int nworker, nworker_max, nworker_idle, njob; /* njob: waiting to be taken */

  ttc__lock store_lock;
  ttc_store *live;
  ttc_store *spare;         /* freed stores to reuse, under the dispatch lock */
  ttc_store *_Atomic freed; /* freed since the last time spare was filled */
  _Atomic int nfreed;       /* about as many are in freed */
  pjrt_event **dropped;     /* of results let go of while being computed; filled under the store lock */
  uint32_t dropped_cap, weed_at;
  ttc_event *last_event;    /* launched; under the launch lock */
  struct ttc__trace *trace; /* NULL: none; under the launch lock */
  _Atomic bool tracing;
  _Atomic uint32_t ndropped;
  _Atomic int64_t live_nbyte, peak_nbyte, live_nbuffer, peak_nbuffer; /* written under the store lock */
  _Atomic int64_t promised_nbyte;              /* of all stores there are, computed or not; without small ones */
  _Atomic int64_t ceiling_nbyte;               /* promises up to here need no second look (memory.c) */
  _Atomic int64_t limit_nbyte;                 /* what this device's stores may hold together */
  _Atomic uint64_t made_nbyte, made_nbuffer;   /* written under the launch lock */
  _Atomic uint64_t reset_nbyte, reset_nbuffer; /* what these were when last reset */
  _Atomic uint64_t queue_wait_ns;
};

/* ---- device.c */
/* TTC_OK unless the process forked after opening the device, or shut down. */
ttc_status ttc__usable(ttc_device *dev, ttc_error *err);
void ttc__leave(void); /* before a call that may have waited returns: see ttc_set_no_return. No lock held */
/* Should a waiting thread give up (Ctrl-C)? Never in threads of our own. */
bool ttc__interrupted(void);
void ttc__never_interrupt(void); /* this thread is our own */
bool ttc__own_thread(void);
/* In a child forked after opening: no plugin call may be made, and no lock be taken, for its holder may not exist here. */
bool ttc__forked(void);
extern atomic_int ttc__matmul_precision;

/* ---- options.c */
extern atomic_uint ttc__option_set;            /* the list of compiler options that calls are defined under */
const char *const *ttc__options(uint32_t set); /* "name=value", NULL terminated; NULL: none */
ttc_status ttc__options_from_environment(ttc_device *dev, ttc_error *err); /* becomes list 0. blocks */

/* ---- memory.c */
#define PROMISED_FROM 4096        /* bytes: smaller stores are not summed */
#define LOOKED_AT_FROM (64 << 20) /* larger ones are always given a second look */

ttc_status ttc__memory_look_at_launch(ttc_device *dev, int64_t nbyte, ttc_error *err);

/* May so many bytes be asked for without a second look? */
static inline bool ttc__memory_fits(ttc_device *dev, int64_t nbyte) {
  return nbyte < PROMISED_FROM ||
         (nbyte < LOOKED_AT_FROM && atomic_load_explicit(&dev->promised_nbyte, memory_order_relaxed) + nbyte <=
                                        atomic_load_explicit(&dev->ceiling_nbyte, memory_order_relaxed));
}
typedef struct ttc__asked { /* for the error's words; into as in ttc_call */
  uint32_t op, nout;
  const ttc_spec *specs;
  const ttc_tensor *const *into;
  int64_t nbyte;
} ttc__asked;
/* The second look; if need be everything in flight is waited for first. TTC_RESOURCE_EXHAUSTED says what was asked for and who
 * holds the memory. No lock held. blocks */
ttc_status ttc__memory_make_room(ttc_device *dev, const ttc__asked *asked, ttc_error *err);
int64_t ttc__fresh_nbyte(const ttc_call *call, uint32_t nout, const ttc_spec *specs); /* of results without a target */
/* A launch found no memory: wait for what runs and give back what is kept for speed. Launch lock held. blocks */
void ttc__memory_reclaim_launching(ttc_device *dev);
void ttc__memory_explain(ttc_device *dev, ttc_error *err); /* say who holds it. Launch lock held */
int64_t ttc__machine_nbyte(void);
/* Is there room for what a launch takes for itself? TTC_RESOURCE_EXHAUSTED. Launch lock held. */
static inline ttc_status ttc__memory_check_launch(ttc_device *dev, int64_t nbyte, ttc_error *err) {
  return nbyte < LOOKED_AT_FROM ? TTC_OK : ttc__memory_look_at_launch(dev, nbyte, err);
}
ttc_status ttc__memory_init(ttc_device *dev, ttc_error *err);

/* ---- dump.c */
extern _Atomic bool ttc__dumping; /* see ttc_set_dump */
void ttc__dump(const ttc__lower_in *in);

/* ---- evict.c */
/* Sorts the counts of last uses; those below the result are the oldest nth part. 0: there are none. */
uint64_t ttc__oldest_kept(uint64_t *uses, size_t n, size_t part);
/* A plan is about to be made. Above a number of plans, take the quarter longest unused out of the table, or half of them where the
 * process has very many mappings of memory; the caller releases the list (next_job) once it has dropped the dispatch lock, which
 * is held here. */
ttc_plan *ttc__plans_evict(ttc_device *dev);

/* ---- store.c: the rest is in store.h */
static inline void ttc__promise(ttc_device *dev, size_t nbyte, int sign) {
  if (nbyte >= PROMISED_FROM) {
    atomic_fetch_add_explicit(&dev->promised_nbyte, sign * (int64_t)nbyte, memory_order_relaxed);
  }
}

/* ---- queue.c */
/* Room for one more record, helping to launch if the queue is long (which may mean waiting for a compile). On TTC_OK the dispatch
 * lock is held; on failure it is not. blocks */
ttc_status ttc__queue_reserve(ttc_device *dev, ttc_error *err);
/* The same for a record that is not to be kept back: what is goes before it. */
ttc_status ttc__queue_reserve_after(ttc_device *dev, ttc_cut reason, ttc_error *err);
record *ttc__queue_slot(ttc_device *dev);             /* dispatch lock held, after a reserve; behind what is kept back */
void ttc__queue_publish(ttc_device *dev, bool quiet); /* dispatch lock held; quiet: ttc__queue_prompt or _hurry follows */
/* Launch what is queued if that is one record, `ready` to run, and nobody else launches, else leave it to the launch thread. No
 * lock held. */
void ttc__queue_prompt(ttc_device *dev, bool ready);
/* Take the launch lock, giving up when interrupted. */
ttc_status ttc__launch_take(ttc_device *dev, ttc_error *err);
/* Launch all that is queued now, without what is kept back. Launch lock held. TTC_CANCELLED: a program is still being compiled (see
 * ttc__plan_wait). */
ttc_status ttc__drain(ttc_device *dev, ttc_error *err);
/* The same with what is kept back, taking the launch lock, which is held on TTC_OK only. Ctrl-C is looked for while no lock is
 * held: its handlers may use the device. blocks */
ttc_status ttc__launch_all(ttc_device *dev, ttc_error *err);
void *ttc__launcher_main(void *dev);

/* Wake the launch thread if it waits for no more records than are queued. Dispatch lock held. */
void ttc__queue_wake_if_due(ttc_device *dev);
/* A trace is opened: the launch thread should see to it that it is not open for long. Dispatch lock held. */
void ttc__queue_opened(ttc_device *dev);
/* Have the launch thread take notice at once. */
void ttc__queue_hurry(ttc_device *dev);

/* ---- fuse.c */
void ttc__fuse_cut(ttc_device *dev, ttc_cut reason); /* all that is kept back goes to the queue. Dispatch lock not held */

/* ---- plans.c, dispatch lock held */
ttc_plan *ttc__plan_new(ttc_device *dev, uint32_t op);
/* The plan for the call, its key left in dev->site; NULL: there is none. Where dev->widened is set both are of dev->wide.call. */
ttc_plan *ttc__look_up(ttc_device *dev, const ttc_call *call, bool *no_memory);
/* Make the plan for the call that was looked up last, and have it compiled. */
ttc_status ttc__define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_plan **out, ttc_error *err);
/* For the call just looked up, which has that plan: give it the one without checks; its text, which was not kept. */
void ttc__define_bare(ttc_device *dev, const ttc_call *call, ttc_plan *plan);
void ttc__define_text(ttc_device *dev, const ttc_call *call, ttc_plan *plan);

/* ---- event.c */
/* A result is let go of, perhaps before it is computed: remember to wait for it. any thread */
void ttc__result_dropped(ttc_device *dev, pjrt_buffer *buf);
void ttc__weed_dropped(ttc_device *dev);                    /* forget those that are finished. Launch lock held */
void ttc__event_launch(ttc_device *dev, ttc_event *ev);     /* the queue has come to ev. Launch lock held. Takes the reference */
ttc_status ttc__event_block(ttc_event *ev, ttc_error *err); /* nothing more is launched before ev. Takes it, unless cancelled */
/* As ttc_device_synchronize, after each call of a thread in Debug mode: what is wrong is that call's doing. blocks */
ttc_status ttc__settle(ttc_device *dev, ttc_error *err);
/* Everything called so far is launched and its results are computed; their errors are noted. No lock is held before or after.
 * blocks
 */
ttc_status ttc__compute_all(ttc_device *dev, ttc_error *err);
void ttc__compute_launched(ttc_device *dev);              /* what is launched is computed. Launch lock held throughout. blocks */
bool ttc__computed_by(ttc_device *dev, int64_t until_ns); /* has it, or will it have by then? Waits; launch lock held */
/* Launch lock held. *settled: s's contents are there, lost or none. Else they were waited for, and the launch lock was dropped. */
ttc_status ttc__compute_store(ttc_store *s, bool *settled, ttc_error *err);

/* ---- trace.c */
uint64_t ttc__trace_tag(void);
/* Launch lock held, dev->trace not NULL: r was launched at that time and gave outs. */
void ttc__trace_launched(ttc_device *dev, const record *r, pjrt_buffer *const *outs, int64_t launch_ns);

/* ---- prefix.c */
void ttc__prefix_launch(ttc_device *dev, record *r, ttc_error *err); /* launch lock held; failures poison */

/* ---- launch.c */
ttc_status ttc__launch(ttc_device *dev, record *r, ttc_error *err); /* only TTC_CANCELLED is returned; failures poison */
void ttc__record_done(record *r);                                   /* it was launched */
void ttc__record_free(record *r);                                   /* what does not go with its stores */
ttc__poison *ttc__poison_by(uint32_t writer, ttc_error *err);       /* err with the op's name */
void ttc__note_error(ttc_device *dev, ttc__poison *p);              /* for ttc_device_synchronize; takes a reference of its own */
ttc_status ttc__report_error(ttc_device *dev, ttc_error *err);      /* the first that nobody has read, if any; forgets all */
/* The first fault that programs launched so far have found, as an error; forgets it. late: it may be some other call's than the one
 * that is told. Waits for the programs. Launch lock held. */
ttc_status ttc__report_fault(ttc_device *dev, bool late, ttc_error *err);

/* ---- pool.c */
void ttc__pool_submit(ttc_device *dev, ttc_plan *plan); /* takes a reference of its own */
/* The same for a plan that nobody waits for. */
void ttc__pool_submit_later(ttc_device *dev, ttc_plan *plan);
uint32_t ttc__pool_nlater(ttc_device *dev);                     /* of those, not made yet */
void ttc__pool_forget_later(ttc_device *dev);                   /* those not begun are never made */
void ttc__pool_wait_later(ttc_device *dev, int64_t timeout_ns); /* until that is 0 */
void ttc__pool_stop(ttc_device *dev);
/* Wait until the plan is compiled. Other threads than our own give up after a while, with TTC_CANCELLED, so that whoever holds the
 * launch lock can drop it and look for Ctrl-C. */
ttc_status ttc__plan_wait(ttc_plan *plan, ttc_error *err);
/* One line on a terminal, for who waits long for a plan. One thread at a time shows it; `shown` is false at first. */
typedef struct ttc__progress {
  int64_t since_ns;
  bool shown;
} ttc__progress;
void ttc__progress_show(ttc__progress *p, const ttc_plan *plan);
void ttc__progress_end(ttc__progress *p);

/* ---- see.c */
char *ttc__dump_dir(void); /* to free(); NULL where nothing is dumped */
/* Compile the plan for its folder, past the cache. blocks */
ttc_status ttc__dump_compile(ttc_plan *plan, pjrt_exe **out, ttc_error *err);
void ttc__plan_release(ttc_plan *plan);

#endif
