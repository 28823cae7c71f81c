/* Family "sort": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__sort_rows[1] = {{0}};
const unsigned ttc__sort_nrow = 0;
