/* Family "matmul": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__matmul_rows[1] = {{0}};
const unsigned ttc__matmul_nrow = 0;
