// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/packed_linear.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "base/profile.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/decode/few_rows.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory.h"

namespace capstan::kernels {
namespace {

// The fewest values of W worth waking a thread.
constexpr int64_t kGrain = int64_t{1} << 18;

struct Source {
  Nf4Matrix matrix;               // as it is stored
  const float* scales = nullptr;  // of rows, of kFp8, whose layout isn't set
  int64_t first_row = 0;
  int64_t columns = 0;
};

Source SourceOf(const Weight& weight) {
  Source source;
  source.matrix.bytes = weight.tensor.const_data_ptr<uint8_t>();
  source.first_row = weight.first_row;
  source.columns = weight.in;
  if (weight.format == WeightFormat::kFp8) {
    source.scales = reinterpret_cast<const float*>(source.matrix.bytes +
                                                   Fp8LayoutOf(weight).scales);
  } else {
    source.matrix.layout = LayoutOf(weight);
  }
  return source;
}

// MatrixSource::read of a Source.
void Read(const void* what, int64_t row, int64_t rows, int64_t column,
          int64_t columns, float* out) {
  const auto& source = *static_cast<const Source*>(what);
  row += source.first_row;
  if (source.scales != nullptr) {
    for (int64_t r = row; r < row + rows; ++r, out += columns) {
      DequantizeFp8(source.matrix.bytes + r * source.columns + column,
                    source.scales[r], columns, out);
    }
    return;
  }
  for (int64_t r = row; r < row + rows; ++r, out += columns) {
    DequantizeNf4(source.matrix, r * source.columns + column, columns, out);
  }
}

// Rows of x with the order of values that Nf4Kernels::dot wants.
std::vector<float> InDotOrder(const at::Tensor& x, int lanes) {
  const int64_t rows = x.size(0), columns = x.size(1);
  std::vector<float> ordered(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    const float* const from = ConstData(x) + r * x.stride(0);
    float* const to = ordered.data() + r * columns;
    for (int64_t k = 0; k < columns; k += 2 * lanes) {
      for (int l = 0; l < lanes; ++l) {
        to[k + l] = from[k + 2 * l];
        to[k + lanes + l] = from[k + 2 * l + 1];
      }
    }
  }
  return ordered;
}

// y = x W^T for a few rows, each row of W once: bound by memory, not by panels.
void FewRows(const at::Tensor& y, const at::Tensor& x, const Source& source) {
  const Nf4Kernels& loops = kNf4.best();
  const int64_t columns = source.columns;
  const int64_t blocks = columns / kNf4Block;
  const std::vector<float> ordered = InDotOrder(x, loops.lanes);
  const int rows = static_cast<int>(x.size(0));
  float* const out = Data(y);
  const int64_t stride = y.stride(0);
  at::parallel_for(
      0, y.size(1), std::max<int64_t>(1, kGrain / columns),
      [&](int64_t row, int64_t end) {
        std::vector<float> scales(blocks);
        for (; row < end; ++row) {
          const int64_t stored = source.first_row + row;
          Nf4Scales(source.matrix, stored * blocks, blocks, scales.data());
          loops.dot(source.matrix.bytes + stored * columns / 2, scales.data(),
                    columns, ordered.data(), rows, out + row, stride);
        }
      });
}

bool Dense(const at::Tensor& x) {
  return FastPath(x) && (x.stride(1) == 1 || x.size(1) == 1);
}

void Check(const at::Tensor& wide, const at::Tensor& narrow,
           const Weight& weight) {
  TORCH_CHECK(wide.dim() == 2 && narrow.dim() == 2 &&
                  wide.size(0) == narrow.size(0) &&
                  wide.size(1) == weight.out && narrow.size(1) == weight.in,
              "a product of ", narrow.sizes(), " and ", wide.sizes(),
              " with a packed matrix [", weight.out, ", ", weight.in, "]");
}

void Multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
              double beta) {
  at::Tensor into = out;
  if (beta == 0.0) {
    at::mm_out(into, a, b);
  } else {
    at::addmm_out(into, out, a, b, beta);
  }
}

// As DequantizeNf4, of ATen's operators, for devices without our kernels.
at::Tensor PlainDequantize(const at::Tensor& bytes, const Nf4Layout& layout) {
  const auto floats = [&bytes](int64_t offset, int64_t count) {
    return bytes.narrow(0, offset, 4 * count).clone().view(at::kFloat);
  };
  const auto pick = [&bytes](const float* table, int64_t size,
                             const at::Tensor& indices) {
    return at::from_blob(const_cast<float*>(table), {size}, at::kFloat)
        .to(bytes.device())
        .index_select(0, indices.to(at::kLong));
  };
  at::Tensor scales;
  if (layout.double_quantised) {
    scales = pick(DynamicValues(), 256,
                  bytes.narrow(0, layout.scales, layout.blocks))
                 .mul_(floats(layout.group_scales, layout.groups)
                           .repeat_interleave(kNf4Group)
                           .narrow(0, 0, layout.blocks))
                 .add_(floats(layout.offset, 1));
  } else {
    scales = floats(layout.scales, layout.blocks);
  }
  const at::Tensor packed = bytes.narrow(0, 0, layout.nibbles);
  const at::Tensor nibbles =
      at::stack({packed.bitwise_right_shift(4), packed.bitwise_and(15)}, 1)
          .view(-1)
          .narrow(0, 0, layout.numel);
  return pick(kNf4Values, 16, nibbles)
      .mul_(scales.repeat_interleave(kNf4Block).narrow(0, 0, layout.numel));
}

// Of NF4, into `out` on a GPU.
at::Tensor DequantizeNf4OnGpu(const Weight& weight, at::Tensor out) {
  const Nf4Layout layout = LayoutOf(weight);
  const int64_t first = weight.first_row * weight.in;
  const auto* const cuda = cuda::For(out);
  if (cuda != nullptr && first % cuda::kNf4ThreadValues == 0) {
    cuda::DequantizeNf4(*cuda, CudaArguments(weight.tensor, layout, first),
                        out);
    return out;
  }
  return out.copy_(PlainDequantize(weight.tensor, layout)
                       .narrow(0, first, out.numel())
                       .view_as(out));
}

at::Tensor DequantizeOnCpu(const Weight& weight, at::Tensor out) {
  const Source source = SourceOf(weight);
  const bool wide = out.scalar_type() == at::kFloat;
  at::parallel_for(0, weight.out, std::max<int64_t>(1, kGrain / weight.in),
                   [&](int64_t row, int64_t end) {
                     if (wide) {
                       return Read(&source, row, end - row, 0, weight.in,
                                   Data(out) + row * weight.in);
                     }
                     at::Tensor values = at::empty({weight.in}, at::kFloat);
                     for (; row < end; ++row) {
                       Read(&source, row, 1, 0, weight.in, Data(values));
                       out.select(0, row).copy_(values);
                     }
                   });
  return out;
}

}  // namespace

cuda::DequantizeNf4Args CudaArguments(const at::Tensor& packed,
                                      const Nf4Layout& layout, int64_t first) {
  const uint8_t* const bytes = packed.const_data_ptr<uint8_t>();
  const auto floats = [bytes](int64_t offset) {
    return reinterpret_cast<const float*>(bytes + offset);
  };
  cuda::DequantizeNf4Args args = {};
  args.packed = bytes;
  args.first = first;
  if (layout.double_quantised) {
    args.quantised_scales = bytes + layout.scales;
    args.group_scales = floats(layout.group_scales);
    args.offset = floats(layout.offset);
  } else {
    args.scales = floats(layout.scales);
  }
  std::copy_n(kNf4Values, 16, args.values);
  std::copy_n(DynamicValues(), 256, args.scale_values);
  return args;
}

Nf4Layout LayoutOf(const Weight& weight) {
  const Nf4Layout layout(weight.stored_rows * weight.in,
                         weight.format == WeightFormat::kNf4Double);
  TORCH_CHECK(weight.packed() && weight.tensor.scalar_type() == at::kByte &&
                  weight.tensor.is_contiguous() &&
                  weight.tensor.numel() == layout.bytes &&
                  weight.first_row + weight.out <= weight.stored_rows,
              "a packed matrix [", weight.stored_rows, ", ", weight.in,
              "] has ", layout.bytes, " bytes, not ", weight.tensor.sizes());
  return layout;
}

Fp8Layout Fp8LayoutOf(const Weight& weight) {
  const Fp8Layout layout(weight.stored_rows, weight.in);
  TORCH_CHECK(weight.format == WeightFormat::kFp8 &&
                  weight.tensor.scalar_type() == at::kByte &&
                  weight.tensor.is_contiguous() &&
                  weight.tensor.numel() == layout.bytes &&
                  weight.first_row + weight.out <= weight.stored_rows,
              "a matrix [", weight.stored_rows, ", ", weight.in,
              "] in 8 bits has ", layout.bytes, " bytes, not ",
              weight.tensor.sizes());
  return layout;
}

at::Tensor Fp8Values(const Weight& weight) {
  Fp8LayoutOf(weight);  // checks it
  return weight.tensor
      .narrow(0, weight.first_row * weight.in, weight.out * weight.in)
      .view(at::kFloat8_e4m3fn)
      .view({weight.out, weight.in});
}

at::Tensor Fp8Scales(const Weight& weight) {
  return weight.tensor
      .narrow(0, Fp8LayoutOf(weight).scales + 4 * weight.first_row,
              4 * weight.out)
      .clone()
      .view(at::kFloat)
      .view({weight.out, 1});
}

void PackedLinearInto(const at::Tensor& y, const at::Tensor& x,
                      const Weight& weight, double beta) {
  const ProfileScope profile("matrix products");
  Check(y, x, weight);
  if (!Dense(y) || !Dense(x)) {
    return Multiply(y, x, Dequantize(weight, x.scalar_type()).t(), beta);
  }
  const Source source = SourceOf(weight);
  if (source.scales == nullptr && beta == 0.0 && x.size(0) <= kNf4DotRows &&
      TakesFewRows(x.size(0)) && weight.in % kNf4Block == 0) {
    return FewRows(y, x, source);
  }
  Gemm(Transpose::kRight, x.size(0), weight.out, weight.in, 1.0f,
       {ConstData(x), x.stride(0)}, MatrixSource{Read, &source},
       static_cast<float>(beta), {Data(y), y.stride(0)});
}

void PackedLinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                              const Weight& weight, double beta) {
  const ProfileScope profile("matrix products");
  Check(dy, dx, weight);
  if (!Dense(dx) || !Dense(dy)) {
    return Multiply(dx, dy, Dequantize(weight, dy.scalar_type()), beta);
  }
  const Source source = SourceOf(weight);
  Gemm(Transpose::kNone, dy.size(0), weight.in, weight.out, 1.0f,
       {ConstData(dy), dy.stride(0)}, MatrixSource{Read, &source},
       static_cast<float>(beta), {Data(dx), dx.stride(0)});
}

at::Tensor Dequantize(const Weight& weight, c10::ScalarType dtype) {
  at::Tensor out =
      at::empty({weight.out, weight.in}, weight.tensor.options().dtype(dtype));
  if (!out.is_cpu() && weight.format == WeightFormat::kFp8) {
    // Rounded once: what is copied is exact.
    return out.copy_(Fp8Values(weight)).mul_(Fp8Scales(weight));
  }
  return out.is_cpu() ? DequantizeOnCpu(weight, out)
                      : DequantizeNf4OnGpu(weight, out);
}

int64_t PlanPackedLinear(int64_t out, int64_t in, c10::ScalarType dtype) {
  return dtype == at::kFloat ? 0 : out * in * ElementBytes(dtype);
}

}  // namespace capstan::kernels
