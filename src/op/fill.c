/* Family "fill": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__fill_rows[1] = {{0}};
const unsigned ttc__fill_nrow = 0;
