/* A main for fuzz targets where libFuzzer is not at hand (gcc): random inputs for some seconds, the same ones each time.
 * usage: fuzz_x [seconds] (default 1), or fuzz_x FILE.. to run given inputs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t next(void) { /* xorshift64 (Marsaglia, 2003) */
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static int run_file(const char *path) {
  static uint8_t data[1 << 20];
  FILE *f = fopen(path, "rb");
  if (f == NULL) {
    perror(path);
    return 1;
  }
  size_t n = fread(data, 1, sizeof data, f);
  fclose(f);
  LLVMFuzzerTestOneInput(data, n);
  return 0;
}

int main(int argc, char **argv) {
  char *end = NULL;
  long seconds = argc > 1 ? strtol(argv[1], &end, 10) : 1;
  if (argc > 1 && *end != '\0') {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
      failed |= run_file(argv[i]);
    }
    return failed;
  }
  uint64_t ninput = 0;
  for (time_t until = time(NULL) + seconds; time(NULL) < until;) {
    for (int i = 0; i < 200; i++, ninput++) {
      uint8_t data[512];
      size_t n = (size_t)(next() % (next() % 8 == 0 ? sizeof data : 48));
      uint64_t small = next() % 2; /* half the inputs: small numbers, likelier to mean something */
      for (size_t k = 0; k < n; k++) {
        data[k] = (uint8_t)(small ? next() % 9 : next() >> 32);
      }
      /* An exact-size copy, so that AddressSanitizer sees a read past the end. */
      uint8_t *copy = malloc(n + (n == 0));
      if (copy == NULL) {
        return 1;
      }
      for (size_t k = 0; k < n; k++) {
        copy[k] = data[k];
      }
      LLVMFuzzerTestOneInput(copy, n);
      free(copy);
    }
  }
  printf("%llu inputs\n", (unsigned long long)ninput);
  return 0;
}
