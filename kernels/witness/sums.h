// SPDX-License-Identifier: Apache-2.0
//
// One pass over a matrix in memory that makes what Freivalds' check needs of
// it: products with a vector from the right and from the left, and squares.
#ifndef CAPSTAN_KERNELS_WITNESS_SUMS_H_
#define CAPSTAN_KERNELS_WITNESS_SUMS_H_

#include <cfloat>
#include <cstdint>

namespace capstan::kernels {

struct ConstMatrix;

// What vectors are padded to, with zeros.
constexpr int64_t kSumLanes = 16;
inline int64_t Padded(int64_t n) {
  return (n + kSumLanes - 1) / kSumLanes * kSumLanes;
}

// Of rows [0, rows) of x, each of n numbers. A null pointer: not wanted.
// Vectors of n numbers are padded.
struct MatrixSums {
  const float* right = nullptr;     // [n]
  float* row_sums = nullptr;        // [rows] = x right
  float* row_squares = nullptr;     // [rows]
  const float* left = nullptr;      // [rows]
  float* column_sums = nullptr;     // [n] += left^T x
  float* column_squares = nullptr;  // [n] +=
  double squares = 0.0;             // += of all; not with column_squares alone
};

// What float32 loses of a number at most where it underflows. A sum of squares
// is too small by so much for each of its numbers.
constexpr double kUnderflow = FLT_MIN;

// At least n random signs, for good. The same in each process, others for each
// `round`.
const float* RandomSigns(int64_t n, uint64_t round = 0);

// On this thread. Wanted are `right`, `left` or both.
void SumMatrix(const ConstMatrix& x, int64_t rows, int64_t n, MatrixSums* sums);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_WITNESS_SUMS_H_
