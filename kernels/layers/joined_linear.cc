// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/joined_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <numeric>

#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/linear.h"

namespace capstan::kernels {

at::Tensor JoinMatrices(c10::ArrayRef<at::Tensor> matrices,
                        std::vector<int64_t>* first_rows) {
  const at::Tensor& like = matrices[0];
  for (const at::Tensor& m : matrices) {
    if (!m.defined() || m.dim() != 2 || !m.is_contiguous() ||
        m.size(1) != like.size(1) || m.scalar_type() != like.scalar_type() ||
        !m.is_alias_of(like)) {
      return at::Tensor();
    }
  }
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return matrices[a].storage_offset() < matrices[b].storage_offset();
  });
  const at::Tensor& lowest = matrices[order[0]];
  first_rows->assign(matrices.size(), 0);
  int64_t rows = 0;
  for (const size_t i : order) {
    if (matrices[i].storage_offset() !=
        lowest.storage_offset() + rows * like.size(1)) {
      return at::Tensor();
    }
    (*first_rows)[i] = rows;
    rows += matrices[i].size(0);
  }
  const at::NoGradGuard no_grad;
  return lowest.as_strided({rows, like.size(1)}, {like.size(1), 1});
}

namespace {

// Vectors as JoinMatrices' matrices of one column, joined in that order of
// rows.
at::Tensor JoinVectors(const std::vector<at::Tensor>& vectors,
                       const std::vector<int64_t>& first_rows) {
  std::vector<at::Tensor> columns;
  for (const at::Tensor& v : vectors) {
    columns.push_back(v.defined() ? v.detach().unsqueeze(1) : v);
  }
  std::vector<int64_t> first;
  const at::Tensor all = JoinMatrices(columns, &first);
  return all.defined() && first == first_rows ? all.view({-1}) : at::Tensor();
}

// Whether all write, or all add.
bool Alike(const std::vector<double>& betas) {
  return std::all_of(betas.begin(), betas.end(),
                     [&](double beta) { return beta == betas[0]; });
}

}  // namespace

JoinedLinear::JoinedLinear(c10::ArrayRef<LinearPart> parts)
    : parts_(parts.begin(), parts.end()) {
  std::vector<at::Tensor> matrices, biases;
  for (const LinearPart& part : parts_) {
    if (part.weight.packed() || UsesFp8(part.weight) || part.adapter.dora()) {
      return;
    }
    matrices.push_back(part.weight.tensor);
    biases.push_back(part.bias);
  }
  weight_ = JoinMatrices(matrices, &begin_);
  if (weight_.defined()) bias_ = JoinVectors(biases, begin_);
}

std::vector<at::Tensor> JoinedLinear::Parts(const at::Tensor& y) const {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts.push_back(Part(y, static_cast<int>(i)));
  }
  return parts;
}

at::Tensor JoinedLinear::FirstParts(const at::Tensor& y, int count) const {
  int64_t begin = begin_[0], end = 0, rows = 0;
  for (int i = 0; i < count; ++i) {
    begin = std::min(begin, begin_[i]);
    end = std::max(end, begin_[i] + parts_[i].rows());
    rows += parts_[i].rows();
  }
  return rows == end - begin ? y.narrow(1, begin, rows) : at::Tensor();
}

void JoinedLinear::ForwardInto(const at::Tensor& x, const at::Tensor& y) const {
  if (bias_.defined()) {
    BiasedMatMulInto(y, x, weight_.t(), bias_);
  } else {
    MatMulInto(y, x, weight_.t());
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor part = Part(y, static_cast<int>(i));
    if (parts_[i].bias.defined() && !bias_.defined()) {
      at::Tensor(part).add_(parts_[i].bias);
    }
    AddAdapter(parts_[i].adapter, x, part);
  }
}

void JoinedLinear::BackwardInto(const at::Tensor& dy,
                                const at::Tensor& dx) const {
  MatMulInto(dx, dy, weight_);
  for (size_t i = 0; i < parts_.size(); ++i) {
    AdapterBackward(parts_[i].adapter, Part(dy, static_cast<int>(i))).AddTo(dx);
  }
}

void JoinedLinear::AddGradients(const at::Tensor& x, const at::Tensor& dy,
                                std::vector<StoredGradients>* gradients) const {
  std::vector<at::Tensor> to;
  std::vector<double> betas;
  for (const LinearPart& part : parts_) {
    const StoredGradients::Target target = (*gradients)[part.of].MatrixOf(part);
    to.push_back(target.gradient);
    betas.push_back(target.beta);
  }
  std::vector<int64_t> first_rows;
  const at::Tensor all =
      Alike(betas) ? JoinMatrices(to, &first_rows) : at::Tensor();
  const bool one = all.defined() && first_rows == begin_;
  if (one) MatMulInto(all, dy.t(), x, betas[0]);
  AddBiases(dy, gradients);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor of_part = Part(dy, static_cast<int>(i));
    if (!one && to[i].defined()) MatMulInto(to[i], of_part.t(), x, betas[i]);
    (*gradients)[parts_[i].of].AddAdapter(parts_[i], x, of_part);
  }
}

void JoinedLinear::AddBiases(const at::Tensor& dy,
                             std::vector<StoredGradients>* gradients) const {
  std::vector<at::Tensor> to;
  std::vector<double> betas;
  for (const LinearPart& part : parts_) {
    const StoredGradients::Target target = (*gradients)[part.of].BiasOf(part);
    to.push_back(target.gradient);
    betas.push_back(target.beta);
  }
  const at::Tensor all = Alike(betas) ? JoinVectors(to, begin_) : at::Tensor();
  if (all.defined()) return SumRowsInto(all, dy, betas[0] != 0.0);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!to[i].defined()) continue;
    SumRowsInto(to[i], Part(dy, static_cast<int>(i)), betas[i] != 0.0);
  }
}

}  // namespace capstan::kernels
