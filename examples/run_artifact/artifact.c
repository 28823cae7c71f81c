#include "artifact.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool __attribute__((format(printf, 2, 3))) say(why *w, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(w->text, sizeof w->text, fmt, ap);
  va_end(ap);
  return false;
}

uint32_t artifact_crc32(const unsigned char *bytes, size_t n) { /* as zlib's: polynomial 0xedb88320, reflected */
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= bytes[i];
    for (int k = 0; k < 8; k++) {
      crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
  }
  return ~crc;
}

size_t artifact_nbyte(const ttc_spec *s) { /* does not overflow: read_spec has seen to it */
  size_t n = ttc_dtype_nbyte(s->dtype);
  for (int i = 0; i < s->ndim; i++) {
    n *= (size_t)s->sizes[i];
  }
  return n;
}

/* ------------------------------------------------------------------------------------------------- the signature's words */

/* Cuts the next word off *line; "" at its end. */
static char *word(char **line) {
  char *w = *line, *space = strchr(w, ' ');
  if (space != NULL) {
    *space = '\0';
    *line = space + 1;
  } else {
    *line = w + strlen(w);
  }
  return w;
}

/* A decimal number below limit, all of w. */
static bool number(const char *w, uint64_t limit, uint64_t *out) {
  uint64_t v = 0;
  if (*w == '\0') {
    return false;
  }
  for (; *w != '\0'; w++) {
    if (*w < '0' || *w > '9' || v > (UINT64_MAX - 9) / 10) {
      return false;
    }
    v = 10 * v + (uint64_t)(*w - '0');
  }
  *out = v;
  return v < limit;
}

static bool hexadecimal(const char *w, uint32_t *out) {
  char *end = NULL;
  unsigned long v = strlen(w) == 8 ? strtoul(w, &end, 16) : 0;
  *out = (uint32_t)v;
  return end != NULL && *end == '\0';
}

/* "2x3", or "-" for none. */
static bool numbers(char *w, int64_t out[TTC_MAX_NDIM], int *n) {
  *n = 0;
  if (strcmp(w, "-") == 0) {
    return true;
  }
  for (char *at = w; at != NULL;) {
    char *x = strchr(at, 'x');
    uint64_t v = 0;
    if (x != NULL) {
      *x = '\0';
    }
    if (*n == TTC_MAX_NDIM || !number(at, (uint64_t)1 << 48, &v)) {
      return false;
    }
    out[(*n)++] = (int64_t)v;
    at = x != NULL ? x + 1 : NULL;
  }
  return true;
}

/* TYPE SIZES, and STRIDES unless they are contiguous. */
static bool read_spec(char **line, bool strides, ttc_spec *s, why *w) {
  const char *type = word(line);
  memset(s, 0, sizeof *s);
  for (int d = TTC_DTYPE_INVALID + 1; d < TTC_NDTYPE; d++) {
    if (strcmp(ttc_dtype_name((ttc_dtype)d), type) == 0) {
      s->dtype = (ttc_dtype)d;
    }
  }
  if (s->dtype == TTC_DTYPE_INVALID) {
    return say(w, "the type %.40s is not known", type);
  }
  size_t nbyte = ttc_dtype_nbyte(s->dtype);
  if (!numbers(word(line), s->sizes, &s->ndim)) {
    return say(w, "the sizes cannot be read");
  }
  for (int i = s->ndim - 1; i >= 0; i--) {
    s->strides[i] = i == s->ndim - 1 ? 1 : s->strides[i + 1] * (s->sizes[i + 1] > 0 ? s->sizes[i + 1] : 1);
    size_t size = s->sizes[i] > 0 ? (size_t)s->sizes[i] : 1; /* the product stays below 2^62 with empty dimensions left out */
    if (__builtin_mul_overflow(nbyte, size, &nbyte) || nbyte >> 62 != 0) {
      return say(w, "a tensor is larger than memory");
    }
  }
  int n = 0;
  if (strides && (!numbers(word(line), s->strides, &n) || n != s->ndim)) {
    return say(w, "the strides cannot be read");
  }
  return true;
}

static bool plain_file(const char *name) {
  return *name != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static bool add(artifact_tensor **list, size_t *n, const artifact_tensor *t, why *w) {
  if ((*n & (*n - 1)) == 0) { /* a power of two, or 0: full */
    artifact_tensor *p = realloc(*list, (*n == 0 ? 1 : 2 * *n) * sizeof *p);
    if (p == NULL) {
      return say(w, "out of memory");
    }
    *list = p;
  }
  (*list)[(*n)++] = *t;
  return true;
}

static bool read_program(artifact *a, char *line, why *w) {
  const char *device = word(&line);
  artifact_program p = {.file = word(&line)};
  uint64_t nbyte = 0;
  if (!plain_file(p.file) || !number(word(&line), (uint64_t)1 << 40, &nbyte) || !hexadecimal(word(&line), &p.crc)) {
    return say(w, "expected: program DEVICE FILE BYTES CRC-32");
  }
  p.nbyte = (size_t)nbyte;
  if (strcmp(device, "cpu") == 0) {
    a->cpu = p;
  } else if (strcmp(device, "tpu") == 0) {
    a->tpu = p;
  }
  return true;
}

static bool read_input(artifact *a, char *line, why *w) {
  static const char *const kinds[] = {"parameter", "buffer", "constant", "user"};
  const char *kind = word(&line);
  artifact_tensor t = {.write = -1, .kind = ARTIFACT_WRITE};
  for (int k = 0; k < 4; k++) {
    t.kind = strcmp(kind, kinds[k]) == 0 ? (artifact_kind)k : t.kind;
  }
  if (t.kind == ARTIFACT_WRITE) {
    return say(w, "an input cannot be a %.40s", kind);
  }
  t.name = line;
  if (!read_spec(&line, false, &t.spec, w)) {
    return false;
  }
  t.name = line;
  return *t.name != '\0' ? add(&a->inputs, &a->ninput, &t, w) : say(w, "an input has no name");
}

static bool read_output(artifact *a, char *line, why *w) {
  const char *kind = word(&line);
  artifact_tensor t = {.write = -1, .kind = ARTIFACT_USER};
  uint64_t at = 0;
  if (strcmp(kind, "write") == 0) {
    t.kind = ARTIFACT_WRITE;
    if (!number(word(&line), a->ninput, &at)) {
      return say(w, "an output is written into an input that there is not");
    }
    t.write = (int32_t)at;
  } else if (strcmp(kind, "user") != 0) {
    return say(w, "an output cannot be a %.40s", kind);
  }
  if (!read_spec(&line, t.kind == ARTIFACT_USER, &t.spec, w)) {
    return false;
  }
  t.name = line;
  return *t.name != '\0' ? add(&a->outputs, &a->noutput, &t, w) : say(w, "an output has no name");
}

static bool read_line(artifact *a, char *line, why *w) {
  const char *what = word(&line);
  if (strcmp(what, "program") == 0) {
    return read_program(a, line, w);
  }
  if (strcmp(what, "input") == 0) {
    return read_input(a, line, w);
  }
  if (strcmp(what, "output") == 0) {
    return read_output(a, line, w);
  }
  if (strcmp(what, "weights") == 0) {
    a->weights = line;
    return plain_file(line) ? true : say(w, "the weights' file has no plain name");
  }
  bool known = strcmp(what, "made") == 0 || strcmp(what, "python") == 0; /* for people, and for Python */
  return known ? true : say(w, "the word %.40s is not known", what);
}

static bool read_first(const char *line, why *w) {
  static const char expected[] = "torch_tpu artifact ";
  uint64_t format = 0;
  if (strncmp(line, expected, sizeof expected - 1) != 0 || !number(line + sizeof expected - 1, UINT64_MAX, &format)) {
    return say(w, "this is no signature of an artifact: it begins with \"%.40s\"", line);
  }
  if (format > ARTIFACT_FORMAT) {
    return say(w, "the artifact was made by a newer torch_tpu: format %llu, this program reads up to %d",
               (unsigned long long)format, ARTIFACT_FORMAT);
  }
  return true;
}

static bool read_lines(artifact *a, why *w) {
  int n = 1;
  bool ended = false;
  for (char *line = a->text; *line != '\0' && !ended; n++) {
    char *newline = strchr(line, '\n');
    if (newline == NULL) {
      break;
    }
    *newline = '\0';
    why inner = {""};
    ended = n > 1 && strcmp(line, "end") == 0;
    if (n == 1 ? !read_first(line, w) : (!ended && !read_line(a, line, &inner))) {
      return n == 1 ? false : say(w, "line %d of the signature: %.400s", n, inner.text);
    }
    line = newline + 1;
  }
  if (n == 1) {
    return read_first(a->text, w) ? say(w, "the signature is cut short") : false;
  }
  if (!ended) {
    return say(w, "the signature is cut short: its last line should be \"end\"");
  }
  return a->noutput > 0 ? true : say(w, "the signature names no output");
}

bool artifact_parse(const char *signature, size_t nbyte, artifact *out, why *w) {
  artifact a = {.text = calloc(nbyte + 1, 1), .weights = ""};
  if (a.text == NULL) {
    return say(w, "out of memory");
  }
  memcpy(a.text, signature, nbyte);
  if (!read_lines(&a, w)) {
    artifact_free(&a);
    return false;
  }
  *out = a;
  return true;
}

void artifact_free(artifact *a) {
  free(a->text);
  free(a->inputs);
  free(a->outputs);
  memset(a, 0, sizeof *a);
}
