// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/simd/instruction_set.h"

namespace capstan {
namespace {

// Elements per pass, so that running sums stay in the L1 cache.
constexpr int64_t kChunk = 1024;
// For fewer than 2^kLevels ranks.
constexpr int kLevels = 16;

// out [size] = a [size] + b [size]; `out` may be `a` or `b`.
template <typename T>
void AddTwo(const T* a, const T* b, T* out, int64_t size) {
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) out[i] = static_cast<T>(a[i] + b[i]);
}

// A chunk of the sum so far: the complete subtrees, from left to right, which
// are like the bits of a binary counter of sources.
template <typename T>
class Subtrees {
 public:
  // Those of `sources` sources are at parts, parts + stride, ..
  Subtrees(int64_t sources, const T* parts, int64_t stride, int64_t size)
      : size_(size) {
    for (int level = kLevels - 1; level >= 0; --level) {
      if ((sources >> level & 1) == 0) continue;
      nodes_[count_++] = {parts, level};
      parts += stride;
    }
  }

  // Where the next source may be written; not if it is the last.
  T* space() { return buffers_[count_]; }

  void Add(const T* source) {
    nodes_[count_++] = {source, 0};
    while (count_ > 1 && nodes_[count_ - 1].level == nodes_[count_ - 2].level) {
      Join(buffers_[count_ - 2]);
    }
  }

  // The last one, and all that is left to do, to `out`.
  void Finish(const T* source, T* out) {
    nodes_[count_++] = {source, 0};
    while (count_ > 2) Join(buffers_[count_ - 2]);
    if (count_ == 2) Join(out);
    if (nodes_[0].sum != out) Copy(nodes_[0].sum, out);
  }

  // To out, out + stride, .., which may be what the constructor was given.
  void Save(T* out, int64_t stride) const {
    for (int i = 0; i < count_; ++i, out += stride) {
      if (nodes_[i].sum != out) Copy(nodes_[i].sum, out);
    }
  }

 private:
  struct Node {
    const T* sum;
    int level;
  };

  void Join(T* out) {
    Node& left = nodes_[count_ - 2];
    AddTwo(left.sum, nodes_[count_ - 1].sum, out, size_);
    left = {out, left.level + 1};
    --count_;
  }
  void Copy(const T* from, T* to) const {
    std::memcpy(static_cast<void*>(to), from, size_ * sizeof(T));
  }

  const int64_t size_;
  int count_ = 0;
  Node nodes_[kLevels + 1];
  // What nodes_[i] is the sum of is added in buffers_[i].
  alignas(64) T buffers_[kLevels + 1][kChunk];
};

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
void AddPart(int64_t before, void* parts, int64_t stride,
             const void* const* sources, int count, void* out, int64_t size) {
  // Signed sums wrap, as in LibTorch.
  using U =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                  std::common_type<T>>::type;
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t chunk = std::min(kChunk, size - begin);
    U* const so_far = static_cast<U*>(parts) + begin;
    Subtrees<U> sum(before, so_far, stride, chunk);
    const auto source = [&](int i) {
      return static_cast<const U*>(sources[i]) + begin;
    };
    for (int i = 0; i + 1 < count; ++i) sum.Add(source(i));
    if (out != nullptr) {
      sum.Finish(source(count - 1), static_cast<U*>(out) + begin);
    } else {
      sum.Add(source(count - 1));
      sum.Save(so_far, stride);
    }
  }
}

template <typename Bits>
void AddPartInFloat(int64_t before, void* parts, int64_t stride,
                    const void* const* sources, int count, void* out,
                    int64_t size) {
  if (before == 0 && count == 1 && out != nullptr) {
    if (out != sources[0]) std::memcpy(out, sources[0], size * 2);
    return;
  }
  alignas(64) float total[kChunk];
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t chunk = std::min(kChunk, size - begin);
    float* const so_far = static_cast<float*>(parts) + begin;
    Subtrees<float> sum(before, so_far, stride, chunk);
    const auto load = [&](int i, float* to) {
      Bits::Load(static_cast<const uint16_t*>(sources[i]) + begin, to, chunk);
      return to;
    };
    for (int i = 0; i + 1 < count; ++i) sum.Add(load(i, sum.space()));
    if (out != nullptr) {
      sum.Finish(load(count - 1, total), total);
      Bits::Store(total, static_cast<uint16_t*>(out) + begin, chunk);
    } else {
      sum.Add(load(count - 1, sum.space()));
      sum.Save(so_far, stride);
    }
  }
}

// AddPart of all at once.
template <void (*add)(int64_t, void*, int64_t, const void* const*, int, void*,
                      int64_t)>
void Sum(const void* const* sources, int count, void* out, int64_t size) {
  add(0, nullptr, 0, sources, count, out, size);
}

// Of all at once, and in parts.
struct Sums {
  SumFunction whole;
  PartialSum partial;
};

template <typename T>
Sums SumsOf() {
  return {Sum<AddPart<T>>, {sizeof(T), AddPart<T>}};
}

template <typename Bits>
Sums SumsInFloat() {
  return {Sum<AddPartInFloat<Bits>>, {sizeof(float), AddPartInFloat<Bits>}};
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

int SumParts(int64_t sources) {
  int parts = 0;
  for (; sources != 0; sources &= sources - 1) ++parts;
  return parts;
}

}  // namespace capstan
