/* Family "rnn": no rows yet. */
#include "op/op.h"

const ttc_op_row ttc__rnn_rows[1] = {{0}};
const unsigned ttc__rnn_nrow = 0;
