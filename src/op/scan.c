/* Family "scan": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__scan_rows[1] = {{0}};
const unsigned ttc__scan_nrow = 0;
