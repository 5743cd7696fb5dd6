// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_loops.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape,
                            const Packing& packing) {
    const AttentionLayout layout(shape, q.size(0), packing.get());
    at::Tensor out = at::empty(q.sizes(), q.options());
    at::Tensor log_sum_exp =
        at::empty({shape.batch, shape.heads, layout.queries}, q.options());
    AttentionForward(layout, ConstData(q), ConstData(k), ConstData(v),
                     Data(out), Data(log_sum_exp));
    ctx->save_for_backward({q, k, v, out, log_sum_exp});
    ctx->saved_data["kv_heads"] = shape.kv_heads;
    ctx->saved_data["causal"] = shape.causal;
    if (packing)
      ctx->saved_data["packing"] = c10::IValue::make_capsule(packing);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor &out = saved[3], &log_sum_exp = saved[4];
    AttentionShape shape;
    shape.batch = log_sum_exp.size(0);
    shape.heads = log_sum_exp.size(1);
    shape.kv_heads = ctx->saved_data["kv_heads"].toInt();
    shape.head_dim = q.size(1) / shape.heads;
    shape.causal = ctx->saved_data["causal"].toBool();
    Packing packing;
    const auto packed = ctx->saved_data.find("packing");
    if (packed != ctx->saved_data.end()) {
      packing = c10::static_intrusive_pointer_cast<PackedRows>(
          packed->second.toCapsule());
    }
    const at::Tensor d_out = grads[0].contiguous();
    at::Tensor dq = at::empty(q.sizes(), q.options());
    at::Tensor dk = at::empty(k.sizes(), k.options());
    at::Tensor dv = at::empty(v.sizes(), v.options());
    AttentionBackward(AttentionLayout(shape, q.size(0), packing.get()),
                      {ConstData(q), ConstData(k), ConstData(v), ConstData(out),
                       ConstData(d_out), ConstData(log_sum_exp), Data(dq),
                       Data(dk), Data(dv)});
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

// [batch, heads, T, head_dim] of [.., heads * head_dim].
at::Tensor PerHead(const at::Tensor& x, const AttentionShape& shape) {
  return x
      .reshape({shape.batch, -1, x.size(-1) / shape.head_dim, shape.head_dim})
      .transpose(1, 2);
}

// `mask`: see PackedRows; without one, by shape.causal.
at::Tensor ComposedAttention(const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionShape& shape,
                             std::optional<at::Tensor> mask = std::nullopt) {
  const at::Tensor qh = PerHead(q, shape);
  at::Tensor kh = PerHead(k, shape), vh = PerHead(v, shape);
  const int64_t queries = qh.size(2), keys = kh.size(2);
  bool grouped = shape.heads != shape.kv_heads;
  if (grouped && (q.device().is_cpu() || mask.has_value())) {
    // ATen's fused attention doesn't support groups on CPUs, nor with a mask.
    kh = kh.repeat_interleave(shape.heads / shape.kv_heads, 1);
    vh = vh.repeat_interleave(shape.heads / shape.kv_heads, 1);
    grouped = false;
  }
  const bool masked = mask.has_value();
  const bool causal = shape.causal && !masked;
  if (causal && queries != keys && queries > 1) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool))
               .tril(keys - queries);
  }
  const at::Tensor out =
      at::scaled_dot_product_attention(qh, kh, vh, mask, /*dropout_p=*/0.0,
                                       /*is_causal=*/causal && queries == keys,
                                       /*scale=*/std::nullopt, grouped);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1)});
}

// On CPUs document by document; on GPUs, which would have to wait for the
// lengths and launch kernels for each, with a mask.
at::Tensor ComposedPackedAttention(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const PackedRows& packing) {
  if (!packing.on_cpu()) {
    return ComposedAttention(q, k, v, shape, packing.mask(shape.causal));
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
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    outs.push_back(ComposedAttention(qs[i], ks[i], vs[i], alone));
  }
  return at::cat(outs);
}

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing) {
  if (FastPath(q)) return AttentionFunction::apply(q, k, v, shape, packing);
  return packing ? ComposedPackedAttention(q, k, v, shape, *packing)
                 : ComposedAttention(q, k, v, shape);
}

namespace {

// For plans: bytes of tensors, and of the blocks of scores in ATen's fused
// attention (FlashAttentionKernel.cpp), float32 and rounded, for one thread: on
// CPUs ranks have few.
struct AttentionBytes {
  AttentionBytes(const AttentionShape& shape, int64_t rows,
                 c10::ScalarType dtype)
      : own(dtype == c10::ScalarType::Float),
        grouped(shape.heads != shape.kv_heads),
        q(rows * shape.heads * shape.head_dim * ElementBytes(dtype)),
        kv(rows * shape.kv_heads * shape.head_dim * ElementBytes(dtype)),
        log_sum_exp(rows * shape.heads * kFloatBytes) {
    const int64_t length = rows / shape.batch;
    const int64_t queries = std::min<int64_t>(
        length >= 768 ? 256 : (length >= 192 ? 64 : 32), length);
    block = queries * std::min<int64_t>(512, length) *
            (kFloatBytes + ElementBytes(dtype));
  }
  bool own;  // AttentionFunction rather than ATen's
  bool grouped;
  int64_t q, kv, log_sum_exp, block;
};

}  // namespace

void PlanAttention(const AttentionShape& shape, int64_t rows,
                   c10::ScalarType dtype, bool packed, MemoryLedger* ledger) {
  const AttentionBytes b(shape, rows, dtype);
  if (b.own) return ledger->Take(b.q + b.log_sum_exp);
  // Keys and values, repeated for each head of their group.
  if (b.grouped) ledger->Take(2 * b.q);
  ledger->Pass(b.q + b.log_sum_exp + b.block);
  ledger->Take(b.q + b.log_sum_exp);
  // The documents' outputs, from which the next operator makes one tensor.
  if (packed) ledger->Take(b.q);
}

void PlanAttentionBackward(const AttentionShape& shape, int64_t rows,
                           c10::ScalarType dtype, bool packed,
                           MemoryLedger* ledger) {
  const AttentionBytes b(shape, rows, dtype);
  if (b.own) {
    ledger->Take(b.q + 2 * b.kv);
    ledger->Free(3 * b.q + 2 * b.kv + b.log_sum_exp);
    return;
  }
  ledger->Pass(3 * b.q + 2 * b.block);
  ledger->Take(3 * b.q);
  if (packed) {
    ledger->Pass(b.q);  // the documents' gradients, concatenated
    ledger->Free(b.q);
  }
  ledger->Free(b.q + 2 * (b.grouped ? b.q : b.kv));
  ledger->Free(2 * b.q + b.log_sum_exp);  // the output and its gradient
  if (!b.grouped) return;
  // Summed over each group, then put in row order.
  for (int i = 0; i < 2; ++i) {
    ledger->Take(b.kv);
    ledger->Free(b.q);
    ledger->Pass(b.kv);
  }
}

at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape) {
  TORCH_CHECK(shape.causal, "a cache of keys is for causal attention");
  if (!FastPath(q)) return ComposedAttention(q, k, v, shape);
  AttentionLayout layout;
  layout.shape = shape;
  layout.queries = q.size(0) / shape.batch;
  layout.keys = k.size(1);
  layout.kv_batch_stride = k.stride(0);
  layout.kv_stride = k.stride(1);
  at::Tensor out = at::empty(q.sizes(), q.options());
  std::vector<float> log_sum_exp(shape.batch * shape.heads * layout.queries);
  AttentionForward(layout, ConstData(q), ConstData(k), ConstData(v), Data(out),
                   log_sum_exp.data());
  return out;
}

PackedRows::PackedRows(const at::Tensor& positions)
    : positions_(positions.contiguous()) {
  TORCH_CHECK(positions.dim() == 2 && positions.scalar_type() == at::kLong,
              "positions must be [rows, T] int64");
  if (!positions.is_cpu() || positions.numel() == 0) return;
  const int64_t length = positions.size(1);
  const int64_t* p = positions_.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < positions.size(0); ++row, p += length) {
    for (int64_t t = 0; t < length; ++t) {
      if (p[t] == 0) {
        documents_.push_back({t, 0});
      } else {
        TORCH_CHECK(t > 0 && p[t] == p[t - 1] + 1, "the positions of row ", row,
                    " must begin at 0 and rise by 1 within a document; at ", t,
                    " stands ", p[t]);
      }
      longest_ = std::max(longest_, ++documents_.back().length);
    }
    row_ends_.push_back(static_cast<int64_t>(documents_.size()));
  }
}

const at::Tensor& PackedRows::mask(bool causal) const {
  at::Tensor& mask = masks_[causal ? 1 : 0];
  if (!mask.defined()) {
    const at::AutoGradMode no_gradients(false);
    const at::Tensor keys =
        at::arange(positions_.size(1), positions_.options());
    // The start of each token's document, which identifies it within a row.
    const at::Tensor first = keys - positions_;
    mask = first.unsqueeze(1).eq(first.unsqueeze(2));
    if (causal) mask &= keys <= keys.unsqueeze(1);
    mask.unsqueeze_(1);
  }
  return mask;
}

}  // namespace capstan::kernels
