/* A call being lowered: what lower.c keeps of it, and ask.c answers a rule's questions from. */
#ifndef TTC_OP_FRAME_H
#define TTC_OP_FRAME_H

#include "op/lower.h"

/* One program being built: what all nodes of a graph share. */
typedef struct program {
  const ttc__lower_in *in;
  shlo *b;
  uint32_t *first; /* [narg + 1] place in visiting order of each argument's first tensor; last: of the first `into` */
  ttc_val *slots;  /* [nslot] current contents; meaningful where read or written */
  uint8_t *have;   /* [nslot] HAVE_* */
  ttc__param *params;
  ttc_val *param_values;
  uint32_t nparam, cap;
  ttc_val fault; /* TTC_POISON until something is checked */
  bool quiet;
  int depth; /* regions around what is being lowered */
  bool carry_faults, fault_in_region;
  uint32_t nverify;
  ttc__verify verify[TTC__MAX_VERIFY];
} program;
enum { HAVE_PARAM = 1, HAVE_WRITE = 2 };

struct ttc_lower {
  program *p;
  ttc_lower *graph; /* the graph's own frame while one of its nodes is lowered, else NULL */
  const ttc_call *call;
  const ttc_op_row *row;
  uint32_t nout;
  const ttc_spec *outs;
  const ttc_val *values; /* graph values, for nodes */
  ttc_val *rets;         /* [nout], TTC_POISON until op_ret */
};

/* The program's parameter that is this, made where it is not there yet. */
ttc_val ttc__param_value(program *p, ttc__param what, ttc_dtype d, int ndim, const int64_t *dims);
/* What a store holds: before the call, which is what arguments see, and as far as it is written. */
ttc_val ttc__slot_before(program *p, uint32_t slot);
ttc_val ttc__slot_value(program *p, uint32_t slot);
/* Open number k of the call, an s32. */
ttc_val ttc__open_number(program *p, uint32_t k);
/* A PART of what a store holds; *base becomes what that is an array of. */
ttc_val ttc__part(program *p, ttc_val v, const ttc__open *o, ttc__base *base);

#endif
