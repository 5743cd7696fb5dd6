// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/composed.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace capstan::kernels {
namespace {

double ScoreScale(const AttentionShape& shape) {
  return shape.scale != 0.0 ? shape.scale
                            : 1.0 / std::sqrt(double(shape.head_dim));
}

// [batch, heads, T, head_dim] of [.., heads * head_dim].
at::Tensor PerHead(const at::Tensor& x, const AttentionShape& shape) {
  return x
      .reshape({shape.batch, -1, x.size(-1) / shape.head_dim, shape.head_dim})
      .transpose(1, 2);
}

// Whether queries that are the last of `keys` positions see each key: [1, 1,
// queries, keys] bool, or, with `first` (see CachedAttention), [batch, ..].
// Queries before the first key see themselves, as a softmax over nothing isn't
// a number.
at::Tensor Band(const AttentionShape& shape, int64_t queries, int64_t keys,
                const at::Device& device, const at::Tensor& first) {
  const at::AutoGradMode no_gradients(false);
  const at::Tensor key = at::arange(keys, at::dtype(at::kLong).device(device));
  const at::Tensor query = key.narrow(0, keys - queries, queries).unsqueeze(1);
  at::Tensor seen = key <= query;
  if (shape.window > 0) seen &= key > query - shape.window;
  if (!first.defined()) return seen.view({1, 1, queries, keys});
  const at::Tensor begin = first.to(device).view({-1, 1, 1, 1});
  return (seen & (key >= begin)) | (key == query);
}

// [.., L, head_dim] of a group's heads, for each of them.
at::Tensor ForGroup(const at::Tensor& x, const AttentionShape& shape) {
  return shape.heads == shape.kv_heads
             ? x
             : x.repeat_interleave(shape.heads / shape.kv_heads, 1);
}

// 0 where `seen`, else -infinity, to add to scores.
at::Tensor Additive(const at::Tensor& seen, c10::ScalarType dtype) {
  const at::AutoGradMode no_gradients(false);
  return at::zeros(seen.sizes(), seen.options().dtype(dtype))
      .masked_fill_(seen.logical_not(),
                    -std::numeric_limits<double>::infinity());
}

// With capped scores, which ATen's fused attention doesn't know. As in
// transformers, the softmax is float32 and rounded. Autograd keeps the tanh and
// the probabilities, in both types; what it doesn't keep is overwritten.
at::Tensor CappedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape,
                           const std::optional<at::Tensor>& mask) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3))
                          .mul_(ScoreScale(shape))
                          .div_(shape.softcap)
                          .tanh_();
  scores = scores * shape.softcap;
  if (mask.has_value()) scores.add_(*mask);
  const at::Tensor probs = at::softmax(scores, -1, at::kFloat);
  scores.reset();
  return at::matmul(probs.to(q.scalar_type()), v);
}

// What is added to scores, or a bool mask; none: by shape.causal.
std::optional<at::Tensor> MaskOf(const AttentionShape& shape,
                                 const at::Tensor& q, int64_t queries,
                                 int64_t keys, const AttentionLimits& limits) {
  const bool windowed = shape.window > 0 && keys > shape.window;
  const bool packed = limits.packing != nullptr;
  const bool capped = shape.softcap != 0.0 && (shape.causal || packed);
  if (limits.seen.defined()) {
    const at::Tensor seen =
        windowed ? limits.seen & Band(shape, queries, keys, q.device(), {})
                 : limits.seen;
    if (shape.softcap == 0.0) return seen;
    return Additive(seen, q.scalar_type());
  }
  if (limits.first.defined() || ((windowed || capped) && queries != keys)) {
    return Additive(Band(shape, queries, keys, q.device(), limits.first),
                    q.scalar_type());
  }
  if (windowed || capped) {
    return limits.masks->Get(shape, keys, q.options(), limits.packing);
  }
  if (packed) return limits.packing->mask(shape.causal);
  return std::nullopt;
}

}  // namespace

at::Tensor ComposedAttention(const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionShape& shape,
                             const AttentionLimits& limits) {
  const at::Tensor qh = PerHead(q, shape);
  at::Tensor kh = PerHead(k, shape), vh = PerHead(v, shape);
  const int64_t queries = qh.size(2), keys = kh.size(2);
  const bool capped = shape.softcap != 0.0;
  std::optional<at::Tensor> mask = MaskOf(shape, q, queries, keys, limits);
  bool grouped = shape.heads != shape.kv_heads;
  if (grouped && (q.device().is_cpu() || mask.has_value() || capped)) {
    // ATen's fused attention doesn't support groups on CPUs, nor with a mask.
    kh = ForGroup(kh, shape);
    vh = ForGroup(vh, shape);
    grouped = false;
  }
  const bool causal = shape.causal && !mask.has_value();
  if (causal && queries != keys && queries > 1) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool))
               .tril(keys - queries);
  }
  std::optional<double> scale;
  if (shape.scale != 0.0) scale = shape.scale;
  const at::Tensor out =
      capped ? CappedAttention(qh, kh, vh, shape, mask)
             : at::scaled_dot_product_attention(
                   qh, kh, vh, mask, /*dropout_p=*/0.0,
                   /*is_causal=*/causal && queries == keys, scale, grouped);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1)});
}

at::Tensor ComposedPackedAttention(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const PackedRows& packing,
                                   AttentionMasks* masks) {
  if (!q.is_cpu()) {
    return ComposedAttention(q, k, v, shape, {&packing, masks});
  }
  std::vector<int64_t> lengths;
  for (const PackedRows::Document& document : packing.documents()) {
    lengths.push_back(document.length);
  }
  const std::vector<at::Tensor> qs = q.split_with_sizes(lengths);
  const std::vector<at::Tensor> ks = k.split_with_sizes(lengths);
  const std::vector<at::Tensor> vs = v.split_with_sizes(lengths);
  AttentionShape alone = shape;
  alone.batch = 1;
  // First the longest document's mask, which serves all.
  MaskOf(alone, q, packing.longest(), packing.longest(), {nullptr, masks});
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    outs.push_back(
        ComposedAttention(qs[i], ks[i], vs[i], alone, {nullptr, masks}));
  }
  return at::cat(outs);
}

at::Tensor AttentionMasks::Get(const AttentionShape& shape, int64_t length,
                               const at::TensorOptions& options,
                               const PackedRows* packing) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  for (const Made& made : made_) {
    if (made.window == shape.window && made.causal == shape.causal &&
        made.mask.scalar_type() == dtype && made.mask.size(2) >= length) {
      return made.mask.narrow(2, 0, length).narrow(3, 0, length);
    }
  }
  const at::AutoGradMode no_gradients(false);
  at::Tensor seen;
  if (shape.causal) seen = Band(shape, length, length, options.device(), {});
  if (packing != nullptr) {
    const at::Tensor& of_rows = packing->mask(shape.causal);
    seen = seen.defined() ? of_rows & seen : of_rows;
  }
  made_.push_back({shape.window, shape.causal, Additive(seen, dtype)});
  return made_.back().mask;
}

}  // namespace capstan::kernels
