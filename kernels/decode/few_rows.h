// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T for a few rows of x and a matrix W [out, in] that is read once,
// from where it lies: no panels, no copy. Such a product takes as long as
// memory needs to give W, so fewer bits a weight mean more tokens a second.
#ifndef CAPSTAN_KERNELS_DECODE_FEW_ROWS_H_
#define CAPSTAN_KERNELS_DECODE_FEW_ROWS_H_

#include <cstdint>

#include "base/simd/instruction_set.h"
#include "base/simd/simd.h"

namespace capstan::kernels {

// How a matrix's values are stored.
enum class MatrixType { kFloat, kBf16, kFp16, kInt8 };

// A row-major matrix [rows, columns] in memory, of any alignment that its type
// allows. Of kInt8 a value is its byte times its row's scale.
struct StoredMatrix {
  const void* data = nullptr;
  MatrixType type = MatrixType::kFloat;
  const float* scales = nullptr;  // [rows], of kInt8 alone
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t row_bytes() const {
    return columns * (type == MatrixType::kFloat  ? 4
                      : type == MatrixType::kInt8 ? 1
                                                  : 2);
  }
  // Rows [begin, begin + count).
  StoredMatrix Rows(int64_t begin, int64_t count) const;
};

// Several products of the same x, done as one: y[r * y_stride + o] = x_r . w_o.
struct FewRowsProduct {
  StoredMatrix w;
  float* y = nullptr;
  int64_t y_stride = 0;  // floats from row to row
  bool add = false;      // y += instead
};

// Whether x is rounded to bfloat16 for matrices of it: where Gemm multiplies
// bfloat16 as it is (MultipliesBf16). However many rows there are, so that
// a row's result doesn't depend on those beside it.
bool RoundsToBf16();

// x: [rows, columns] float32, rows x_stride apart. Sums are float32; their
// order depends on `columns` alone, so a row's result is the same alone and
// among others, and on any number of threads. Runs on LibTorch's intra-op
// threads.
void FewRows(const float* x, int64_t x_stride, int64_t rows,
             const FewRowsProduct* products, int count);
inline void FewRows(const float* x, int64_t x_stride, int64_t rows,
                    const FewRowsProduct& product) {
  FewRows(x, x_stride, rows, &product, 1);
}

// Rows of x up to which this is as fast as Gemm on the weights as floats.
constexpr int64_t kFewRows = 32;

// Whether products of so many rows are FewRows. Not in deterministic runs
// (at::Context), whose rows get the same bits in whatever company, as training
// them at once gives: Gemm sums in another order.
bool TakesFewRows(int64_t rows);

// out[i] = value i of row `row` from column `begin` on.
void ReadMatrix(const StoredMatrix& matrix, int64_t row, int64_t begin,
                int64_t count, float* out);

// Quantises a row x[n] to int8 with the returned scale: max |x| / 127, so that
// each value is at most half a scale off. A NaN or an infinity makes all of the
// row NaN.
float QuantizeInt8(const float* x, int64_t n, int8_t* out);

// For few_rows.cc: the loops of few_rows_loops.cc, by instruction set, on one
// thread.
struct FewRowsKernels {
  // y[r * y_stride + o] (+)= scale_o * x_r . w_o for `outs` rows w_o of W, of n
  // values each and w_stride apart; scales may be null.
  template <typename T, typename X = float>
  using Multiply = void (*)(const T* w, const float* scales, int64_t outs,
                            int64_t n, int64_t w_stride, const X* x,
                            int64_t x_stride, int64_t rows, bool add, float* y,
                            int64_t y_stride);
  template <typename T>
  using Convert = void (*)(const T* from, float scale, int64_t n, float* out);

  const char* name;
  Multiply<float> fp32;
  Multiply<Bf16> bf16;
  Multiply<Fp16> fp16;
  Multiply<int8_t> int8;
  Multiply<Bf16, Bf16> pairs;  // null but in kFewRowsLoopsAvx512Bf16
  // Values as floats, times `scale`.
  Convert<Bf16> read_bf16;
  Convert<Fp16> read_fp16;
  Convert<int8_t> read_int8;
  // y_r [n] = factors[r] * the sum of p_r[i] * v_i over `count` rows v_i [n]:
  // attention's values, for `rows` queries.
  void (*weighted_sums)(const float* p, int64_t p_stride, int64_t rows,
                        int64_t count, const float* v, int64_t v_stride,
                        int64_t n, const float* factors, float* y,
                        int64_t y_stride);
};

SIMD_TABLES(FewRowsKernels, kFewRowsLoops);
#ifdef __x86_64__
// As kFewRowsLoopsAvx512, with `pairs`. Needs HasBf16Products().
extern const FewRowsKernels kFewRowsLoopsAvx512Bf16;
#endif

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_DECODE_FEW_ROWS_H_
