// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_bf16.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/simd/instruction_set.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_factors.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

using cuda::AdamWFactors;

// Elements per thread, below which waking one costs more than it saves.
constexpr int64_t kGrain = 32768;

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

#define ALWAYS_INLINE inline __attribute__((always_inline))

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

struct Memory {
  const void* gradient;
  float* parameter;
  uint16_t* exp_avg;
  uint16_t* exp_avg_sq;
  void* working;
  uint32_t begin;  // the first element's index, modulo 2^32
};

using Nothing = char;  // no working copy

template <typename Gradient, typename Working>
ALWAYS_INLINE void UpdateRange(const AdamWFactors& factors, const Memory& b,
                               const Random& key, int64_t begin, int64_t end) {
  const AdamWFactors f = factors;
  const Random random = key;
  const auto* __restrict gradient = static_cast<const Gradient*>(b.gradient);
  float* __restrict parameter = b.parameter;
  uint16_t* __restrict exp_avg = b.exp_avg;
  uint16_t* __restrict exp_avg_sq = b.exp_avg_sq;
  auto* __restrict working = static_cast<Working*>(b.working);
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = BitsOf(random, b.begin + static_cast<uint32_t>(i));
    const float g = static_cast<float>(gradient[i]) * f.gradient_scale;
    const float before = Widen(exp_avg[i]);
    const float m = before + f.weight1 * (g - before);
    const float v = Widen(exp_avg_sq[i]) * f.beta2 + f.weight2 * g * g;
    const float denominator = std::sqrt(v) / f.root2 + f.epsilon;
    const float p = parameter[i] * f.decay - f.rate * m / denominator;
    exp_avg[i] = RoundAtRandom(m, bits & 0xffff);
    exp_avg_sq[i] = RoundAtRandom(v, bits >> 16);
    parameter[i] = p;
    if constexpr (!std::is_same_v<Working, Nothing>) {
      working[i] = static_cast<Working>(p);
    }
  }
}

using UpdateFn = void (*)(const AdamWFactors& factors, const Memory& buffers,
                          const Random& key, int64_t begin, int64_t end);

template <typename Gradient, typename Working>
void UpdatePlain(const AdamWFactors& factors, const Memory& buffers,
                 const Random& key, int64_t begin, int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, key, begin, end);
}

template <typename Gradient, typename Working>
SIMD_FUNCTION_AVX2 void UpdateAvx2(const AdamWFactors& factors,
                                   const Memory& buffers, const Random& key,
                                   int64_t begin, int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, key, begin, end);
}

template <typename Gradient, typename Working>
SIMD_FUNCTION_AVX512 void UpdateAvx512(const AdamWFactors& factors,
                                       const Memory& buffers, const Random& key,
                                       int64_t begin, int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, key, begin, end);
}

template <typename Gradient, typename Working>
UpdateFn ForProcessor() {
  return BestOf<UpdateFn>(UpdatePlain<Gradient, Working>,
                          UpdateAvx2<Gradient, Working>,
                          UpdateAvx512<Gradient, Working>);
}

template <typename Gradient>
UpdateFn ForWorking(const at::Tensor& working) {
  if (!working.defined()) return ForProcessor<Gradient, Nothing>();
  return working.scalar_type() == at::kBFloat16
             ? ForProcessor<Gradient, at::BFloat16>()
             : ForProcessor<Gradient, at::Half>();
}

UpdateFn Choose(const at::Tensor& gradient, const at::Tensor& working) {
  if (gradient.scalar_type() == at::kFloat) return ForWorking<float>(working);
  return gradient.scalar_type() == at::kBFloat16
             ? ForWorking<at::BFloat16>(working)
             : ForWorking<at::Half>(working);
}

void CheckBuffers(const AdamWBuffers& b) {
  const auto check = [&](const at::Tensor& t, auto... types) {
    TORCH_CHECK(t.defined() && t.is_contiguous() &&
                    t.numel() == b.parameter.numel() &&
                    t.device() == b.parameter.device() &&
                    ((t.scalar_type() == types) || ...),
                "AdamW with bfloat16 state wants contiguous buffers of one "
                "length and of its dtypes on one device");
  };
  check(b.gradient, at::kFloat, at::kBFloat16, at::kHalf);
  check(b.parameter, at::kFloat);
  check(b.exp_avg, at::kBFloat16);
  check(b.exp_avg_sq, at::kBFloat16);
  if (b.working.defined()) check(b.working, at::kBFloat16, at::kHalf);
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
  const Memory memory = {
      b.gradient.const_data_ptr(),
      b.parameter.mutable_data_ptr<float>(),
      static_cast<uint16_t*>(b.exp_avg.mutable_data_ptr()),
      static_cast<uint16_t*>(b.exp_avg_sq.mutable_data_ptr()),
      b.working.defined() ? b.working.mutable_data_ptr() : nullptr,
      static_cast<uint32_t>(begin)};
  const UpdateFn update = Choose(b.gradient, b.working);
  at::parallel_for(
      0, b.parameter.numel(), kGrain, [&](int64_t first, int64_t last) {
        while (first < last) {
          const int64_t element = begin + first;
          const int64_t until = std::min(
              last, first + (int64_t{1} << 32) - (element & 0xffffffff));
          update(*factors, memory, RandomOf(key, element), first, until);
          first = until;
        }
      });
}

}  // namespace capstan::kernels
