/* Family "conv": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__conv_rows[1] = {{0}};
const unsigned ttc__conv_nrow = 0;
