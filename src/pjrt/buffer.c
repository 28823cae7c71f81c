/* Buffers: making, waiting, reading. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "pjrt/call.h"

static const PJRT_Buffer_Type buffer_types[TTC_NDTYPE] = {
#define TYPE(dtype, name, mlir, nbyte, class, pjrt) [dtype] = PJRT_Buffer_Type_##pjrt,
    TTC__DTYPES(TYPE)
#undef TYPE
};

PJRT_Buffer_Type ttc__pjrt_type(ttc_dtype d) {
  return buffer_types[d];
}

static ttc_status check_shape(ttc_dtype d, int ndim, const int64_t *dims, size_t *nbyte, ttc_error *err) {
  if (d <= TTC_DTYPE_INVALID || d >= TTC_NDTYPE) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a dtype, got number %d", (int)d);
  }
  size_t n = ttc_dtype_nbyte(d);
  bool overflow = false, empty = false;
  for (int i = 0; i < ndim; i++) {
    if (dims[i] < 0) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected sizes of at least 0, got %lld in dimension %d", (long long)dims[i], i);
    }
    empty = empty || dims[i] == 0;
    overflow = __builtin_mul_overflow(n, (size_t)dims[i], &n) || overflow;
  }
  if (!empty && (overflow || n > INT64_MAX)) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "a tensor of %d dimensions has more bytes than 2^63", ndim);
  }
  *nbyte = empty ? 0 : n;
  return TTC_OK;
}

ttc_status pjrt_buffer_from_host(pjrt_client *c, int device, ttc_dtype d, int ndim, const int64_t *dims, const void *src,
                                 pjrt_buffer **out, ttc_error *err) {
  size_t nbyte = 0;
  PJRT_Device *where = NULL;
  TTC_TRY(check_shape(d, ndim, dims, &nbyte, err));
  TTC_TRY(ttc__pjrt_device(c, device, &where, err));
  static const char nothing[16]; /* an empty tensor's pointer may be NULL, which plugins need not take */
  PJRT_Client_BufferFromHostBuffer_Args args = {.client = c->client,
                                                .data = nbyte == 0 ? nothing : src,
                                                .type = buffer_types[d],
                                                .dims = dims,
                                                .num_dims = (size_t)ndim,
                                                .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
                                                .device = where};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Client_BufferFromHostBuffer, &args, err));
  /* The host memory is ours again on return, whenever this event fires. */
  if (args.done_with_host_buffer != NULL) {
    PJRT_DESTROY(c->plugin, PJRT_Event_Destroy, event, args.done_with_host_buffer);
  }
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Client_BufferFromHostBuffer, args.buffer, err));
  *out = (pjrt_buffer *)args.buffer;
  return TTC_OK;
}

ttc_status pjrt_buffer_new(pjrt_client *c, int device, ttc_dtype d, int ndim, const int64_t *dims, pjrt_buffer **out,
                           ttc_error *err) {
  size_t nbyte = 0;
  PJRT_Device *where = NULL;
  TTC_TRY(check_shape(d, ndim, dims, &nbyte, err));
  TTC_TRY(ttc__pjrt_device(c, device, &where, err));
  if (PJRT_HAS(c->plugin, PJRT_Client_CreateUninitializedBuffer)) {
    PJRT_Client_CreateUninitializedBuffer_Args args = {.client = c->client,
                                                       .shape_dims = dims,
                                                       .shape_num_dims = (size_t)ndim,
                                                       .shape_element_type = buffer_types[d],
                                                       .device = where};
    ttc_status status = PJRT_CALL(c->plugin, PJRT_Client_CreateUninitializedBuffer, &args, err);
    if (status == TTC_OK) {
      status = PJRT_GAVE(c->plugin, PJRT_Client_CreateUninitializedBuffer, args.buffer, err);
    }
    if (status == TTC_OK) {
      *out = (pjrt_buffer *)args.buffer;
    }
    if (status != TTC_UNIMPLEMENTED) {
      return status;
    }
  }
  void *zeros = calloc(1, nbyte + 1);
  if (zeros == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory: %zu bytes of zeros", nbyte);
  }
  ttc_status status = pjrt_buffer_from_host(c, device, d, ndim, dims, zeros, out, err);
  free(zeros);
  return status;
}

void pjrt_buffer_free(pjrt_client *c, pjrt_buffer *b) {
  if (b != NULL) {
    PJRT_DESTROY(c->plugin, PJRT_Buffer_Destroy, buffer, ttc__pjrt_raw(b));
  }
}

ttc_status pjrt_buffer_await(pjrt_client *c, pjrt_buffer *b, ttc_error *err) {
  PJRT_Buffer_ReadyEvent_Args ready = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_ReadyEvent, &ready, err));
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Buffer_ReadyEvent, ready.event, err));
  return ttc__pjrt_await(c->plugin, ready.event, err);
}

ttc_status pjrt_buffer_nbyte(pjrt_client *c, pjrt_buffer *b, size_t *nbyte, ttc_error *err) {
  PJRT_Buffer_OnDeviceSizeInBytes_Args size = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_OnDeviceSizeInBytes, &size, err));
  *nbyte = size.on_device_size_in_bytes;
  return TTC_OK;
}

static ttc_status check_range(size_t offset, size_t nbyte, size_t have, ttc_error *err) {
  if (offset > have || nbyte > have - offset) {
    return TTC_FAIL(err, TTC_OUT_OF_RANGE, "expected to read within %zu bytes, got %zu bytes from offset %zu", have, nbyte, offset);
  }
  return TTC_OK;
}

/* Contents in host memory: through the pointer (CopyRawToHost and ToHostBuffer hand over to a thread, 8 to 17 us). */
static ttc_status read_pointer(pjrt_client *c, pjrt_buffer *b, size_t offset, size_t nbyte, void *dst, ttc_error *err) {
  TTC_TRY(pjrt_buffer_await(c, b, err));
  size_t have = 0;
  TTC_TRY(pjrt_buffer_nbyte(c, b, &have, err));
  TTC_TRY(check_range(offset, nbyte, have, err));
  if (nbyte == 0) {
    return TTC_OK;
  }
  PJRT_Buffer_UnsafePointer_Args at = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_UnsafePointer, &at, err));
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Buffer_UnsafePointer, (const void *)at.buffer_pointer, err)); /* NOLINT */
  memcpy(dst, (const char *)at.buffer_pointer + offset, nbyte); /* NOLINT(performance-no-int-to-ptr): the API's type */
  return TTC_OK;
}

/* Contents elsewhere, perhaps tiled and padded: only the plugin can lay them out row-major, and only whole. */
static ttc_status read_copy(pjrt_client *c, pjrt_buffer *b, size_t offset, size_t nbyte, void *dst, ttc_error *err) {
  PJRT_Buffer_Dimensions_Args shape = {.buffer = ttc__pjrt_raw(b)};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_Dimensions, &shape, err));
  int64_t order[TTC_MAX_NDIM];
  if (shape.num_dims > TTC_MAX_NDIM) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "expected at most %d dimensions, got %zu", TTC_MAX_NDIM, shape.num_dims);
  }
  for (size_t i = 0; i < shape.num_dims; i++) {
    order[i] = (int64_t)(shape.num_dims - 1 - i); /* minor to major */
  }
  PJRT_Buffer_MemoryLayout layout = {.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                     .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                               .minor_to_major = order,
                                               .minor_to_major_size = shape.num_dims},
                                     .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  PJRT_Buffer_ToHostBuffer_Args copy = {.src = ttc__pjrt_raw(b), .host_layout = &layout};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Buffer_ToHostBuffer, &copy, err)); /* only asks for the size */
  size_t have = copy.dst_size;
  TTC_TRY(check_range(offset, nbyte, have, err));
  void *whole = nbyte == have && nbyte > 0 ? dst : (have < SIZE_MAX ? malloc(have + 1) : NULL);
  if (whole == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory: %zu bytes to read a part of a buffer", have);
  }
  copy.dst = whole;
  copy.event = NULL;
  ttc_status status = PJRT_CALL(c->plugin, PJRT_Buffer_ToHostBuffer, &copy, err);
  if (status == TTC_OK) {
    status = PJRT_GAVE(c->plugin, PJRT_Buffer_ToHostBuffer, copy.event, err);
  }
  if (status == TTC_OK) {
    status = ttc__pjrt_await(c->plugin, copy.event, err);
  }
  if (whole != dst) {
    if (status == TTC_OK && nbyte > 0) {
      memcpy(dst, (const char *)whole + offset, nbyte);
    }
    free(whole);
  }
  return status;
}

ttc_status pjrt_buffer_to_host(pjrt_client *c, pjrt_buffer *b, size_t offset, size_t nbyte, void *dst, ttc_error *err) {
  return c->on_host ? read_pointer(c, b, offset, nbyte, dst, err) : read_copy(c, b, offset, nbyte, dst, err);
}
