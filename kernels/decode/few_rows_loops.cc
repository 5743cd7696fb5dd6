// SPDX-License-Identifier: Apache-2.0
//
// The loops of few_rows.h.
#include "base/simd/simd.h"
#include "kernels/decode/few_rows.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_vector.inc"

template <int kN>
struct ByteRegister {
  typedef int8_t Bytes __attribute__((vector_size(kN)));
};

template <int kN>
struct Memory<kN, int8_t> {
  using Values = typename Register<kN>::Floats;
  static SIMD_INLINE Values Load(const int8_t* p) {
#ifdef SIMD_AVX512
    if constexpr (kN == 16) {
      return (Values)_mm512_maskz_cvtepi32_ps(
          0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, LoadAs<__m128i>(p)));
    }
#endif
#ifdef SIMD_AVX2
    if constexpr (kN == 8) {
      return (Values)_mm256_cvtepi32_ps(
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
    }
#endif
    return __builtin_convertvector(LoadAs<typename ByteRegister<kN>::Bytes>(p),
                                   Values);
  }
};
SIMD_INLINE float LoadOne(const int8_t* p) { return *p; }

// Rows of W and of x at a time: a register each for their sums.
#ifdef SIMD_AVX512
constexpr int kOuts = 4;
constexpr int kMost = 6;
#else
constexpr int kOuts = 2;
constexpr int kMost = 3;
#endif

// sums[i] = Sum(v[i]), which adds in the same order, for less than four of it.
template <int kCount>
SIMD_INLINE void SumEach(const Floats* v, float* sums) {
#ifdef SIMD_AVX512
  if constexpr (kCount == 4) {
    __m256 half[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      half[i] = _mm512_maskz_extractf32x8_ps(0xff, (__m512)v[i].v, 0) +
                _mm512_maskz_extractf32x8_ps(0xff, (__m512)v[i].v, 1);
    }
    const __m256 a = _mm256_permute2f128_ps(half[0], half[1], 0x20) +
                     _mm256_permute2f128_ps(half[0], half[1], 0x31);
    const __m256 b = _mm256_permute2f128_ps(half[2], half[3], 0x20) +
                     _mm256_permute2f128_ps(half[2], half[3], 0x31);
    // Two lanes of 0 and 2, then of 1 and 3.
    const __m256 pairs =
        _mm256_shuffle_ps(a, b, 0x44) + _mm256_shuffle_ps(a, b, 0xee);
    const __m256 whole = _mm256_hadd_ps(pairs, pairs);
    float lanes[8];
    StoreAs(lanes, whole);
    sums[0] = lanes[0], sums[1] = lanes[4];
    sums[2] = lanes[1], sums[3] = lanes[5];
    return;
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) sums[i] = Sum(v[i]);
}

// Fetches a line of weights, keys or values that comes soon, into the second
// level's cache: the first has so few misses in flight that memory gives less
// (Zen 4, 4 rows of x: 13 GB/s instead of 20, of bfloat16 10 instead of 21).
SIMD_INLINE void Fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

// What is read at a time: weights of T and values of x as registers, and their
// product.
template <typename T>
struct Floating {
  using Weight = T;
  using Value = float;
  static constexpr int kTerms = kLanes;
  template <typename From>
  static SIMD_INLINE Floats Read(const From* p) {
    return Load(p);
  }
  static SIMD_INLINE Floats Add(const Floats& sum, const Floats& weights,
                                const Floats& values) {
    return sum + weights * values;
  }
};

#ifdef SIMD_AVX512_BF16
// bfloat16 as it is: vdpbf16ps adds the products of two neighbours, rounds to
// nearest and takes subnormals for 0.
struct Pairs {
  using Weight = Bf16;
  using Value = Bf16;
  static constexpr int kTerms = 2 * kLanes;
  static SIMD_INLINE Floats Read(const Bf16* p) {
    return {LoadAs<Register<kLanes>::Floats>(p)};
  }
  static SIMD_INLINE Floats Add(const Floats& sum, const Floats& weights,
                                const Floats& values) {
    return {(Register<kLanes>::Floats)_mm512_dpbf16_ps(
        (__m512)sum.v, (__m512bh)weights.v, (__m512bh)values.v)};
  }
};
#endif

template <typename Terms>
struct Call {
  using Weight = typename Terms::Weight;
  using Value = typename Terms::Value;
  const Weight* w;
  const float* scales;  // null: none
  int64_t n;
  int64_t w_stride;
  const Value* x;
  int64_t x_stride;
  bool add;
  float* y;
  int64_t y_stride;
  // From the rows of W at hand to those to fetch meanwhile, and which of them.
  int64_t ahead;
  int fetch_begin, fetch_end;
};

// Writes y's kW values of row r of x, given their sums of the first `done`
// columns.
template <int kW, typename Terms>
SIMD_INLINE void Finish(const Call<Terms>& c, int r, int64_t done,
                        const Floats* sums) {
  float whole[kW];
  SumEach<kW>(sums, whole);
  for (int o = 0; o < kW; ++o) {
    float sum = whole[o];
    for (int64_t j = done; j < c.n; ++j) {
      sum +=
          LoadOne(c.w + o * c.w_stride + j) * LoadOne(c.x + r * c.x_stride + j);
    }
    if (c.scales != nullptr) sum *= c.scales[o];
    float* const y = c.y + r * c.y_stride + o;
    *y = c.add ? *y + sum : sum;
  }
}

// The sums of kW rows of W with kR rows of x, while rows of W that come soon
// are fetched: a processor's own prefetcher stops at the end of each page.
template <int kW, int kR, typename Terms>
void Tile(const Call<Terms>& c) {
  using Weight = typename Terms::Weight;
  const Weight* const w = c.w;
  const int64_t n = c.n, w_stride = c.w_stride, x_stride = c.x_stride;
  const auto* const x = c.x;
  Floats sums[kR][kW];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int o = 0; o < kW; ++o) sums[r][o] = Floats{};
  }
  constexpr int kLine = 64 / sizeof(Weight);
  const Weight* const ahead = w + c.ahead;
  int64_t i = 0;
  const auto add = [&](int64_t at) SIMD_LAMBDA {
    Floats weights[kW];
#pragma GCC unroll 8
    for (int o = 0; o < kW; ++o)
      weights[o] = Terms::Read(w + o * w_stride + at);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Floats values = Terms::Read(x + r * x_stride + at);
#pragma GCC unroll 8
      for (int o = 0; o < kW; ++o) {
        sums[r][o] = Terms::Add(sums[r][o], weights[o], values);
      }
    }
  };
  for (; i + kLine <= n; i += kLine) {
    if (kR == 1) {
#pragma GCC unroll 8
      for (int o = 0; o < kW; ++o) Fetch(ahead + o * w_stride + i);
    } else {
      for (int o = c.fetch_begin; o < c.fetch_end; ++o) {
        Fetch(ahead + o * w_stride + i);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kLine; j += Terms::kTerms) add(i + j);
  }
  for (; i + Terms::kTerms <= n; i += Terms::kTerms) add(i);
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) Finish<kW>(c, r, i, sums[r]);
}

// The same of one row of x: W's rows one after the other, as memory has them.
// On Zen 5 that reads 36 GB/s, rows side by side 33.
template <int kW, typename Terms>
SIMD_INLINE void OneRow(const Call<Terms>& c) {
  using Weight = typename Terms::Weight;
  constexpr int kLine = 64 / sizeof(Weight);
  Floats sums[kW];
  int64_t i = 0;
#pragma GCC unroll 8
  for (int o = 0; o < kW; ++o) {
    const Weight* const w = c.w + o * c.w_stride;
    Floats sum = {};
    const auto add = [&](int64_t at) SIMD_LAMBDA {
      sum = Terms::Add(sum, Terms::Read(w + at), Terms::Read(c.x + at));
    };
    for (i = 0; i + kLine <= c.n; i += kLine) {
      Fetch(w + c.ahead + i);
#pragma GCC unroll 4
      for (int j = 0; j < kLine; j += Terms::kTerms) add(i + j);
    }
    for (; i + Terms::kTerms <= c.n; i += Terms::kTerms) add(i);
    sums[o] = sum;
  }
  Finish<kW>(c, 0, i, sums);
}

// Whether so many rows of x are multiplied by Tile alone. Of one row, a cache
// line of bytes is four steps of a sum: too long a chain.
template <typename Terms>
SIMD_INLINE bool SideBySide(int64_t rows) {
  return rows > 1 || sizeof(typename Terms::Weight) == 1;
}

template <int kW, typename Terms>
SIMD_INLINE void AnyRows(const Call<Terms>& call, int64_t rows) {
  Call<Terms> c = call;
  const int64_t all = (rows + kMost - 1) / kMost;
  for (int64_t part = 0; part < all; ++part) {
    // As even as can be: 8 rows are 4 and 4 rather than 6 and 2.
    const int64_t count = (rows + all - part - 1) / (all - part);
    c.fetch_begin = static_cast<int>(kW * part / all);
    c.fetch_end = static_cast<int>(kW * (part + 1) / all);
    switch (count) {
      case 1:
        if (SideBySide<Terms>(1)) {
          Tile<kW, 1>(c);
        } else {
          OneRow<kW>(c);
        }
        break;
      case 2:
        Tile<kW, 2>(c);
        break;
      case 3:
        Tile<kW, 3>(c);
        break;
#ifdef SIMD_AVX512
      case 4:
        Tile<kW, 4>(c);
        break;
      case 5:
        Tile<kW, 5>(c);
        break;
      default:
        Tile<kW, 6>(c);
#endif
    }
    c.x += count * c.x_stride;
    c.y += count * c.y_stride;
    rows -= count;
  }
}

template <typename Terms>
void Multiply(const typename Terms::Weight* w, const float* scales,
              int64_t outs, int64_t n, int64_t w_stride,
              const typename Terms::Value* x, int64_t x_stride, int64_t rows,
              bool add, float* y, int64_t y_stride) {
  using Weight = typename Terms::Weight;
  // Rows of W that are fetched before they are used: 4 KiB, at least those that
  // follow a tile, as many bytes for all types.
  constexpr int64_t kAhead = 4096;
  const int64_t row_bytes = (n > 0 ? n : 1) * sizeof(Weight);
  int64_t rows_ahead = (kAhead + row_bytes - 1) / row_bytes;
  const int64_t tile = kOuts * static_cast<int64_t>(4 / sizeof(Weight));
  if (SideBySide<Terms>(rows) && rows_ahead < tile) rows_ahead = tile;
  Call<Terms> c = {w,        scales, n, w_stride, x,
                   x_stride, add,    y, y_stride, rows_ahead * w_stride,
                   0,        0};
  const auto next = [&](int64_t count) SIMD_LAMBDA {
    c.w += count * w_stride;
    c.y += count;
    if (scales != nullptr) c.scales += count;
  };
  int64_t o = 0;
  for (; o + kOuts <= outs; o += kOuts) {
    AnyRows<kOuts>(c, rows);
    next(kOuts);
  }
  for (; o < outs; ++o) {
    AnyRows<1>(c, rows);
    next(1);
  }
}

template <typename T>
void Convert(const T* from, float scale, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(from + i) * scale);
  for (; i < n; ++i) out[i] = LoadOne(from + i) * scale;
}

// Registers of columns at a time, for each of kRows rows.
#ifdef SIMD_AVX512
constexpr int kSumRows = 4;
constexpr int kSumVectors = 4;
#else
constexpr int kSumRows = 2;
constexpr int kSumVectors = 2;
#endif

// Rows of columns that are fetched before they are used.
constexpr int64_t kRowsAhead = 16;

template <int kRows, int kVectors>
SIMD_INLINE void SumColumns(const float* p, int64_t p_stride, int64_t count,
                            const float* v, int64_t v_stride,
                            const float* factors, float* y, int64_t y_stride) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[r][j] = Floats{};
  }
  // In caches much smaller than all weights, v isn't there, and a head's
  // columns are too few for a processor to see what comes.
  const int64_t ahead = kRowsAhead * v_stride;
  for (int64_t i = 0; i < count; ++i, v += v_stride) {
    Floats values[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) Fetch(v + ahead + j * kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) values[j] = Load(v + j * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Floats weight = Splat(p[r * p_stride + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[r][j] += weight * values[j];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Store(y + r * y_stride + j * kLanes, sums[r][j] * factors[r]);
    }
  }
}

template <int kRows>
SIMD_INLINE void SumRows(const float* p, int64_t p_stride, int64_t count,
                         const float* v, int64_t v_stride, int64_t n,
                         const float* factors, float* y, int64_t y_stride) {
  int64_t c = 0;
  for (; c + kSumVectors * kLanes <= n; c += kSumVectors * kLanes) {
    SumColumns<kRows, kSumVectors>(p, p_stride, count, v + c, v_stride, factors,
                                   y + c, y_stride);
  }
  for (; c + kLanes <= n; c += kLanes) {
    SumColumns<kRows, 1>(p, p_stride, count, v + c, v_stride, factors, y + c,
                         y_stride);
  }
  for (; c < n; ++c) {
    for (int r = 0; r < kRows; ++r) {
      float sum = 0.0f;
      for (int64_t i = 0; i < count; ++i) {
        sum += p[r * p_stride + i] * v[i * v_stride + c];
      }
      y[r * y_stride + c] = sum * factors[r];
    }
  }
}

void WeightedSums(const float* p, int64_t p_stride, int64_t rows, int64_t count,
                  const float* v, int64_t v_stride, int64_t n,
                  const float* factors, float* y, int64_t y_stride) {
  int64_t r = 0;
  for (; r + kSumRows <= rows; r += kSumRows) {
    SumRows<kSumRows>(p + r * p_stride, p_stride, count, v, v_stride, n,
                      factors + r, y + r * y_stride, y_stride);
  }
#ifdef SIMD_AVX512
  if (rows - r == 3) {
    return SumRows<3>(p + r * p_stride, p_stride, count, v, v_stride, n,
                      factors + r, y + r * y_stride, y_stride);
  }
#endif
  for (; r < rows; ++r) {
    SumRows<1>(p + r * p_stride, p_stride, count, v, v_stride, n, factors + r,
               y + r * y_stride, y_stride);
  }
}

}  // namespace

const FewRowsKernels SIMD_SYMBOL(kFewRowsLoops) = {SIMD_NAME,
                                                   Multiply<Floating<float>>,
                                                   Multiply<Floating<Bf16>>,
                                                   Multiply<Floating<Fp16>>,
                                                   Multiply<Floating<int8_t>>,
#ifdef SIMD_AVX512_BF16
                                                   Multiply<Pairs>,
#else
                                                   nullptr,
#endif
                                                   Convert<Bf16>,
                                                   Convert<Fp16>,
                                                   Convert<int8_t>,
                                                   WeightedSums};

}  // namespace capstan::kernels
