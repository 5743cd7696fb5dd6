// SPDX-License-Identifier: Apache-2.0
#include "kernels/encoder/encoder_block_pass.h"

#include <cstring>

#include "kernels/encoder/encoder_attention.h"
#include "kernels/encoder/encoder_simd.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

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

AddNormRows Norm1(const EncoderPass& pass, const Range& range, float* out) {
  const EncoderDims& d = pass.dims;
  AddNormRows p;
  p.rows = range.queries;
  p.n = d.width;
  p.bias = pass.weights[kOutBias];
  p.keep = BitsFrom(pass.kept.keep_output, range.query, d.width);
  p.factor = pass.factor;
  p.weight = pass.weights[kNorm1Weight];
  p.shift = pass.weights[kNorm1Bias];
  p.eps = pass.eps;
  p.sum = pass.kept.sum1 + range.query * d.width;
  p.mean = pass.kept.mean1 + range.query;
  p.rstd = pass.kept.rstd1 + range.query;
  p.out = out;
  return p;
}

AddNormRows Norm2(const EncoderPass& pass, const Range& range, float* out) {
  const EncoderDims& d = pass.dims;
  AddNormRows p = Norm1(pass, range, out);
  p.bias = pass.weights[kDownBias];
  p.keep = BitsFrom(pass.kept.keep_fed, range.query, d.width);
  p.weight = pass.weights[kNorm2Weight];
  p.shift = pass.weights[kNorm2Bias];
  p.sum = pass.kept.sum2 + range.query * d.width;
  p.mean = pass.kept.mean2 + range.query;
  p.rstd = pass.kept.rstd2 + range.query;
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

void ForwardGroup(const EncoderPass& pass, int64_t group,
                  const EncoderForwardSpace& space, float* out) {
  const EncoderDims& d = pass.dims;
  const EncoderKernels& simd = EncoderSimd();
  const Range range(pass, group);
  const int64_t at = range.query * d.width, m = range.queries;
  AttendForward(pass, range, space.x_query, space.attention);

  AddNormRows norm1 = Norm1(pass, range, space.y);
  DrawRows(pass, range, pass.output_key, d.width, pass.kept.keep_output);
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

  AddNormRows norm2 = Norm2(pass, range, out + at);
  DrawRows(pass, range, pass.fed_key, d.width, pass.kept.keep_fed);
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
  const AddNormRows norm1 = Norm1(pass, range, space.y);

  simd.add_norm_backward(
      Norm2(pass, range, nullptr),
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
