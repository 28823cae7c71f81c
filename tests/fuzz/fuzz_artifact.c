/* An artifact's signature and a safetensors header: any bytes are read or refused in words, and what is read lies in them. Inputs
 * are taken as they are, and as changes of good files: random bytes alone seldom come past the first word. */
#include <string.h>

#include "../../examples/run_artifact/artifact.h"
#include "fuzz.h"

static const char signature[] =
    "torch_tpu artifact 1\nmade torch_tpu 0.1.0 torch 2.13.0\nprogram cpu model.cpu.mlir 5120 0f3a9c11\n"
    "program tpu model.tpu.mlir 4000 ffffffff\nweights model.safetensors\ninput parameter f32 2x3 weight\ninput buffer s64 - "
    "count\n"
    "input user bf16 4x2 x\noutput write 1 s64 - count\noutput user f32 4x2 2x1 linear\npython results []\nend\n";
static const char header[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\":\"\\n\"},\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"weight\": {\"shape\":[],\"data_offsets\":[24,32],\"dtype\":\"I64\"}}";

static void check_signature(const char *text, size_t n) {
  artifact a;
  why w = {""};
  if (!artifact_parse(text, n, &a, &w)) {
    MUST(w.text[0] != '\0');
    return;
  }
  for (size_t i = 0; i < a.ninput; i++) {
    MUST(a.inputs[i].name[0] != '\0' && artifact_nbyte(&a.inputs[i].spec) < (size_t)1 << 62);
  }
  for (size_t k = 0; k < a.noutput; k++) {
    MUST(a.outputs[k].write < (int32_t)a.ninput);
  }
  artifact_free(&a);
}

static void check_file(const unsigned char *file, size_t n) {
  static const ttc_spec wanted[2] = {{.dtype = TTC_F32, .ndim = 2, .sizes = {2, 3}}, {.dtype = TTC_S64}};
  static const char *const names[2] = {"x", "weight"};
  for (int i = 0; i < 2; i++) {
    const unsigned char *data = NULL;
    why w = {""};
    if (safetensors_find(file, n, names[i], &wanted[i], &data, &w)) {
      MUST(data >= file + 8 && data + artifact_nbyte(&wanted[i]) <= file + n);
    } else {
      MUST(w.text[0] != '\0');
    }
  }
}

/* A copy of base with pieces overwritten, taken out or put in, as the input says. The length in *n. */
static unsigned char *changed(const void *base, size_t size, const uint8_t *data, size_t ndata, size_t *n) {
  unsigned char *out = malloc(size + 256 * (ndata / 4 + 1));
  MUST(out != NULL);
  memcpy(out, base, size);
  *n = size;
  for (size_t i = 0; i + 3 < ndata; i += 4) {
    size_t at = ((size_t)data[i] | (size_t)data[i + 1] << 8) % (*n + 1), len = data[i + 2] / 4;
    if (data[i + 2] % 4 == 0) { /* out */
      len = len < *n - at ? len : *n - at;
      memmove(out + at, out + at + len, *n - at - len);
      *n -= len;
    } else if (data[i + 2] % 4 == 1) { /* in */
      memmove(out + at + len, out + at, *n - at);
      memset(out + at, data[i + 3], len);
      *n += len;
    } else if (at < *n) {
      out[at] = data[i + 3];
    }
  }
  unsigned char *exact = realloc(out, *n + (*n == 0)); /* so that a read past the end is seen */
  return exact != NULL ? exact : out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static unsigned char good[8 + sizeof header - 1 + 32];
  if (good[0] == 0) {
    good[0] = (unsigned char)(sizeof header - 1);
    memcpy(good + 8, header, sizeof header - 1);
    check_signature(signature, sizeof signature - 1);
    check_file(good, sizeof good);
  }
  check_signature((const char *)data, n);
  check_file(data, n);
  size_t m = 0;
  unsigned char *text = changed(signature, sizeof signature - 1, data, n, &m);
  check_signature((const char *)text, m);
  free(text);
  unsigned char *file = changed(good, sizeof good, data, n, &m);
  check_file(file, m);
  free(file);
  MUST(artifact_crc32((const unsigned char *)"123456789", 9) == 0xcbf43926u);
  return 0;
}
