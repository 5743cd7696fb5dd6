// SPDX-License-Identifier: Apache-2.0
//
// Which implementation computes attention: the loops of attention_loops.cc on
// CPUs, flash kernels, or ATen's operators.
#include "kernels/attention/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "kernels/attention/composed.h"
#include "kernels/attention/cudnn_check.h"
#include "kernels/attention/flash.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether the loops here compute attention of such queries.
bool OwnLoops(const at::Tensor& q) {
  return q.is_cpu() &&
         (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16 ||
          q.scalar_type() == at::kHalf);
}

struct Call {
  AttentionShape shape;
  Packing packing;
};

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape,
                            const Packing& packing) {
    const AttentionLayout layout(shape, q.size(0), packing.get());
    at::Tensor out = at::empty(q.sizes(), q.options());
    at::Tensor log_sum_exp =
        at::empty({shape.batch, shape.heads, layout.queries},
                  q.options().dtype(at::kFloat));
    WithStorage(q.scalar_type(), [&](auto storage) {
      using T = decltype(storage);
      AttentionForward(layout, ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v),
                       WriteAs<T>(out), Data(log_sum_exp));
    });
    ctx->save_for_backward({q, k, v, out, log_sum_exp});
    Keep(ctx, Call{shape, packing});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor &out = saved[3], &log_sum_exp = saved[4];
    const auto& [shape, packing] = KeptOf<Call>(ctx);
    const at::Tensor d_out = grads[0].contiguous();
    at::Tensor dq = at::empty(q.sizes(), q.options());
    at::Tensor dk = at::empty(k.sizes(), k.options());
    at::Tensor dv = at::empty(v.sizes(), v.options());
    const AttentionLayout layout(shape, q.size(0), packing.get());
    WithStorage(q.scalar_type(), [&](auto storage) {
      using T = decltype(storage);
      AttentionBackward<T>(
          layout, {ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v), ReadAs<T>(out),
                   ReadAs<T>(d_out), ConstData(log_sum_exp), WriteAs<T>(dq),
                   WriteAs<T>(dk), WriteAs<T>(dv)});
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

// What a GPU computes by the flash kernels: all that LibTorch would need a mask
// for, and, so that the choice of kernels doesn't depend on its heuristics, all
// if results are to be the same in each run.
bool UseFlash(const at::Tensor& q, const AttentionShape& shape,
              const PackedRows* packing) {
  const int64_t length = q.size(0) / shape.batch;
  const bool masked =
      packing != nullptr || (shape.window > 0 && length > shape.window);
  return (masked || at::globalContext().deterministicAlgorithms()) &&
         CanUseFlash(q, shape, packing);
}

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing, const SharedMasks& masks) {
  TORCH_CHECK(shape.causal || shape.window == 0,
              "a window is for causal attention");
  if (OwnLoops(q)) {
    // Theirs may be rows of wider ones (QueryKeyValue).
    return AttentionFunction::apply(q.contiguous(), k.contiguous(),
                                    v.contiguous(), shape, packing);
  }
  if (UseFlash(q, shape, packing.get())) {
    return FlashAttention(q, k, v, shape, packing.get());
  }
  if (!packing) CheckCudnnAttention(q, k, v, shape);
  AttentionMasks unshared;
  AttentionMasks* const made = masks ? masks.get() : &unshared;
  return packing ? ComposedPackedAttention(q, k, v, shape, *packing, made)
                 : ComposedAttention(q, k, v, shape, {nullptr, made});
}

at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape,
                           const at::Tensor& first) {
  TORCH_CHECK(shape.causal || !first.defined(),
              "padding in a cache is for causal attention");
  if (!OwnLoops(q)) {
    // Not LibTorch's choice: cuDNN would plan anew for each length.
    if (!first.defined() && CanUseFlash(q, shape, nullptr)) {
      return FlashAttention(q, k, v, shape, nullptr);
    }
    AttentionMasks unshared;
    return ComposedAttention(q, k, v, shape, {nullptr, &unshared, first});
  }
  AttentionLayout layout;
  layout.shape = shape;
  layout.queries = q.size(0) / shape.batch;
  layout.keys = k.size(1);
  layout.kv_batch_stride = k.stride(0);
  layout.kv_stride = k.stride(1);
  if (first.defined()) layout.first_keys = first.const_data_ptr<int64_t>();
  // Queries before the first key stay 0.
  at::Tensor out = first.defined() ? at::zeros(q.sizes(), q.options())
                                   : at::empty(q.sizes(), q.options());
  std::vector<float> log_sum_exp(shape.batch * shape.heads * layout.queries);
  WithStorage(q.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    AttentionForward(layout, ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v),
                     WriteAs<T>(out), log_sum_exp.data());
  });
  return out;
}

}  // namespace capstan::kernels
