// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/attention_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <limits>

namespace capstan::standin {
namespace {

// [B, G, N, D] to float32 [B, H, N, D].
at::Tensor ForHeads(const at::Tensor& x, int64_t heads) {
  const at::Tensor wide = x.to(at::kFloat);
  const int64_t group = heads / x.size(1);
  return group == 1 ? wide : wide.repeat_interleave(group, 1);
}

// The reverse: sums over the heads of each group.
at::Tensor OfGroups(const at::Tensor& x, int64_t groups) {
  if (x.size(1) == groups) return x;
  return x.unflatten(1, {groups, x.size(1) / groups}).sum(2);
}

at::Tensor Hidden(const Visible& visible, int64_t queries, int64_t keys) {
  const at::Tensor key = at::arange(keys).unsqueeze(0);
  const at::Tensor middle = at::arange(queries).unsqueeze(1) + visible.shift;
  at::Tensor hidden = at::ones({queries, keys}, at::kBool).logical_not_();
  if (visible.right >= 0) hidden.logical_or_(key > middle + visible.right);
  if (visible.left >= 0) hidden.logical_or_(key < middle - visible.left);
  return hidden;
}

at::Tensor Scores(const AttentionInputs& in, const at::Tensor& q,
                  const at::Tensor& k) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul_(in.scale);
  if (in.bias.defined()) scores.add_(in.bias);
  if (in.visible.left >= 0 || in.visible.right >= 0) {
    scores.masked_fill_(Hidden(in.visible, q.size(2), k.size(2)),
                        -std::numeric_limits<float>::infinity());
  }
  return scores;
}

// exp(scores - log_sums), 0 in rows that see nothing.
at::Tensor Probabilities(const at::Tensor& scores, const at::Tensor& log_sums) {
  const at::Tensor sums = log_sums.unsqueeze(-1);
  return at::exp(scores - sums)
      .masked_fill_(sums == -std::numeric_limits<float>::infinity(), 0.0);
}

}  // namespace

void AttentionForward(const AttentionInputs& in, at::Tensor out,
                      at::Tensor log_sums) {
  if (out.numel() == 0) return;
  const int64_t heads = in.q.size(1);
  const at::Tensor scores =
      Scores(in, in.q.to(at::kFloat), ForHeads(in.k, heads));
  const at::Tensor sums = at::logsumexp(scores, -1);
  out.copy_(at::matmul(Probabilities(scores, sums), ForHeads(in.v, heads)));
  if (log_sums.defined()) log_sums.copy_(sums);
}

void AttentionBackward(const AttentionInputs& in, const at::Tensor& d_out_any,
                       const at::Tensor& out, const at::Tensor& log_sums,
                       at::Tensor dq, at::Tensor dk, at::Tensor dv,
                       at::Tensor d_bias) {
  if (out.numel() == 0) return;
  const int64_t heads = in.q.size(1), groups = in.k.size(1);
  const at::Tensor q = in.q.to(at::kFloat), k = ForHeads(in.k, heads),
                   v = ForHeads(in.v, heads), d_out = d_out_any.to(at::kFloat);
  const at::Tensor p = Probabilities(Scores(in, q, k), log_sums);
  if (dv.defined()) {
    dv.copy_(OfGroups(at::matmul(p.transpose(2, 3), d_out), groups));
  }
  const at::Tensor dot = (d_out * out.to(at::kFloat)).sum(-1, true);
  at::Tensor d_scores = at::matmul(d_out, v.transpose(2, 3)).sub_(dot).mul_(p);
  if (d_bias.defined()) d_bias.copy_(d_scores);
  d_scores.mul_(in.scale);
  if (dq.defined()) dq.copy_(at::matmul(d_scores, k));
  if (dk.defined()) {
    dk.copy_(OfGroups(at::matmul(d_scores.transpose(2, 3), q), groups));
  }
}

}  // namespace capstan::standin
