// SPDX-License-Identifier: Apache-2.0
//
// On CPU in float32, scores are made for a block of queries at a time against
// all the keys that it sees, by the BLAS, straight from and to the layout that
// the projections have: no transposes, no copies of keys for the group. Scores
// aren't kept: backward makes them again from the log-sum-exp of each row
// (Dao et al., "FlashAttention", 2022, section 3.1).
#include "kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/fast_path.h"
#include "kernels/gemm.h"
#include "kernels/simd.h"

namespace capstan {
namespace kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kQueryBlock = 64;

// Where the parts of a problem lie in memory.
struct Layout {
  AttentionShape shape;
  int64_t queries = 0;          // T
  int64_t keys = 0;             // L; query t sees keys up to L - T + t
  int64_t kv_batch_stride = 0;  // floats
  int64_t kv_stride = 0;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t q_stride() const { return shape.heads * shape.head_dim; }
  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  }
  // Of query head h (of sequence b) and of the kv head that it reads.
  int64_t q_offset(int64_t b, int64_t h) const {
    return b * queries * q_stride() + h * shape.head_dim;
  }
  int64_t kv_offset(int64_t b, int64_t h) const {
    return b * kv_batch_stride + h / group() * shape.head_dim;
  }
};

// A block of query rows of one head, and its rows of scores.
struct Block {
  int64_t begin = 0;   // first query
  int64_t rows = 0;    // queries
  int64_t first = 0;   // the last key that the first query sees
  int64_t keys = 0;    // keys that any query of it sees
  int64_t stride = 0;  // of its scores, rounded up for simd.h
};

Block BlockAt(const Layout& layout, int64_t begin) {
  Block block;
  block.begin = begin;
  block.rows = std::min(kQueryBlock, layout.queries - begin);
  block.first = layout.keys - layout.queries + begin;
  block.keys = block.first + block.rows;
  block.stride = (block.keys + 15) / 16 * 16;
  return block;
}

std::vector<float> ScoreBuffer(const Layout& layout) {
  return std::vector<float>(std::min(kQueryBlock, layout.queries) *
                            ((layout.keys + 15) / 16 * 16));
}

// log_sum_exp: [batch, heads, T], for backward.
void Forward(const Layout& layout, const float* q, const float* k,
             const float* v, float* out, float* log_sum_exp) {
  const int64_t heads = layout.shape.heads, hd = layout.shape.head_dim;
  const int64_t ld = layout.q_stride();
  const auto head = [&](int64_t b, int64_t h, float* scores) {
    const float* qh = q + layout.q_offset(b, h);
    const float* kh = k + layout.kv_offset(b, h);
    const float* vh = v + layout.kv_offset(b, h);
    float* oh = out + layout.q_offset(b, h);
    float* lse = log_sum_exp + (b * heads + h) * layout.queries;
    float inverse_sum[kQueryBlock];
    for (int64_t i = 0; i < layout.queries; i += kQueryBlock) {
      const Block block = BlockAt(layout, i);
      Gemm(Transpose::kRight, block.rows, block.keys, hd, layout.scale(),
           {qh + i * ld, ld}, {kh, layout.kv_stride}, 0.0f,
           {scores, block.stride});
      Simd().causal_exp(scores, block.rows, block.keys, block.stride,
                        block.first, inverse_sum, lse + i);
      Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f,
           {scores, block.stride}, {vh, layout.kv_stride}, 0.0f,
           {oh + i * ld, ld});
      for (int64_t r = 0; r < block.rows; ++r) {
        Simd().scale(oh + (i + r) * ld, hd, inverse_sum[r]);
      }
    }
  };
  at::parallel_for(0, layout.shape.batch * heads, 1,
                   [&](int64_t begin, int64_t end) {
                     std::vector<float> scores = ScoreBuffer(layout);
                     for (int64_t i = begin; i < end; ++i) {
                       head(i / heads, i % heads, scores.data());
                     }
                   });
}

struct Pointers {
  const float *q, *k, *v, *out, *d_out, *log_sum_exp;
  float *dq, *dk, *dv;
};

// One query head. Adds to dk and dv unless it is the first of its group.
void BackwardHead(const Layout& layout, const Pointers& p, int64_t b, int64_t h,
                  float* probs, float* d_scores) {
  const int64_t hd = layout.shape.head_dim, ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const int64_t qo = layout.q_offset(b, h), ko = layout.kv_offset(b, h);
  const float* lse =
      p.log_sum_exp + (b * layout.shape.heads + h) * layout.queries;
  float delta[kQueryBlock];
  // From the last block on: it sees all keys, so that of the first head
  // overwrites all of dk and dv, and the others add.
  const int64_t last = (layout.queries - 1) / kQueryBlock * kQueryBlock;
  for (int64_t i = last; i >= 0; i -= kQueryBlock) {
    const Block block = BlockAt(layout, i);
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

void Backward(const Layout& layout, const Pointers& p) {
  const int64_t kv_heads = layout.shape.kv_heads;
  at::parallel_for(
      0, layout.shape.batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> probs = ScoreBuffer(layout);
        std::vector<float> d_scores = ScoreBuffer(layout);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % kv_heads * layout.group();
          for (int64_t h = first; h < first + layout.group(); ++h) {
            BackwardHead(layout, p, i / kv_heads, h, probs.data(),
                         d_scores.data());
          }
        }
      });
}

Layout PackedLayout(const AttentionShape& shape, const at::Tensor& q) {
  Layout layout;
  layout.shape = shape;
  layout.queries = layout.keys = q.size(0) / shape.batch;
  layout.kv_stride = shape.kv_heads * shape.head_dim;
  layout.kv_batch_stride = layout.keys * layout.kv_stride;
  return layout;
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape) {
    const Layout layout = PackedLayout(shape, q);
    at::Tensor out = at::empty(q.sizes(), q.options());
    at::Tensor log_sum_exp =
        at::empty({shape.batch, shape.heads, layout.queries}, q.options());
    Forward(layout, q.const_data_ptr<float>(), k.const_data_ptr<float>(),
            v.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
            log_sum_exp.mutable_data_ptr<float>());
    ctx->save_for_backward({q, k, v, out, log_sum_exp});
    ctx->saved_data["kv_heads"] = shape.kv_heads;
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
    const at::Tensor d_out = grads[0].contiguous();
    at::Tensor dq = at::empty(q.sizes(), q.options());
    at::Tensor dk = at::empty(k.sizes(), k.options());
    at::Tensor dv = at::empty(v.sizes(), v.options());
    Backward(PackedLayout(shape, q),
             {q.const_data_ptr<float>(), k.const_data_ptr<float>(),
              v.const_data_ptr<float>(), out.const_data_ptr<float>(),
              d_out.const_data_ptr<float>(),
              log_sum_exp.const_data_ptr<float>(), dq.mutable_data_ptr<float>(),
              dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>()});
    return {dq, dk, dv, at::Tensor()};
  }
};

// [batch, heads, T, head_dim] of [.., heads * head_dim].
at::Tensor PerHead(const at::Tensor& x, const AttentionShape& shape) {
  return x
      .reshape({shape.batch, -1, x.size(-1) / shape.head_dim, shape.head_dim})
      .transpose(1, 2);
}

at::Tensor ComposedAttention(const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionShape& shape) {
  const at::Tensor qh = PerHead(q, shape);
  at::Tensor kh = PerHead(k, shape), vh = PerHead(v, shape);
  const int64_t queries = qh.size(2), keys = kh.size(2);
  bool grouped = shape.heads != shape.kv_heads;
  if (grouped && q.device().is_cpu()) {
    // ATen's fused attention for CPUs knows no groups.
    kh = kh.repeat_interleave(shape.heads / shape.kv_heads, 1);
    vh = vh.repeat_interleave(shape.heads / shape.kv_heads, 1);
    grouped = false;
  }
  std::optional<at::Tensor> mask;
  if (queries != keys && queries > 1) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool))
               .tril(keys - queries);
  }
  const at::Tensor out = at::scaled_dot_product_attention(
      qh, kh, vh, mask, /*dropout_p=*/0.0, /*is_causal=*/queries == keys,
      /*scale=*/std::nullopt, grouped);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1)});
}

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape) {
  if (!FastPath(q)) return ComposedAttention(q, k, v, shape);
  return AttentionFunction::apply(q, k, v, shape);
}

at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape) {
  if (!FastPath(q)) return ComposedAttention(q, k, v, shape);
  Layout layout;
  layout.shape = shape;
  layout.queries = q.size(0) / shape.batch;
  layout.keys = k.size(1);
  layout.kv_batch_stride = k.stride(0);
  layout.kv_stride = k.stride(1);
  at::Tensor out = at::empty(q.sizes(), q.options());
  std::vector<float> log_sum_exp(shape.batch * shape.heads * layout.queries);
  Forward(layout, q.const_data_ptr<float>(), k.const_data_ptr<float>(),
          v.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
          log_sum_exp.data());
  return out;
}

}  // namespace kernels
}  // namespace capstan
