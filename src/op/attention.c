/* Family "attention": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__attention_rows[1] = {{0}};
const unsigned ttc__attention_nrow = 0;
