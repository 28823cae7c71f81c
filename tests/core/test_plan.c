/* Ahead-of-time compiling through ttc_plan.h where the plugin cannot: told, never a crash. With libtpu: tests/python/test_aot.py.
 */
#include "run_tools.h"
#include "ttc_plan.h"

int main(void) {
  ttc_topology *t = NULL;
  IS(ttc_topology_open("/nowhere/libtpu.so", "v5e:1x1", &t, &err), TTC_NOT_FOUND);
  CHECK(strstr(err.message, "/nowhere/libtpu.so") != NULL);
  IS(ttc_topology_open(choose_fake(), "v5e:1x1", &t, &err), TTC_UNIMPLEMENTED);
  CHECK(strstr(err.message, "PJRT_TopologyDescription_Create") != NULL);
  CHECK(t == NULL);
  ttc_topology_close(t);
  return CHECK_DONE();
}
