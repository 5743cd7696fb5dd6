// SPDX-License-Identifier: Apache-2.0
#include "kernels/encoder/encoder_attention.h"

#include <algorithm>
#include <cmath>

#include "base/simd/simd.h"
#include "kernels/encoder/dropout.h"
#include "kernels/encoder/encoder_simd.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

// Queries per block of scores.
constexpr int64_t kBlock = 16;

int64_t WholeVectors(int64_t n) { return (n + 15) / 16 * 16; }

// Whether simd's products support it; otherwise Gemm is used.
bool SmallProducts(const EncoderHead& head) { return head.head_dim % 16 == 0; }

// A block of queries, with the keys that its last one sees.
struct Block {
  Block(const EncoderHead& head, int64_t begin)
      : begin(begin),
        rows(std::min(kBlock, head.queries - begin)),
        first(head.keys - head.queries + begin),
        keys(first + rows),
        stride(WholeVectors(keys)) {}

  ScoreRows Scores(const EncoderHead& head, float* scores) const {
    const uint16_t* keep = head.keep;
    if (keep != nullptr && head.queries > 1) keep += DropoutTriangle(begin);
    return {rows, stride, first, keep, head.factor, scores};
  }

  const int64_t begin, rows, first, keys, stride;
};

float Scale(const EncoderHead& head) {
  return static_cast<float>(1.0 /
                            std::sqrt(static_cast<double>(head.head_dim)));
}

// out [rows, stride] = factor * x [rows, head_dim] y^T for all of the block's
// keys; transposed: y's, or null.
void RowsByKeys(const EncoderHead& head, const Block& block, float factor,
                const float* x, int64_t x_stride, const float* y,
                const float* transposed, float* out) {
  if (transposed == nullptr) {
    return Gemm(Transpose::kRight, block.rows, block.keys, head.head_dim,
                factor, {x, x_stride}, {y, head.kv_stride}, 0.0f,
                {out, block.stride});
  }
  EncoderSimd().scores({block.rows, block.stride, head.head_dim, factor, x,
                        x_stride, transposed, WholeVectors(head.keys), out,
                        block.stride});
}

// out [rows, head_dim] = scores y, for y of the block's keys.
void MixKeys(const EncoderHead& head, const Block& block, const float* scores,
             const float* y, float* out, int64_t out_stride) {
  if (!SmallProducts(head)) {
    return Gemm(Transpose::kNone, block.rows, head.head_dim, block.keys, 1.0f,
                {scores, block.stride}, {y, head.kv_stride}, 0.0f,
                {out, out_stride});
  }
  EncoderSimd().mix({block.rows, block.keys, head.head_dim, 1.0f, scores,
                     block.stride, y, head.kv_stride, out, out_stride});
}

// out [keys, head_dim] = scores^T x + beta * out, for x of the block's rows.
void MixRows(const EncoderHead& head, const Block& block, const float* scores,
             const float* x, int64_t x_stride, float beta, float* out) {
  if (!SmallProducts(head)) {
    return Gemm(Transpose::kLeft, block.keys, head.head_dim, block.rows, 1.0f,
                {scores, block.stride}, {x, x_stride}, beta,
                {out, head.kv_stride});
  }
  EncoderSimd().mix_back({block.rows, block.keys, head.head_dim, beta, scores,
                          block.stride, x, x_stride, out, head.kv_stride});
}

// The transpose of the head's y, if it is needed.
const float* Transposed(const EncoderHead& head, const float* y, float* space) {
  if (!SmallProducts(head)) return nullptr;
  EncoderSimd().transpose(y, head.kv_stride, head.keys, head.head_dim, space,
                          WholeVectors(head.keys));
  return space;
}

}  // namespace

int64_t EncoderAttentionSpace(int64_t keys, int64_t head_dim) {
  return 2 * (kBlock + head_dim) * WholeVectors(keys);
}

void EncoderAttention(const EncoderHead& head, float* out, float* log_sum_exp,
                      float* space) {
  float inverse_sum[kBlock];
  const float* const keys = Transposed(head, head.k, space);
  float* const scores = space + head.head_dim * WholeVectors(head.keys);
  for (int64_t i = 0; i < head.queries; i += kBlock) {
    const Block block(head, i);
    RowsByKeys(head, block, Scale(head), head.q + i * head.q_stride,
               head.q_stride, head.k, keys, scores);
    EncoderSimd().softmax(block.Scores(head, scores), inverse_sum,
                          log_sum_exp + i);
    float* const rows = out + i * head.out_stride;
    MixKeys(head, block, scores, head.v, rows, head.out_stride);
    for (int64_t r = 0; r < block.rows; ++r) {
      Simd().scale(rows + r * head.out_stride, head.head_dim, inverse_sum[r]);
    }
  }
}

void EncoderAttentionBackward(const EncoderHead& head,
                              const EncoderHeadGradients& p, float* space) {
  float delta[kBlock];
  const int64_t transposed = head.head_dim * WholeVectors(head.keys);
  const float* const keys = Transposed(head, head.k, space);
  const float* const values = Transposed(head, head.v, space + transposed);
  float* const scores = space + 2 * transposed;
  float* const d_scores = scores + kBlock * WholeVectors(head.keys);
  const int64_t blocks = (head.queries + kBlock - 1) / kBlock;
  // The last block sees all keys: it writes their gradients, the others add.
  for (int64_t n = blocks - 1; n >= 0; --n) {
    const Block block(head, n * kBlock);
    const int64_t at = block.begin * head.out_stride;
    const float* const q = head.q + block.begin * head.q_stride;
    const float* const d_out = p.d_out + at;
    const float beta = n == blocks - 1 ? 0.0f : 1.0f;
    for (int64_t r = 0; r < block.rows; ++r) {
      delta[r] = Simd().dot(p.out + at + r * head.out_stride,
                            d_out + r * head.out_stride, head.head_dim);
    }
    RowsByKeys(head, block, Scale(head), q, head.q_stride, head.k, keys,
               scores);
    RowsByKeys(head, block, 1.0f, d_out, head.out_stride, head.v, values,
               d_scores);
    EncoderSimd().softmax_backward(block.Scores(head, scores),
                                   p.log_sum_exp + block.begin, delta,
                                   Scale(head), d_scores);
    MixRows(head, block, scores, d_out, head.out_stride, beta, p.dv);
    MixKeys(head, block, d_scores, head.k, p.dq + block.begin * head.q_stride,
            head.q_stride);
    MixRows(head, block, d_scores, q, head.q_stride, beta, p.dk);
  }
}

}  // namespace capstan::kernels
