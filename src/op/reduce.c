/* Family "reduce": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__reduce_rows[1] = {{0}};
const unsigned ttc__reduce_nrow = 0;
