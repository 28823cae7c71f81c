/* Modules as they are for a TPU, written to files: what TORCH_TPU's ahead-of-time checks compile for chips that are not here. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "run/run.h"
#include "ttc_module.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char folder[1024];
static uint64_t count;
_Atomic bool ttc__dumping;

void ttc_set_dump(const char *dir) {
  pthread_mutex_lock(&mutex);
  snprintf(folder, sizeof folder, "%s", dir != NULL ? dir : "");
  count = 0;
  atomic_store(&ttc__dumping, folder[0] != '\0');
  pthread_mutex_unlock(&mutex);
}

static void write_text(const char *op, const char *text, size_t nbyte) {
  char path[1200], name[65];
  snprintf(name, sizeof name, "%s", op);
  for (char *c = name; *c != '\0'; c++) {
    bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '_' || *c == '.';
    *c = plain ? *c : '_';
  }
  pthread_mutex_lock(&mutex);
  snprintf(path, sizeof path, "%s/%s.%06llu.mlir", folder, name, (unsigned long long)count++);
  pthread_mutex_unlock(&mutex);
  FILE *f = fopen(path, "wbe");
  bool good = f != NULL && fwrite(text, 1, nbyte, f) == nbyte;
  good = f != NULL && fclose(f) == 0 && good;
  if (!good) {
    ttc__log(TTC__LOG_INFO, "%s cannot be written", path);
  }
}

void ttc__dump(const ttc__lower_in *in) {
  ttc__lower_in how = *in;
  ttc__lowered low;
  ttc_error err = {0};
  const ttc_op_row *row = ttc__op_row(in->call->op);
  how.for_tpu = true;
  if (row != NULL && ttc__lower(&how, &low, &err) == TTC_OK) {
    write_text(row->name, low.text, low.text_nbyte);
    ttc__lowered_free(&low);
  }
}
