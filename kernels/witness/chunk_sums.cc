// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/chunk_sums.h"

#include "kernels/gemm/gemm.h"
#include "kernels/witness/sums.h"

namespace capstan::kernels {
namespace {

ConstMatrix MatrixOf(const at::Tensor& t, int64_t first) {
  ConstMatrix x;
  x.data = static_cast<const char*>(t.const_data_ptr()) +
           first * static_cast<int64_t>(t.element_size());
  x.stride = kSumChunk;
  x.type = t.scalar_type() == at::kFloat      ? NumberType::kFloat
           : t.scalar_type() == at::kBFloat16 ? NumberType::kBf16
                                              : NumberType::kFp16;
  return x;
}

}  // namespace

void SumChunks(const at::Tensor& t, int64_t begin, int64_t end, float* sums,
               float* squares) {
  MatrixSums of;
  of.right = RandomSigns(kSumChunk);
  of.row_sums = sums;
  of.row_squares = squares;
  const int64_t whole = (end - begin) / kSumChunk;
  const int64_t rest = (end - begin) % kSumChunk;
  SumMatrix(MatrixOf(t, begin), whole, kSumChunk, &of);
  if (rest == 0) return;
  of.row_sums += whole;
  of.row_squares += whole;
  SumMatrix(MatrixOf(t, begin + whole * kSumChunk), 1, rest, &of);
}

double UnitRoundoff(c10::ScalarType type) {
  return type == at::kFloat      ? 0x1p-24
         : type == at::kBFloat16 ? 0x1p-8
                                 : 0x1p-11;
}

}  // namespace capstan::kernels
