/* ctc.c's rules; their rows are in loss.c. */
#ifndef TTC_OP_CTC_H
#define TTC_OP_CTC_H

#include "op/op.h"

void ttc__lower_ctc(shlo *b, ttc_lower *c);
void ttc__lower_ctc_backward(shlo *b, ttc_lower *c);
ttc_status ttc__infer_ctc(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err);

#endif
