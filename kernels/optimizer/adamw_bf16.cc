// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_bf16.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_loops.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

using cuda::AdamWFactors;

constexpr char kNameBf16[] = "AdamW with bfloat16 state";

// Ellis's lowbias32 (the mixing function of hash-prospector, 2018), with the
// second half of the key between its halves.
constexpr uint32_t kMix1 = 0x7feb352d;
constexpr uint32_t kMix2 = 0x846ca68b;

struct Random {
  uint32_t first;
  uint32_t second;
};

// Elements from 2^32 on have other keys.
Random RandomOf(uint64_t key, int64_t element) {
  key += static_cast<uint64_t>(element >> 32) * 0x9e3779b97f4a7c15;
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// 32 random bits of an element: 16 for each moment.
ALWAYS_INLINE uint32_t BitsOf(const Random& random, uint32_t element) {
  uint32_t x = element + random.first;
  x = (x ^ (x >> 16)) * kMix1;
  x = ((x ^ (x >> 15)) + random.second) * kMix2;
  return x ^ (x >> 16);
}

ALWAYS_INLINE float Widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// `random` below 2^16. Infinities and NaN stay what they are.
ALWAYS_INLINE uint16_t RoundAtRandom(float value, uint32_t random) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const bool finite = (bits & 0x7f800000) != 0x7f800000;
  return static_cast<uint16_t>((bits + (finite ? random : 0)) >> 16);
}

struct RoundedMoments {
  using Stored = uint16_t;
  static ALWAYS_INLINE float Read(uint16_t stored) { return Widen(stored); }
  ALWAYS_INLINE void Write(int64_t i, float m, float v, uint16_t* exp_avg,
                           uint16_t* exp_avg_sq) const {
    const uint32_t bits = BitsOf(random, begin + static_cast<uint32_t>(i));
    *exp_avg = RoundAtRandom(m, bits & 0xffff);
    *exp_avg_sq = RoundAtRandom(v, bits >> 16);
  }
  Random random;
  uint32_t begin;  // the first element's index, modulo 2^32
};

}  // namespace

void AdamWBf16Step(const AdamWOptions& options, const AdamWBuffers& b,
                   uint64_t key, int64_t begin) {
  CheckAdamWBuffers(kNameBf16, b, at::kBFloat16);
  if (const auto* cuda = cuda::For(b.parameter)) {
    return AdamWByKernel(*cuda, options, b, key, begin);
  }
  if (!b.parameter.is_cpu()) {
    using B = AdamWBuffers;
    return OnHost(
        b, {&B::parameter, &B::exp_avg, &B::exp_avg_sq, &B::working},
        [&](const B& host) { AdamWBf16Step(options, host, key, begin); });
  }
  const absl::optional<AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  const AdamWMemory<uint16_t> memory(b);
  const auto update = AdamWUpdateFor<RoundedMoments>(b);
  at::parallel_for(
      0, b.parameter.numel(), kAdamWGrain, [&](int64_t first, int64_t last) {
        while (first < last) {
          const int64_t element = begin + first;
          const int64_t until = std::min(
              last, first + (int64_t{1} << 32) - (element & 0xffffffff));
          update(*factors, memory,
                 {RandomOf(key, element), static_cast<uint32_t>(begin)}, first,
                 until);
          first = until;
        }
      });
}

}  // namespace capstan::kernels
