// Which tensors share places in a storage, and copies of storages on the cpu for calls whose result depends on that.
#pragma once

#include <vector>

#include "call.h"

namespace tpu {

// Two elements of t lie at the same place. Very large tensors: only if one is expanded.
bool elements_repeat(const at::Tensor& t);
// An element of a and one of b share a byte. Of very large tensors only a whole tensor is found to share.
bool share_elements(const at::Tensor& a, const at::Tensor& b);
bool same_view(const at::Tensor& a, const at::Tensor& b);

// Stand-ins on the cpu that share memory as the device's tensors do, with their contents or with zeros.
class Shadows {
 public:
  explicit Shadows(bool contents) : with_contents(contents) {}
  at::Tensor of(const at::Tensor& t);
  c10::IValue of(const c10::IValue& v, bool indices);
  // Bring t's storage up to date with its stand-in.
  void put_back(const at::Tensor& t);

 private:
  struct Shadow {
    at::Tensor whole, copy;
  };
  bool with_contents;
  std::vector<Shadow> all;
  std::vector<std::pair<at::Tensor, at::Tensor>> made;
  Shadow& shadow(const at::Tensor& t);
};

// dst.copy_(src) where dst overlaps itself or src; false: it does not, and nothing is done.
bool copy_overlapping(const at::Tensor& dst, const at::Tensor& src);

}  // namespace tpu
