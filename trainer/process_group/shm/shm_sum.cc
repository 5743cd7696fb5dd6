// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/simd/instruction_set.h"

namespace capstan {
namespace {

// Elements per pass, so that running sums stay in the L1 cache.
constexpr int64_t kChunk = 2048;

// out [size] = a [size] + b [size]; `out` may be `a` or `b`.
template <typename T>
void Add(const T* a, const T* b, T* out, int64_t size) {
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) out[i] = static_cast<T>(a[i] + b[i]);
}

template <typename T>
void Sum(const void* const* sources, int count, void* out, int64_t size) {
  // Signed sums wrap, as in LibTorch.
  using U =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                  std::common_type<T>>::type;
  const auto source = [&](int i, int64_t begin) {
    return static_cast<const U*>(sources[i]) + begin;
  };
  U sum[kChunk];
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t part = std::min(kChunk, size - begin);
    const U* so_far = source(0, begin);
    for (int i = 1; i < count - 1; ++i) {
      Add(so_far, source(i, begin), sum, part);
      so_far = sum;
    }
    Add(so_far, source(count - 1, begin), static_cast<U*>(out) + begin, part);
  }
}

// Conversions of a 16-bit float type.
struct BFloat16Bits {
  static void Load(const uint16_t* from, float* to, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(&to[i], &bits, sizeof(bits));
    }
  }
  // Rounds to nearest, ties to even, as c10 does.
  static void Store(const float* from, uint16_t* to, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &from[i], sizeof(bits));
      const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
      const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      to[i] = static_cast<uint16_t>(nan ? 0x7FC0 : rounded);
    }
  }
};

struct HalfBits {
  static void Load(const uint16_t* from, float* to, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      to[i] = c10::Half(from[i], c10::Half::from_bits());
    }
  }
  static void Store(const float* from, uint16_t* to, int64_t size) {
    for (int64_t i = 0; i < size; ++i) to[i] = c10::Half(from[i]).x;
  }
};

#if defined(__x86_64__)
// The same with hardware conversions.
struct HalfBitsF16c {
  __attribute__((target("avx,f16c"))) static void Load(const uint16_t* from,
                                                       float* to,
                                                       int64_t size) {
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
      const auto* eight = reinterpret_cast<const __m128i*>(from + i);
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(eight)));
    }
    HalfBits::Load(from + i, to + i, size - i);
  }
  __attribute__((target("avx,f16c"))) static void Store(const float* from,
                                                        uint16_t* to,
                                                        int64_t size) {
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
      auto* eight = reinterpret_cast<__m128i*>(to + i);
      _mm_storeu_si128(eight, _mm256_cvtps_ph(_mm256_loadu_ps(from + i),
                                              _MM_FROUND_TO_NEAREST_INT));
    }
    HalfBits::Store(from + i, to + i, size - i);
  }
};
#endif

template <typename T>
void AddPart(const void* before, const void* const* sources, int count,
             bool finish, void* out, int64_t size) {
  if (before == nullptr && count == 1) {
    if (out != sources[0]) std::memcpy(out, sources[0], size * sizeof(T));
    return;
  }
  if (before == nullptr) return Sum<T>(sources, count, out, size);
  std::vector<const void*> all = {before};
  all.insert(all.end(), sources, sources + count);
  Sum<T>(all.data(), count + 1, out, size);
}

template <typename Bits>
void AddPartInFloat(const void* before, const void* const* sources, int count,
                    bool finish, void* out, int64_t size) {
  if (before == nullptr && count == 1 && finish) {
    if (out != sources[0]) std::memcpy(out, sources[0], size * 2);
    return;
  }
  const auto source = [&](int i, int64_t begin) {
    return static_cast<const uint16_t*>(sources[i]) + begin;
  };
  float sum[kChunk];
  float next[kChunk];
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t part = std::min(kChunk, size - begin);
    int i = 0;
    if (before != nullptr) {
      std::memcpy(sum, static_cast<const float*>(before) + begin,
                  part * sizeof(float));
    } else {
      Bits::Load(source(i++, begin), sum, part);
    }
    for (; i < count; ++i) {
      Bits::Load(source(i, begin), next, part);
      Add(sum, next, sum, part);
    }
    if (finish) {
      Bits::Store(sum, static_cast<uint16_t*>(out) + begin, part);
    } else {
      std::memcpy(static_cast<float*>(out) + begin, sum, part * sizeof(float));
    }
  }
}

template <typename Bits>
void SumInFloat(const void* const* sources, int count, void* out,
                int64_t size) {
  AddPartInFloat<Bits>(nullptr, sources, count, /*finish=*/true, out, size);
}

// Of all at once, and in parts.
struct Sums {
  SumFunction whole;
  PartialSum partial;
};

template <typename T>
Sums SumsOf() {
  return {Sum<T>, {sizeof(T), AddPart<T>}};
}

template <typename Bits>
Sums SumsInFloat() {
  return {SumInFloat<Bits>, {sizeof(float), AddPartInFloat<Bits>}};
}

#if defined(__x86_64__)
bool HasF16c() { return BestInstructionSet() != InstructionSet::kPlain; }
#endif

Sums SumsOf(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return SumsOf<float>();
    case c10::ScalarType::Double:
      return SumsOf<double>();
    case c10::ScalarType::BFloat16:
      return SumsInFloat<BFloat16Bits>();
    case c10::ScalarType::Half:
#if defined(__x86_64__)
      if (HasF16c()) return SumsInFloat<HalfBitsF16c>();
#endif
      return SumsInFloat<HalfBits>();
    case c10::ScalarType::Long:
      return SumsOf<int64_t>();
    case c10::ScalarType::Int:
      return SumsOf<int32_t>();
    case c10::ScalarType::Short:
      return SumsOf<int16_t>();
    case c10::ScalarType::Char:
      return SumsOf<int8_t>();
    case c10::ScalarType::Byte:
      return SumsOf<uint8_t>();
    default:
      return {nullptr, {0, nullptr}};
  }
}

}  // namespace

SumFunction SumOf(c10::ScalarType type) { return SumsOf(type).whole; }

PartialSum PartialSumOf(c10::ScalarType type) { return SumsOf(type).partial; }

}  // namespace capstan
