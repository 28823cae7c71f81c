/* Compiles StableHLO files for TPUs that are not here, and says of each what the compiler says.
 *
 *   ttc_aot LIBTPU.so [NAME=VALUE ..]   NAME=VALUE: options of the compiler
 *
 * reads lines "TOPOLOGY PATH", such as "v5e:1x1 model/model.tpu.mlir", and answers each with a line of JSON: {"topology", "path",
 * "seconds", "cpu_seconds", and either "error" or the figures of ttc_program_report}.
 *
 * It ends where libtpu ends the process: whoever reads it (python/torch_tpu/aot.py) knows what was asked last and starts it again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ttc_plan.h"

enum { MAX_LINE = 8192, MAX_OPEN = 16 };

typedef struct opened {
  char *name;
  ttc_topology *topology;
} opened;

static void put_text(const char *key, const char *text) {
  printf("\"%s\": \"", key);
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      printf("\\%c", c);
    } else if (c < ' ') {
      printf("\\u%04x", c);
    } else {
      putchar(c);
    }
  }
  putchar('"');
}

static char *read_file(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  long size = f != NULL && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
  char *text = size > 0 && fseek(f, 0, SEEK_SET) == 0 ? malloc((size_t)size) : NULL;
  if (text != NULL && fread(text, 1, (size_t)size, f) != (size_t)size) {
    free(text);
    text = NULL;
  }
  if (f != NULL) {
    fclose(f);
  }
  *n = size > 0 ? (size_t)size : 0;
  return text;
}

/* The topology of that name, opened once. */
static ttc_topology *find(opened *list, const char *plugin, const char *name, ttc_error *err) {
  for (int i = 0; i < MAX_OPEN; i++) {
    if (list[i].topology == NULL) {
      free(list[i].name);
      list[i].name = strdup(name);
      return list[i].name != NULL && ttc_topology_open(plugin, name, &list[i].topology, err) == TTC_OK ? list[i].topology : NULL;
    }
    if (strcmp(list[i].name, name) == 0) {
      return list[i].topology;
    }
  }
  err->code = TTC_RESOURCE_EXHAUSTED;
  snprintf(err->message, sizeof err->message, "more than %d topologies", MAX_OPEN);
  return NULL;
}

static double now(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of all threads of the process: libtpu has many. */
static double cpu_now(void) {
  return (double)clock() / CLOCKS_PER_SEC;
}

static void answer(opened *list, const char *plugin, const char *const *options, const char *topology, const char *path) {
  ttc_error err = {0};
  ttc_program_report r;
  size_t n = 0;
  double start = now(), cpu_start = cpu_now();
  char *text = read_file(path, &n);
  ttc_topology *t = text != NULL ? find(list, plugin, topology, &err) : NULL;
  if (text == NULL) {
    err.code = TTC_NOT_FOUND;
    snprintf(err.message, sizeof err.message, "%s cannot be read", path);
  }
  bool good = t != NULL && ttc_topology_compile(t, text, n, options, &r, &err) == TTC_OK;
  free(text);
  putchar('{');
  put_text("topology", topology);
  printf(", ");
  put_text("path", path);
  printf(", \"seconds\": %.3f, \"cpu_seconds\": %.3f, ", now() - start, cpu_now() - cpu_start);
  if (good) {
    printf(
        "\"hbm_bytes\": %lld, \"argument_bytes\": %lld, \"output_bytes\": %lld, \"alias_bytes\": %lld, \"temp_bytes\": %lld, "
        "\"code_bytes\": %lld, \"flops\": %.9g, \"transcendentals\": %.9g, \"bytes_accessed\": %.9g, \"cycles\": %lld, "
        "\"covered\": %lld",
        (long long)r.hbm_nbyte, (long long)r.argument_nbyte, (long long)r.output_nbyte, (long long)r.alias_nbyte,
        (long long)r.temp_nbyte, (long long)r.code_nbyte, r.flops, r.transcendentals, r.bytes_accessed, (long long)r.cycles,
        (long long)r.ncovered);
  } else {
    put_text("code", ttc_status_name(err.code));
    printf(", ");
    put_text("error", err.message);
  }
  printf("}\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  static opened list[MAX_OPEN];
  char line[MAX_LINE];
  if (argc < 2) {
    fprintf(stderr, "usage: %s LIBTPU.so [NAME=VALUE ..]  (reads lines: TOPOLOGY PATH)\n", argv[0]);
    return 2;
  }
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *space = strchr(line, ' ');
    if (space != NULL) {
      *space = '\0';
      answer(list, argv[1], (const char *const *)(argv + 2), line, space + 1);
    }
  }
  fflush(stdout);
  _Exit(0); /* without libtpu's own end, which waits for threads */
}
