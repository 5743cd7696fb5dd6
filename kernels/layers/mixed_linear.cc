// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/mixed_linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "base/profile.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

bool IsSmall(c10::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf || type == at::kChar;
}

// MatrixSource::read of a StoredMatrix.
void Read(const void* what, int64_t row, int64_t rows, int64_t column,
          int64_t columns, float* out) {
  const auto& matrix = *static_cast<const StoredMatrix*>(what);
  for (int64_t r = row; r < row + rows; ++r, out += columns) {
    ReadMatrix(matrix, r, column, columns, out);
  }
}

// Of a bfloat16 matrix and rows that are rounded to it.
void RoundedLinearInto(const float* x, int64_t x_stride, int64_t rows,
                       const FewRowsProduct& p, float beta) {
  // At a time: little memory, and panels of W are rarely made again.
  constexpr int64_t kMost = 1024;
  const int64_t columns = p.w.columns;
  const at::Tensor rounded =
      at::empty({std::min(rows, kMost), columns}, at::kBFloat16);
  auto* const to = WriteAs<Bf16>(rounded);
  for (int64_t first = 0; first < rows; first += kMost) {
    const int64_t count = std::min(kMost, rows - first);
    at::parallel_for(0, count, RowGrain(columns), [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        Simd().bf16.scaled(x + (first + r) * x_stride, 1.0f, columns,
                           to + r * columns);
      }
    });
    Gemm(Transpose::kRight, count, p.w.rows, columns, 1.0f, {to, columns},
         {static_cast<const Bf16*>(p.w.data), columns}, beta,
         {p.y + first * p.y_stride, p.y_stride});
  }
}

}  // namespace

bool IsMixed(const at::Tensor& x, const Weight& weight) {
  return !weight.packed() && FastPath(x) && weight.tensor.is_cpu() &&
         IsSmall(weight.tensor.scalar_type());
}

StoredMatrix StoredOf(const Weight& weight) {
  StoredMatrix matrix;
  matrix.data = weight.tensor.const_data_ptr();
  matrix.rows = weight.rows();
  matrix.columns = weight.columns();
  TORCH_INTERNAL_ASSERT(!weight.packed() && weight.tensor.is_contiguous());
  switch (weight.tensor.scalar_type()) {
    case at::kFloat:
      matrix.type = MatrixType::kFloat;
      break;
    case at::kBFloat16:
      matrix.type = MatrixType::kBf16;
      break;
    case at::kHalf:
      matrix.type = MatrixType::kFp16;
      break;
    default:
      TORCH_CHECK(
          weight.tensor.scalar_type() == at::kChar && weight.scales.defined(),
          "no product of float32 rows with a matrix of ",
          weight.tensor.scalar_type());
      matrix.type = MatrixType::kInt8;
      matrix.scales = ConstData(weight.scales);
  }
  return matrix;
}

void StoredLinearInto(const float* x, int64_t x_stride, int64_t rows,
                      const FewRowsProduct& p) {
  const ProfileScope profile("matrix products");
  if (TakesFewRows(rows)) return FewRows(x, x_stride, rows, p);
  const float beta = p.add ? 1.0f : 0.0f;
  if (p.w.type == MatrixType::kBf16 && RoundsToBf16()) {
    return RoundedLinearInto(x, x_stride, rows, p, beta);
  }
  if (p.w.type == MatrixType::kFloat) {
    return Gemm(Transpose::kRight, rows, p.w.rows, p.w.columns, 1.0f,
                {x, x_stride},
                {static_cast<const float*>(p.w.data), p.w.columns}, beta,
                {p.y, p.y_stride});
  }
  Gemm(Transpose::kRight, rows, p.w.rows, p.w.columns, 1.0f, {x, x_stride},
       MatrixSource{Read, &p.w}, beta, {p.y, p.y_stride});
}

void StoredLinearInto(const at::Tensor& y, const at::Tensor& x,
                      const Weight& weight, double beta) {
  TORCH_CHECK((beta == 0.0 || beta == 1.0) && y.stride(1) == 1 &&
                  x.size(1) == weight.columns() && y.size(1) == weight.rows(),
              "a product of ", x.sizes(), " and a matrix [", weight.rows(),
              ", ", weight.columns(), "] into ", y.sizes());
  const at::Tensor dense = x.stride(1) == 1 ? x : x.contiguous();
  FewRowsProduct product;
  product.w = StoredOf(weight);
  product.y = Data(y);
  product.y_stride = y.stride(0);
  product.add = beta == 1.0;
  StoredLinearInto(ConstData(dense), dense.stride(0), dense.size(0), product);
}

at::Tensor StoredRows(const Weight& weight, const at::Tensor& tokens) {
  const StoredMatrix matrix = StoredOf(weight);
  const at::Tensor ids = tokens.contiguous();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  at::Tensor rows = at::empty({ids.numel(), matrix.columns}, at::kFloat);
  float* out = Data(rows);
  for (int64_t i = 0; i < ids.numel(); ++i, out += matrix.columns) {
    TORCH_CHECK_INDEX(id[i] >= 0 && id[i] < matrix.rows, "token ", id[i],
                      " isn't below ", matrix.rows);
    ReadMatrix(matrix, id[i], 0, matrix.columns, out);
  }
  return rows;
}

}  // namespace capstan::kernels
