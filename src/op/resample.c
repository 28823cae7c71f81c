/* Family "resample": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__resample_rows[1] = {{0}};
const unsigned ttc__resample_nrow = 0;
