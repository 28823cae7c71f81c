/* Runs an artifact (torch_tpu.export) with no Python, through ttc.h:
 *
 *   run_artifact MODEL_FOLDER INPUTS.safetensors OUTPUTS.safetensors [TIMES]
 *
 * reads the tensors that the signature calls user inputs, runs the program TIMES times (1), each on what the last one left in the
 * model's buffers, and writes the last results. TORCH_TPU_PLUGIN names the PJRT plugin where it is not found by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact.h"
#include "ttc.h"
#include "ttc_module.h"

typedef struct file {
  unsigned char *bytes;
  size_t nbyte;
} file;

typedef struct model {
  artifact signature;
  ttc_device *dev;
  uint32_t op;
  ttc_tensor *tensors; /* [ninput], with a store each */
} model;

static bool fail(why *w, const char *what, const ttc_error *err) {
  snprintf(w->text, sizeof w->text, "%.100s: %.380s", what, err->message);
  return false;
}

static bool read_file(const char *folder, const char *name, file *out, why *w) {
  char path[4096];
  snprintf(path, sizeof path, "%s%s%s", folder != NULL ? folder : "", folder != NULL ? "/" : "", name);
  FILE *f = fopen(path, "rb");
  long n = f != NULL && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
  out->bytes = n >= 0 && fseek(f, 0, SEEK_SET) == 0 ? malloc((size_t)n + 1) : NULL;
  out->nbyte = n >= 0 ? (size_t)n : 0;
  bool good = out->bytes != NULL && fread(out->bytes, 1, out->nbyte, f) == out->nbyte;
  if (f != NULL) {
    fclose(f);
  }
  if (!good) {
    free(out->bytes);
    out->bytes = NULL;
    snprintf(w->text, sizeof w->text, "%.400s cannot be read", path);
  }
  return good;
}

/* The program for this kind of device becomes an op. */
static bool load_program(model *m, const char *folder, why *w) {
  const artifact *a = &m->signature;
  ttc_device_info info;
  ttc_error err;
  file text;
  ttc_device_get_info(m->dev, &info);
  const artifact_program *p = info.simulated != 0 ? &a->cpu : &a->tpu;
  if (p->file == NULL) {
    snprintf(w->text, sizeof w->text, "the artifact has no program for a %s", info.simulated != 0 ? "cpu" : "tpu");
    return false;
  }
  if (!read_file(folder, p->file, &text, w)) {
    return false;
  }
  ttc_spec *ins = calloc(a->ninput + 1, sizeof *ins), *outs = calloc(a->noutput + 1, sizeof *outs);
  int32_t *writes = calloc(a->noutput + 1, sizeof *writes);
  bool good = false;
  if (ins == NULL || outs == NULL || writes == NULL) {
    snprintf(w->text, sizeof w->text, "out of memory");
  } else if (text.nbyte != p->nbyte || artifact_crc32(text.bytes, text.nbyte) != p->crc) {
    snprintf(w->text, sizeof w->text, "%.200s is damaged: it is not what the signature was written for", p->file);
  } else {
    for (size_t i = 0; i < a->ninput; i++) {
      ins[i] = a->inputs[i].spec;
    }
    for (size_t k = 0; k < a->noutput; k++) {
      outs[k] = a->outputs[k].spec;
      writes[k] = a->outputs[k].write;
    }
    good = ttc_module_load(folder, text.bytes, text.nbyte, (uint32_t)a->ninput, ins, (uint32_t)a->noutput, outs, writes, &m->op,
                           &err) == TTC_OK ||
           fail(w, "the program", &err);
  }
  free(ins);
  free(outs);
  free(writes);
  free(text.bytes);
  return good;
}

/* Puts a tensor of a safetensors file on the device. */
static bool upload(model *m, size_t i, const file *from, why *w) {
  const artifact_tensor *t = &m->signature.inputs[i];
  const unsigned char *data = NULL;
  ttc_error err;
  ttc_store *store = NULL;
  size_t nbyte = artifact_nbyte(&t->spec);
  if (!safetensors_find(from->bytes, from->nbyte, t->name, &t->spec, &data, w)) {
    return false;
  }
  if (ttc_store_new(m->dev, nbyte, &t->spec, &store, &err) != TTC_OK) {
    return fail(w, t->name, &err);
  }
  m->tensors[i] = (ttc_tensor){.store = store,
                               .sizes = t->spec.sizes,
                               .strides = t->spec.strides,
                               .value = -1,
                               .dtype = (uint8_t)t->spec.dtype,
                               .ndim = (uint8_t)t->spec.ndim};
  return ttc_copy_from_host(&m->tensors[i], data, nbyte, &err) == TTC_OK || fail(w, t->name, &err);
}

static bool load(model *m, const char *folder, const char *inputs, why *w) {
  ttc_error err;
  file signature, weights = {0}, given = {0};
  if (!read_file(folder, "signature.txt", &signature, w)) {
    return false;
  }
  bool good = artifact_parse((const char *)signature.bytes, signature.nbyte, &m->signature, w);
  free(signature.bytes);
  if (!good) {
    return false;
  }
  m->tensors = calloc(m->signature.ninput + 1, sizeof *m->tensors);
  if (m->tensors == NULL || ttc_device_open(0, &m->dev, &err) != TTC_OK) {
    return m->tensors != NULL ? fail(w, "the device", &err) : false;
  }
  good = load_program(m, folder, w) && read_file(folder, m->signature.weights, &weights, w) && read_file(NULL, inputs, &given, w);
  for (size_t i = 0; good && i < m->signature.ninput; i++) {
    good = upload(m, i, m->signature.inputs[i].kind == ARTIFACT_USER ? &given : &weights, w);
  }
  free(weights.bytes);
  free(given.bytes);
  return good;
}

/* One call. What the model changes is written where it lay; the other results' stores go to res. */
static bool run(const model *m, ttc_result *res, why *w) {
  const artifact *a = &m->signature;
  ttc_arg *args = calloc(a->ninput + 1, sizeof *args);
  const ttc_tensor **into = calloc(a->noutput + 1, sizeof *into);
  ttc_spec *outs = calloc(a->noutput + 1, sizeof *outs);
  ttc_error err = {0};
  ttc_status st = TTC_RESOURCE_EXHAUSTED;
  if (args != NULL && into != NULL && outs != NULL) {
    for (size_t i = 0; i < a->ninput; i++) {
      args[i] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &m->tensors[i]};
    }
    for (size_t k = 0; k < a->noutput; k++) {
      outs[k] = a->outputs[k].spec;
      into[k] = a->outputs[k].write >= 0 ? &m->tensors[a->outputs[k].write] : NULL;
    }
    ttc_call call = {.op = m->op, .narg = (uint32_t)a->ninput, .args = args, .ninto = (uint32_t)a->noutput, .into = into};
    st = ttc_call_run(m->dev, &call, res, &err);
    if (st == TTC_NOT_FOUND) { /* the first call: compiled, or read from the disk cache */
      st = ttc_call_define(m->dev, &call, (uint32_t)a->noutput, outs, res, &err);
    }
  }
  free(args);
  free(into);
  free(outs);
  return st == TTC_OK || fail(w, "the call", &err);
}

static void drop(ttc_result *res) {
  for (uint32_t k = 0; k < res->nout; k++) {
    ttc_store_release(res->stores[k]);
  }
  ttc_result_done(res);
}

/* Result k, or the buffer it was written into, as host bytes (in order of its sizes); NULL on failure. */
static unsigned char *download(const model *m, const ttc_result *res, size_t k, why *w) {
  const artifact_tensor *t = &m->signature.outputs[k];
  ttc_error err;
  unsigned char *bytes = malloc(artifact_nbyte(&t->spec) + 1);
  ttc_tensor from = {.store = res->stores[k],
                     .sizes = t->spec.sizes,
                     .strides = t->spec.strides,
                     .value = -1,
                     .dtype = (uint8_t)t->spec.dtype,
                     .ndim = (uint8_t)t->spec.ndim};
  const ttc_tensor *at = t->write >= 0 ? &m->tensors[t->write] : &from;
  if (bytes != NULL && ttc_copy_to_host(at, bytes, artifact_nbyte(&t->spec), &err) != TTC_OK) {
    fail(w, t->name, &err);
    free(bytes);
    bytes = NULL;
  }
  return bytes;
}

static bool save(const model *m, const ttc_result *res, const char *path, why *w) {
  size_t n = m->signature.noutput;
  const artifact_tensor **tensors = calloc(n, sizeof *tensors);
  unsigned char **data = calloc(n, sizeof *data);
  bool good = tensors != NULL && data != NULL;
  for (size_t k = 0; good && k < n; k++) {
    tensors[k] = &m->signature.outputs[k];
    data[k] = download(m, res, k, w);
    good = data[k] != NULL;
  }
  good = good && safetensors_write(path, n, tensors, (const unsigned char *const *)data, w);
  for (size_t k = 0; data != NULL && k < n; k++) {
    free(data[k]);
  }
  free(data);
  free(tensors);
  return good;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: %s MODEL_FOLDER INPUTS.safetensors OUTPUTS.safetensors [TIMES]\n", argv[0]);
    return 2;
  }
  long times = argc > 4 ? strtol(argv[4], NULL, 10) : 1;
  model m = {0};
  why w = {"out of memory"};
  ttc_result res = {0};
  bool good = load(&m, argv[1], argv[2], &w), ran = false;
  for (long i = 0; good && i < (times > 1 ? times : 1); i++) {
    if (ran) {
      drop(&res);
    }
    good = ran = run(&m, &res, &w);
  }
  good = good && save(&m, &res, argv[3], &w);
  if (ran) {
    drop(&res);
  }
  for (size_t i = 0; m.tensors != NULL && i < m.signature.ninput; i++) {
    ttc_store_release(m.tensors[i].store);
  }
  free(m.tensors);
  artifact_free(&m.signature);
  ttc_shutdown(10000);
  if (!good) {
    fprintf(stderr, "%s: %s\n", argv[1], w.text);
  }
  return good ? 0 : 1;
}
