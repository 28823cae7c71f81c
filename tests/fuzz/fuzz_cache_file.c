/* The cache's file check: never reads past the end, accepts exactly what the writer makes. */
#include <string.h>

#include "cache/disk.h"
#include "fuzz.h"

/* Any bytes: accepted only if they are, to the last byte, what would be written for their payload. */
static void check_any(const uint8_t *data, size_t n, const unsigned char key[TTC__DIGEST]) {
  unsigned char head[TTC__FILE_HEADER];
  if (ttc__file_check(data, n, key)) {
    MUST(n >= TTC__FILE_HEADER);
    ttc__file_header(head, key, data + TTC__FILE_HEADER, n - TTC__FILE_HEADER);
    MUST(memcmp(head, data, sizeof head) == 0);
  }
}

/* A good file of the payload is accepted; with one bit flipped, cut short, grown or under another key it is not. */
static void check_changed(const uint8_t *payload, size_t n, unsigned char key[TTC__DIGEST], size_t where, int bit) {
  size_t total = TTC__FILE_HEADER + n;
  unsigned char *file = malloc(total + 1);
  MUST(file != NULL);
  ttc__file_header(file, key, payload, n);
  if (n != 0) {
    memcpy(file + TTC__FILE_HEADER, payload, n);
  }
  file[total] = 0;
  MUST(ttc__file_check(file, total, key));
  MUST(!ttc__file_check(file, total + 1, key));
  MUST(!ttc__file_check(file, where % total, key));
  file[where % total] ^= (unsigned char)(1 << bit);
  MUST(!ttc__file_check(file, total, key));
  file[where % total] ^= (unsigned char)(1 << bit);
  key[where % TTC__DIGEST] ^= (unsigned char)(1 << bit);
  MUST(!ttc__file_check(file, total, key));
  free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  unsigned char key[TTC__DIGEST] = {0};
  check_any(data, n, key);
  if (n >= 5) {
    key[0] = data[0];
    size_t where = (size_t)data[1] | (size_t)data[2] << 8;
    check_changed(data + 4, n - 4, key, where, data[3] % 8);
  }
  return 0;
}
