// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/joined_adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "kernels/layers/linear.h"

namespace capstan::kernels {

JoinedAdapters::JoinedAdapters(c10::ArrayRef<LinearPart*> parts) {
  int adapters = 0;
  for (const LinearPart* part : parts) {
    const Adapter& adapter = part->adapter;
    if (!adapter.defined()) continue;
    if (adapter.dora() || adapter.dropout.active()) return;
    ++adapters;
  }
  if (adapters < 2) return;
  for (LinearPart* part : parts) {
    parts_.push_back(*part);
    part->adapter = Adapter();
    begin_.push_back(ranks_);
    const Adapter& adapter = parts_.back().adapter;
    if (adapter.defined()) ranks_ += adapter.a.size(0);
  }
}

at::Tensor JoinedAdapters::A() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const LinearPart& part : parts_) {
    if (part.adapter.defined()) all.push_back(part.adapter.a);
  }
  return at::cat(all);
}

at::Tensor JoinedAdapters::Part(const at::Tensor& inner, size_t i) const {
  return inner.narrow(1, begin_[i], parts_[i].adapter.a.size(0));
}

void JoinedAdapters::AddTo(const at::Tensor& x, at::TensorList y) const {
  if (parts_.empty()) return;
  const at::Tensor inner = MatMul(x, A().t());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Adapter& adapter = parts_[i].adapter;
    if (!adapter.defined()) continue;
    MatMulInto(y[i], Part(inner, i), adapter.b.t(), /*beta=*/1.0,
               adapter.scale);
  }
}

void JoinedAdapters::Backward(const at::Tensor& x, at::TensorList dy,
                              const at::Tensor& dx,
                              std::vector<StoredGradients>* gradients) const {
  if (parts_.empty()) return;
  const at::Tensor a = A(), inner = MatMul(x, a.t());
  const at::Tensor d_inner = at::empty(inner.sizes(), inner.options());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Adapter& adapter = parts_[i].adapter;
    if (!adapter.defined()) continue;
    MatMulInto(Part(d_inner, i), dy[i], adapter.b, /*beta=*/0.0, adapter.scale);
  }
  MatMulInto(dx, d_inner, a, /*beta=*/1.0);
  const at::Tensor d_a = MatMul(d_inner.t(), x);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Adapter& adapter = parts_[i].adapter;
    if (!adapter.defined()) continue;
    at::Tensor d_b = at::empty(adapter.b.sizes(), inner.options());
    MatMulInto(d_b, dy[i].t(), Part(inner, i), /*beta=*/0.0, adapter.scale);
    (*gradients)[parts_[i].of].TakeAdapter(
        parts_[i], d_a.narrow(0, begin_[i], adapter.a.size(0)), std::move(d_b));
  }
}

}  // namespace capstan::kernels
