// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/transformer_block.h"

#include <algorithm>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention/layer_cache.h"
#include "kernels/context/recompute.h"
#include "kernels/fast_path.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/fused_block.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/linear.h"

namespace capstan::kernels {
namespace {

bool CanFuse(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float ||
         dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half;
}

// From attention's result to the block's, given what attention is added to.
at::Tensor AfterAttention(const at::Tensor& mixed, const at::Tensor& x,
                          const TransformerBlockWeights& weights,
                          const TransformerBlockOptions& options) {
  if (OnGpuPath(x) && weights.mlp.down.defined() &&
      weights.mlp.norm.defined() && !weights.attention_post_norm.defined()) {
    // The norm reads both, rather than a sum that a product has written on top
    // of a copy of x.
    return GatedMlp(x, weights.mlp, options,
                    AttentionBranch(mixed, weights, options));
  }
  const at::Tensor y = AttentionOutput(mixed, x, weights, options);
  return weights.mlp.down.defined() ? GatedMlp(y, weights.mlp, options) : y;
}

OperatorMemory PlanFusedBlock(const TransformerBlockShape& s) {
  const FusedDims d = {s.rows,
                       s.hidden,
                       s.mlp ? s.intermediate : 0,
                       s.attention,
                       s.input_norms,
                       s.input_norms,
                       s.post_norms,
                       s.mlp && s.post_norms,
                       s.query_key_norm,
                       RecomputesMlp()};
  OperatorMemory memory;
  int64_t kept = 0, forward_space = 0, space = 0;
  WithStorage(s.dtype, [&](auto storage) {
    using T = decltype(storage);
    kept = FusedKept<T>(d, nullptr).parts.used() * kFloatBytes;
    forward_space = FusedForwardSpace<T>(d, nullptr).parts.used() * kFloatBytes;
    space = FusedBackwardSpace<T>(d, nullptr).parts.used() * kFloatBytes;
  });
  memory.kept = kept + s.x();
  const int norms =
      ((s.input_norms ? 1 : 0) + (s.post_norms ? 1 : 0)) * (s.mlp ? 2 : 1);
  memory.backward = space + s.x() + norms * s.norm_gradient();
  // The adapters' gradients come together; the one to x comes last.
  int64_t gradients = 0, adapters = 0;
  for (const BlockMatrix matrix :
       {kDownMatrix, kGateMatrix, kUpMatrix, kOutputMatrix, kQueryMatrix,
        kKeyMatrix, kValueMatrix}) {
    if (!s.mlp && matrix >= kGateMatrix) continue;
    const LinearMemory linear = s.Linear(matrix);
    adapters = std::max(adapters, linear.forward);
    if (s.trained && !s.fp8) continue;
    memory.backward =
        std::max(memory.backward, space + gradients + linear.backward);
    gradients += linear.gradients;
  }
  memory.backward = std::max(memory.backward, space + gradients + s.x());
  memory.forward = forward_space + adapters;
  return memory;
}

}  // namespace

at::Tensor TransformerBlock(const at::Tensor& x,
                            const TransformerBlockWeights& weights,
                            const TransformerBlockOptions& options) {
  if (options.cache != nullptr) {
    return CanDecode(x) ? DecodeBlock(x, weights, options)
                        : PlainTransformerBlock(x, weights, options);
  }
  return CanFuseTransformerBlock(x)
             ? FusedTransformerBlock(x, weights, options)
             : PlainTransformerBlock(x, weights, options);
}

at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options) {
  const QueryKeyValue qkv = AttentionInput(x, weights.attention, options);
  at::Tensor mixed;
  if (options.exchange != nullptr) {
    mixed = ExchangedAttention(options.exchange, qkv.q, qkv.k, qkv.v,
                               options.shape, options.packing, options.masks);
  } else if (options.cache == nullptr) {
    mixed = Attention(qkv.q, qkv.k, qkv.v, options.shape, options.packing,
                      options.masks);
  } else {
    const CachedKeyValue all = options.cache->Append(qkv.k, qkv.v);
    mixed = CachedAttention(qkv.q, all.k, all.v, options.shape, options.first);
  }
  return AfterAttention(mixed, qkv.x, weights, options);
}

bool CanFuseTransformerBlock(const at::Tensor& x) {
  return x.is_cpu() && CanFuse(x.scalar_type());
}

int64_t TransformerBlockShape::JoinedRank(BlockMatrix matrix) const {
  if (!gpu || matrix == kOutputMatrix || matrix == kDownMatrix) return 0;
  const bool of_attention = matrix <= kValueMatrix;
  int64_t rank = 0, count = 0;
  for (int i = of_attention ? kQueryMatrix : kGateMatrix;
       i <= (of_attention ? kValueMatrix : kUpMatrix); ++i) {
    if (adapters[i].dropout || adapters[i].dora) return 0;
    rank += adapters[i].rank;
    count += adapters[i].rank > 0 ? 1 : 0;
  }
  return count < 2 ? 0 : rank;
}

LinearMemory TransformerBlockShape::Linear(BlockMatrix matrix) const {
  const std::pair<int64_t, int64_t> out_in[kBlockMatrices] = {
      {query_width(), hidden}, {key_width(), hidden},  {key_width(), hidden},
      {hidden, query_width()}, {intermediate, hidden}, {intermediate, hidden},
      {hidden, intermediate}};
  const auto [out, in] = out_in[matrix];
  // On GPUs and in 16 bits gradients are written to where they are summed.
  const bool returned = trained && !gpu && dtype == c10::ScalarType::Float;
  LinearMemory memory =
      PlanLinear(rows, in, out, dtype, returned, adapters[matrix]);
  if (const int64_t rank = JoinedRank(matrix); rank > 0) {
    const LinearMemory all =
        PlanLinear(rows, in, out, dtype, /*trained=*/false, {rank});
    const int64_t a = rank * in * ElementBytes(dtype);  // of all, as one
    memory.forward = all.forward + a;
    memory.backward = all.backward + a;
  }
  if (fp8 && FitsFp8(out, in)) {
    const Fp8LinearMemory products = PlanFp8Linear(rows, in, out, gpu);
    memory.forward = std::max(memory.forward, products.forward);
    memory.backward = std::max(memory.backward, products.backward);
  }
  if (!adapters[matrix].dora) return memory;
  // On CPUs ATen multiplies 16 bits by DoRA's float32 factors in two copies.
  const int64_t copies =
      gpu || dtype == c10::ScalarType::Float ? 0 : 2 * rows * out * kFloatBytes;
  memory.forward = std::max(memory.forward, copies);
  memory.backward = std::max(memory.backward, Rows(out) + copies);
  // What isn't added to the residual in place.
  const bool adds = matrix == kOutputMatrix || matrix == kDownMatrix;
  if (adds && !post_norms) memory.forward += x();
  return memory;
}

OperatorMemory PlanPlainTransformerBlock(const TransformerBlockShape& s) {
  MemoryLedger forward;
  PlanAttentionInput(s, &forward);
  PlanAttention(s.attention, s.rows, s.dtype, s.packed, &forward, s.gpu);
  PlanAttentionOutput(s, &forward);
  if (s.mlp) PlanGatedMlp(s, &forward);
  // On GPUs attention kept copies of k and v, and of q.
  const bool grouped = s.attention.heads != s.attention.kv_heads;
  const bool scaled = s.attention.softcap == 0.0 && grouped &&
                      s.dtype == c10::ScalarType::Float;
  const bool capped =
      s.gpu &&
      (scaled || (s.attention.softcap != 0.0 && s.attention.batch > 1));
  const bool repeated = s.gpu && grouped && s.attention.softcap != 0.0;
  if (capped || repeated) {
    forward.Free(2 * s.kv());
  }
  if (capped) forward.Free(s.q());
  const int64_t kept = forward.live();
  MemoryLedger backward(kept);
  if (s.mlp) PlanGatedMlpBackward(s, &backward);
  PlanAttentionOutputBackward(s, &backward);
  PlanAttentionBackward(s.attention, s.rows, s.dtype, s.packed, &backward,
                        s.gpu);
  PlanAttentionInputBackward(s, &backward);
  return {kept, forward.peak() - kept, backward.peak() - kept};
}

OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape) {
  return CanFuse(shape.dtype) && !shape.gpu ? PlanFusedBlock(shape)
                                            : PlanPlainTransformerBlock(shape);
}

}  // namespace capstan::kernels
