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
  int64_t ranks = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i]->adapter.defined()) continue;
    ones_.push_back({*parts[i], i, ranks});
    ranks += ones_.back().rank();
    parts[i]->adapter = Adapter();
  }
}

at::Tensor JoinedAdapters::A() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const One& one : ones_) all.push_back(one.part.adapter.a);
  return at::cat(all);
}

void JoinedAdapters::AddTo(const at::Tensor& x, at::TensorList y) const {
  if (!joined()) return;
  const at::Tensor inner = MatMul(x, A().t());
  for (const One& one : ones_) {
    const Adapter& adapter = one.part.adapter;
    MatMulInto(y[one.index], one.Of(inner), adapter.b.t(), /*beta=*/1.0,
               adapter.scale);
  }
}

void JoinedAdapters::Backward(const at::Tensor& x, at::TensorList dy,
                              const at::Tensor& dx,
                              std::vector<StoredGradients>* gradients) const {
  if (!joined()) return;
  const at::Tensor a = A(), inner = MatMul(x, a.t());
  const at::Tensor d_inner = at::empty(inner.sizes(), inner.options());
  for (const One& one : ones_) {
    const Adapter& adapter = one.part.adapter;
    MatMulInto(one.Of(d_inner), dy[one.index], adapter.b, /*beta=*/0.0,
               adapter.scale);
  }
  MatMulInto(dx, d_inner, a, /*beta=*/1.0);
  const at::Tensor d_a = MatMul(d_inner.t(), x);
  for (const One& one : ones_) {
    const Adapter& adapter = one.part.adapter;
    at::Tensor d_b = at::empty(adapter.b.sizes(), inner.options());
    MatMulInto(d_b, dy[one.index].t(), one.Of(inner), /*beta=*/0.0,
               adapter.scale);
    (*gradients)[one.part.of].TakeAdapter(
        one.part, d_a.narrow(0, one.begin, one.rank()), std::move(d_b));
  }
}

}  // namespace capstan::kernels
