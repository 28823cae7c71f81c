/* Family "view": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__view_rows[1] = {{0}};
const unsigned ttc__view_nrow = 0;
