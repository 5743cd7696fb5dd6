// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/repeat_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace capstan {
namespace {

// A repetition may differ from a usual run by this many times as much as
// another usual run.
constexpr double kLikeThem = 4.0;

// Bits rather than numbers: NaN equals itself, and -0 isn't 0.
at::Tensor BitsOf(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    case 8:
      return tensor.view(at::kLong);
    default:
      return tensor;
  }
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return at::equal(BitsOf(a), BitsOf(b));
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return 0.0;
  return at::linalg_vector_norm(a.to(at::kDouble) - b.to(at::kDouble))
      .item<double>();
}

}  // namespace

std::string Difference(const MicroStepResults& a, const MicroStepResults& b) {
  if (!SameBits(a.sum, b.sum)) return "loss";
  if (!SameBits(a.metrics, b.metrics)) return "metrics";
  return SameBits(a.gradients, b.gradients) ? "" : "gradients";
}

bool IsLikeThem(const MicroStepResults& usual, const MicroStepResults& again,
                const MicroStepResults& other) {
  for (const auto part : {&MicroStepResults::sum, &MicroStepResults::metrics,
                          &MicroStepResults::gradients}) {
    const double between = Distance(usual.*part, other.*part);
    const double among = Distance(usual.*part, again.*part);
    if (!(between <= kLikeThem * among)) return false;
  }
  return true;
}

bool SameCounts(const LossSum& a, const LossSum& b) {
  return a.count == b.count && a.tokens == b.tokens && a.padding == b.padding &&
         a.trained == b.trained;
}

}  // namespace capstan
