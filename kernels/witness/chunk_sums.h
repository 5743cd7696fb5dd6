// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_WITNESS_CHUNK_SUMS_H_
#define CAPSTAN_KERNELS_WITNESS_CHUNK_SUMS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "kernels/witness/sums.h"

namespace capstan::kernels {

// Numbers that share a sum.
constexpr int64_t kSumChunk = 1024;
inline int64_t ChunksOf(int64_t numel) {
  return (numel + kSumChunk - 1) / kSumChunk;
}

// Of each chunk of a contiguous tensor's elements [begin, end), float32 or 16
// bits on the CPU: the sum with random signs, which are the same in each
// process, and the sum of the squares. Their own rounding is about a unit of
// the square root of that.
void SumChunks(const at::Tensor& t, int64_t begin, int64_t end, double* sums,
               double* squares);

// float32 or 16 bits.
NumberType NumberTypeOf(c10::ScalarType type);

// What rounding a number to a type is off by at most: in units of it, and
// however small it is.
double UnitRoundoff(NumberType type);
double SmallestRounding(NumberType type);

// How many standard deviations of rounding are a bound.
constexpr double kDeviations = 6.0;

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_WITNESS_CHUNK_SUMS_H_
