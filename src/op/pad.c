/* Family "pad": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__pad_rows[1] = {{0}};
const unsigned ttc__pad_nrow = 0;
