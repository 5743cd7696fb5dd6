// SPDX-License-Identifier: Apache-2.0
#include "base/simd/simd.h"
#include "kernels/quant/nf4.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_memory.inc"

constexpr int kLanes = SIMD_BYTES / 4;
typedef Register<kLanes>::Floats Vector;
typedef Register<kLanes>::Bits Bits;

SIMD_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// The numbers of the 16 nibbles, in registers, times a scale: then a lookup
// gives whole values.
struct Table {
#if defined(SIMD_AVX512)
  __m512 values;
  SIMD_INLINE explicit Table(float scale)
      : values(_mm512_maskz_mul_ps(0xffff, LoadAs<__m512>(kNf4Values),
                                   _mm512_set1_ps(scale))) {}
  // Uses the lowest four bits of each index.
  SIMD_INLINE Vector At(const Bits& nibbles) const {
    return (Vector)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)nibbles,
                                               values);
  }
#elif defined(SIMD_AVX2)
  __m256 low, high;
  SIMD_INLINE explicit Table(float scale)
      : low(_mm256_mul_ps(LoadAs<__m256>(kNf4Values), _mm256_set1_ps(scale))),
        high(_mm256_mul_ps(LoadAs<__m256>(kNf4Values + 8),
                           _mm256_set1_ps(scale))) {}
  SIMD_INLINE Vector At(const Bits& nibbles) const {
    const __m256i index = (__m256i)nibbles;
    return (Vector)_mm256_blendv_ps(
        _mm256_permutevar8x32_ps(low, index),
        _mm256_permutevar8x32_ps(high, index),
        _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
#else
  float values[16];
  SIMD_INLINE explicit Table(float scale) {
    for (int i = 0; i < 16; ++i) values[i] = kNf4Values[i] * scale;
  }
#endif
};

SIMD_INLINE float ValueAt(const uint8_t* packed, int64_t i) {
  const int byte = packed[i / 2];
  return kNf4Values[i % 2 == 0 ? byte >> 4 : byte & 15];
}

// Values from an even index on, within a block.
SIMD_INLINE int64_t DequantizePairs(const uint8_t* packed, float scale,
                                    int64_t count, float* out) {
  int64_t i = 0;
#ifdef SIMD_AVX2
  const Table table(scale);
#ifdef SIMD_AVX512
  // Each byte twice, the upper half of the first.
  const __m128i twice =
      _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i shifts =
      _mm512_setr_epi32(4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0);
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i bytes = _mm_shuffle_epi8(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + i / 2)),
        twice);
    const __m512i nibbles = _mm512_maskz_srlv_epi32(
        0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, bytes), shifts);
    StoreAs(out + i, table.At((Bits)nibbles));
  }
#else
  const __m128i twice =
      _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i shifts = _mm256_setr_epi32(4, 0, 4, 0, 4, 0, 4, 0);
  for (; i + kLanes <= count; i += kLanes) {
    int32_t four;
    __builtin_memcpy(&four, packed + i / 2, 4);
    const __m128i bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(four), twice);
    StoreAs(out + i, table.At((Bits)_mm256_srlv_epi32(
                         _mm256_cvtepu8_epi32(bytes), shifts)));
  }
#endif
#endif
  for (; i + 2 <= count; i += 2) {
    const int byte = packed[i / 2];
    out[i] = kNf4Values[byte >> 4] * scale;
    out[i + 1] = kNf4Values[byte & 15] * scale;
  }
  return i;
}

void Dequantize(const uint8_t* packed, const float* scales, int64_t begin,
                int64_t count, float* out) {
  const int64_t first = begin / kNf4Block;
  const int64_t end = begin + count;
  while (begin < end) {
    const int64_t block = begin / kNf4Block;
    const int64_t stop = Least(end, (block + 1) * kNf4Block);
    const float scale = scales[block - first];
    if (begin % 2 != 0) *out++ = ValueAt(packed, begin++) * scale;
    const int64_t done =
        DequantizePairs(packed + begin / 2, scale, stop - begin, out);
    out += done;
    begin += done;
    if (begin < stop) *out++ = ValueAt(packed, begin++) * scale;
  }
}

// The largest magnitude, as bits: those of a NaN are larger than any.
SIMD_INLINE float Largest(const float* x, int64_t n) {
  Bits most = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Bits bits = LoadAs<Bits>(x + i) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  uint32_t largest = 0;
  for (int l = 0; l < kLanes; ++l) {
    if (most[l] > largest) largest = most[l];
  }
  for (; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    if (bits > largest) largest = bits;
  }
  float value;
  __builtin_memcpy(&value, &largest, 4);
  return value;
}

SIMD_INLINE uint32_t Nearest(float x) {
  uint32_t index = 0;
  for (float limit : kNf4Limits) index += x >= limit ? 1 : 0;
  return index;
}

void Quantize(const float* x, int64_t n, uint8_t* packed, float* scales) {
  for (; n > 0; n -= kNf4Block, x += kNf4Block) {
    const int64_t count = Least(n, kNf4Block);
    const float scale = Largest(x, count);
    *scales++ = scale;
    // 0 where 1 / scale isn't a number: a block of zeros, or nearly.
    float inverse = 1.0f / scale;
    if (!(inverse <= 0x1.fffffep127f)) inverse = 0.0f;
    uint32_t indices[kNf4Block + 1];
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      // Rounding may lead beyond 1, which is the last value all the same.
      const Vector v = LoadAs<Vector>(x + i) * inverse;
      Bits index = {};
#pragma GCC unroll 15
      for (int l = 0; l < 15; ++l) index -= (Bits)(v >= kNf4Limits[l]);
      StoreAs(indices + i, index);
    }
    for (; i < count; ++i) indices[i] = Nearest(x[i] * inverse);
    indices[count] = 7;  // after an odd one: 0
    for (i = 0; i < count; i += 2) {
      *packed++ = static_cast<uint8_t>(indices[i] << 4 | indices[i + 1]);
    }
  }
}

#ifdef SIMD_AVX2

template <int kRows>
SIMD_INLINE void DotRows(const uint8_t* w, const float* scales, int64_t columns,
                         const float* x, float* y, int64_t stride) {
  Vector even[kRows] = {}, odd[kRows] = {};
  for (int64_t k = 0; k < columns; k += kNf4Block) {
    const Table table(*scales++);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kNf4Block; i += 2 * kLanes, w += kLanes) {
#ifdef SIMD_AVX512
      const Bits bytes =
          (Bits)_mm512_maskz_cvtepu8_epi32(0xffff, LoadAs<__m128i>(w));
#else
      const Bits bytes = (Bits)_mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w)));
#endif
      const Vector upper = table.At(bytes >> 4), lower = table.At(bytes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float* const from = x + r * columns + k + i;
        even[r] += upper * LoadAs<Vector>(from);
        odd[r] += lower * LoadAs<Vector>(from + kLanes);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const Vector sums = even[r] + odd[r];
    float sum = 0.0f;
    for (int l = 0; l < kLanes; ++l) sum += sums[l];
    y[r * stride] = sum;
  }
}

#else

template <int kRows>
void DotRows(const uint8_t* w, const float* scales, int64_t columns,
             const float* x, float* y, int64_t stride) {
  float sums[kRows] = {};
  for (int64_t k = 0; k < columns; k += 2, ++w) {
    if (k > 0 && k % kNf4Block == 0) ++scales;
    const float first = kNf4Values[*w >> 4] * *scales;
    const float second = kNf4Values[*w & 15] * *scales;
    for (int r = 0; r < kRows; ++r) {
      sums[r] += first * x[r * columns + k] + second * x[r * columns + k + 1];
    }
  }
  for (int r = 0; r < kRows; ++r) y[r * stride] = sums[r];
}

#endif

void Dot(const uint8_t* w, const float* scales, int64_t columns, const float* x,
         int rows, float* y, int64_t stride) {
  switch (rows) {
    case 1:
      return DotRows<1>(w, scales, columns, x, y, stride);
    case 2:
      return DotRows<2>(w, scales, columns, x, y, stride);
    case 3:
      return DotRows<3>(w, scales, columns, x, y, stride);
    default:
      return DotRows<4>(w, scales, columns, x, y, stride);
  }
}

}  // namespace

const Nf4Kernels SIMD_SYMBOL(kNf4) = {SIMD_NAME, Quantize, Dequantize, Dot,
                                      SIMD_BYTES == 16 ? 1 : kLanes};

}  // namespace capstan::kernels
