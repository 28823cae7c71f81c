/* Family "foreach": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__foreach_rows[1] = {{0}};
const unsigned ttc__foreach_nrow = 0;
