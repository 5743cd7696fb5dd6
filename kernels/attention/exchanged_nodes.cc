// SPDX-License-Identifier: Apache-2.0
//
// Attention over other rows than the layers' with autograd, for GPUs.
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "kernels/attention/composed.h"
#include "kernels/attention/exchanged.h"
#include "kernels/attention/flash.h"
#include "kernels/keep.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using SharedExchange = std::shared_ptr<AttentionExchange>;

enum class Way { kToAttention, kFromAttention, kGather };

struct Exchanged {
  SharedExchange exchange;
  Way way;
};

class ExchangeFunction : public torch::autograd::Function<ExchangeFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const SharedExchange& exchange, Way way) {
    Keep(ctx, Exchanged{exchange, way});
    const at::Tensor dense = x.contiguous();
    if (way == Way::kGather) return exchange->keys()->Gather(dense);
    return way == Way::kToAttention ? exchange->ToAttention(dense)
                                    : exchange->FromAttention(dense);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& [exchange, way] = KeptOf<Exchanged>(ctx);
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor dx = way == Way::kGather ? exchange->keys()->SumOwn(dy)
                          : way == Way::kToAttention
                              ? exchange->ToAttentionBackward(dy)
                              : exchange->FromAttentionBackward(dy);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// Of the queries of one chunk, q [batch * chunk.length, ..], over kv [batch, T,
// 2 * kv_heads * head_dim].
at::Tensor OfChunk(const at::Tensor& q, const at::Tensor& kv,
                   const AttentionShape& shape, const RowChunk& chunk,
                   const PackedRows* packing, AttentionMasks* masks) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  const int64_t keys = shape.causal ? chunk.begin + chunk.length : kv.size(1);
  const at::Tensor seen = kv.narrow(1, 0, keys);
  const at::Tensor k = seen.narrow(2, 0, width),
                   v = seen.narrow(2, width, width);
  if (CanUseFlash(q, shape, packing)) {
    return packing == nullptr
               ? FlashAttention(q, k, v, shape, nullptr)
               : FlashAttentionOfChunk(q, k, v, shape,
                                       packing->parts(chunk, keys));
  }
  AttentionLimits limits;
  limits.masks = masks;
  if (packing != nullptr) {
    limits.seen = packing->mask(shape.causal)
                      .narrow(2, chunk.begin, chunk.length)
                      .narrow(3, 0, keys);
  }
  return ComposedAttention(q, k, v, shape, limits);
}

at::Tensor OverAllKeys(const SharedExchange& exchange, const at::Tensor& q,
                       const at::Tensor& k, const at::Tensor& v,
                       const AttentionShape& shape, const Packing& packing,
                       AttentionMasks* masks) {
  const at::Tensor kv =
      ExchangeFunction::apply(at::cat({k, v}, 1), exchange, Way::kGather)
          .view({shape.batch, -1, 2 * k.size(1)});
  const at::Tensor rows = q.reshape({shape.batch, -1, q.size(1)});
  std::vector<at::Tensor> outs;
  int64_t first = 0;
  for (const RowChunk& chunk : exchange->keys()->chunks()) {
    const at::Tensor part = rows.narrow(1, first, chunk.length);
    first += chunk.length;
    outs.push_back(OfChunk(part.reshape({-1, q.size(1)}), kv, shape, chunk,
                           packing.get(), masks)
                       .view({shape.batch, chunk.length, q.size(1)}));
  }
  return at::cat(outs, 1).view(q.sizes());
}

}  // namespace

at::Tensor ExchangedAttention(const SharedExchange& exchange,
                              const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionShape& shape,
                              const Packing& packing,
                              const SharedMasks& masks) {
  if (exchange->keys() != nullptr) {
    AttentionMasks unshared;
    return OverAllKeys(exchange, q, k, v, shape, packing,
                       masks ? masks.get() : &unshared);
  }
  const auto to = [&](const at::Tensor& x) {
    return ExchangeFunction::apply(x, exchange, Way::kToAttention);
  };
  return ExchangeFunction::apply(
      Attention(to(q), to(k), to(v), exchange->PartOf(shape), packing, masks),
      exchange, Way::kFromAttention);
}

}  // namespace capstan::kernels
