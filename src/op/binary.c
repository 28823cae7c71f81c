/* Family "binary": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__binary_rows[1] = {{0}};
const unsigned ttc__binary_nrow = 0;
