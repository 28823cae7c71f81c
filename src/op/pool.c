/* Family "pool": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__pool_rows[1] = {{0}};
const unsigned ttc__pool_nrow = 0;
