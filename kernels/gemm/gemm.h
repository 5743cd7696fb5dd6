// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices in memory: float32, bfloat16 or float16, summed in
// float32.
//
// On AMD's processors ours are 8 to 20 % (Zen 4) or 2.2 times (Zen 5) faster
// than LibTorch's BLAS (MKL) at the sizes of a training step; on Intel's, MKL
// is used for float32.
// CAPSTAN_GEMM=own or =blas in the environment overrides this for measurements.
// Products with 16-bit factors are always ours. How bfloat16 is multiplied
// depends on the processor (docs/decisions/kernels.md), and for measurements on
// CAPSTAN_BF16_PRODUCTS=float32, avx512bf16 or amx.
#ifndef CAPSTAN_KERNELS_GEMM_GEMM_H_
#define CAPSTAN_KERNELS_GEMM_GEMM_H_

#include <cstdint>

#include "base/simd/instruction_set.h"
#include "base/simd/simd.h"

namespace capstan::kernels {

enum class NumberType { kFloat, kBf16, kFp16 };

// A row-major matrix in memory: row i begins at data + i * stride numbers.
// Constructors are implicit, for {data, stride}.
struct ConstMatrix {
  ConstMatrix() = default;
  ConstMatrix(const float* data, int64_t stride) : data(data), stride(stride) {}
  ConstMatrix(const Bf16* data, int64_t stride)
      : data(data), stride(stride), type(NumberType::kBf16) {}
  ConstMatrix(const Fp16* data, int64_t stride)
      : data(data), stride(stride), type(NumberType::kFp16) {}
  const void* data = nullptr;
  int64_t stride = 0;
  NumberType type = NumberType::kFloat;
};
struct Matrix {
  Matrix() = default;
  Matrix(float* data, int64_t stride) : data(data), stride(stride) {}
  Matrix(Bf16* data, int64_t stride)
      : data(data), stride(stride), type(NumberType::kBf16) {}
  Matrix(Fp16* data, int64_t stride)
      : data(data), stride(stride), type(NumberType::kFp16) {}
  void* data = nullptr;
  int64_t stride = 0;
  NumberType type = NumberType::kFloat;
};

// Which factor is passed transposed.
enum class Transpose { kNone, kLeft, kRight };

// c [m, n] = alpha * a b + beta * c, where a is [m, k] (kLeft: passed as [k,
// m]) and b is [k, n] (kRight: passed as [n, k]), of any types. A beta of 0
// overwrites c; a 16-bit c is rounded once. An element's sum is formed the same
// way whatever the rows, columns and threads beside it. Runs
// on LibTorch's intra-op threads; on one thread inside at::parallel_for. Sizes
// and strides are below 2^31.
void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, ConstMatrix b, float beta, Matrix c);

// A matrix that isn't in memory as floats. `read` writes its rows [row, row +
// rows) from column `column` on, `columns` of them, densely to `out`;
// thread-safe.
struct MatrixSource {
  void (*read)(const void* what, int64_t row, int64_t rows, int64_t column,
               int64_t columns, float* out) = nullptr;
  const void* what = nullptr;
};

// As Gemm with such a b, which is read a panel at a time where panels are made:
// the bits are those of Gemm with our own loops on its values. A part is read
// again for each 512 rows of c, at most.
void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, const MatrixSource& b, float beta, Matrix c);

// The implementation in use for float32: "avx512", "avx2" or "blas".
const char* GemmName();

// Whether factors that are both bfloat16 are multiplied as they are, in pairs
// or in tiles, rather than as floats.
bool MultipliesBf16();
// By vdpbf16ps.
bool MultipliesBf16Pairs();

// For gemm.cc: the loops of gemm_tiles.cc, one table per instruction set.

// As Gemm.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;  // all greater than 0
  float alpha = 1.0f;
  bool a_transposed = false;
  ConstMatrix a = {};
  bool b_transposed = false;
  ConstMatrix b = {};
  float beta = 0.0f;  // 0 overwrites c
  Matrix c = {};
  MatrixSource source = {};  // of b, if it isn't in memory
};

// The inner dimension is processed in blocks of at most this many terms (twice
// as many where bfloat16 is multiplied as it is); only this and the table
// decide how an element's sum is rounded.
constexpr int64_t kGemmDepth = 384;
// Rows (or columns) of the smaller factor whose panels stay in the L2 cache, if
// a block is that deep, else more: 512 * 384 floats are 768 KiB.
constexpr int64_t kGemmResident = 512;
// Floats of `space` for Run, besides those: one panel of the other factor, at
// most 32 wide; panels are written in whole vectors.
constexpr int64_t kGemmPanel = kGemmDepth * 32 + 32;
constexpr int64_t kGemmSpace =
    kGemmPanel + kGemmDepth * (kGemmResident + 32) + 32;
// What is read from a source before it is put into a panel, behind those.
constexpr int64_t kGemmRead = kGemmDepth * 32;
// Where an element's sum is made of several blocks, about so many elements of c
// are made at a time: 4 MiB.
constexpr int64_t kGemmKept = int64_t{1} << 20;
// A 16-bit c is made from float32 sums of so many rows and columns at a time.
constexpr int64_t kGemmRounded = 512;

struct GemmKernels {
  const char* name;
  // Computes c's rows [row_begin, row_end) and columns [column_begin,
  // column_end), on this thread. `space` is aligned to a cache line, and
  // kGemmRead longer with a source; `sums` of kGemmRounded^2 floats is for a
  // 16-bit c. Null in the plain table, for which the BLAS is used.
  void (*run)(const GemmProblem& problem, int64_t row_begin, int64_t row_end,
              int64_t column_begin, int64_t column_end, float* space,
              float* sums);
};

SIMD_TABLES(GemmKernels, kGemm);
#ifdef __x86_64__
// As kGemmAvx512, but products of bfloat16 alone by vdpbf16ps, which adds two
// at a time, rounds to nearest and takes subnormals for 0. Needs
// HasBf16Products().
extern const GemmKernels kGemmAvx512Bf16;
// As kGemmAvx512, but products of bfloat16 alone in AMX tiles, which sum up to
// 16 even and 16 odd terms apart, round to nearest and take subnormals for 0.
// Needs HasAmxTiles().
extern const GemmKernels kGemmAmx;
#endif

// How a processor with AVX2 multiplies 16-bit factors. wish:
// CAPSTAN_BF16_PRODUCTS, or null; pairs: HasBf16Products(); tiles: HasAmxTiles,
// asked only where its answer matters.
const GemmKernels& ChooseForHalves(const char* wish, bool intel, bool pairs,
                                   bool (*tiles)());

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_GEMM_H_
