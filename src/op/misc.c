/* Family "misc": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__misc_rows[1] = {{0}};
const unsigned ttc__misc_nrow = 0;
