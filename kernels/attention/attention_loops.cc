// SPDX-License-Identifier: Apache-2.0
//
// On the CPU, scores are computed for a block of queries at a time
// against all visible keys, as matrix products directly on the layout of the
// projections, without transposes or copies of keys per group. Scores aren't
// kept: backward recomputes them from each row's log-sum-exp (Dao et al.,
// "FlashAttention", 2022, section 3.1). The documents of a packed sequence are
// processed one by one, so that masked scores cost nothing, and a document's
// bits don't depend on its neighbours.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/attention/attention.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kQueryBlock = 64;

// An independent part of a sequence: a document, or all. If causal, its queries
// are the last of its keys' positions.
struct Part {
  int64_t query = 0;  // the first
  int64_t key = 0;    // the first
  int64_t queries = 0;
  int64_t keys = 0;
};

// The parts of a chunk of sequence b, whose queries begin at `first`.
template <typename Body>
void ForPartsOf(const AttentionLayout& layout, int64_t b, const RowChunk& chunk,
                int64_t first, const Body& body) {
  const bool causal = layout.shape.causal;
  const int64_t end = chunk.begin + chunk.length;
  if (layout.packing == nullptr) {
    return body(Part{first, 0, chunk.length, causal ? end : layout.keys});
  }
  for (const PackedRows::Document& document : layout.packing->row(b)) {
    const int64_t after = document.begin + document.length;
    const int64_t from = std::max(document.begin, chunk.begin);
    const int64_t to = std::min(after, end);
    if (from >= to) continue;
    body(Part{first + from - chunk.begin, document.begin, to - from,
              (causal ? to : after) - document.begin});
  }
}

template <typename Body>
void ForParts(const AttentionLayout& layout, int64_t b, const Body& body) {
  const int64_t before = layout.keys - layout.queries;
  if (layout.first_keys != nullptr) {
    // Queries before the first key see nothing.
    const int64_t first = layout.first_keys[b];
    const int64_t skipped = std::max<int64_t>(0, first - before);
    return body(
        Part{skipped, first, layout.queries - skipped, layout.keys - first});
  }
  if (layout.chunks.empty()) {
    return ForPartsOf(layout, b, {before, layout.queries}, 0, body);
  }
  int64_t query = 0;
  for (const RowChunk& chunk : layout.chunks) {
    ForPartsOf(layout, b, chunk, query, body);
    query += chunk.length;
  }
}

// Scores of `keys` keys, rounded up for base/simd.
int64_t ScoreStride(int64_t keys) { return (keys + 15) / 16 * 16; }

// A block of query rows of one head, and its rows of scores. Queries and keys
// are counted from the start of the part.
struct Block {
  Block(const AttentionShape& shape, const Part& part, int64_t query)
      : rows(std::min(kQueryBlock, part.queries - query)),
        last(shape.causal ? part.keys - part.queries + query : part.keys - 1),
        window(shape.window),
        begin(window > 0 ? std::max<int64_t>(0, last - window + 1) : 0),
        keys((shape.causal ? last + rows : part.keys) - begin),
        stride(ScoreStride(keys)) {}
  const int64_t rows;    // queries
  const int64_t last;    // the last key that the first query sees
  const int64_t window;  // 0: none
  const int64_t begin;   // the first key that the first query sees
  const int64_t keys;    // from there on, those visible to any query of it
  const int64_t stride;  // of its scores

  // The last column of scores that the first row sees.
  int64_t first() const { return last - begin; }

  // Overwrites the scores before each row's window.
  void FillBeforeWindows(float* scores, float value) const {
    if (window == 0) return;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t hidden = last + r - window + 1 - begin;
      if (hidden > 0) std::fill_n(scores + r * stride, hidden, value);
    }
  }
};

// Of one part of a row, for one thread.
std::vector<float> ScoreBuffer(const AttentionLayout& layout) {
  const PackedRows* packing = layout.packing;
  const int64_t window = layout.shape.window;
  const int64_t queries = packing ? packing->longest() : layout.queries;
  int64_t keys = packing ? packing->longest() : layout.keys;
  if (window > 0) keys = std::min(keys, window + kQueryBlock - 1);
  return std::vector<float>(std::min(kQueryBlock, queries) * ScoreStride(keys));
}

// The scores of a block: q k^T, scaled and capped. slope: the cap's derivative,
// laid out as the scores; may be null.
void Scores(const AttentionLayout& layout, const Block& block, ConstMatrix q,
            ConstMatrix k, float* scores, float* slope) {
  Gemm(Transpose::kRight, block.rows, block.keys, layout.shape.head_dim,
       layout.scale(), q, k, 0.0f, {scores, block.stride});
  if (layout.shape.softcap == 0.0) return;
  Simd().softcap(scores, block.rows * block.stride,
                 static_cast<float>(layout.shape.softcap), slope);
}

// Scores as a factor of products with T: bfloat16, whose products are fast if
// both factors are, rounds them, as GPUs' kernels do for 16 bits.
template <typename T>
constexpr bool kRoundsScores = std::is_same_v<T, Bf16>;

// One thread's block of them.
template <typename T>
class ScoreFactor {
 public:
  explicit ScoreFactor(const AttentionLayout& layout)
      : rounded_(kRoundsScores<T> ? ScoreBuffer(layout).size() : 0) {}
  // `scores`, until the next call.
  ConstMatrix Of(const Block& block, const float* scores) {
    if constexpr (kRoundsScores<T>) {
      Simd().rows<T>().scaled(scores, 1.0f, block.rows * block.stride,
                              rounded_.data());
      return {rounded_.data(), block.stride};
    }
    return {scores, block.stride};
  }
  // Rows of `scores`, which may be overwritten, times factors[row].
  ConstMatrix Of(const Block& block, float* scores, const float* factors) {
    for (int64_t r = 0; r < block.rows; ++r) {
      float* const row = scores + r * block.stride;
      if constexpr (kRoundsScores<T>) {
        Simd().rows<T>().scaled(row, factors[r], block.keys,
                                rounded_.data() + r * block.stride);
      } else {
        Simd().scale(row, block.keys, factors[r]);
      }
    }
    if constexpr (kRoundsScores<T>) return {rounded_.data(), block.stride};
    return {scores, block.stride};
  }

 private:
  std::vector<T> rounded_;
};

// Buffers of one thread's backward. The first three are of ScoreBuffer's size.
template <typename T>
struct BackwardScores {
  explicit BackwardScores(const AttentionLayout& layout)
      : probs(ScoreBuffer(layout)),
        d_scores(ScoreBuffer(layout)),
        factor(layout) {
    if (layout.shape.softcap != 0.0) slope = ScoreBuffer(layout);
  }
  std::vector<float> probs, d_scores, slope;
  ScoreFactor<T> factor;
  // In 16 bits: one sequence's [keys, head_dim] for one head of keys and
  // values, and two rows of a head.
  std::vector<float> dk, dv, row, other_row;
};

// Where the gradients of keys and values are added up: row `key` of a sequence
// begins at dk + key * stride.
struct KeyValueSums {
  float *dk, *dv;
  int64_t stride;
};

// The dot product of rows of T.
float Dot(const float* a, const float* b, int64_t n, BackwardScores<float>*) {
  return Simd().dot(a, b, n);
}
template <typename T>
float Dot(const T* a, const T* b, int64_t n, BackwardScores<T>* buffers) {
  const int64_t first = 0;
  buffers->row.assign(n, 0.0f);
  buffers->other_row.assign(n, 0.0f);
  const RowKernels<T>& rows = Simd().rows<T>();
  rows.add_rows_wide(a, &first, 1, n, n, buffers->row.data());
  rows.add_rows_wide(b, &first, 1, n, n, buffers->other_row.data());
  return Simd().dot(buffers->row.data(), buffers->other_row.data(), n);
}

// A part for one query head. Adds to `sums`, except for the first head of a
// group if there are no chunks.
template <typename T>
void BackwardPart(const AttentionLayout& layout,
                  const AttentionBackwardBuffers<T>& p,
                  const KeyValueSums& sums, int64_t b, int64_t h,
                  const Part& part, BackwardScores<T>* buffers) {
  const int64_t hd = layout.shape.head_dim, ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const int64_t qo = layout.q_offset(b, h) + part.query * ld;
  const int64_t part_keys = layout.kv_offset(b, h) + part.key * kld;
  const float* lse = p.log_sum_exp +
                     (b * layout.shape.heads + h) * layout.queries + part.query;
  float* const probs = buffers->probs.data();
  float* const d_scores = buffers->d_scores.data();
  float delta[kQueryBlock];
  // From the last block on: it sees all keys but those before its window, so
  // for the first head it overwrites dk and dv, and the others add.
  const int64_t last = (part.queries - 1) / kQueryBlock * kQueryBlock;
  for (int64_t i = last; i >= 0; i -= kQueryBlock) {
    const Block block(layout.shape, part, i);
    const bool overwrite =
        i == last && h % layout.group() == 0 && layout.chunks.empty();
    const float beta = overwrite ? 0.0f : 1.0f;
    for (int64_t key = 0; overwrite && key < block.begin; ++key) {
      std::fill_n(sums.dk + (part.key + key) * sums.stride, hd, 0.0f);
      std::fill_n(sums.dv + (part.key + key) * sums.stride, hd, 0.0f);
    }
    const int64_t so = (part.key + block.begin) * sums.stride;
    const int64_t ko = part_keys + block.begin * kld;
    const ConstMatrix q{p.q + qo + i * ld, ld};
    const T* const d_rows = p.d_out + qo + i * ld;
    const ConstMatrix d_out{d_rows, ld};
    for (int64_t r = 0; r < block.rows; ++r) {
      delta[r] = Dot(d_rows + r * ld, p.out + qo + (i + r) * ld, hd, buffers);
    }
    Scores(layout, block, q, {p.k + ko, kld}, probs, buffers->slope.data());
    Simd().causal_softmax(probs, block.rows, block.keys, block.stride,
                          block.first(), lse + i);
    block.FillBeforeWindows(probs, 0.0f);
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f,
         buffers->factor.Of(block, probs), d_out, beta,
         {sums.dv + so, sums.stride});
    Gemm(Transpose::kRight, block.rows, block.keys, hd, 1.0f, d_out,
         {p.v + ko, kld}, 0.0f, {d_scores, block.stride});
    Simd().softmax_backward(probs, d_scores, block.rows, block.stride, delta,
                            layout.scale());
    if (layout.shape.softcap != 0.0) {
      Simd().multiply(d_scores, buffers->slope.data(),
                      block.rows * block.stride);
    }
    const ConstMatrix d = buffers->factor.Of(block, d_scores);
    Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f, d, {p.k + ko, kld},
         0.0f, {p.dq + qo + i * ld, ld});
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f, d, q, beta,
         {sums.dk + so, sums.stride});
  }
}

// Rounds one head's gradients, sequence b's [keys, head_dim], to T.
template <typename T>
void RoundSums(const AttentionLayout& layout, const std::vector<float>& sums,
               T* out) {
  const int64_t hd = layout.shape.head_dim;
  at::Tensor rounded = at::from_blob(out, {layout.keys, hd},
                                     {layout.kv_stride, 1}, StorageType<T>());
  rounded.copy_(at::from_blob(const_cast<float*>(sums.data()),
                              {layout.keys, hd}, at::kFloat));
}

// One head of keys and values of sequence b, with the query heads that read it.
template <typename T>
void BackwardHead(const AttentionLayout& layout,
                  const AttentionBackwardBuffers<T>& p, int64_t b,
                  int64_t kv_head, BackwardScores<T>* buffers) {
  const int64_t first = kv_head * layout.group();
  const int64_t offset = layout.kv_offset(b, first);
  KeyValueSums sums = {};
  if constexpr (std::is_same_v<T, float>) {
    sums = {p.dk + offset, p.dv + offset, layout.kv_stride};
    for (int64_t key = 0; !layout.chunks.empty() && key < layout.keys; ++key) {
      std::fill_n(sums.dk + key * sums.stride, layout.shape.head_dim, 0.0f);
      std::fill_n(sums.dv + key * sums.stride, layout.shape.head_dim, 0.0f);
    }
  } else {
    if (!layout.chunks.empty()) {
      buffers->dk.clear();
      buffers->dv.clear();
    }
    buffers->dk.resize(layout.keys * layout.shape.head_dim);
    buffers->dv.resize(layout.keys * layout.shape.head_dim);
    sums = {buffers->dk.data(), buffers->dv.data(), layout.shape.head_dim};
  }
  for (int64_t h = first; h < first + layout.group(); ++h) {
    ForParts(layout, b, [&](const Part& part) {
      BackwardPart(layout, p, sums, b, h, part, buffers);
    });
  }
  if constexpr (!std::is_same_v<T, float>) {
    RoundSums(layout, buffers->dk, p.dk + offset);
    RoundSums(layout, buffers->dv, p.dv + offset);
  }
}

}  // namespace

float AttentionLayout::scale() const {
  return shape.scale != 0.0
             ? static_cast<float>(shape.scale)
             : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

template <typename T>
void AttentionForward(const AttentionLayout& layout, const T* q, const T* k,
                      const T* v, T* out, float* log_sum_exp) {
  const ProfileScope profile("attention");
  const int64_t heads = layout.shape.heads, hd = layout.shape.head_dim;
  const int64_t ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const auto head = [&](int64_t b, int64_t h, const Part& part, float* scores,
                        ScoreFactor<T>* factor) {
    const T* qh = q + layout.q_offset(b, h) + part.query * ld;
    const T* kh = k + layout.kv_offset(b, h) + part.key * kld;
    const T* vh = v + layout.kv_offset(b, h) + part.key * kld;
    T* oh = out + layout.q_offset(b, h) + part.query * ld;
    float* lse = log_sum_exp + (b * heads + h) * layout.queries + part.query;
    float inverse_sum[kQueryBlock];
    for (int64_t i = 0; i < part.queries; i += kQueryBlock) {
      const Block block(layout.shape, part, i);
      Scores(layout, block, {qh + i * ld, ld}, {kh + block.begin * kld, kld},
             scores, /*slope=*/nullptr);
      block.FillBeforeWindows(scores, -std::numeric_limits<float>::infinity());
      Simd().causal_exp(scores, block.rows, block.keys, block.stride,
                        block.first(), inverse_sum, lse + i);
      block.FillBeforeWindows(scores, 0.0f);  // not quite 0
      constexpr bool kRounds = !std::is_same_v<T, float>;
      const ConstMatrix probs = kRounds ? factor->Of(block, scores, inverse_sum)
                                        : factor->Of(block, scores);
      Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f, probs,
           {vh + block.begin * kld, kld}, 0.0f, {oh + i * ld, ld});
      if constexpr (!kRounds) {
        for (int64_t r = 0; r < block.rows; ++r) {
          Simd().scale(oh + (i + r) * ld, hd, inverse_sum[r]);
        }
      }
    }
  };
  at::parallel_for(
      0, layout.shape.batch * heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scores = ScoreBuffer(layout);
        ScoreFactor<T> factor(layout);
        for (int64_t i = begin; i < end; ++i) {
          ForParts(layout, i / heads, [&](const Part& part) {
            head(i / heads, i % heads, part, scores.data(), &factor);
          });
        }
      });
}

template <typename T>
void AttentionBackward(const AttentionLayout& layout,
                       const AttentionBackwardBuffers<T>& buffers) {
  const ProfileScope profile("attention");
  const int64_t kv_heads = layout.shape.kv_heads;
  at::parallel_for(
      0, layout.shape.batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
        BackwardScores<T> scores(layout);
        for (int64_t i = begin; i < end; ++i) {
          BackwardHead(layout, buffers, i / kv_heads, i % kv_heads, &scores);
        }
      });
}

#define CAPSTAN_ATTENTION_OF(T)                                       \
  template void AttentionForward<T>(const AttentionLayout&, const T*, \
                                    const T*, const T*, T*, float*);  \
  template void AttentionBackward<T>(const AttentionLayout&,          \
                                     const AttentionBackwardBuffers<T>&)
CAPSTAN_ATTENTION_OF(float);
CAPSTAN_ATTENTION_OF(Bf16);
CAPSTAN_ATTENTION_OF(Fp16);
#undef CAPSTAN_ATTENTION_OF

}  // namespace capstan::kernels
