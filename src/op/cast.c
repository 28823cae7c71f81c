/* Family "cast": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__cast_rows[1] = {{0}};
const unsigned ttc__cast_nrow = 0;
