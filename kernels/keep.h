// SPDX-License-Identifier: Apache-2.0
//
// What an autograd node keeps from forward to backward besides tensors that it
// saves for backward: one value of any type, which lives as long as the node.
#ifndef CAPSTAN_KERNELS_KEEP_H_
#define CAPSTAN_KERNELS_KEEP_H_

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace capstan::kernels {

template <typename T>
struct Holder : public torch::CustomClassHolder {
  explicit Holder(T value) : value(std::move(value)) {}
  T value;
};

template <typename T>
T& Keep(torch::autograd::AutogradContext* ctx, T value) {
  auto holder = c10::make_intrusive<Holder<T>>(std::move(value));
  ctx->saved_data["kept"] = c10::IValue::make_capsule(holder);
  return holder->value;
}

// T must be what was kept.
template <typename T>
T& KeptOf(torch::autograd::AutogradContext* ctx) {
  const auto capsule = ctx->saved_data["kept"].toCapsule();
  return static_cast<Holder<T>&>(*capsule).value;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_KEEP_H_
