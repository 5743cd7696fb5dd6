// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_bf16.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_loops.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

using cuda::AdamWFactors;

constexpr char kName[] = "AdamW with bfloat16 state";

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

void CheckBuffers(const AdamWBuffers& b) {
  CheckGradientAndWorking(kName, b.gradient, b.working, b.parameter);
  for (const at::Tensor& moment : {b.exp_avg, b.exp_avg_sq}) {
    CheckBuffer(kName, moment, b.parameter, b.parameter.numel(), at::kBFloat16);
  }
}

// BitsOf of elements [begin, begin + count), as int64 below 2^32.
at::Tensor BitsOnDevice(const Random& random, uint32_t begin, int64_t count,
                        const at::Tensor& like) {
  constexpr int64_t kMask = 0xffffffff;
  const auto mix = [](const at::Tensor& x, int64_t shift, int64_t add,
                      int64_t factor) {
    // Products of 32 bits overflow int64 by what the mask drops.
    return ((x ^ x.__rshift__(shift)) + add)
        .__and__(kMask)
        .mul_(factor)
        .__and__(kMask);
  };
  at::Tensor x = at::arange(count, like.options().dtype(at::kLong))
                     .add_(static_cast<int64_t>(begin) + random.first)
                     .__and__(kMask);
  x = mix(x, 16, 0, kMix1);
  x = mix(x, 15, random.second, kMix2);
  return x ^ x.__rshift__(16);
}

at::Tensor RoundOnDevice(const at::Tensor& value, const at::Tensor& random) {
  const at::Tensor bits = value.view(at::kInt);
  const at::Tensor rounded =
      at::where(at::isfinite(value), bits + random.to(at::kInt), bits);
  return rounded.__rshift__(16).to(at::kShort).view(at::kBFloat16);
}

// Holds kBytesOfAdamWBf16Piece an element at most.
void UpdatePieceOnDevice(const AdamWFactors& f, const AdamWBuffers& b,
                         const GuardedStep& guarded, const Random& random,
                         uint32_t begin) {
  at::Tensor g = guarded.Scaled(b.gradient);
  at::Tensor m = b.exp_avg.to(at::kFloat);
  m.add_((g - m).mul_(f.weight1));
  at::Tensor v = b.exp_avg_sq.to(at::kFloat).mul_(f.beta2);
  v.add_((g * f.weight2).mul_(g));
  g.reset();
  const at::Tensor p =
      b.parameter * f.decay -
      (m * f.rate).div_(v.sqrt().div_(f.root2).add_(f.epsilon));
  const at::Tensor bits = BitsOnDevice(random, begin, m.numel(), m);
  guarded.Write(b.exp_avg, RoundOnDevice(m, bits.__and__(0xffff)));
  guarded.Write(b.exp_avg_sq, RoundOnDevice(v, bits.__rshift__(16)));
  guarded.Write(b.parameter, p);
  if (b.working.defined()) b.working.copy_(b.parameter);
}

}  // namespace

void AdamWBf16ByLibTorch(const AdamWOptions& options, const AdamWBuffers& b,
                         uint64_t key, int64_t begin) {
  at::NoGradGuard no_grad;
  CheckBuffers(b);
  const AdamWFactors factors = AdamWFactorsOf(options);
  const GuardedStep guarded(options.gradient_scale, b.device_scale);
  const int64_t length = b.parameter.numel();
  for (int64_t at = 0; at < length;) {
    // Not across a multiple of 2^32, where the keys change.
    const int64_t element = begin + at;
    const int64_t count =
        std::min({kElementsOfAdamWBf16Piece, length - at,
                  (int64_t{1} << 32) - (element & 0xffffffff)});
    const auto piece = [&](const at::Tensor& t) {
      return t.defined() ? t.narrow(0, at, count) : t;
    };
    UpdatePieceOnDevice(
        factors,
        {piece(b.gradient), piece(b.parameter), piece(b.exp_avg),
         piece(b.exp_avg_sq), piece(b.working), b.device_scale},
        guarded, RandomOf(key, element), static_cast<uint32_t>(element));
    at += count;
  }
}

void AdamWBf16Step(const AdamWOptions& options, const AdamWBuffers& b,
                   uint64_t key, int64_t begin) {
  if (!b.parameter.is_cpu()) {
    return AdamWBf16ByLibTorch(options, b, key, begin);
  }
  CheckBuffers(b);
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
