/* Ever new shapes: plans longest unused are given up, with their executables; those in use stay. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run_tools.h"

#define MAX_KEPT 4096
#define SHAPES 6000

/* The process has mappings of memory for more than half of those that it may have: few plans are kept. */
static void test_mappings(void) {
  long most = 0;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
  if (f == NULL || fscanf(f, "%ld", &most) != 1 || most > 1 << 20) {
    most = 0;
  }
  if (f != NULL) {
    fclose(f);
  }
  size_t n = (size_t)most / 2 + 2, page = (size_t)sysconf(_SC_PAGESIZE);
  char *bytes = most != 0 ? mmap(NULL, n * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
  if (bytes == MAP_FAILED) {
    return;
  }
  for (size_t k = 0; k < n; k += 2) { /* every other page is another mapping */
    CHECK_EQ(mprotect(bytes + k * page, page, PROT_READ | PROT_WRITE), 0);
  }
  long live = fake_live();
  for (int64_t k = 0; k < 1000; k++) {
    ten y, a = empty(TTC_F32, DIMS(20000 + k));
    OK(add(&a, &a, 1, NULL, &y));
    ttc_store_release(y.store);
    ttc_store_release(a.store);
    OK(ttc_device_synchronize(dev, &err));
  }
  CHECK(stats().plans < 300);
  CHECK(fake_live() - live < 300);
  munmap(bytes, n * page);
}

int main(void) {
  open_fake();
  test_mappings();
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
