/* Family "cast": copies and conversions. */
#include "op/elem.h"

/* The source in the result's dtype, broadcast to its shape.        param: the argument that is the source */
static void lower_copy(shlo *b, ttc_lower *c) {
  (void)b;
  op_ret(c, 0, op_in_as(c, op_param(c), op_out_dtype(c, 0)));
}

#define GRAPH(name) {EACH_HEAD(name, lower_copy, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY}
const ttc_op_row ttc__cast_rows[] = {
    EACH_ROW("copy", lower_copy, 1, TOL_EXACT),
    GRAPH("clone"),
    GRAPH("_to_copy"),
    GRAPH("alias"),
    GRAPH("alias_copy"),
    GRAPH("detach"),
    GRAPH("detach_copy"),
    GRAPH("lift"),
    GRAPH("lift_fresh"),
    GRAPH("lift_fresh_copy"),
};
TTC_FAMILY(cast)
