/* Family "norm": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__norm_rows[1] = {{0}};
const unsigned ttc__norm_nrow = 0;
