/* A client: its devices and what it says of itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "pjrt/call.h"
#include "pjrt/pjrt.h"

/* CPU plugins make as many devices as the int64 option cpu_device_count says (4 without it); some abort the process where its type
 * is another. libtpu takes none. */
static ttc_status create(const pjrt_plugin *p, int ndevice, PJRT_Client **out, ttc_error *err) {
  static const char name[] = "cpu_device_count";
  PJRT_NamedValue option = {.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                            .name = name,
                            .name_size = sizeof name - 1,
                            .type = PJRT_NamedValue_kInt64,
                            .int64_value = ndevice,
                            .value_size = 1};
  PJRT_Client_Create_Args args = {.create_options = &option, .num_options = ttc__pjrt_is_libtpu(p) ? 0 : 1};
  ttc_status status = PJRT_CALL(p, PJRT_Client_Create, &args, err);
  if (status == TTC_INVALID_ARGUMENT && args.num_options == 1 && strstr(err->message, name) != NULL) {
    ttc__log(TTC__LOG_DEBUG, "trying again without %s: %s", name, err->message);
    args = (PJRT_Client_Create_Args){0};
    status = PJRT_CALL(p, PJRT_Client_Create, &args, err);
  }
  if (status == TTC_OK) {
    status = PJRT_GAVE(p, PJRT_Client_Create, args.client, err);
  }
  if (status == TTC_OK) {
    *out = args.client;
  }
  return status;
}

static void copy_text(char *dst, size_t size, const char *text, size_t n) {
  snprintf(dst, size, "%.*s", (int)(n < size ? n : size), text == NULL ? "" : text);
}

enum { MOST_DEVICES = 1 << 20 };

/* What every client must be able to say. */
static ttc_status look(pjrt_client *c, ttc_error *err) {
  PJRT_Client_PlatformName_Args name = {.client = c->client};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Client_PlatformName, &name, err));
  copy_text(c->platform, sizeof c->platform, name.platform_name, name.platform_name_size);
  PJRT_Client_AddressableDevices_Args devices = {.client = c->client};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Client_AddressableDevices, &devices, err));
  size_t n = devices.num_addressable_devices;
  if (n == 0) {
    return TTC_FAIL(err, TTC_NOT_FOUND, "the plugin %s has no device in this process", c->plugin->path);
  }
  if (n > MOST_DEVICES) {
    return TTC_FAIL(err, TTC_INTERNAL, "the plugin %s claims to have %zu devices", c->plugin->path, n);
  }
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Client_AddressableDevices, devices.addressable_devices, err));
  for (size_t i = 0; i < n; i++) {
    TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Client_AddressableDevices, devices.addressable_devices[i], err));
  }
  c->devices = devices.addressable_devices;
  c->ndevice = (int)n;
  c->on_host = strcmp(c->platform, "cpu") == 0 && PJRT_HAS(c->plugin, PJRT_Buffer_UnsafePointer);
  return TTC_OK;
}

ttc_status pjrt_client_new(pjrt_plugin *p, int ndevice, pjrt_client **out, ttc_error *err) {
  if (ndevice < 1) { /* plugins abort on this */
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected at least one device, got %d", ndevice);
  }
  pjrt_client *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  c->plugin = p;
  ttc_status status = create(p, ndevice, &c->client, err);
  if (status == TTC_OK) {
    status = look(c, err);
  }
  if (status != TTC_OK) {
    pjrt_client_free(c);
    return status;
  }
  *out = c;
  return TTC_OK;
}

void pjrt_client_free(pjrt_client *c) {
  if (c == NULL) {
    return;
  }
  if (c->client != NULL) {
    PJRT_DESTROY(c->plugin, PJRT_Client_Destroy, client, c->client);
  }
  free(c);
}

int pjrt_client_ndevice(const pjrt_client *c) {
  return c->ndevice;
}

ttc_status ttc__pjrt_device(const pjrt_client *c, int device, PJRT_Device **out, ttc_error *err) {
  if (device < 0 || device >= c->ndevice) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "device %d does not exist: the client has %d", device, c->ndevice);
  }
  *out = c->devices[device];
  return TTC_OK;
}

/* Bytes of device memory; the machine's where the plugin does not say and shares it. */
static int64_t memory_limit(const pjrt_client *c) {
  ttc_error ignored;
  PJRT_Device_MemoryStats_Args stats = {.device = c->devices[0]};
  if (PJRT_CALL(c->plugin, PJRT_Device_MemoryStats, &stats, &ignored) == TTC_OK && stats.bytes_limit_is_set &&
      stats.bytes_limit > 0) {
    return stats.bytes_limit;
  }
  return c->on_host ? (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE) : 0;
}

void pjrt_client_info(const pjrt_client *c, ttc_device_info *info) {
  ttc_error ignored;
  memset(info, 0, sizeof *info);
  snprintf(info->platform, sizeof info->platform, "%s", c->platform);
  snprintf(info->plugin_path, sizeof info->plugin_path, "%s", c->plugin->path);
  info->pjrt_api_major = c->plugin->major;
  info->pjrt_api_minor = c->plugin->minor;
  info->simulated = strcmp(c->platform, "tpu") != 0;
  info->memory_limit_nbyte = memory_limit(c);
  PJRT_Client_PlatformVersion_Args version = {.client = c->client};
  if (PJRT_CALL(c->plugin, PJRT_Client_PlatformVersion, &version, &ignored) == TTC_OK) {
    copy_text(info->platform_version, sizeof info->platform_version, version.platform_version, version.platform_version_size);
  }
  PJRT_Device_GetDescription_Args description = {.device = c->devices[0]};
  if (PJRT_CALL(c->plugin, PJRT_Device_GetDescription, &description, &ignored) != TTC_OK ||
      description.device_description == NULL) {
    return;
  }
  PJRT_DeviceDescription_Kind_Args kind = {.device_description = description.device_description};
  if (PJRT_CALL(c->plugin, PJRT_DeviceDescription_Kind, &kind, &ignored) == TTC_OK) {
    copy_text(info->device_kind, sizeof info->device_kind, kind.device_kind, kind.device_kind_size);
  }
}
