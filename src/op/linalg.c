/* Family "linalg": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__linalg_rows[1] = {{0}};
const unsigned ttc__linalg_nrow = 0;
