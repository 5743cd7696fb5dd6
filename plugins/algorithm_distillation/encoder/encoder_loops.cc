// SPDX-License-Identifier: Apache-2.0
//
// The loops of encoder_simd.h.
#include "base/simd/simd.h"
#include "plugins/algorithm_distillation/encoder/encoder_simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_vector.inc"

// Philox4x32-10 (base/random.h) for 16 counters at a time, and dropout bits
// from it.

constexpr int kCounters = 16;
constexpr int kGroupsABlock = 8;  // 128 numbers of 16 bits

// Words of 16 counters, in register-sized parts.
struct PhiloxBlock {
  alignas(64) uint32_t words[4][kCounters];
};

#if defined(SIMD_AVX512)
typedef __m512i Words;
constexpr int kWordLanes = 16;
SIMD_INLINE Words SplatWord(uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}
SIMD_INLINE Words CountUp(uint32_t first) {
  return _mm512_add_epi32(
      SplatWord(first),
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
SIMD_INLINE Words Xor3(Words a, Words b, Words c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
SIMD_INLINE void Multiply(Words a, Words m, Words* high, Words* low) {
  const Words even = _mm512_maskz_mul_epu32(0xff, a, m);
  const Words odd =
      _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, a, 32), m);
  *high = _mm512_mask_mov_epi32(_mm512_maskz_srli_epi64(0xff, even, 32), 0xaaaa,
                                odd);
  *low = _mm512_mask_mov_epi32(even, 0xaaaa,
                               _mm512_maskz_slli_epi64(0xff, odd, 32));
}
SIMD_INLINE void StoreWords(uint32_t* p, Words w) { _mm512_storeu_si512(p, w); }
#elif defined(SIMD_AVX2)
typedef __m256i Words;
constexpr int kWordLanes = 8;
SIMD_INLINE Words SplatWord(uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}
SIMD_INLINE Words CountUp(uint32_t first) {
  return _mm256_add_epi32(SplatWord(first),
                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SIMD_INLINE Words Xor3(Words a, Words b, Words c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
SIMD_INLINE void Multiply(Words a, Words m, Words* high, Words* low) {
  const Words even = _mm256_mul_epu32(a, m);
  const Words odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
SIMD_INLINE void StoreWords(uint32_t* p, Words w) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w);
}
#else
typedef uint32_t Words;
constexpr int kWordLanes = 1;
inline Words SplatWord(uint32_t x) { return x; }
inline Words CountUp(uint32_t first) { return first; }
inline Words Xor3(Words a, Words b, Words c) { return a ^ b ^ c; }
inline void Multiply(Words a, Words m, Words* high, Words* low) {
  const uint64_t product = uint64_t{a} * m;
  *high = static_cast<uint32_t>(product >> 32);
  *low = static_cast<uint32_t>(product);
}
inline void StoreWords(uint32_t* p, Words w) { *p = w; }
#endif

// Counters first to first + 15; first is a multiple of 16.
SIMD_INLINE void Philox(uint64_t key, uint64_t first, uint64_t high,
                        PhiloxBlock* out) {
  for (int lane = 0; lane < kCounters; lane += kWordLanes) {
    Words x[4] = {CountUp(static_cast<uint32_t>(first) + lane),
                  SplatWord(static_cast<uint32_t>(first >> 32)),
                  SplatWord(static_cast<uint32_t>(high)),
                  SplatWord(static_cast<uint32_t>(high >> 32))};
    uint32_t key0 = static_cast<uint32_t>(key);
    uint32_t key1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      Words high0, low0, high1, low1;
      Multiply(x[0], SplatWord(0xD2511F53), &high0, &low0);
      Multiply(x[2], SplatWord(0xCD9E8D57), &high1, &low1);
      x[0] = Xor3(high1, x[1], SplatWord(key0));
      x[1] = low1;
      x[2] = Xor3(high0, x[3], SplatWord(key1));
      x[3] = low0;
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    for (int w = 0; w < 4; ++w) StoreWords(out->words[w] + lane, x[w]);
  }
}

// 16 numbers, low half of a word first: whether each is at least `threshold`.
SIMD_INLINE uint16_t AtLeast(const uint32_t* words, uint16_t threshold) {
#ifdef SIMD_AVX2
  const __m256i limit = _mm256_set1_epi16(static_cast<int16_t>(threshold));
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  const __m256i kept = _mm256_cmpeq_epi16(_mm256_max_epu16(v, limit), v);
  return static_cast<uint16_t>(_mm_movemask_epi8(_mm_packs_epi16(
      _mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1))));
#else
  uint32_t bits = 0;
  for (int i = 0; i < 8; ++i) {
    bits |= static_cast<uint32_t>((words[i] & 0xffff) >= threshold) << (2 * i);
    bits |= static_cast<uint32_t>((words[i] >> 16) >= threshold) << (2 * i + 1);
  }
  return static_cast<uint16_t>(bits);
#endif
}

void KeepBits(uint64_t key, uint64_t sample, int64_t first, int64_t groups,
              uint16_t threshold, uint16_t* bits) {
  const int64_t end = first + groups;
  for (int64_t at = first; at < end;) {
    const int64_t block = at / kGroupsABlock;
    PhiloxBlock random;
    Philox(key, static_cast<uint64_t>(block) * kCounters, sample, &random);
    const int64_t block_end = (block + 1) * kGroupsABlock;
    for (; at < end && at < block_end; ++at) {
      const int64_t group = at % kGroupsABlock;
      *bits++ = AtLeast(random.words[group / 2] + group % 2 * 8, threshold);
    }
  }
}

// v where the bits are set, lane by lane, else 0.
template <int kN>
SIMD_INLINE Vec<kN> Keep(const Vec<kN>& v, uint32_t bits) {
  if constexpr (!Fits(kN)) {
    return {Keep(v.low, bits), Keep(v.high, bits >> (kN / 2))};
  } else {
#ifdef SIMD_AVX512
    if constexpr (kN == 16) {
      return {(typename Register<kN>::Floats)_mm512_maskz_mov_ps(
          (__mmask16)bits, (__m512)v.v)};
    }
#endif
    using Bits = typename Register<kN>::Bits;
    constexpr uint32_t kLaneBits[] = {1,    2,    4,     8,    16,   32,
                                      64,   128,  256,   512,  1024, 2048,
                                      4096, 8192, 16384, 32768};
    const Bits lane = LoadAs<Bits>(kLaneBits);
    const Bits kept = (Bits)(((bits - Bits{}) & lane) == lane);
    return {(typename Register<kN>::Floats)((Bits)v.v & kept)};
  }
}

SIMD_INLINE Floats Dropout(const Floats& v, const uint16_t* keep, float factor,
                           int64_t i) {
  return keep == nullptr ? v : Keep(v * factor, keep[i / kLanes]);
}

void AddBias(const float* bias, int64_t rows, int64_t n, float* x) {
  for (int64_t r = 0; r < rows; ++r, x += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      Store(x + i, Load(x + i) + Load(bias + i));
    }
  }
}

void AddRows(const float* x, int64_t rows, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats total = Load(sum + i);
    for (int64_t r = 0; r < rows; ++r) total += Load(x + r * n + i);
    Store(sum + i, total);
  }
}

SIMD_INLINE void NormRow(const AddNormRows& p, const float* sum, float mean,
                         float rstd, float* out) {
  for (int64_t i = 0; i < p.n; i += kLanes) {
    const Floats normed = (Load(sum + i) - mean) * rstd;
    Store(out + i, normed * Load(p.weight + i) + Load(p.shift + i));
  }
}

void AddNorm(const AddNormRows& p) {
  const uint16_t* keep = p.keep;
  for (int64_t r = 0; r < p.rows; ++r) {
    float* const sum = p.sum + r * p.n;
    const float* const residual = p.residual + r * p.n;
    Floats total = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats added =
          Dropout(Load(sum + i) + Load(p.bias + i), keep, p.factor, i);
      const Floats v = Load(residual + i) + added;
      total += v;
      Store(sum + i, v);
    }
    const float mean = Sum(total) / static_cast<float>(p.n);
    Floats squares = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats v = Load(sum + i) - mean;
      squares += v * v;
    }
    const float variance = Sum(squares) / static_cast<float>(p.n);
    p.mean[r] = mean;
    p.rstd[r] = 1.0f / __builtin_sqrtf(variance + p.eps);
    NormRow(p, sum, mean, p.rstd[r], p.out + r * p.n);
    if (keep != nullptr) keep += p.n / kLanes;
  }
}

void NormAgain(const AddNormRows& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    NormRow(p, p.sum + r * p.n, p.mean[r], p.rstd[r], p.out + r * p.n);
  }
}

// With h = (sum - mean) * rstd and g = d_out * weight:
//   d_sum = rstd * (g - mean(g) - h * mean(g * h)).
void AddNormBackward(const AddNormRows& p, const AddNormGradients& to) {
  const uint16_t* keep = p.keep;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t at = r * p.n;
    const float mean = p.mean[r], rstd = p.rstd[r];
    Floats sum = {}, along = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats d = Load(to.d_out + at + i);
      const Floats h = (Load(p.sum + at + i) - mean) * rstd;
      const Floats g = d * Load(p.weight + i);
      sum += g;
      along += g * h;
      Store(to.d_weight + i, Load(to.d_weight + i) + d * h);
      Store(to.d_shift + i, Load(to.d_shift + i) + d);
    }
    const float mean_g = Sum(sum) / static_cast<float>(p.n);
    const float mean_along = Sum(along) / static_cast<float>(p.n);
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats h = (Load(p.sum + at + i) - mean) * rstd;
      const Floats g = Load(to.d_out + at + i) * Load(p.weight + i);
      const Floats d = rstd * (g - mean_g - h * mean_along);
      Store(to.d_residual + at + i, d);
      const Floats d_product = Dropout(d, keep, p.factor, i);
      Store(to.d_product + at + i, d_product);
      Store(to.d_bias + i, Load(to.d_bias + i) + d_product);
    }
    if (keep != nullptr) keep += p.n / kLanes;
  }
}

// P(z < x), z standard normal, to 1e-7, and e^(-x^2 / 2): Abramowitz and
// Stegun, "Handbook of Mathematical Functions", 7.1.26, for erfc(|x| / sqrt 2).
struct Normal {
  Floats below, bell;
};
SIMD_INLINE Normal NormalAt(const Floats& x) {
  const Floats size =
      Map(x, [](const auto& v) SIMD_LAMBDA { return v < 0.0f ? -v : v; });
  const Floats t = 1.0f / (1.0f + size * 0.231641888f);  // 0.3275911 / sqrt 2
  Floats p = Splat(1.061405429f);
  p = p * t + -1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t + -0.284496736f;
  p = p * t + 0.254829592f;
  const Floats bell = Exp(x * x * -0.5f);
  const Floats tail = p * t * bell * 0.5f;
  return {Map(x, tail,
              [](const auto& v, const auto& q)
                  SIMD_LAMBDA { return v < 0.0f ? q : 1.0f - q; }),
          bell};
}

void Gelu(const float* bias, const uint16_t* keep, float factor, int64_t rows,
          int64_t n, float* h, float* out) {
  for (int64_t r = 0; r < rows; ++r, h += n, out += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats x = Load(h + i) + Load(bias + i);
      Store(h + i, x);
      Store(out + i, Dropout(x * NormalAt(x).below, keep, factor, i));
    }
    if (keep != nullptr) keep += n / kLanes;
  }
}

void GeluBackward(const uint16_t* keep, float factor, int64_t rows, int64_t n,
                  float* h, float* d, float* d_bias) {
  constexpr float kDensity = 0.398942280401432678f;  // 1 / sqrt(2 pi)
  for (int64_t r = 0; r < rows; ++r, h += n, d += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats x = Load(h + i);
      const Normal normal = NormalAt(x);
      Store(h + i, Dropout(x * normal.below, keep, factor, i));
      const Floats slope = normal.below + x * normal.bell * kDensity;
      const Floats dx = Dropout(Load(d + i), keep, factor, i) * slope;
      Store(d + i, dx);
      Store(d_bias + i, Load(d_bias + i) + dx);
    }
    if (keep != nullptr) keep += n / kLanes;
  }
}

// Products of the rows of one attention head, too small for packing into panels
// to pay off. Rows of a head have a multiple of 16 numbers.

// As many accumulators as fit the registers.
constexpr int kMixRows = SIMD_BYTES == 64 ? 8 : SIMD_BYTES == 32 ? 4 : 2;
constexpr int kScoreRows = SIMD_BYTES == 64 ? 8 : SIMD_BYTES == 32 ? 2 : 1;

void TransposeRows(const float* x, int64_t x_stride, int64_t rows, int64_t n,
                   float* out, int64_t out_stride) {
  for (int64_t r = 0; r < out_stride; r += kSquare) {
    for (int64_t c = 0; c < n; c += kSquare) {
      SquareRow square[kSquare];
#pragma GCC unroll 16
      for (int i = 0; i < kSquare; ++i) {
        square[i] = r + i < rows ? LoadAs<SquareRow>(x + (r + i) * x_stride + c)
                                 : SquareRow{};
      }
      TransposeSquare(square);
#pragma GCC unroll 16
      for (int i = 0; i < kSquare; ++i) {
        __builtin_memcpy(out + (c + i) * out_stride + r, &square[i],
                         sizeof(SquareRow));
      }
    }
  }
}

template <int kRows, int kVectors>
SIMD_INLINE void ScoreTile(const HeadProduct& p, int64_t row, int64_t column) {
  Floats sums[kRows][kVectors] = {};
  const float* const a = p.a + row * p.a_stride;
  for (int64_t k = 0; k < p.n; ++k) {
    Floats b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      b[v] = Load(p.b + k * p.b_stride + column + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats element = Splat(a[r * p.a_stride + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = sums[r][v] + element * b[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Store(p.out + (row + r) * p.out_stride + column + v * kLanes,
            sums[r][v] * p.factor);
    }
  }
}

template <int kRows>
SIMD_INLINE void ScoreTiles(const HeadProduct& p, int64_t row) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= p.columns; column += 2 * kLanes) {
    ScoreTile<kRows, 2>(p, row, column);
  }
  if (column < p.columns) ScoreTile<kRows, 1>(p, row, column);
}

// out [rows, columns] = factor * a [rows, n] b [n, columns].
void Scores(const HeadProduct& p) {
  int64_t row = 0;
  for (; row + kScoreRows <= p.rows; row += kScoreRows) {
    ScoreTiles<kScoreRows>(p, row);
  }
  for (; row < p.rows; ++row) ScoreTiles<1>(p, row);
}

// Rows [row, row + kRows) of out [rows, n] = a [rows, columns] b [columns, n].
template <int kRows>
SIMD_INLINE void MixTile(const HeadProduct& p, int64_t row) {
  const float* const a = p.a + row * p.a_stride;
  for (int64_t i = 0; i < p.n; i += kLanes) {
    Floats sums[kRows] = {};
    for (int64_t k = 0; k < p.columns; ++k) {
      const Floats b = Load(p.b + k * p.b_stride + i);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[r] = sums[r] + Splat(a[r * p.a_stride + k]) * b;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Store(p.out + (row + r) * p.out_stride + i, sums[r]);
    }
  }
}

void Mix(const HeadProduct& p) {
  int64_t row = 0;
  for (; row + kMixRows <= p.rows; row += kMixRows) MixTile<kMixRows>(p, row);
  for (; row < p.rows; ++row) MixTile<1>(p, row);
}

// Rows [column, column + kColumns) of out [columns, n] += a^T b, for a [rows,
// columns] and b [rows, n].
template <int kColumns>
SIMD_INLINE void MixBackTile(const HeadProduct& p, int64_t column) {
  for (int64_t i = 0; i < p.n; i += kLanes) {
    Floats sums[kColumns] = {};
    float* const out = p.out + column * p.out_stride + i;
    if (p.factor != 0.0f) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[c] = Load(out + c * p.out_stride);
    }
    for (int64_t r = 0; r < p.rows; ++r) {
      const Floats b = Load(p.b + r * p.b_stride + i);
      const float* const a = p.a + r * p.a_stride + column;
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[c] = sums[c] + Splat(a[c]) * b;
    }
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) Store(out + c * p.out_stride, sums[c]);
  }
}

void MixBack(const HeadProduct& p) {
  int64_t column = 0;
  for (; column + kMixRows <= p.columns; column += kMixRows) {
    MixBackTile<kMixRows>(p, column);
  }
  for (; column < p.columns; ++column) MixBackTile<1>(p, column);
}

// The bits of columns i to i + 15 of which the first `seen` are seen.
SIMD_INLINE uint32_t SeenBits(int64_t i, int64_t seen) {
  return seen - i >= kLanes ? 0xffffu : (1u << (seen - i)) - 1u;
}

void Softmax(const ScoreRows& p, float* inverse_sum, float* log_sum_exp) {
  const uint16_t* keep = p.keep;
  float* x = p.scores;
  const float lowest = -__builtin_inff();
  for (int64_t r = 0; r < p.rows; ++r, x += p.stride) {
    const int64_t seen = p.first + r + 1;
    const int64_t whole = seen / kLanes * kLanes;
    for (int64_t i = seen; i < whole + kLanes && i < p.stride; ++i) {
      x[i] = lowest;
    }
    Floats maxima = Splat(lowest);
    for (int64_t i = 0; i < seen; i += kLanes) {
      maxima = Greater(Load(x + i), maxima);
    }
    const float max = Max(maxima);
    Floats sum = {};
    int64_t i = 0;
    for (; i < seen; i += kLanes) {
      const Floats e = Keep(Exp(Load(x + i) - max), SeenBits(i, seen));
      sum += e;
      Store(x + i, Dropout(e, keep, p.factor, i));
    }
    for (; i < p.stride; i += kLanes) Store(x + i, Floats{});
    const float total = Sum(sum);
    inverse_sum[r] = 1.0f / total;
    log_sum_exp[r] = max + __builtin_logf(total);
    if (keep != nullptr) keep += (seen + kLanes - 1) / kLanes;
  }
}

void SoftmaxBackward(const ScoreRows& p, const float* log_sum_exp,
                     const float* delta, float scale, float* d) {
  const uint16_t* keep = p.keep;
  float* x = p.scores;
  for (int64_t r = 0; r < p.rows; ++r, x += p.stride, d += p.stride) {
    const int64_t seen = p.first + r + 1;
    int64_t i = 0;
    for (; i < seen; i += kLanes) {
      const Floats e =
          Keep(Exp(Load(x + i) - log_sum_exp[r]), SeenBits(i, seen));
      Store(x + i, Dropout(e, keep, p.factor, i));
      const Floats dp = Dropout(Load(d + i), keep, p.factor, i);
      Store(d + i, e * (dp - delta[r]) * scale);
    }
    for (; i < p.stride; i += kLanes) {
      Store(x + i, Floats{});
      Store(d + i, Floats{});
    }
    if (keep != nullptr) keep += (seen + kLanes - 1) / kLanes;
  }
}

}  // namespace

const EncoderKernels SIMD_SYMBOL(kEncoder) = {
    SIMD_NAME,    KeepBits,      AddBias,         AddRows,
    AddNorm,      NormAgain,     AddNormBackward, Gelu,
    GeluBackward, TransposeRows, Scores,          Mix,
    MixBack,      Softmax,       SoftmaxBackward,
};

}  // namespace capstan::kernels
