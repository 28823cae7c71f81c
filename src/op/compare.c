/* Family "compare": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__compare_rows[1] = {{0}};
const unsigned ttc__compare_nrow = 0;
