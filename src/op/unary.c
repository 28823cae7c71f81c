/* Family "unary": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__unary_rows[1] = {{0}};
const unsigned ttc__unary_nrow = 0;
