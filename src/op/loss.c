/* Family "loss": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__loss_rows[1] = {{0}};
const unsigned ttc__loss_nrow = 0;
