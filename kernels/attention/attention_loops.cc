// SPDX-License-Identifier: Apache-2.0
//
// Scores are computed for a block of queries at a time against all visible
// keys, as matrix products directly on the layout of the projections, without
// transposes or copies of keys per group. Scores aren't kept: backward
// recomputes them from each row's log-sum-exp (Dao et al., "FlashAttention",
// 2022, section 3.1). The documents of a packed sequence are processed one by
// one, so that masked scores cost nothing, and a document's bits don't depend
// on its neighbours.
#include "kernels/attention/attention_loops.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/simd/simd.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

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
  int64_t begin = 0;   // first query
  int64_t rows = 0;    // queries
  int64_t first = 0;   // the last key that the first query sees
  int64_t keys = 0;    // keys visible to any query of it
  int64_t stride = 0;  // of its scores, rounded up for base/simd
};

Block BlockAt(const Part& part, int64_t begin) {
  Block block;
  block.begin = begin;
  block.rows = std::min(kQueryBlock, part.queries - begin);
  block.first = part.causal ? part.keys - part.queries + begin : part.keys - 1;
  block.keys = part.causal ? block.first + block.rows : part.keys;
  block.stride = (block.keys + 15) / 16 * 16;
  return block;
}

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
    const Block block = BlockAt(part, i);
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
      const Block block = BlockAt(part, i);
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

}  // namespace capstan::kernels
