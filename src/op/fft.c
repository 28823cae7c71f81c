/* Family "fft": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__fft_rows[1] = {{0}};
const unsigned ttc__fft_nrow = 0;
