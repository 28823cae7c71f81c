/* Family "rng": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__rng_rows[1] = {{0}};
const unsigned ttc__rng_nrow = 0;
