/* The files of an artifact (python/torch_tpu/export.py) for a C program: the signature's lines and safetensors' headers. Nothing
 * here trusts its input: what cannot be read is said in words. */
#ifndef ARTIFACT_H
#define ARTIFACT_H

#include <stdbool.h>
#include <stddef.h>

#include "ttc.h"

#define ARTIFACT_FORMAT 1

typedef enum artifact_kind { ARTIFACT_PARAMETER, ARTIFACT_BUFFER, ARTIFACT_CONSTANT, ARTIFACT_USER, ARTIFACT_WRITE } artifact_kind;

typedef struct artifact_tensor {
  artifact_kind kind;
  ttc_spec spec;
  int32_t write;    /* of an output: the input whose new contents it is, else -1 */
  const char *name; /* lies in the artifact's text */
} artifact_tensor;

typedef struct artifact_program {
  const char *file; /* NULL: none */
  size_t nbyte;
  uint32_t crc;
} artifact_program;

typedef struct artifact {
  char *text; /* a copy of the signature, cut into lines */
  artifact_program cpu, tpu;
  const char *weights; /* file */
  artifact_tensor *inputs, *outputs;
  size_t ninput, noutput;
} artifact;

typedef struct why { /* what is wrong, if something is */
  char text[512];
} why;

/* false: why says it. On true free with artifact_free. */
bool artifact_parse(const char *signature, size_t nbyte, artifact *out, why *w);
void artifact_free(artifact *a);

uint32_t artifact_crc32(const unsigned char *bytes, size_t n);
size_t artifact_nbyte(const ttc_spec *s);

/* The tensor of that name in the n bytes of a safetensors file: where its bytes are, which are artifact_nbyte(want) many. false if
 * it is not there, or of another type or size, or if the file is damaged. */
bool safetensors_find(const unsigned char *file, size_t n, const char *name, const ttc_spec *want, const unsigned char **data,
                      why *w);
/* Writes tensors (of which data[k] has the bytes) to a new file. */
bool safetensors_write(const char *path, size_t n, const artifact_tensor *const *tensors, const unsigned char *const *data, why *w);

#endif
