/* Family "index": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__index_rows[1] = {{0}};
const unsigned ttc__index_nrow = 0;
