// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/chunk_sums.h"

#include <algorithm>

namespace capstan::kernels {
namespace {

// Numbers that are summed in float32, which rounds.
constexpr int64_t kRow = 128;
static_assert(kSumChunk % kRow == 0, "chunks are whole rows");

ConstMatrix MatrixOf(const at::Tensor& t, int64_t first) {
  ConstMatrix x;
  x.data = static_cast<const char*>(t.const_data_ptr()) +
           first * static_cast<int64_t>(t.element_size());
  x.stride = kRow;
  x.type = NumberTypeOf(t.scalar_type());
  return x;
}

}  // namespace

void SumChunks(const at::Tensor& t, int64_t begin, int64_t end, double* sums,
               double* squares) {
  float row_sums[kSumChunk / kRow], row_squares[kSumChunk / kRow];
  MatrixSums of;
  of.right = RandomSigns(kRow);
  for (; begin < end; begin += kSumChunk, ++sums, ++squares) {
    const int64_t count = std::min(end - begin, kSumChunk);
    const int64_t rows = count / kRow, rest = count % kRow;
    of.row_sums = row_sums;
    of.row_squares = row_squares;
    SumMatrix(MatrixOf(t, begin), rows, kRow, &of);
    if (rest > 0) {
      of.row_sums += rows;
      of.row_squares += rows;
      SumMatrix(MatrixOf(t, begin + rows * kRow), 1, rest, &of);
    }
    *sums = *squares = 0.0;
    for (int64_t r = 0; r < rows + (rest > 0 ? 1 : 0); ++r) {
      *sums += row_sums[r];
      *squares += row_squares[r];
    }
  }
}

NumberType NumberTypeOf(c10::ScalarType type) {
  return type == at::kFloat      ? NumberType::kFloat
         : type == at::kBFloat16 ? NumberType::kBf16
                                 : NumberType::kFp16;
}

double UnitRoundoff(NumberType type) {
  return type == NumberType::kFloat  ? 0x1p-24
         : type == NumberType::kBf16 ? 0x1p-8
                                     : 0x1p-11;
}

double SmallestRounding(NumberType type) {
  return type == NumberType::kFp16 ? 0x1p-25 : kUnderflow;
}

}  // namespace capstan::kernels
