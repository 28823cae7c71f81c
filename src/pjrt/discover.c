/* Which plugin to load, and how many TPUs there are. Looks at variables and files only; loads nothing. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "pjrt/call.h"

/* ---- TPUs */

static bool read_hex(const char *dir, const char *entry, const char *file, unsigned long *out) {
  char path[1024], text[32] = "";
  snprintf(path, sizeof path, "%s/%s/%s", dir, entry, file);
  FILE *f = fopen(path, "r");
  if (f == NULL) {
    return false;
  }
  bool ok = fgets(text, sizeof text, f) != NULL;
  fclose(f);
  *out = strtoul(text, NULL, 16);
  return ok;
}

/* Google's PCI devices that are no network card (gVNIC), disk, display or bridge: a machine without a TPU may have those. */
static int count_pci(const char *root) {
  char dir[512];
  snprintf(dir, sizeof dir, "%s/sys/bus/pci/devices", root);
  DIR *d = opendir(dir);
  int n = 0;
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
    unsigned long vendor = 0, class = 0;
    if (e->d_name[0] == '.' || !read_hex(dir, e->d_name, "vendor", &vendor) || vendor != 0x1ae0) {
      continue;
    }
    unsigned long base = read_hex(dir, e->d_name, "class", &class) ? class >> 16 : 0xff;
    n += base != 0x01 && base != 0x02 && base != 0x03 && base != 0x06;
  }
  if (d != NULL) {
    closedir(d);
  }
  return n;
}

/* Entries of root/dir named prefix + number, as /dev/accel0 or /dev/vfio/0 (but not /dev/vfio/vfio, which every VM host has). */
static int count_nodes(const char *root, const char *dir, const char *prefix) {
  char path[512];
  snprintf(path, sizeof path, "%s%s", root, dir);
  DIR *d = opendir(path);
  int n = 0;
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
    n += strncmp(e->d_name, prefix, strlen(prefix)) == 0 && isdigit((unsigned char)e->d_name[strlen(prefix)]);
  }
  if (d != NULL) {
    closedir(d);
  }
  return n;
}

int ttc__pjrt_count_tpus(const char *root) {
  int chips = count_pci(root);
  if (chips == 0) {
    return 0;
  }
  /* A container sees the host's PCI bus but only the chips that were given to it. */
  int nodes = count_nodes(root, "/dev", "accel") + count_nodes(root, "/dev/accel", "accel");
  if (nodes == 0) {
    nodes = count_nodes(root, "/dev/vfio", "");
  }
  return nodes < chips ? nodes : chips;
}

int pjrt_count_tpus(void) {
  return ttc__pjrt_count_tpus("");
}

/* ---- the plugin */

static ttc_status from_variable(const char *variable, pjrt_choice *out, bool *found, ttc_error *err) {
  const char *path = getenv(variable);
  struct stat st;
  *found = path != NULL && path[0] != '\0';
  if (!*found) {
    return TTC_OK;
  }
  if (strlen(path) >= sizeof out->path) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is longer than %zu bytes", variable, sizeof out->path - 1);
  }
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
    return TTC_FAIL(
        err, TTC_NOT_FOUND,
        "%s=%s: %s. Set it to a PJRT plugin's .so, or unset it to use libtpu on a TPU machine and an installed CPU plugin "
        "elsewhere",
        variable, path, stat(path, &st) != 0 ? "no such file" : "not a file");
  }
  snprintf(out->path, sizeof out->path, "%s", path);
  out->source = PJRT_FROM_VARIABLE;
  return TTC_OK;
}

/* The first directory of search_path that holds `file`. */
static bool search(const char *search_path, const char *file, pjrt_choice *out) {
  struct stat st;
  for (const char *at = search_path; at != NULL && *at != '\0';) {
    size_t n = strcspn(at, ":");
    if (n > 0 && n + strlen(file) + 2 <= sizeof out->path) {
      snprintf(out->path, sizeof out->path, "%.*s/%s", (int)n, at, file);
      if (stat(out->path, &st) == 0 && S_ISREG(st.st_mode)) {
        return true;
      }
    }
    at += n + (at[n] == ':');
  }
  return false;
}

ttc_status pjrt_discover(const char *search_path, pjrt_choice *out, ttc_error *err) {
  static const char *const variables[] = {"TORCH_TPU_PLUGIN", "TPU_LIBRARY_PATH"};
  static const struct {
    const char *file;
    pjrt_source source;
  } packages[] = {{"lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", PJRT_FROM_LAMMPS},
                  {"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", PJRT_FROM_XLA_CPU}};
  pjrt_choice choice = {.ntpu = pjrt_count_tpus()};
  bool found = false;
  for (size_t i = 0; i < 2 && !found; i++) {
    TTC_TRY(from_variable(variables[i], &choice, &found, err));
  }
  if (!found && choice.ntpu > 0) {
    found = search(search_path, "libtpu/libtpu.so", &choice);
    choice.source = PJRT_FROM_LIBTPU;
    if (!found) { /* never fall back to the CPU on a machine that has TPUs without being told to */
      return TTC_FAIL(
          err, TTC_NOT_FOUND,
          "%d TPU chips are attached, but libtpu is not installed; pip install libtpu, or set TORCH_TPU_PLUGIN to another "
          "PJRT plugin's .so",
          choice.ntpu);
    }
  }
  for (size_t i = 0; i < 2 && !found; i++) {
    found = search(search_path, packages[i].file, &choice);
    choice.source = packages[i].source;
  }
  if (!found) {
    return TTC_FAIL(err, TTC_NOT_FOUND,
                    "no PJRT plugin found; pip install lammps-jax-pjrt-cpu==0.11.2 (x86_64) or xla-cpu-pjrt==0.0.1, or set "
                    "TORCH_TPU_PLUGIN to a plugin's .so");
  }
  *out = choice;
  return TTC_OK;
}
