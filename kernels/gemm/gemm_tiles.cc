// SPDX-License-Identifier: Apache-2.0
//
// Matrix products after BLIS (Van Zee and van de Geijn, "BLIS: A
// Framework for Rapidly Instantiating BLAS Functionality", 2015): both factors
// are copied into panels, which a small kernel reads sequentially while it
// keeps a tile of the result in registers. Panels are float32, or, where the
// processor multiplies them and both factors are bfloat16, pairs of numbers of
// consecutive terms. 16-bit factors are widened or paired where panels are
// made.
#include "base/simd/simd.h"
#include "kernels/gemm/gemm.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#include "base/simd/target.h"

#if SIMD_BYTES == 16
// The BLAS is faster than anything that could be made here.
namespace capstan::kernels {
const GemmKernels SIMD_SYMBOL(kGemm) = {SIMD_NAME, nullptr};
}  // namespace capstan::kernels
#else

namespace capstan::kernels {
namespace {

#include "base/simd/simd_memory.inc"

constexpr int kLanes = SIMD_BYTES / 4;
// b's panels are two registers wide, or one.
constexpr int kTileColumns = 2 * kLanes;
SIMD_INLINE int64_t Width(int64_t columns) {
  return columns > kLanes ? kTileColumns : kLanes;
}

typedef Register<kLanes>::Floats Vector;

// Of panels of so many terms.
template <typename Kernel>
SIMD_INLINE int64_t LanesOf(int64_t depth) {
  constexpr int64_t kUnit = Kernel::kTerms * Kernel::kLaneUnit;
  return (depth + kUnit - 1) / kUnit * Kernel::kLaneUnit;
}

#include "kernels/gemm/gemm_packing.inc"
#include "kernels/gemm/gemm_registers.inc"
#ifdef SIMD_AMX
#include "kernels/gemm/gemm_amx.inc"
#endif

// Nearly equal pieces of at most `most`, which is a multiple of `unit`; all but
// the last end at one.
struct Cut {
  Cut(int64_t size, int64_t most, int64_t unit)
      : size(size),
        unit(unit),
        units((size + unit - 1) / unit),
        pieces((size + most - 1) / most) {}
  int64_t begin(int64_t i) const {
    return Min(size, (units * i + pieces - 1) / pieces * unit);
  }
  int64_t longest() const { return (units + pieces - 1) / pieces * unit; }
  const int64_t size, unit, units, pieces;
};

struct Term {  // one block of the inner dimension
  int64_t k, depth;
  float beta;
};

// Prefetches part `part` of `parts` of a term's block of a factor that will be
// packed soon: `count` of its rows or, if each of its rows is a term, columns.
SIMD_INLINE void Prefetch(const ConstMatrix& x, bool row_is_term, int64_t first,
                          int64_t count, const Term& t, int64_t part,
                          int64_t parts) {
  const int64_t bytes = x.type == NumberType::kFloat ? 4 : 2;
  const char* const block =
      static_cast<const char*>(x.data) +
      (row_is_term ? t.k * x.stride + first : first * x.stride + t.k) * bytes;
  const int64_t rows = row_is_term ? t.depth : count;
  const int64_t columns = row_is_term ? count : t.depth;
  const int64_t end = rows * (part + 1) / parts;
  for (int64_t r = rows * part / parts; r < end; ++r) {
    for (int64_t i = 0; i < columns * bytes; i += 64) {
      __builtin_prefetch(block + r * x.stride * bytes + i, 0, 2);
    }
  }
}

// Of a result of T.
template <typename T>
SIMD_INLINE T* At(const Matrix& c, int64_t row, int64_t column) {
  return static_cast<T*>(c.data) + row * c.stride + column;
}

// For [row_begin, row_end) and [column_begin, column_end).
template <typename Kernel>
void ResidentRows(const GemmProblem& p, const Term& t, int64_t row_begin,
                  int64_t row_end, int64_t column_begin, int64_t column_end,
                  float* rows_space, float* panel, float* read) {
  const int64_t lanes = LanesOf<Kernel>(t.depth);
  const Cut cut(row_end - row_begin, Kernel::kRows, Kernel::kRowUnit);
  for (int64_t i = 0; i < cut.pieces; ++i) {
    Kernel::PackRows(p, row_begin + cut.begin(i),
                     cut.begin(i + 1) - cut.begin(i), t.k, t.depth,
                     rows_space + cut.begin(i) * lanes);
  }
  for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
    const int64_t columns = Min(column_end - n, kTileColumns);
    Kernel::PackColumns(p, n, columns, t.k, t.depth, read, panel);
    const int64_t next = n + kTileColumns;
    const int64_t left = column_end - next;
    for (int64_t i = 0; i < cut.pieces; ++i) {
      const int64_t row = cut.begin(i);
      if (left > 0 && p.source.read == nullptr) {
        Prefetch(p.b, !p.b_transposed, next, Min(left, kTileColumns), t, i,
                 cut.pieces);
      }
      Kernel::Multiply(lanes, rows_space + row * lanes, panel,
                       cut.begin(i + 1) - row, columns, p.alpha, t.beta,
                       At<typename Kernel::Result>(p.c, row_begin + row, n),
                       p.c.stride);
    }
  }
}

template <typename Kernel>
void ResidentColumns(const GemmProblem& p, const Term& t, int64_t row_begin,
                     int64_t row_end, int64_t column_begin, int64_t column_end,
                     float* columns_space, float* panel, float* read) {
  const int64_t lanes = LanesOf<Kernel>(t.depth);
  for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
    Kernel::PackColumns(p, n, Min(column_end - n, kTileColumns), t.k, t.depth,
                        read, columns_space + (n - column_begin) * lanes);
  }
  const Cut cut(row_end - row_begin, Kernel::kRows, Kernel::kRowUnit);
  for (int64_t i = 0; i < cut.pieces; ++i) {
    const int64_t row = row_begin + cut.begin(i);
    const int64_t rows = cut.begin(i + 1) - cut.begin(i);
    Kernel::PackRows(p, row, rows, t.k, t.depth, panel);
    const int64_t width = column_end - column_begin;
    for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
      if (i + 1 < cut.pieces) {
        Prefetch(p.a, p.a_transposed, row + rows,
                 cut.begin(i + 2) - cut.begin(i + 1), t,
                 (n - column_begin) / kTileColumns,
                 (width + kTileColumns - 1) / kTileColumns);
      }
      Kernel::Multiply(lanes, panel, columns_space + (n - column_begin) * lanes,
                       rows, Min(column_end - n, kTileColumns), p.alpha, t.beta,
                       At<typename Kernel::Result>(p.c, row, n), p.c.stride);
    }
  }
}

// The blocks of the inner dimension.
template <typename Kernel>
SIMD_INLINE Cut TermsOf(const GemmProblem& p) {
  return Cut((p.k + Kernel::kTerms - 1) / Kernel::kTerms, kGemmDepth,
             Kernel::kLaneUnit);
}

// Of a c of Kernel::Result; if that isn't float32, there is one block of terms.
template <typename Kernel>
void RunBlocks(const GemmProblem& p, int64_t row_begin, int64_t row_end,
               int64_t column_begin, int64_t column_end, float* space) {
  float* const resident = space + kGemmPanel;
  const bool rows_stay = row_end - row_begin <= column_end - column_begin;
  const Cut terms = TermsOf<Kernel>(p);
  // The resident factor is cut into blocks that fit the L2 cache.
  const int64_t height = row_end - row_begin, width = column_end - column_begin;
  const int64_t most = kGemmDepth * kGemmResident / terms.longest();
  const Cut blocks(rows_stay ? height : width,
                   most / kTileColumns * kTileColumns,
                   rows_stay ? Kernel::kRowUnit : kTileColumns);
  // The other one, so that c stays in a cache between blocks of terms.
  const Cut parts(
      rows_stay ? width : height,
      terms.pieces == 1 ? width + height : kGemmKept / blocks.longest(),
      rows_stay ? kTileColumns : Kernel::kRowUnit);
  const int64_t pieces = parts.pieces * terms.pieces;
  for (int64_t i = 0; i < blocks.pieces * pieces; ++i) {
    const int64_t block = i / pieces, part = i % pieces / terms.pieces;
    const int64_t k = i % terms.pieces;
    const int64_t first = terms.begin(k) * Kernel::kTerms;
    const int64_t end = Min(p.k, terms.begin(k + 1) * Kernel::kTerms);
    const Term term = {first, end - first, k == 0 ? p.beta : 1.0f};
    if (rows_stay) {
      ResidentRows<Kernel>(p, term, row_begin + blocks.begin(block),
                           row_begin + blocks.begin(block + 1),
                           column_begin + parts.begin(part),
                           column_begin + parts.begin(part + 1), resident,
                           space, space + kGemmSpace);
    } else {
      ResidentColumns<Kernel>(p, term, row_begin + parts.begin(part),
                              row_begin + parts.begin(part + 1),
                              column_begin + blocks.begin(block),
                              column_begin + blocks.begin(block + 1), resident,
                              space, space + kGemmSpace);
    }
  }
}

// c [rows, columns] = sums + beta * c, rounded to T.
template <typename T>
SIMD_INLINE void Round(const float* sums, int64_t sums_stride, int64_t rows,
                       int64_t columns, float beta, T* c, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, sums += sums_stride, c += stride) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t rest = columns - i;
      Vector sum = LoadPart(sums + i, rest);
      if (beta != 0.0f) sum += beta * LoadFloatsPart(c + i, rest);
      if (rest >= kLanes) {
        Memory<kLanes, T>::Store(c + i, sum);
        continue;
      }
      T lanes[kLanes];
      Memory<kLanes, T>::Store(lanes, sum);
      for (int64_t j = 0; j < rest; ++j) c[i + j] = lanes[j];
    }
  }
}

// A Kernel whose tiles are rounded to T as they are stored.
template <typename Kernel, typename T>
struct Rounded : Kernel {
  using Result = T;
  static SIMD_INLINE void Multiply(int64_t lanes, const float* a,
                                   const float* b, int64_t rows,
                                   int64_t columns, float alpha, float beta,
                                   T* c, int64_t c_stride) {
    alignas(64) float sums[Kernel::kRows * kTileColumns];
    for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(c + r * c_stride, 1);
    Kernel::Multiply(lanes, a, b, rows, columns, alpha, 0.0f, sums,
                     kTileColumns);
    Round(sums, kTileColumns, rows, columns, beta, c, c_stride);
  }
};

// Of a c of T: by way of `sums`, or, where they would hold a part of it, tile
// by tile if an element's sum is made of one block.
template <typename Kernel, typename T>
void RunRounded(const GemmProblem& p, int64_t row_begin, int64_t row_end,
                int64_t column_begin, int64_t column_end, float* space,
                float* sums) {
  if (TermsOf<Kernel>(p).pieces == 1 &&
      (row_end - row_begin > kGemmRounded ||
       column_end - column_begin > kGemmRounded)) {
    return RunBlocks<Rounded<Kernel, T>>(p, row_begin, row_end, column_begin,
                                         column_end, space);
  }
  for (int64_t i = row_begin; i < row_end; i += kGemmRounded) {
    const int64_t rows = Min(row_end - i, kGemmRounded);
    for (int64_t j = column_begin; j < column_end; j += kGemmRounded) {
      const int64_t columns = Min(column_end - j, kGemmRounded);
      GemmProblem part = p;
      part.beta = 0.0f;
      part.c = {sums - i * kGemmRounded - j, kGemmRounded};
      RunBlocks<Kernel>(part, i, i + rows, j, j + columns, space);
      T* const c = static_cast<T*>(p.c.data) + i * p.c.stride + j;
      Round(sums, kGemmRounded, rows, columns, p.beta, c, p.c.stride);
    }
  }
}

template <typename Kernel>
void RunKernel(const GemmProblem& p, int64_t row_begin, int64_t row_end,
               int64_t column_begin, int64_t column_end, float* space,
               float* sums) {
  switch (p.c.type) {
    case NumberType::kFloat:
      return RunBlocks<Kernel>(p, row_begin, row_end, column_begin, column_end,
                               space);
    case NumberType::kBf16:
      return RunRounded<Kernel, Bf16>(p, row_begin, row_end, column_begin,
                                      column_end, space, sums);
    case NumberType::kFp16:
      return RunRounded<Kernel, Fp16>(p, row_begin, row_end, column_begin,
                                      column_end, space, sums);
  }
}

void Run(const GemmProblem& p, int64_t row_begin, int64_t row_end,
         int64_t column_begin, int64_t column_end, float* space, float* sums) {
#if defined(SIMD_AVX512_BF16) || defined(SIMD_AMX)
  if (p.a.type == NumberType::kBf16 && p.b.type == NumberType::kBf16 &&
      p.source.read == nullptr) {
#ifdef SIMD_AMX
    const LoadedTiles tiles;
    RunKernel<AmxTiles>(p, row_begin, row_end, column_begin, column_end, space,
                        sums);
#else
    RunKernel<Registers<Pairs>>(p, row_begin, row_end, column_begin, column_end,
                                space, sums);
#endif
    return;
  }
#endif
  RunKernel<Registers<Floats>>(p, row_begin, row_end, column_begin, column_end,
                               space, sums);
}

}  // namespace

const GemmKernels SIMD_SYMBOL(kGemm) = {SIMD_NAME, Run};

}  // namespace capstan::kernels

#endif  // SIMD_BYTES
