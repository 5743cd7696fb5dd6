// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/encoder/encoder_block_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/simd/simd.h"
#include "kernels/gemm/gemm.h"
#include "plugins/algorithm_distillation/encoder/dropout.h"
#include "plugins/algorithm_distillation/encoder/encoder_simd.h"

namespace capstan::kernels {
namespace {

// Causal attention with dropout for one head of one sequence.

// Rows of head_dim floats, q_stride and kv_stride apart. The queries are at the
// last of the keys' positions: all of them, or only the last.
struct EncoderHead {
  int64_t queries = 0, keys = 0, head_dim = 0;
  int64_t q_stride = 0, kv_stride = 0, out_stride = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  // Dropout bits, each row's groups after the previous row's; null: none.
  const uint16_t* keep = nullptr;
  float factor = 1.0f;
};

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

// out: [queries, head_dim], out_stride apart; log_sum_exp: [queries].
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

struct EncoderHeadGradients {
  const float* out = nullptr;
  const float* d_out = nullptr;  // as out
  const float* log_sum_exp = nullptr;
  float* dq = nullptr;  // overwritten; laid out as q, k, v
  float* dk = nullptr;
  float* dv = nullptr;
};

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

// The whole block.

// The sequences of a group, its rows and its queries.
struct Range {
  Range(const EncoderPass& pass, int64_t group)
      : begin(pass.dims.groups[group]),
        end(pass.dims.groups[group + 1]),
        row(pass.rows->offsets[begin]),
        rows(pass.rows->offsets[end] - row),
        query(pass.dims.last_only ? begin : row),
        queries(pass.dims.last_only ? end - begin : rows) {}
  const int64_t begin, end, row, rows, query, queries;
};

// out [m, n] = x W^T + beta * out, for W [n, k].
void Project(const float* x, int64_t m, int64_t n, int64_t k, const float* w,
             float beta, float* out) {
  Gemm(Transpose::kRight, m, n, k, 1.0f, {x, k}, {w, k}, beta, {out, n});
}

// dx [m, k] = dy W + beta * dx.
void ProjectBack(const float* dy, int64_t m, int64_t n, int64_t k,
                 const float* w, float beta, float* dx) {
  Gemm(Transpose::kNone, m, k, n, 1.0f, {dy, n}, {w, k}, beta, {dx, k});
}

// dw [n, k] += dy^T x.
void AddWeight(const float* dy, const float* x, int64_t m, int64_t n, int64_t k,
               float* dw) {
  Gemm(Transpose::kLeft, n, k, m, 1.0f, {dy, n}, {x, k}, 1.0f, {dw, k});
}

// Concatenates the sequences' last rows of x.
void TakeLast(const EncoderPass& pass, const Range& range, float* to) {
  const int64_t width = pass.dims.width;
  for (int64_t b = range.begin; b < range.end; ++b, to += width) {
    std::memcpy(to, pass.x + (pass.rows->offsets[b + 1] - 1) * width,
                width * sizeof(float));
  }
}

// Dropout bits of the group's queries, `width` numbers each.
void DrawRows(const EncoderPass& pass, const Range& range, uint64_t key,
              int64_t width, uint16_t* keep) {
  if (!pass.dims.dropout) return;
  const int64_t groups = DropoutGroups(width);
  uint16_t* to = keep + range.query * groups;
  for (int64_t b = range.begin; b < range.end; ++b) {
    const int64_t count =
        (pass.dims.last_only ? 1 : pass.rows->length(b)) * groups;
    EncoderSimd().keep_bits(key, static_cast<uint64_t>(pass.samples[b]), 0,
                            count, pass.threshold, to);
    to += count;
  }
}

const uint16_t* BitsFrom(const uint16_t* keep, int64_t row, int64_t width) {
  return keep == nullptr ? nullptr : keep + row * DropoutGroups(width);
}

uint16_t* ScoreBits(const EncoderPass& pass, int64_t b, int64_t h) {
  if (!pass.dims.dropout) return nullptr;
  return pass.kept.keep_scores + pass.dims.score_groups[b] +
         h * pass.dims.HeadGroups(pass.rows->length(b));
}

// Head h of sequence b, which is in the group.
EncoderHead HeadOf(const EncoderPass& pass, int64_t b, int64_t h) {
  const EncoderDims& d = pass.dims;
  EncoderHead head;
  head.keys = pass.rows->length(b);
  head.queries = d.last_only ? 1 : head.keys;
  head.head_dim = d.head_dim;
  head.kv_stride = d.projected;
  head.out_stride = d.width;
  head.keep = ScoreBits(pass, b, h);
  head.factor = pass.factor;
  const float* const row = pass.kept.projected +
                           pass.rows->offsets[b] * d.projected + h * d.head_dim;
  const int64_t kv = d.projected - 2 * d.width;  // queries come first
  head.k = row + kv;
  head.v = row + kv + d.width;
  head.q = d.last_only ? pass.kept.q + b * d.width + h * d.head_dim : row;
  head.q_stride = d.last_only ? d.width : d.projected;
  return head;
}

// The first of head h's queries of sequence b, among [queries, width].
int64_t QueryAt(const EncoderPass& pass, int64_t b, int64_t h) {
  const int64_t query = pass.dims.last_only ? b : pass.rows->offsets[b];
  return query * pass.dims.width + h * pass.dims.head_dim;
}

// Of log_sum_exp, [heads, queries] in each sequence.
float* LogSumExp(const EncoderPass& pass, int64_t b, int64_t h) {
  const EncoderDims& d = pass.dims;
  const int64_t first = d.last_only ? b : pass.rows->offsets[b];
  const int64_t queries = d.last_only ? 1 : pass.rows->length(b);
  return pass.kept.log_sum_exp + first * d.heads + h * queries;
}

// The block's first or second norm; the caller sets `residual`.
AddNormRows NormOf(const EncoderPass& pass, const Range& range, int which,
                   float* out) {
  const int64_t width = pass.dims.width;
  const EncoderKept::Norm& kept = pass.kept.norms[which];
  AddNormRows p;
  p.rows = range.queries;
  p.n = width;
  p.bias = pass.weights[which == 0 ? kOutBias : kDownBias];
  p.keep = BitsFrom(kept.keep, range.query, width);
  p.factor = pass.factor;
  p.weight = pass.weights[which == 0 ? kNorm1Weight : kNorm2Weight];
  p.shift = pass.weights[which == 0 ? kNorm1Bias : kNorm2Bias];
  p.eps = pass.eps;
  p.sum = kept.sum + range.query * width;
  p.mean = kept.mean + range.query;
  p.rstd = kept.rstd + range.query;
  p.out = out;
  return p;
}

void AttendForward(const EncoderPass& pass, const Range& range, float* x_query,
                   float* space) {
  const EncoderDims& d = pass.dims;
  const float* const w = pass.weights[kInWeight];
  const float* const bias = pass.weights[kInBias];
  const int64_t skipped = 3 * d.width - d.projected;
  float* const projected = pass.kept.projected + range.row * d.projected;
  Project(pass.x + range.row * d.width, range.rows, d.projected, d.width,
          w + skipped * d.width, 0.0f, projected);
  EncoderSimd().add_bias(bias + skipped, range.rows, d.projected, projected);
  if (d.last_only) {
    float* const q = pass.kept.q + range.query * d.width;
    TakeLast(pass, range, x_query);
    Project(x_query, range.queries, d.width, d.width, w, 0.0f, q);
    EncoderSimd().add_bias(bias, range.queries, d.width, q);
  }
  for (int64_t b = range.begin; b < range.end; ++b) {
    for (int64_t h = 0; h < d.heads; ++h) {
      if (d.dropout) {
        EncoderSimd().keep_bits(pass.score_keys[h],
                                static_cast<uint64_t>(pass.samples[b]), 0,
                                d.HeadGroups(pass.rows->length(b)),
                                pass.threshold, ScoreBits(pass, b, h));
      }
      EncoderAttention(HeadOf(pass, b, h),
                       pass.kept.mixed + QueryAt(pass, b, h),
                       LogSumExp(pass, b, h), space);
    }
  }
}

void AttendBackward(const EncoderPass& pass, const Range& range,
                    const EncoderBackwardSpace& space, float* dx,
                    const EncoderGradients& gradients) {
  const EncoderDims& d = pass.dims;
  // Gradients are laid out in this group's space like the kept numbers.
  const int64_t kv_at = range.row * d.projected;
  const int64_t out_at = range.query * d.width;
  for (int64_t b = range.begin; b < range.end; ++b) {
    for (int64_t h = 0; h < d.heads; ++h) {
      const EncoderHead head = HeadOf(pass, b, h);
      const int64_t query = QueryAt(pass, b, h);
      const float* const base = pass.kept.projected + kv_at;
      float* const dq = d.last_only
                            ? space.d_q + (head.q - pass.kept.q) - out_at
                            : space.d_projected + (head.q - base);
      EncoderAttentionBackward(
          head,
          {pass.kept.mixed + query, space.d_mixed + query - out_at,
           LogSumExp(pass, b, h), dq, space.d_projected + (head.k - base),
           space.d_projected + (head.v - base)},
          space.attention);
    }
  }
  const float* const x = pass.x + range.row * d.width;
  const int64_t skipped = 3 * d.width - d.projected;
  EncoderSimd().add_rows(space.d_projected, range.rows, d.projected,
                         gradients[kInBias] + skipped);
  AddWeight(space.d_projected, x, range.rows, d.projected, d.width,
            gradients[kInWeight] + skipped * d.width);
  ProjectBack(space.d_projected, range.rows, d.projected, d.width,
              pass.weights[kInWeight] + skipped * d.width,
              d.last_only ? 0.0f : 1.0f, dx + range.row * d.width);
  if (!d.last_only) return;
  TakeLast(pass, range, space.x_query);
  EncoderSimd().add_rows(space.d_q, range.queries, d.width, gradients[kInBias]);
  AddWeight(space.d_q, space.x_query, range.queries, d.width, d.width,
            gradients[kInWeight]);
  ProjectBack(space.d_q, range.queries, d.width, d.width,
              pass.weights[kInWeight], 1.0f, space.d_y);
  for (int64_t b = range.begin; b < range.end; ++b) {
    float* const last = dx + (pass.rows->offsets[b + 1] - 1) * d.width;
    EncoderSimd().add_bias(space.d_y + (b - range.begin) * d.width, 1, d.width,
                           last);
  }
}

}  // namespace

int64_t EncoderAttentionSpace(int64_t keys, int64_t head_dim) {
  return 2 * (kBlock + head_dim) * WholeVectors(keys);
}

void ForwardGroup(const EncoderPass& pass, int64_t group,
                  const EncoderForwardSpace& space, float* out) {
  const EncoderDims& d = pass.dims;
  const EncoderKernels& simd = EncoderSimd();
  const Range range(pass, group);
  const int64_t at = range.query * d.width, m = range.queries;
  AttendForward(pass, range, space.x_query, space.attention);

  AddNormRows norm1 = NormOf(pass, range, 0, space.y);
  DrawRows(pass, range, pass.output_key, d.width, pass.kept.norms[0].keep);
  Project(pass.kept.mixed + at, m, d.width, d.width, pass.weights[kOutWeight],
          0.0f, norm1.sum);
  norm1.residual = d.last_only ? space.x_query : pass.x + at;
  simd.add_norm(norm1);

  float* const inner = pass.kept.inner + range.query * d.inner;
  DrawRows(pass, range, pass.inner_key, d.inner, pass.kept.keep_inner);
  Project(space.y, m, d.inner, d.width, pass.weights[kUpWeight], 0.0f, inner);
  simd.gelu(pass.weights[kUpBias],
            BitsFrom(pass.kept.keep_inner, range.query, d.inner), pass.factor,
            m, d.inner, inner, space.activation);

  AddNormRows norm2 = NormOf(pass, range, 1, out + at);
  DrawRows(pass, range, pass.fed_key, d.width, pass.kept.norms[1].keep);
  Project(space.activation, m, d.width, d.inner, pass.weights[kDownWeight],
          0.0f, norm2.sum);
  norm2.residual = space.y;
  simd.add_norm(norm2);
}

void BackwardGroup(const EncoderPass& pass, int64_t group, const float* d_out,
                   const EncoderBackwardSpace& space, float* dx,
                   const EncoderGradients& gradients) {
  const EncoderDims& d = pass.dims;
  const EncoderKernels& simd = EncoderSimd();
  const Range range(pass, group);
  const int64_t at = range.query * d.width, m = range.queries;
  const AddNormRows norm1 = NormOf(pass, range, 0, space.y);

  simd.add_norm_backward(
      NormOf(pass, range, 1, nullptr),
      {d_out + at, space.d_y, space.d_product, gradients[kNorm2Weight],
       gradients[kNorm2Bias], gradients[kDownBias]});

  float* const inner = pass.kept.inner + range.query * d.inner;
  ProjectBack(space.d_product, m, d.width, d.inner, pass.weights[kDownWeight],
              0.0f, space.d_inner);
  simd.gelu_backward(BitsFrom(pass.kept.keep_inner, range.query, d.inner),
                     pass.factor, m, d.inner, inner, space.d_inner,
                     gradients[kUpBias]);
  AddWeight(space.d_product, inner, m, d.width, d.inner,
            gradients[kDownWeight]);
  simd.norm_again(norm1);
  AddWeight(space.d_inner, space.y, m, d.inner, d.width, gradients[kUpWeight]);
  ProjectBack(space.d_inner, m, d.inner, d.width, pass.weights[kUpWeight], 1.0f,
              space.d_y);

  simd.add_norm_backward(norm1, {space.d_y, d.last_only ? space.d_y : dx + at,
                                 space.d_product, gradients[kNorm1Weight],
                                 gradients[kNorm1Bias], gradients[kOutBias]});
  AddWeight(space.d_product, pass.kept.mixed + at, m, d.width, d.width,
            gradients[kOutWeight]);
  ProjectBack(space.d_product, m, d.width, d.width, pass.weights[kOutWeight],
              0.0f, space.d_mixed);
  AttendBackward(pass, range, space, dx, gradients);
}

}  // namespace capstan::kernels
