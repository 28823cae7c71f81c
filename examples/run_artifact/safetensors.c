/* safetensors: 8 bytes with the header's length, the header in JSON, the tensors' bytes. The header maps names to
 * {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}; "__metadata__" maps words to words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact.h"

static const struct {
  ttc_dtype dtype;
  const char *name;
} types[] = {{TTC_BOOL, "BOOL"}, {TTC_U8, "U8"},   {TTC_U16, "U16"}, {TTC_U32, "U32"},          {TTC_U64, "U64"},
             {TTC_S8, "I8"},     {TTC_S16, "I16"}, {TTC_S32, "I32"}, {TTC_S64, "I64"},          {TTC_F16, "F16"},
             {TTC_BF16, "BF16"}, {TTC_F32, "F32"}, {TTC_F64, "F64"}, {TTC_F8E4M3FN, "F8_E4M3"}, {TTC_F8E5M2, "F8_E5M2"},
             {TTC_C64, "C64"}};

static const char *type_name(ttc_dtype d) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (types[i].dtype == d) {
      return types[i].name;
    }
  }
  return "?";
}

/* ------------------------------------------------------------------------------------------------------- as much of JSON */

enum { MAX_NAME = 1024 };

typedef struct json {
  const char *at, *end;
  bool failed;
} json;

typedef struct entry {
  char name[MAX_NAME], dtype[16];
  uint64_t shape[TTC_MAX_NDIM], offsets[2];
  size_t nshape, noffset;
} entry;

static void space(json *j) {
  while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r')) {
    j->at++;
  }
}

/* Is c next? Then go past it. */
static bool take(json *j, char c) {
  space(j);
  bool found = !j->failed && j->at < j->end && *j->at == c;
  j->at += found;
  return found;
}

static void need(json *j, char c) {
  j->failed = !take(j, c) || j->failed;
}

/* UTF-8 of a code point below 0x10000. */
static size_t encode(unsigned v, char out[3]) {
  if (v < 0x80) {
    out[0] = (char)v;
    return 1;
  }
  if (v < 0x800) {
    out[0] = (char)(0xc0 | v >> 6);
    out[1] = (char)(0x80 | (v & 0x3f));
    return 2;
  }
  out[0] = (char)(0xe0 | v >> 12);
  out[1] = (char)(0x80 | (v >> 6 & 0x3f));
  out[2] = (char)(0x80 | (v & 0x3f));
  return 3;
}

/* Behind a backslash: the bytes it stands for, 0 if they cannot be told. */
static size_t escape(json *j, char out[3]) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = *j->at++;
  const char *known = c != '\0' ? strchr(from, c) : NULL;
  if (known != NULL) {
    out[0] = to[known - from];
    return 1;
  }
  unsigned v = 0;
  for (int k = 0; k < 4 && c == 'u'; k++, j->at++) {
    char h = j->at < j->end ? *j->at : '\0';
    int digit = h >= '0' && h <= '9' ? h - '0' : h >= 'a' && h <= 'f' ? h - 'a' + 10 : h >= 'A' && h <= 'F' ? h - 'A' + 10 : -1;
    if (digit < 0) {
      return 0;
    }
    v = 16 * v + (unsigned)digit;
  }
  return v == 0 || (v >= 0xd800 && v < 0xe000) ? 0 : encode(v, out);
}

/* A string; too long ones are cut, and so found by no name. */
static void string(json *j, char *out, size_t size) {
  size_t n = 0;
  need(j, '"');
  while (!j->failed && j->at < j->end && *j->at != '"') {
    char bytes[3] = {*j->at++};
    size_t len = 1;
    if (bytes[0] == '\\') {
      len = j->at < j->end ? escape(j, bytes) : 0;
      j->failed = len == 0;
    }
    for (size_t k = 0; k < len && n + 1 < size; k++) {
      out[n++] = bytes[k];
    }
  }
  out[n] = '\0';
  need(j, '"');
}

static uint64_t integer(json *j) {
  uint64_t v = 0;
  space(j);
  const char *start = j->at;
  while (j->at < j->end && *j->at >= '0' && *j->at <= '9') {
    if (v > (UINT64_MAX - 9) / 10) {
      j->failed = true;
      return 0;
    }
    v = 10 * v + (uint64_t)(*j->at++ - '0');
  }
  j->failed = j->failed || j->at == start;
  return v;
}

static void integers(json *j, uint64_t *out, size_t max, size_t *n) {
  *n = 0;
  need(j, '[');
  if (take(j, ']')) {
    return;
  }
  do {
    uint64_t v = integer(j);
    j->failed = j->failed || *n == max;
    if (!j->failed) {
      out[(*n)++] = v;
    }
  } while (take(j, ','));
  need(j, ']');
}

static void read_entry(json *j, entry *e) {
  char key[16];
  memset(e->dtype, 0, sizeof e->dtype);
  e->nshape = e->noffset = 0;
  need(j, '{');
  do {
    string(j, key, sizeof key);
    need(j, ':');
    if (strcmp(key, "dtype") == 0) {
      string(j, e->dtype, sizeof e->dtype);
    } else if (strcmp(key, "shape") == 0) {
      integers(j, e->shape, TTC_MAX_NDIM, &e->nshape);
    } else if (strcmp(key, "data_offsets") == 0) {
      integers(j, e->offsets, 2, &e->noffset);
    } else {
      j->failed = true;
    }
  } while (take(j, ','));
  need(j, '}');
  j->failed = j->failed || e->noffset != 2;
}

static void skip_metadata(json *j) {
  char ignored[16];
  need(j, '{');
  if (take(j, '}')) {
    return;
  }
  do {
    string(j, ignored, sizeof ignored);
    need(j, ':');
    string(j, ignored, sizeof ignored);
  } while (take(j, ','));
  need(j, '}');
}

/* ------------------------------------------------------------------------------------------------------------- reading */

static bool fits(const entry *e, const ttc_spec *want, size_t ndata, const char *name, why *w) {
  bool same = strcmp(e->dtype, type_name(want->dtype)) == 0 && e->nshape == (size_t)want->ndim;
  for (size_t k = 0; same && k < e->nshape; k++) {
    same = e->shape[k] == (uint64_t)want->sizes[k];
  }
  if (!same) {
    snprintf(w->text, sizeof w->text, "%.200s is %s of %zu dimensions, expected %s of %d dimensions with other sizes", name,
             e->dtype, e->nshape, type_name(want->dtype), want->ndim);
    return false;
  }
  if (e->offsets[0] > e->offsets[1] || e->offsets[1] > ndata || e->offsets[1] - e->offsets[0] != artifact_nbyte(want)) {
    snprintf(w->text, sizeof w->text, "the file is damaged: the bytes of %.200s do not lie in it", name);
    return false;
  }
  return true;
}

bool safetensors_find(const unsigned char *file, size_t n, const char *name, const ttc_spec *want, const unsigned char **data,
                      why *w) {
  uint64_t size = 0;
  for (int k = 0; k < 8 && n >= 8; k++) {
    size |= (uint64_t)file[k] << 8 * k;
  }
  if (n < 8 || size > n - 8) {
    snprintf(w->text, sizeof w->text, "the file is damaged: its header does not fit in its %zu bytes", n);
    return false;
  }
  const char *text = (const char *)file + 8;
  json j = {.at = text, .end = text + size};
  entry e;
  bool more = (need(&j, '{'), !take(&j, '}'));
  while (more && !j.failed) {
    string(&j, e.name, sizeof e.name);
    need(&j, ':');
    if (strcmp(e.name, "__metadata__") == 0) {
      skip_metadata(&j);
    } else {
      read_entry(&j, &e);
      if (!j.failed && strcmp(e.name, name) == 0) {
        *data = file + 8 + size + e.offsets[0];
        return fits(&e, want, n - 8 - (size_t)size, name, w);
      }
    }
    more = take(&j, ',');
  }
  if (j.failed) {
    snprintf(w->text, sizeof w->text, "the file is damaged: its header cannot be read from byte %zd on", 8 + (j.at - text));
  } else {
    snprintf(w->text, sizeof w->text, "no tensor in the file has the name %.200s", name);
  }
  return false;
}

/* ------------------------------------------------------------------------------------------------------------- writing */

static void put_name(FILE *f, const char *name) {
  fputc('"', f);
  for (; *name != '\0'; name++) {
    unsigned char c = (unsigned char)*name;
    if (c == '"' || c == '\\') {
      fprintf(f, "\\%c", c);
    } else if (c < ' ') {
      fprintf(f, "\\u%04x", c);
    } else {
      fputc(c, f);
    }
  }
  fputc('"', f);
}

bool safetensors_write(const char *path, size_t n, const artifact_tensor *const *tensors, const unsigned char *const *data,
                       why *w) {
  FILE *f = fopen(path, "wb");
  if (f == NULL) {
    snprintf(w->text, sizeof w->text, "%.400s cannot be written", path);
    return false;
  }
  unsigned char length[8] = {0};
  uint64_t at = 0;
  fwrite(length, 1, sizeof length, f);
  fputc('{', f);
  for (size_t k = 0; k < n; k++) {
    const ttc_spec *s = &tensors[k]->spec;
    fputs(k > 0 ? "," : "", f);
    put_name(f, tensors[k]->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", type_name(s->dtype));
    for (int i = 0; i < s->ndim; i++) {
      fprintf(f, "%s%lld", i > 0 ? "," : "", (long long)s->sizes[i]);
    }
    fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + artifact_nbyte(s)));
    at += artifact_nbyte(s);
  }
  fputc('}', f);
  while (ftell(f) > 0 && ftell(f) % 8 != 0) {
    fputc(' ', f);
  }
  uint64_t size = (uint64_t)ftell(f) - 8;
  for (size_t k = 0; k < n; k++) {
    fwrite(data[k], 1, artifact_nbyte(&tensors[k]->spec), f);
  }
  for (int k = 0; k < 8; k++) {
    length[k] = (unsigned char)(size >> 8 * k);
  }
  bool good = fseek(f, 0, SEEK_SET) == 0 && fwrite(length, 1, sizeof length, f) == sizeof length && ferror(f) == 0;
  good = fclose(f) == 0 && good;
  if (!good) {
    snprintf(w->text, sizeof w->text, "%.400s cannot be written", path);
  }
  return good;
}
