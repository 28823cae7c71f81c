/* Ever new shapes: plans longest unused are given up, with their executables; those in use stay. */
#include "run_tools.h"

#define MAX_KEPT 4096
#define SHAPES 6000

int main(void) {
  open_fake();
  ten y, often = empty(TTC_F32, DIMS(3));
  long live = fake_live();
  for (int64_t n = 0; n < SHAPES; n++) {
    ten a = empty(TTC_F32, DIMS(10 + n));
    OK(add(&a, &a, 1, NULL, &y));
    CHECK(!was_hit);
    ttc_store_release(y.store);
    ttc_store_release(a.store);
    OK(add(&often, &often, 1, NULL, &y));
    CHECK(was_hit || n == 0);
    ttc_store_release(y.store);
    if (n % 100 == 0) {
      OK(ttc_device_synchronize(dev, &err));
    }
  }
  OK(ttc_device_synchronize(dev, &err));
  CHECK(stats().plans <= MAX_KEPT);
  CHECK(stats().plans > MAX_KEPT / 2);
  CHECK(fake_live() - live <= MAX_KEPT + 16);
  ten first = empty(TTC_F32, DIMS(10)); /* given up long ago: made again */
  OK(add(&first, &first, 1, NULL, &y));
  CHECK(!was_hit);
  ttc_store_release(y.store);
  ttc_store_release(first.store);
  ttc_store_release(often.store);
  return CHECK_DONE();
}
