// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/row_division.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "plugins/sdk/dataset.h"

namespace capstan::decoder {
namespace {

// x [B, T] with `more` columns of `value`.
at::Tensor WithColumns(const at::Tensor& x, int64_t more, int64_t value) {
  return at::cat({x, at::full({x.size(0), more}, value, x.options())}, 1);
}

}  // namespace

void RowDivision::Pad(bool by_place, TokenInput* input,
                      TokenTargets* targets) const {
  const int64_t batch = input->tokens.size(0), length = input->tokens.size(1);
  const int64_t more = (ranks() - length % ranks()) % ranks();
  if (more == 0) return;
  input->tokens = WithColumns(input->tokens, more, 0);
  targets->tokens = WithColumns(targets->tokens, more, kIgnoredTarget);
  if (targets->weights.defined()) {
    targets->weights = WithColumns(targets->weights, more, 0);
  }
  if (input->positions.defined()) {
    input->positions = WithColumns(input->positions, more, 0);
  } else if (!by_place) {
    input->positions = WithColumns(
        at::arange(length, at::kLong).expand({batch, length}), more, 0);
  }
}

at::Tensor RowDivision::PartOf(const at::Tensor& x) const {
  const int64_t length = x.size(1) / ranks();
  return x.narrow(1, group_.rank() * length, length).contiguous();
}

at::Tensor RowDivision::ToAttention(const at::Tensor& x) {
  const int64_t n = ranks(), width = x.size(1) / n;
  if (whole_rows_)
    return x.narrow(1, group_.rank() * width, width).contiguous();
  // [B, T / n, n, width] to [n, B, T / n, width]: a slice for each rank.
  const at::Tensor sent =
      x.view({batch_, -1, n, width}).permute({2, 0, 1, 3}).contiguous();
  const at::Tensor received = at::empty(sent.sizes(), sent.options());
  group_.AllToAll(received, sent)->Wait();
  return received.permute({1, 0, 2, 3}).reshape({-1, width});
}

at::Tensor RowDivision::FromAttention(const at::Tensor& x) {
  const int64_t n = ranks(), width = x.size(1);
  if (whole_rows_) {
    const at::Tensor all = at::empty({n, x.size(0), width}, x.options());
    group_.AllGather(all, x.contiguous())->Wait();
    return all.permute({1, 0, 2}).reshape({-1, n * width});
  }
  // [B, n, T / n, width] to [n, B, T / n, width], and what comes is by heads.
  const at::Tensor sent =
      x.view({batch_, n, -1, width}).permute({1, 0, 2, 3}).contiguous();
  const at::Tensor received = at::empty(sent.sizes(), sent.options());
  group_.AllToAll(received, sent)->Wait();
  return received.permute({1, 2, 0, 3}).reshape({-1, n * width});
}

}  // namespace capstan::decoder
