/* Family "optim": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__optim_rows[1] = {{0}};
const unsigned ttc__optim_nrow = 0;
