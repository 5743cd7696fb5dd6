// SPDX-License-Identifier: Apache-2.0
//
// Float32 matrix products after BLIS (Van Zee and van de Geijn, "BLIS: A
// Framework for Rapidly Instantiating BLAS Functionality", 2015): both factors
// are copied into panels, which a small kernel reads sequentially while it
// keeps a tile of the result in registers.
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

// 1, 2, .. up to the rows of a whole tile, two registers wide, which leaves
// registers for a row of b and an element of a.
#if SIMD_BYTES == 64
#define GEMM_ROW_COUNTS 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
#else
#define GEMM_ROW_COUNTS 1, 2, 3, 4, 5, 6
#endif

namespace capstan::kernels {
namespace {

#include "base/simd/simd_memory.inc"

constexpr int kLanes = SIMD_BYTES / 4;
constexpr int kTileVectors = 2;
constexpr int kTileColumns = kTileVectors * kLanes;

typedef Register<kLanes>::Floats Vector;

SIMD_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

SIMD_INLINE Vector Load(const float* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

SIMD_INLINE void Store(float* p, const Vector& v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

// Copies n < kLanes floats in parts of constant size.
SIMD_INLINE void CopyPart(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  if (kLanes > 8 && (n & 8)) __builtin_memcpy(to, from, 32), i += 8;
  if (kLanes > 4 && (n & 4)) __builtin_memcpy(to + i, from + i, 16), i += 4;
  if (n & 2) __builtin_memcpy(to + i, from + i, 8), i += 2;
  if (n & 1) to[i] = from[i];
}

// The first n lanes; the others are 0.
SIMD_INLINE Vector LoadPart(const float* p, int64_t n) {
  if (n >= kLanes) return Load(p);
  Vector v = {};
  float lanes[kLanes];
  Store(lanes, v);
  CopyPart(p, n, lanes);
  return Load(lanes);
}

// One tile: c [kRows, columns] = alpha * a b + beta * c over `depth` terms,
// where a's panel is [depth][kRows] and b's [depth][kVectors * kLanes], and
// columns is at most that.
template <int kRows, int kVectors>
void Tile(int64_t depth, const float* a, const float* b, float alpha,
          float beta, float* c, int64_t c_stride, int64_t columns) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    // Fetch the result's cache lines while the sums are computed.
    __builtin_prefetch(c + r * c_stride, 1);
    if (kVectors * kLanes > 16) __builtin_prefetch(c + r * c_stride + 16, 1);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Vector{};
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    Vector columns_of_b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) columns_of_b[v] = Load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector element = a[r] - Vector{};
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] += element * columns_of_b[v];
      }
    }
    a += kRows;
    b += kVectors * kLanes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Vector sum = sums[r][v] * alpha;
      float* const p = c + r * c_stride + v * kLanes;
      const int64_t rest = columns - v * kLanes;
      if (rest >= kLanes) {
        if (beta != 0.0f) sum += beta * Load(p);
        Store(p, sum);
      } else if (rest > 0) {
        if (beta != 0.0f) sum += beta * LoadPart(p, rest);
        float lanes[kLanes];
        Store(lanes, sum);
        CopyPart(lanes, rest, p);
      }
    }
  }
}

using TileFunction = void (*)(int64_t depth, const float* a, const float* b,
                              float alpha, float beta, float* c,
                              int64_t c_stride, int64_t columns);

template <int... kRows>
struct TileTable {
  TileFunction functions[2][sizeof...(kRows) + 1] = {
      {nullptr, Tile<kRows, 1>...}, {nullptr, Tile<kRows, 2>...}};
};

constexpr TileTable<GEMM_ROW_COUNTS> kTiles;
constexpr int kTileRows =
    static_cast<int>(sizeof(kTiles.functions[0]) / sizeof(TileFunction)) - 1;

// panel [depth][width] of the transpose of `rows` <= kLanes rows of from [rows,
// depth]; columns from `rows` to kLanes become 0 where the width has them.
// Writes up to kLanes - width floats beyond the panel's end.
SIMD_INLINE void PackTransposed(const float* from, int64_t stride, int64_t rows,
                                int64_t depth, int64_t width, float* panel) {
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int64_t count = Min(depth - k, kLanes);
    Vector square[kLanes];
    if (rows == kLanes && count == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = Load(from + i * stride + k);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] =
            i < rows ? LoadPart(from + i * stride + k, count) : Vector{};
      }
    }
    TransposeSquare(square);
    if (count == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(panel + i * width, square[i]);
    } else {
      float lines[kLanes][kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(lines[i], square[i]);
      for (int64_t i = 0; i < count; ++i) {
        Store(panel + i * width, Load(lines[i]));
      }
    }
    panel += kLanes * width;
  }
}

// panel [depth][width] of from [depth, columns], columns <= width; the rest 0.
SIMD_INLINE void PackColumns(const float* from, int64_t stride, int64_t columns,
                             int64_t depth, int64_t width, float* panel) {
  for (int64_t k = 0; k < depth; ++k, from += stride, panel += width) {
    for (int64_t i = 0; i < width; i += kLanes) {
      Store(panel + i, LoadPart(from + i, columns - i));
    }
  }
}

// a's panel [depth][rows] from row `row` and column `k` on.
void PackRows(const GemmProblem& p, int64_t row, int64_t rows, int64_t k,
              int64_t depth, float* panel) {
  if (!p.a_transposed) {
    PackTransposed(p.a.data + row * p.a.stride + k, p.a.stride, rows, depth,
                   rows, panel);
    return;
  }
  const float* from = p.a.data + k * p.a.stride + row;
  const bool whole = row + kLanes <= p.m;  // a vector stays inside the matrix
  for (int64_t i = 0; i < depth; ++i, from += p.a.stride, panel += rows) {
    Store(panel, whole ? Load(from) : LoadPart(from, rows));
  }
}

// Part of b, or of what is passed transposed as b, from its first value on.
SIMD_INLINE void PackValues(bool transposed, const float* from, int64_t stride,
                            int64_t columns, int64_t depth, int64_t width,
                            float* panel) {
  if (!transposed) {
    PackColumns(from, stride, columns, depth, width, panel);
    return;
  }
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t rows = Min(columns - i, kLanes);
    PackTransposed(from + i * stride, stride, rows, depth, width, panel + i);
  }
}

// b's panel [depth][width] from column `column` and row `k` on; of a source, by
// way of `read`.
void PackPanel(const GemmProblem& p, int64_t column, int64_t columns, int64_t k,
               int64_t depth, int64_t width, float* read, float* panel) {
  const bool t = p.b_transposed;
  if (p.source.read == nullptr) {
    const float* const from =
        p.b.data + (t ? column * p.b.stride + k : k * p.b.stride + column);
    PackValues(t, from, p.b.stride, columns, depth, width, panel);
  } else if (t) {
    p.source.read(p.source.what, column, columns, k, depth, read);
    PackValues(t, read, depth, columns, depth, width, panel);
  } else {
    p.source.read(p.source.what, k, depth, column, columns, read);
    PackValues(t, read, columns, columns, depth, width, panel);
  }
}

SIMD_INLINE int64_t Width(int64_t columns) {
  return columns > kLanes ? kTileColumns : kLanes;
}

// Rows are cut into panels of nearly equal height.
struct Cut {
  Cut(int64_t size, int64_t most, int64_t unit = 1)
      : size(size), unit(unit), pieces((size + most - 1) / most) {}
  int64_t begin(int64_t i) const {
    return i == pieces ? size : size / unit * i / pieces * unit;
  }
  const int64_t size, unit, pieces;
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
  const float* const block = row_is_term ? x.data + t.k * x.stride + first
                                         : x.data + first * x.stride + t.k;
  const int64_t rows = row_is_term ? t.depth : count;
  const int64_t columns = row_is_term ? count : t.depth;
  const int64_t end = rows * (part + 1) / parts;
  for (int64_t r = rows * part / parts; r < end; ++r) {
    for (int64_t i = 0; i < columns; i += 16) {
      __builtin_prefetch(block + r * x.stride + i, 0, 2);
    }
  }
}

// For [row_begin, row_end) and [column_begin, column_end) of c.
void ResidentRows(const GemmProblem& p, const Term& t, int64_t row_begin,
                  int64_t row_end, int64_t column_begin, int64_t column_end,
                  float* rows_space, float* panel, float* read) {
  const Cut cut(row_end - row_begin, kTileRows);
  for (int64_t i = 0; i < cut.pieces; ++i) {
    PackRows(p, row_begin + cut.begin(i), cut.begin(i + 1) - cut.begin(i), t.k,
             t.depth, rows_space + cut.begin(i) * t.depth);
  }
  for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
    const int64_t columns = Min(column_end - n, kTileColumns);
    const int64_t width = Width(columns);
    PackPanel(p, n, columns, t.k, t.depth, width, read, panel);
    const TileFunction* tiles = kTiles.functions[width / kLanes - 1];
    const int64_t next = n + kTileColumns;
    const int64_t left = column_end - next;
    for (int64_t i = 0; i < cut.pieces; ++i) {
      const int64_t row = cut.begin(i);
      if (left > 0 && p.source.read == nullptr) {
        Prefetch(p.b, !p.b_transposed, next, Min(left, kTileColumns), t, i,
                 cut.pieces);
      }
      tiles[cut.begin(i + 1) - row](
          t.depth, rows_space + row * t.depth, panel, p.alpha, t.beta,
          p.c.data + (row_begin + row) * p.c.stride + n, p.c.stride, columns);
    }
  }
}

void ResidentColumns(const GemmProblem& p, const Term& t, int64_t row_begin,
                     int64_t row_end, int64_t column_begin, int64_t column_end,
                     float* columns_space, float* panel, float* read) {
  for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
    const int64_t columns = Min(column_end - n, kTileColumns);
    PackPanel(p, n, columns, t.k, t.depth, Width(columns), read,
              columns_space + (n - column_begin) * t.depth);
  }
  const Cut cut(row_end - row_begin, kTileRows);
  for (int64_t i = 0; i < cut.pieces; ++i) {
    const int64_t row = row_begin + cut.begin(i);
    const int64_t rows = cut.begin(i + 1) - cut.begin(i);
    PackRows(p, row, rows, t.k, t.depth, panel);
    const int64_t width = column_end - column_begin;
    for (int64_t n = column_begin; n < column_end; n += kTileColumns) {
      const int64_t columns = Min(column_end - n, kTileColumns);
      const TileFunction* tiles = kTiles.functions[Width(columns) / kLanes - 1];
      if (i + 1 < cut.pieces) {
        Prefetch(p.a, p.a_transposed, row + rows,
                 cut.begin(i + 2) - cut.begin(i + 1), t,
                 (n - column_begin) / kTileColumns,
                 (width + kTileColumns - 1) / kTileColumns);
      }
      tiles[rows](t.depth, panel, columns_space + (n - column_begin) * t.depth,
                  p.alpha, t.beta, p.c.data + row * p.c.stride + n, p.c.stride,
                  columns);
    }
  }
}

void Run(const GemmProblem& p, int64_t row_begin, int64_t row_end,
         int64_t column_begin, int64_t column_end, float* space) {
  float* const resident = space + kGemmPanel;
  const bool rows_stay = row_end - row_begin <= column_end - column_begin;
  const Cut terms(p.k, kGemmDepth);
  // The resident factor is cut into blocks that fit the L2 cache.
  const Cut blocks(rows_stay ? row_end - row_begin : column_end - column_begin,
                   kGemmResident, rows_stay ? 1 : kTileColumns);
  for (int64_t i = 0; i < blocks.pieces; ++i) {
    for (int64_t k = 0; k < terms.pieces; ++k) {
      const Term term = {terms.begin(k), terms.begin(k + 1) - terms.begin(k),
                         k == 0 ? p.beta : 1.0f};
      if (rows_stay) {
        ResidentRows(p, term, row_begin + blocks.begin(i),
                     row_begin + blocks.begin(i + 1), column_begin, column_end,
                     resident, space, space + kGemmSpace);
      } else {
        ResidentColumns(p, term, row_begin, row_end,
                        column_begin + blocks.begin(i),
                        column_begin + blocks.begin(i + 1), resident, space,
                        space + kGemmSpace);
      }
    }
  }
}

}  // namespace

const GemmKernels SIMD_SYMBOL(kGemm) = {SIMD_NAME, Run};

}  // namespace capstan::kernels

#endif  // SIMD_BYTES
