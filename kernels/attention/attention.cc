// SPDX-License-Identifier: Apache-2.0
//
// On the CPU in float32, scores are computed for a block of queries at a time
// against all visible keys, as matrix products directly on the layout of the
// projections, without transposes or copies of keys per group. Scores aren't
// kept: backward recomputes them from each row's log-sum-exp (Dao et al.,
// "FlashAttention", 2022, section 3.1). The documents of a packed sequence are
// processed one by one, so that masked scores cost nothing, and a document's
// bits don't depend on its neighbours.
#include "kernels/attention/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/simd/simd.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kQueryBlock = 64;

// An independent part of a sequence: a document, or all. If causal, its queries
// are the last of its keys' positions.
struct Part {
  int64_t begin = 0;  // first query, and first key
  int64_t queries = 0;
  int64_t keys = 0;
  bool causal = true;
};

template <typename Body>
void ForParts(const AttentionLayout& layout, int64_t b, const Body& body) {
  const bool causal = layout.shape.causal;
  if (layout.packing == nullptr) {
    return body(Part{0, layout.queries, layout.keys, causal});
  }
  for (const PackedRows::Document& document : layout.packing->row(b)) {
    body(Part{document.begin, document.length, document.length, causal});
  }
}

// A block of query rows of one head, and its rows of scores. Queries and keys
// are counted from the start of the part.
struct Block {
  Block(const Part& part, int64_t begin)
      : rows(std::min(kQueryBlock, part.queries - begin)),
        first(part.causal ? part.keys - part.queries + begin : part.keys - 1),
        keys(part.causal ? first + rows : part.keys),
        stride((keys + 15) / 16 * 16) {}
  const int64_t rows;    // queries
  const int64_t first;   // the last key that the first query sees
  const int64_t keys;    // keys visible to any query of it
  const int64_t stride;  // of its scores, rounded up for base/simd
};

std::vector<float> ScoreBuffer(const AttentionLayout& layout) {
  const PackedRows* packing = layout.packing;
  const int64_t queries = packing ? packing->longest() : layout.queries;
  const int64_t keys = packing ? packing->longest() : layout.keys;
  return std::vector<float>(std::min(kQueryBlock, queries) *
                            ((keys + 15) / 16 * 16));
}

// A part for one query head. Adds to dk and dv, except for the first head of a
// group.
void BackwardPart(const AttentionLayout& layout,
                  const AttentionBackwardBuffers& p, int64_t b, int64_t h,
                  const Part& part, float* probs, float* d_scores) {
  const int64_t hd = layout.shape.head_dim, ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const int64_t qo = layout.q_offset(b, h) + part.begin * ld;
  const int64_t ko = layout.kv_offset(b, h) + part.begin * kld;
  const float* lse = p.log_sum_exp +
                     (b * layout.shape.heads + h) * layout.queries + part.begin;
  float delta[kQueryBlock];
  // From the last block on: it sees all keys, so for the first head it
  // overwrites all of dk and dv, and the others add.
  const int64_t last = (part.queries - 1) / kQueryBlock * kQueryBlock;
  for (int64_t i = last; i >= 0; i -= kQueryBlock) {
    const Block block(part, i);
    const float beta = i == last && h % layout.group() == 0 ? 0.0f : 1.0f;
    const ConstMatrix q{p.q + qo + i * ld, ld};
    const ConstMatrix d_out{p.d_out + qo + i * ld, ld};
    for (int64_t r = 0; r < block.rows; ++r) {
      delta[r] = Simd().dot(d_out.data + r * ld, p.out + qo + (i + r) * ld, hd);
    }
    Gemm(Transpose::kRight, block.rows, block.keys, hd, layout.scale(), q,
         {p.k + ko, kld}, 0.0f, {probs, block.stride});
    Simd().causal_softmax(probs, block.rows, block.keys, block.stride,
                          block.first, lse + i);
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f,
         {probs, block.stride}, d_out, beta, {p.dv + ko, kld});
    Gemm(Transpose::kRight, block.rows, block.keys, hd, 1.0f, d_out,
         {p.v + ko, kld}, 0.0f, {d_scores, block.stride});
    Simd().softmax_backward(probs, d_scores, block.rows, block.stride, delta,
                            layout.scale());
    Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f,
         {d_scores, block.stride}, {p.k + ko, kld}, 0.0f,
         {p.dq + qo + i * ld, ld});
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f,
         {d_scores, block.stride}, q, beta, {p.dk + ko, kld});
  }
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
        at::empty({shape.batch, shape.heads, layout.queries}, q.options());
    AttentionForward(layout, ConstData(q), ConstData(k), ConstData(v),
                     Data(out), Data(log_sum_exp));
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

float AttentionLayout::scale() const {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

void AttentionForward(const AttentionLayout& layout, const float* q,
                      const float* k, const float* v, float* out,
                      float* log_sum_exp) {
  const int64_t heads = layout.shape.heads, hd = layout.shape.head_dim;
  const int64_t ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const auto head = [&](int64_t b, int64_t h, const Part& part, float* scores) {
    const float* qh = q + layout.q_offset(b, h) + part.begin * ld;
    const float* kh = k + layout.kv_offset(b, h) + part.begin * kld;
    const float* vh = v + layout.kv_offset(b, h) + part.begin * kld;
    float* oh = out + layout.q_offset(b, h) + part.begin * ld;
    float* lse = log_sum_exp + (b * heads + h) * layout.queries + part.begin;
    float inverse_sum[kQueryBlock];
    for (int64_t i = 0; i < part.queries; i += kQueryBlock) {
      const Block block(part, i);
      Gemm(Transpose::kRight, block.rows, block.keys, hd, layout.scale(),
           {qh + i * ld, ld}, {kh, kld}, 0.0f, {scores, block.stride});
      Simd().causal_exp(scores, block.rows, block.keys, block.stride,
                        block.first, inverse_sum, lse + i);
      Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f,
           {scores, block.stride}, {vh, kld}, 0.0f, {oh + i * ld, ld});
      for (int64_t r = 0; r < block.rows; ++r) {
        Simd().scale(oh + (i + r) * ld, hd, inverse_sum[r]);
      }
    }
  };
  at::parallel_for(0, layout.shape.batch * heads, 1,
                   [&](int64_t begin, int64_t end) {
                     std::vector<float> scores = ScoreBuffer(layout);
                     for (int64_t i = begin; i < end; ++i) {
                       ForParts(layout, i / heads, [&](const Part& part) {
                         head(i / heads, i % heads, part, scores.data());
                       });
                     }
                   });
}

void AttentionBackward(const AttentionLayout& layout,
                       const AttentionBackwardBuffers& buffers) {
  const int64_t kv_heads = layout.shape.kv_heads;
  at::parallel_for(
      0, layout.shape.batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> probs = ScoreBuffer(layout);
        std::vector<float> d_scores = ScoreBuffer(layout);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % kv_heads * layout.group();
          for (int64_t h = first; h < first + layout.group(); ++h) {
            ForParts(layout, i / kv_heads, [&](const Part& part) {
              BackwardPart(layout, buffers, i / kv_heads, h, part, probs.data(),
                           d_scores.data());
            });
          }
        }
      });
}

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing) {
  if (FastPath(q)) return AttentionFunction::apply(q, k, v, shape, packing);
  return packing ? ComposedPackedAttention(q, k, v, shape, *packing)
                 : ComposedAttention(q, k, v, shape);
}

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
                           const at::Tensor& v, const AttentionShape& shape,
                           const at::Tensor& first) {
  TORCH_CHECK(!first.defined(), "padding comes with the rest of this change");
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
