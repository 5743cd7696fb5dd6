// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/flash.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <c10/util/Exception.h>

#include <optional>
#include <tuple>

#include "kernels/cuda/dispatch.h"

namespace capstan::kernels {
namespace {

// The kernels' limits.
constexpr int64_t kMostHeadDim = 256;
// Between these backward runs on compute capability 8.0 and 9.0 alone.
constexpr int64_t kRareHeadDims[] = {193, 224};
constexpr int64_t kHeadDimMultiple = 8;

// [batch, length, heads, head_dim] of [batch * length, heads * head_dim], or of
// [batch, length, heads * head_dim].
at::Tensor ByHead(const at::Tensor& x, const AttentionShape& shape) {
  const int64_t heads = x.size(-1) / shape.head_dim;
  if (x.dim() == 3) return x.unflatten(2, {heads, shape.head_dim});
  return x.reshape({shape.batch, -1, heads, shape.head_dim});
}

// q, k, v by head: [batch, length, ..] or, of documents that lie one behind
// another, [rows, ..].
at::Tensor Flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const AttentionShape& shape, const DocumentOffsets* of) {
  std::optional<at::Tensor> query_offsets, key_offsets;
  int64_t queries = q.size(1), keys = k.size(1);
  if (of != nullptr) {
    query_offsets = of->queries;
    key_offsets = of->keys;
    queries = of->most_queries;
    keys = of->most_keys;
  }
  std::optional<double> scale;
  if (shape.scale != 0.0) scale = shape.scale;
  // Counted from the query's own position; both kernels align the last query
  // with the last key.
  std::optional<int64_t> before, after;
  if (shape.window > 0) {
    before = shape.window - 1;
    after = 0;
  }
  const at::Tensor out = std::get<0>(at::_flash_attention_forward(
      q, k, v, query_offsets, key_offsets, queries, keys, /*dropout_p=*/0.0,
      shape.causal, /*return_debug_mask=*/false, scale, before, after));
  return out.reshape({-1, shape.heads * shape.head_dim});
}

}  // namespace

bool IsFlashShape(const AttentionShape& shape, const PackedRows* packing) {
  return shape.softcap == 0.0 && shape.head_dim <= kMostHeadDim &&
         shape.head_dim % kHeadDimMultiple == 0 &&
         (shape.head_dim < kRareHeadDims[0] ||
          shape.head_dim > kRareHeadDims[1]) &&
         (packing == nullptr || packing->knows_documents());
}

bool CanUseFlash(const at::Tensor& q, const AttentionShape& shape,
                 const PackedRows* packing) {
  return q.is_cuda() &&
         (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) &&
         IsFlashShape(shape, packing) &&
         at::globalContext().userEnabledFlashSDP() && cuda::For(q) != nullptr;
}

at::Tensor FlashAttention(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape,
                          const PackedRows* packing) {
  const at::Tensor qs = ByHead(q, shape), ks = ByHead(k, shape);
  const at::Tensor vs = ByHead(v, shape);
  if (packing == nullptr) return Flash(qs, ks, vs, shape, nullptr);
  TORCH_CHECK(qs.size(1) == ks.size(1),
              "documents have as many queries as keys");
  const DocumentOffsets offsets = {packing->offsets(), packing->offsets(),
                                   packing->longest(), packing->longest()};
  return Flash(qs.flatten(0, 1), ks.flatten(0, 1), vs.flatten(0, 1), shape,
               &offsets);
}

at::Tensor FlashAttentionOfChunk(const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v,
                                 const AttentionShape& shape,
                                 const ChunkParts& parts) {
  const auto seen = [&](const at::Tensor& x) {
    return ByHead(x, shape).flatten(0, 1).index_select(0, parts.keys);
  };
  return Flash(ByHead(q, shape).flatten(0, 1), seen(k), seen(v), shape,
               &parts.offsets);
}

}  // namespace capstan::kernels
