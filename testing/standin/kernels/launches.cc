// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/kernels/launches.h"

#include <algorithm>

namespace capstan::standin {
namespace {

using kernels::cuda::DType;

int64_t Bytes(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return 0;
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
  }
  return 0;
}

constexpr int64_t kFloat = 4, kIndex = 8, kDouble = 8;

// From the first to the last byte of rows that are `stride` elements apart.
int64_t RowsSpan(int64_t rows, int64_t n, int64_t stride, DType dtype) {
  return rows == 0 ? 0 : ((rows - 1) * stride + n) * Bytes(dtype);
}

// The same of RMSNorm's rows, which may lie in groups of `heads`.
int64_t NormSpan(int64_t rows, int64_t n, int64_t heads, int64_t stride,
                 DType dtype) {
  return heads == 0 ? rows * n * Bytes(dtype)
                    : RowsSpan(rows / heads, heads * n, stride, dtype);
}

}  // namespace

void Launch::Name(const char* name, double operations, int launches) {
  work_->name = name;
  work_->cost.flops = operations;
  work_->cost.launches = operations > 0 ? launches : 0;
}

void Launch::AddSpan(const void* p, int64_t bytes, bool reads, bool writes,
                     bool counts) {
  if (bytes <= 0) return;
  if (writes) {
    work_->writes.push_back({p, bytes});
  } else {
    work_->reads.push_back({p, bytes});
  }
  if (counts && reads) work_->cost.bytes_read += bytes;
  if (counts && writes) work_->cost.bytes_written += bytes;
}

void Launch::Describe(kernels::cuda::RmsNormArgs& a) {
  const int64_t matrix = a.rows * a.n * Bytes(a.dtype);
  Name("capstan::rms_norm", 4.0 * a.rows * a.n, 1);
  Touch(a.x, NormSpan(a.rows, a.n, a.heads, a.x_stride, a.dtype), true, false,
        false);
  work_->cost.bytes_read += matrix;
  Read(a.add, matrix);
  Write(a.sum, matrix);
  Write(a.again, matrix);
  Read(a.weight, a.n * Bytes(a.dtype));
  Write(a.y, matrix);
  if (a.rstd_given) {
    Read(a.rstd, a.rows * kFloat);
  } else {
    Write(a.rstd, a.rows * kFloat);
  }
}

void Launch::Describe(kernels::cuda::RmsNormBackwardArgs& a) {
  const int64_t matrix = a.rows * a.n * Bytes(a.dtype);
  const bool weight = a.partial != nullptr;
  Name("capstan::rms_norm_backward", 12.0 * a.rows * a.n, weight ? 2 : 1);
  Read(a.dy, matrix);
  Touch(a.x, NormSpan(a.rows, a.n, a.heads, a.x_stride, a.dtype), true, false,
        false);
  Read(a.weight, a.n * Bytes(a.dtype));
  Read(a.rstd, a.rows * kFloat);
  Read(a.residual, matrix);
  Touch(a.dx, NormSpan(a.rows, a.n, a.heads, a.dx_stride, a.dtype), false, true,
        false);
  work_->cost.bytes_read += matrix;
  work_->cost.bytes_written += matrix;
  if (!weight) return;
  Update(a.partial, kernels::cuda::RmsNormPartials(a.rows, a.n) * a.n * kFloat);
  if (a.add_dweight) {
    Update(a.dweight, a.n * Bytes(a.dweight_dtype));
  } else {
    Write(a.dweight, a.n * Bytes(a.dweight_dtype));
  }
}

void Launch::Describe(kernels::cuda::RopeArgs& a) {
  const int64_t channels = a.heads * a.head_dim;
  Name("capstan::rope", 3.0 * a.rows * channels, 1);
  Touch(a.x, RowsSpan(a.rows, channels, a.x_stride, a.dtype), true, false,
        false);
  Touch(a.y, RowsSpan(a.rows, channels, a.y_stride, a.dtype), false, true,
        false);
  work_->cost.bytes_read += a.rows * channels * Bytes(a.dtype);
  work_->cost.bytes_written += a.rows * channels * Bytes(a.dtype);
  Read(a.table, std::min(a.rows, a.positions) * a.head_dim * kFloat);
}

void Launch::Describe(kernels::cuda::SwiGluArgs& a) {
  const int64_t bytes = a.rows * a.n * Bytes(a.dtype);
  const int64_t span = RowsSpan(a.rows, a.n, a.stride, a.dtype);
  Name("capstan::swiglu", 5.0 * a.rows * a.n, 1);
  Touch(a.gate, span, true, false, false);
  Touch(a.up, span, true, false, false);
  work_->cost.bytes_read += 2 * bytes;
  Write(a.out, bytes);
}

void Launch::Describe(kernels::cuda::SwiGluBackwardArgs& a) {
  const int64_t bytes = a.rows * a.n * Bytes(a.dtype);
  const int64_t span = RowsSpan(a.rows, a.n, a.stride, a.dtype);
  const int64_t d_span = RowsSpan(a.rows, a.n, a.d_stride, a.dtype);
  Name("capstan::swiglu_backward", 12.0 * a.rows * a.n, 1);
  Touch(a.gate, span, true, false, false);
  Touch(a.up, span, true, false, false);
  Update(a.d_out, bytes);
  Touch(a.d_gate, d_span, false, true, false);
  Touch(a.d_up, d_span, false, true, false);
  work_->cost.bytes_read += 2 * bytes;
  work_->cost.bytes_written += 2 * bytes;
}

void Launch::Describe(kernels::cuda::DropoutArgs& a) {
  const int64_t matrix = a.rows * a.n * Bytes(a.dtype);
  Name("capstan::dropout", 20.0 * a.rows * a.n, 1);
  Read(a.x, matrix);
  Write(a.out, matrix);
  const int64_t samples = a.length == 0 ? 0 : a.rows / a.length;
  Read(a.samples, samples * kIndex);
  if (a.noise != nullptr) Read(a.noise, samples * kFloat);
}

void Launch::Describe(kernels::cuda::CrossEntropyArgs& a) {
  const int64_t matrix = a.rows * a.vocab * Bytes(a.dtype);
  Name("capstan::cross_entropy", (a.gradient ? 8.0 : 4.0) * a.rows * a.vocab,
       2);
  if (a.gradient) {
    Update(a.logits, matrix);
  } else {
    Read(a.logits, matrix);
  }
  Read(a.targets, a.rows * kIndex);
  Read(a.weights, a.rows * kFloat);
  Update(a.losses, a.rows * kFloat);
  Write(a.sum, kFloat);
  if (a.rows == 0) work_->cost.launches = 1;  // the sum, of nothing
}

void Launch::Describe(kernels::cuda::EmbeddingBackwardArgs& a) {
  Name("capstan::embedding_backward", 1.0 * a.rows * a.hidden, 1);
  Read(a.dy, a.rows * a.hidden * Bytes(a.dtype));
  Read(a.tokens, a.rows * kIndex);
  Read(a.order, a.rows * kIndex);
  const int64_t row = a.hidden * Bytes(a.weight_dtype);
  Touch(a.d_weight, a.vocab * row, true, true, /*counts=*/false);
  const int64_t touched = std::min(a.rows, a.vocab) * row;  // at most
  work_->cost.bytes_read += touched;
  work_->cost.bytes_written += touched;
}

void Launch::Describe(kernels::cuda::AdamWArgs& a) {
  Name("capstan::adamw", 15.0 * a.n, 1);
  Read(a.gradient, a.n * Bytes(a.gradient_dtype));
  Update(a.parameter, a.n * kFloat);
  Update(a.exp_avg, a.n * Bytes(a.state_dtype));
  Update(a.exp_avg_sq, a.n * Bytes(a.state_dtype));
  Write(a.working, a.n * Bytes(a.working_dtype));
  Read(a.device_scale, kFloat);
}

void Launch::Describe(kernels::cuda::AdamW8BitArgs& a) {
  constexpr int64_t kBlock = kernels::cuda::kAdamW8BitBlock;
  const int64_t scales = (a.n + kBlock - 1) / kBlock * kFloat;
  Name("capstan::adamw_8bit", 35.0 * a.n, 1);
  Read(a.gradient, a.n * Bytes(a.gradient_dtype));
  Update(a.parameter, a.n * kFloat);
  Update(a.exp_avg, a.n);
  Update(a.exp_avg_absmax, scales);
  Update(a.exp_avg_sq, a.n);
  Update(a.exp_avg_sq_absmax, scales);
  Write(a.working, a.n * Bytes(a.working_dtype));
  Read(a.device_scale, kFloat);
}

void Launch::Describe(kernels::cuda::SquaredSumArgs& a) {
  Name("capstan::squared_sum", 2.0 * a.n, 2);
  Read(a.x, a.n * Bytes(a.dtype));
  Update(a.partial, kernels::cuda::kSquaredSumPartials * kDouble);
  Write(a.sum, kDouble);
  if (a.n == 0) work_->cost.launches = 1;
}

void Launch::Describe(kernels::cuda::DequantizeNf4Args& a) {
  const int64_t values = a.first + a.n;
  const int64_t blocks = (values + kernels::cuda::kNf4ScaleValues - 1) /
                         kernels::cuda::kNf4ScaleValues;
  Name("capstan::dequantize_nf4", 2.0 * a.n, 1);
  Read(a.packed, (values + 1) / 2);
  Read(a.scales, blocks * kFloat);
  Read(a.quantised_scales, blocks);
  Read(a.group_scales, (blocks + 255) / 256 * kFloat);
  Read(a.offset, kFloat);
  Write(a.out, a.n * Bytes(a.dtype));
}

void Launch::Describe(kernels::cuda::CastFp8Args& a) {
  const bool by_column = a.turned && a.by_row;
  // Rows that have just been read are in a cache; others are read again.
  const bool one_pass = a.by_row && !a.turned;
  const int64_t rows = a.turned ? a.n : a.rows;
  const int64_t read = a.rows * a.n * Bytes(DType::kBFloat16);
  const int64_t partial = a.partials * (by_column ? a.n : 1) * kFloat;  // int32
  Name("capstan::cast_fp8", 2.0 * a.rows * a.n,
       one_pass    ? 1
       : by_column ? 3
                   : 2);
  Touch(a.x, RowsSpan(a.rows, a.n, a.stride, DType::kBFloat16), true, false,
        /*counts=*/false);
  work_->cost.bytes_read += read * (one_pass ? 1 : 2);
  Touch(a.partial, partial, true, true, /*counts=*/by_column);
  Write(a.out, rows * a.width);
  Write(a.also, a.rows * a.n);
  Write(a.scale, (a.by_row ? rows : 1) * kFloat);
}

void Launch::Describe(kernels::cuda::GroupChoicesArgs& a) {
  const int64_t places = a.choices + (a.padded ? a.experts : 0);
  Name("capstan::group_choices", 2.0 * a.choices * a.experts, 1);
  Read(a.expert, a.choices * kIndex);
  Read(a.share, a.choices * kFloat);
  Write(a.row, places * kIndex);
  Write(a.sorted_share, places * kFloat);
  Write(a.order, a.choices * kIndex);
  Write(a.ends, a.experts * kFloat);  // int32
  Write(a.chosen, a.experts * kFloat);
}

void Launch::Describe(kernels::cuda::SumChosenArgs& a) {
  const int64_t row = a.n * Bytes(a.dtype), choices = a.rows * a.top_k;
  Name("capstan::sum_chosen", 2.0 * choices * a.n, 1);
  Touch(a.x, a.places * row, true, false, /*counts=*/false);
  work_->cost.bytes_read += choices * row;
  Read(a.order, choices * kIndex);
  Read(a.share, choices * kFloat);
  Read(a.add, a.rows * row);
  Write(a.y, a.rows * row);
}

}  // namespace capstan::standin
