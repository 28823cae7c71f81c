// Between PyTorch's words and the core's: dtypes, tensors, errors.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "adapter.h"

namespace tpu {

namespace {
struct Pair {
  at::ScalarType aten;
  ttc_dtype ttc;
};
constexpr Pair kPairs[] = {{at::kBool, TTC_BOOL},
                           {at::kByte, TTC_U8},
                           {at::kUInt16, TTC_U16},
                           {at::kUInt32, TTC_U32},
                           {at::kUInt64, TTC_U64},
                           {at::kChar, TTC_S8},
                           {at::kShort, TTC_S16},
                           {at::kInt, TTC_S32},
                           {at::kLong, TTC_S64},
                           {at::kHalf, TTC_F16},
                           {at::kBFloat16, TTC_BF16},
                           {at::kFloat, TTC_F32},
                           {at::kDouble, TTC_F64},
                           {at::kFloat8_e4m3fn, TTC_F8E4M3FN},
                           {at::kFloat8_e4m3fnuz, TTC_F8E4M3FNUZ},
                           {at::kFloat8_e5m2, TTC_F8E5M2},
                           {at::kFloat8_e5m2fnuz, TTC_F8E5M2FNUZ},
                           {at::kFloat8_e8m0fnu, TTC_F8E8M0FNU},
                           {at::kFloat4_e2m1fn_x2, TTC_F4E2M1FNX2},
                           {at::kComplexFloat, TTC_C64},
                           {at::kComplexDouble, TTC_C128}};
}  // namespace

Dtypes::Dtypes() {
  from.fill(at::ScalarType::Undefined);
  for (const auto& p : kPairs) {
    to[static_cast<size_t>(p.aten)] = p.ttc;
    from[p.ttc] = p.aten;
  }
}
const Dtypes dtypes;

void no_such_dtype(at::ScalarType t) {
  TORCH_CHECK(false, "the tpu device has no tensors of dtype ", t, ". Convert to a supported dtype first, e.g. float32 or int32");
}

void too_many_dimensions(size_t ndim) { TORCH_CHECK(false, "tpu tensors have at most ", TTC_MAX_NDIM, " dimensions, got ", ndim); }

ttc_spec make_spec(ttc_dtype dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes.size() > TTC_MAX_NDIM) {
    too_many_dimensions(sizes.size());
  }
  ttc_spec s{};
  s.dtype = dtype;
  s.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), s.sizes);
  std::copy(strides.begin(), strides.end(), s.strides);
  return s;
}

void raise(ttc_status s, const ttc_error& err) {
  std::string text = err.op[0] != '\0' ? std::string(err.op) + ": " + err.message : std::string(err.message);
  switch (s) {
    case TTC_OUT_OF_RANGE:
      TORCH_CHECK_INDEX(false, text);
      break;
    case TTC_UNIMPLEMENTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
      break;
    case TTC_RESOURCE_EXHAUSTED:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
      break;
    case TTC_CANCELLED:
      raise_interrupt();
      break;
    default:
      break;
  }
  TORCH_CHECK(false, text);
}

}  // namespace tpu
