/* Loading a plugin: dlopen, version check, initialisation. Once a path, never unloaded. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/lock.h"
#include "base/log.h"
#include "pjrt/call.h"

/* 0.54 (early 2025) is the oldest interface whose structs all mean what the header we build against says. */
enum { OLDEST_MINOR = 54 };

static ttc__lock load_lock = TTC__LOCK_INIT(TTC__RANK_PLUGIN);
static pjrt_plugin *loaded;

static ttc_status check_file(const char *path, ttc_error *err) {
  struct stat st;
  if (stat(path, &st) != 0) {
    return TTC_FAIL(err, TTC_NOT_FOUND, "%s: %s", path, strerror(errno));
  }
  if (!S_ISREG(st.st_mode)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is %s; name a PJRT plugin's .so file", path,
                    S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
  }
  return TTC_OK;
}

/* dlopen trusts a file's headers: one that was cut short (a full disk, a broken download) kills the process with SIGBUS. So see
 * first that every segment lies within the file. What is no ELF file at all, dlopen itself refuses. */
static ttc_status check_whole(const char *path, ttc_error *err) {
  ElfW(Ehdr) head;
  ElfW(Phdr) segment;
  struct stat st;
  FILE *f = fopen(path, "rb");
  if (f == NULL || fstat(fileno(f), &st) != 0) {
    ttc_status status = TTC_FAIL(err, TTC_PERMISSION_DENIED, "%s cannot be read: %s", path, strerror(errno));
    if (f != NULL) {
      fclose(f);
    }
    return status;
  }
  bool whole = true;
  if (fread(&head, sizeof head, 1, f) == 1 && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
      head.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) && head.e_phentsize == sizeof segment) {
    whole = fseek(f, (long)head.e_phoff, SEEK_SET) == 0;
    for (int i = 0; i < head.e_phnum && whole; i++) {
      uint64_t size = (uint64_t)st.st_size;
      whole = fread(&segment, sizeof segment, 1, f) == 1 && segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset;
    }
  }
  fclose(f);
  if (!whole) {
    return TTC_FAIL(err, TTC_DATA_LOSS, "%s is cut short (%lld bytes); install it again", path, (long long)st.st_size);
  }
  return TTC_OK;
}

/* GetPjrtApi of the shared library at path. A library that turns out to be none stays mapped: closing runs foreign destructors. */
static ttc_status open_api(const char *path, const PJRT_Api **api, ttc_error *err) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s cannot be loaded as a PJRT plugin: %s", path, why == NULL ? "unknown" : why);
  }
  const PJRT_Api *(*get)(void) = NULL;
  *(void **)(&get) = dlsym(library, "GetPjrtApi"); /* POSIX's way to turn an object pointer into a function pointer */
  if (get == NULL) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is a shared library but no PJRT plugin: it has no function GetPjrtApi", path);
  }
  *api = get();
  if (*api == NULL) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: GetPjrtApi returned nothing", path);
  }
  return TTC_OK;
}

static ttc_status check_version(const pjrt_plugin *p, ttc_error *err) {
  if (p->major != PJRT_API_MAJOR) {
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION, "%s speaks PJRT %d.%d; this build of torch_tpu speaks %d.x. Use another plugin",
                    p->path, p->major, p->minor, PJRT_API_MAJOR);
  }
  if (p->minor < OLDEST_MINOR) {
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION, "%s speaks PJRT %d.%d, which is too old; use a plugin with %d.%d or newer",
                    p->path, p->major, p->minor, PJRT_API_MAJOR, OLDEST_MINOR);
  }
  if (!PJRT_HAS(p, PJRT_Error_Message) || !PJRT_HAS(p, PJRT_Error_GetCode) || !PJRT_HAS(p, PJRT_Error_Destroy)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is broken: a PJRT plugin must be able to report errors", p->path);
  }
  return TTC_OK;
}

static ttc_status start(const char *path, pjrt_plugin *p, ttc_error *err) {
  TTC_TRY(open_api(path, &p->api, err));
  if (p->api->struct_size < PJRT_STRUCT_SIZE(PJRT_Api, pjrt_api_version)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is broken: its PJRT table has %zu bytes, too few for a version", path,
                    p->api->struct_size);
  }
  p->major = p->api->pjrt_api_version.major_version;
  p->minor = p->api->pjrt_api_version.minor_version;
  TTC_TRY(check_version(p, err));
  PJRT_Plugin_Initialize_Args init = {0};
  return PJRT_CALL(p, PJRT_Plugin_Initialize, &init, err);
}

/* Two variables that plugins read while loading. A value that the user has set stands.
 *   TF_CPP_MIN_LOG_LEVEL  without it XLA writes INFO lines to stderr; errors come back as statuses anyway. Taken back afterwards.
 *   TPU_SKIP_MDS_QUERY    without it libtpu asks a cloud's metadata server for minutes where no TPU is attached. */
static ttc_status start_hushed(const char *path, pjrt_plugin *p, ttc_error *err) {
  static const char level[] = "TF_CPP_MIN_LOG_LEVEL";
  bool ours = getenv(level) == NULL;
  if (ours) {
    setenv(level, "3", 0);
  }
  if (ttc__pjrt_is_libtpu(p) && pjrt_count_tpus() == 0) {
    setenv("TPU_SKIP_MDS_QUERY", "1", 0);
  }
  ttc_status status = start(path, p, err);
  if (ours) {
    unsetenv(level);
  }
  return status;
}

bool ttc__pjrt_is_libtpu(const pjrt_plugin *p) {
  const char *slash = strrchr(p->path, '/');
  return strncmp(slash == NULL ? p->path : slash + 1, "libtpu", 6) == 0;
}

static ttc_status load_once(const char *path, pjrt_plugin **out, ttc_error *err) {
  for (pjrt_plugin *p = loaded; p != NULL; p = p->next) {
    if (strcmp(p->path, path) == 0) {
      *out = p;
      return TTC_OK;
    }
  }
  pjrt_plugin *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  snprintf(p->path, sizeof p->path, "%s", path);
  ttc_status status = check_file(path, err);
  if (status == TTC_OK) {
    status = check_whole(path, err);
  }
  if (status == TTC_OK) {
    status = start_hushed(path, p, err);
  }
  if (status != TTC_OK) {
    free(p);
    return status;
  }
  ttc__log(TTC__LOG_INFO, "loaded %s (PJRT %d.%d)", path, p->major, p->minor);
  p->next = loaded;
  loaded = p;
  *out = p;
  return TTC_OK;
}

ttc_status pjrt_plugin_load(const char *path, pjrt_plugin **out, ttc_error *err) {
  if (path == NULL || path[0] == '\0' || strlen(path) >= sizeof((pjrt_plugin *)0)->path) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a PJRT plugin's path of 1 to %zu bytes",
                    sizeof((pjrt_plugin *)0)->path - 1);
  }
  /* dlopen takes a name without a slash for a library to be searched for; we always mean a file. */
  char *resolved = realpath(path, NULL);
  if (resolved == NULL || strlen(resolved) >= sizeof((pjrt_plugin *)0)->path) {
    ttc_status status = TTC_FAIL(err, TTC_NOT_FOUND, "%s: %s", path, resolved == NULL ? strerror(errno) : "the path is too long");
    free(resolved);
    return status;
  }
  ttc__lock_take(&load_lock);
  ttc_status status = load_once(resolved, out, err);
  ttc__lock_drop(&load_lock);
  free(resolved);
  return status;
}

void pjrt_plugin_version(const pjrt_plugin *p, int *major, int *minor) {
  *major = p->major;
  *minor = p->minor;
}

const char *pjrt_plugin_path(const pjrt_plugin *p) {
  return p->path;
}
