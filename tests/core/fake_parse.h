/* What the fake plugin reads: signatures of @main in module text, and the device in a serialized CompileOptionsProto. */
#ifndef TTC_TESTS_FAKE_PARSE_H
#define TTC_TESTS_FAKE_PARSE_H

#include <pjrt_c_api.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NDIM = 16 };

typedef struct shape {
  PJRT_Buffer_Type type;
  size_t ndim, nbyte;
  int64_t dims[MAX_NDIM];
  int64_t alias; /* of a parameter: the result that takes its memory, or -1 */
} shape;
typedef struct program {
  atomic_long refs;
  char *text;
  size_t ntext, narg, nout;
  shape *args, *outs;
  PJRT_Device *device;
} program;

/* ---- types and signatures */

static const struct {
  const char *mlir;
  PJRT_Buffer_Type type;
  size_t nbyte;
} elements[] = {{"i1", PJRT_Buffer_Type_PRED, 1},
                {"i8", PJRT_Buffer_Type_S8, 1},
                {"i16", PJRT_Buffer_Type_S16, 2},
                {"i32", PJRT_Buffer_Type_S32, 4},
                {"i64", PJRT_Buffer_Type_S64, 8},
                {"ui8", PJRT_Buffer_Type_U8, 1},
                {"ui16", PJRT_Buffer_Type_U16, 2},
                {"ui32", PJRT_Buffer_Type_U32, 4},
                {"ui64", PJRT_Buffer_Type_U64, 8},
                {"f16", PJRT_Buffer_Type_F16, 2},
                {"bf16", PJRT_Buffer_Type_BF16, 2},
                {"f32", PJRT_Buffer_Type_F32, 4},
                {"f64", PJRT_Buffer_Type_F64, 8},
                {"f8E4M3FN", PJRT_Buffer_Type_F8E4M3FN, 1},
                {"f8E4M3FNUZ", PJRT_Buffer_Type_F8E4M3FNUZ, 1},
                {"f8E5M2", PJRT_Buffer_Type_F8E5M2, 1},
                {"f8E5M2FNUZ", PJRT_Buffer_Type_F8E5M2FNUZ, 1},
                {"f8E8M0FNU", PJRT_Buffer_Type_F8E8M0FNU, 1},
                {"complex<f32>", PJRT_Buffer_Type_C64, 8},
                {"complex<f64>", PJRT_Buffer_Type_C128, 16}};

static inline bool size_up(shape *s, size_t element) {
  s->nbyte = element;
  s->alias = -1;
  for (size_t i = 0; i < s->ndim; i++) {
    if (s->dims[i] < 0 || __builtin_mul_overflow(s->nbyte, (size_t)s->dims[i], &s->nbyte)) {
      return false;
    }
  }
  return true;
}

static inline bool describe(shape *s, PJRT_Buffer_Type type, const int64_t *dims, size_t ndim) {
  memset(s, 0, sizeof *s);
  for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
    if (elements[i].type == type && ndim <= MAX_NDIM) {
      s->type = type;
      s->ndim = ndim;
      for (size_t k = 0; k < ndim; k++) {
        s->dims[k] = dims[k];
      }
      return size_up(s, elements[i].nbyte);
    }
  }
  return false;
}

/* at "2x3xf32>...", behind "tensor<". The end of the type, or NULL. */
static inline const char *read_tensor(const char *at, shape *s) {
  memset(s, 0, sizeof *s);
  while (*at >= '0' && *at <= '9') {
    char *end = NULL;
    long long dim = strtoll(at, &end, 10);
    if (*end != 'x' || s->ndim == MAX_NDIM) {
      return NULL;
    }
    s->dims[s->ndim++] = dim;
    at = end + 1;
  }
  for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
    size_t n = strlen(elements[i].mlir);
    if (strncmp(at, elements[i].mlir, n) == 0 && at[n] == '>') {
      s->type = elements[i].type;
      return size_up(s, elements[i].nbyte) ? at + n + 1 : NULL;
    }
  }
  return NULL;
}

static inline const char *add_tensor(const char *at, shape **list, size_t *n) {
  shape *longer = realloc(*list, (*n + 1) * sizeof **list);
  if (longer == NULL) {
    abort();
  }
  *list = longer;
  return read_tensor(at, &longer[(*n)++]);
}

/* All tensor types up to the ')' that closes the list which begins at `at`, with their aliases. Behind it, or NULL. */
static inline const char *read_list(const char *at, shape **list, size_t *n) {
  static const char tensor[] = "tensor<", alias[] = "tf.aliasing_output";
  for (int depth = 1; at != NULL && *at != '\0';) {
    if (*at == '"') {
      at = strchr(at + 1, '"');
      at = at == NULL ? NULL : at + 1;
    } else if (strncmp(at, tensor, sizeof tensor - 1) == 0) {
      at = add_tensor(at + sizeof tensor - 1, list, n);
    } else if (strncmp(at, alias, sizeof alias - 1) == 0 && *n > 0) {
      at += sizeof alias - 1;
      at += strcspn(at, "0123456789");
      (*list)[*n - 1].alias = strtoll(at, NULL, 10);
    } else {
      depth += (*at == '(') - (*at == ')');
      at++;
      if (depth == 0) {
        return at;
      }
    }
  }
  return NULL;
}

static inline bool read_signature(program *p) {
  const char *at = strstr(p->text, "@main(");
  at = at == NULL ? NULL : read_list(at + 6, &p->args, &p->narg);
  if (at == NULL) {
    return false;
  }
  at += strspn(at, " \n");
  if (strncmp(at, "->", 2) == 0) {
    at += 2;
    at += strspn(at, " \n");
    at = *at == '('                       ? read_list(at + 1, &p->outs, &p->nout)
         : strncmp(at, "tensor<", 7) == 0 ? add_tensor(at + 7, &p->outs, &p->nout)
                                          : NULL;
  }
  for (size_t i = 0; at != NULL && i < p->narg; i++) {
    int64_t k = p->args[i].alias;
    if (k >= 0 && ((size_t)k >= p->nout || p->outs[k].nbyte != p->args[i].nbyte)) {
      return false;
    }
  }
  return at != NULL;
}

/* ---- CompileOptionsProto, as far as it matters here */

static inline uint64_t read_varint(const unsigned char **at, const unsigned char *end) {
  uint64_t v = 0;
  for (int shift = 0; *at < end && shift < 64; shift += 7) {
    unsigned char byte = *(*at)++;
    v |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) {
      break;
    }
  }
  return v;
}

/* The first field of that number in [at, end): an integer, or the bytes [*at, *end). false if absent. */
static inline bool read_field(const unsigned char **at, const unsigned char **end, unsigned number, uint64_t *value) {
  const unsigned char *p = *at;
  while (p < *end) {
    uint64_t tag = read_varint(&p, *end), v = read_varint(&p, *end);
    bool bytes = (tag & 7) == 2;
    if (bytes && v > (uint64_t)(*end - p)) {
      return false;
    }
    if (tag >> 3 == number) {
      *value = v;
      if (bytes) {
        *at = p;
        *end = p + v;
      }
      return true;
    }
    p += bytes ? v : 0;
  }
  return false;
}

static inline bool read_device(const char *options, size_t n, uint64_t *id) {
  const unsigned char *build = (const unsigned char *)options, *build_end = build + n;
  uint64_t v = 0, replicas = 0, partitions = 0;
  if (!read_field(&build, &build_end, 3, &v) || !read_field(&build, &build_end, 4, &replicas) ||
      !read_field(&build, &build_end, 5, &partitions)) {
    return false;
  }
  return replicas == 1 && partitions == 1 && read_field(&build, &build_end, 9, &v) && read_field(&build, &build_end, 3, &v) &&
         read_field(&build, &build_end, 1, id);
}

#endif
