// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_8bit.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "base/simd/instruction_set.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_loops.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

using cuda::AdamW8BitArgs;
using cuda::AdamW8BitMap;
using cuda::AdamWFactors;
using cuda::DType;

constexpr char kName8Bit[] = "AdamW in 8 bits";
constexpr int kBlock = cuda::kAdamW8BitBlock;
static_assert(kBlock == kBlockOf8Bit);
// Blocks per thread, below which waking one costs more than it saves.
constexpr int64_t kGrain = 64;
// Decade d of the map holds FirstDecade() << d values.
constexpr int kDecades = cuda::kDecadesOf8Bit;
constexpr int kSignedZero = 127;

template <bool kSigned>
constexpr int FirstDecade() {
  return kSigned ? 1 : 2;
}

double DecadeTop(int decade) { return std::pow(10.0, decade - kDecades + 1); }

// Value `k` of a decade: the middle of one of its equal intervals.
double ValueIn(int decade, int k, int count) {
  return DecadeTop(decade) * (0.1 + 0.9 * (2 * k + 1) / (2 * count));
}

// The values of codes by arithmetic, which is faster than to look them up.
AdamW8BitMap MakeMap(int first) {
  AdamW8BitMap map = {};
  double before = 0.0;  // the value before the decade's first
  for (int d = 0; d < kDecades; ++d) {
    const int count = first << d;
    map.begin[d] = count;
    map.first[d] = static_cast<float>(ValueIn(d, 0, count));
    map.step[d] = static_cast<float>(0.9 * DecadeTop(d) / count);
    map.threshold[d] =
        static_cast<float>((before + ValueIn(d, 0, count)) / 2.0);
    map.low[d] = static_cast<float>(0.1 * DecadeTop(d));
    map.scale[d] = static_cast<float>(count / (0.9 * DecadeTop(d)));
    before = ValueIn(d, count - 1, count);
  }
  map.begin[kDecades] = first << kDecades;
  map.first[kDecades] = 1.0f;
  map.top = static_cast<float>((before + 1.0) / 2.0);
  return map;
}

template <bool kSigned>
const AdamW8BitMap& TheMap() {
  static const AdamW8BitMap map = MakeMap(FirstDecade<kSigned>());
  return map;
}

// What a code stands for.
template <bool kSigned>
ALWAYS_INLINE float Decode(const AdamW8BitMap& map, uint8_t code) {
  const int number = kSigned ? code - kSignedZero : code + 1;
  const int n = number < 0 ? -number : number;
  int32_t begin = map.begin[0];
  float first = map.first[0];
  float step = map.step[0];
#pragma GCC unroll 7
  for (int d = 1; d <= kDecades; ++d) {
    const bool above = n >= map.begin[d];
    begin = above ? map.begin[d] : begin;
    first = above ? map.first[d] : first;
    step = above ? map.step[d] : step;
  }
  float value = first + step * static_cast<float>(n - begin);
  value = n < map.begin[0] ? 0.0f : value;
  return number < 0 ? -value : value;
}

// The code of x / absmax, 0 <= |x| <= absmax, from `scaled`, that quotient.
template <bool kSigned>
ALWAYS_INLINE uint8_t Encode(const AdamW8BitMap& r, float x, float scaled) {
  const float a = std::fabs(scaled);
  float low = r.low[0];
  float scale = r.scale[0];
  int decade = 0;
#pragma GCC unroll 6
  for (int d = 1; d < kDecades; ++d) {
    const bool above = a >= r.threshold[d];
    low = above ? r.low[d] : low;
    scale = above ? r.scale[d] : scale;
    decade += above ? 1 : 0;
  }
  const int last = (FirstDecade<kSigned>() << decade) - 1;
  int k = static_cast<int>((a - low) * scale);
  k = k < 0 ? 0 : k;
  k = k > last ? last : k;
  // Codes of smaller magnitude, but for 0.
  k += (FirstDecade<kSigned>() << decade) - FirstDecade<kSigned>();
  if (kSigned) {
    int code = scaled < 0.0f ? kSignedZero - 1 - k
                             : kSignedZero + 1 + k + (a >= r.top ? 1 : 0);
    code = a < r.threshold[0] ? kSignedZero : code;
    return static_cast<uint8_t>(code);
  }
  k += 1 + (a >= r.top ? 1 : 0);
  return static_cast<uint8_t>(x > 0.0f ? k : 0);
}

// Largest magnitude; NaN if there is one. Compared as integers, which order
// non-negative floats alike and which the compiler can do at once.
ALWAYS_INLINE float LargestOf(const float* x) {
  int32_t most = 0;
  for (int i = 0; i < kBlock; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float largest;
  std::memcpy(&largest, &most, sizeof(largest));
  return largest;
}

template <typename T>
ALWAYS_INLINE void Load(const void* from, int64_t at, int count, float* out) {
  const T* const values = static_cast<const T*>(from) + at;
  for (int i = 0; i < count; ++i) out[i] = static_cast<float>(values[i]);
}

template <typename T>
ALWAYS_INLINE void Store(const float* values, int count, int64_t at,
                         void* out) {
  T* const to = static_cast<T*>(out) + at;
  for (int i = 0; i < count; ++i) to[i] = static_cast<T>(values[i]);
}

ALWAYS_INLINE void LoadGradient(const AdamW8BitArgs& b, int64_t at, int count,
                                float* out) {
  if (b.gradient_dtype == DType::kFloat32) {
    Load<float>(b.gradient, at, count, out);
  } else if (b.gradient_dtype == DType::kBFloat16) {
    Load<at::BFloat16>(b.gradient, at, count, out);
  } else {
    Load<at::Half>(b.gradient, at, count, out);
  }
}

template <bool kSigned>
ALWAYS_INLINE void Quantize(const AdamW8BitMap& map, const float* x, int count,
                            uint8_t* codes, float* absmax) {
  alignas(64) uint8_t all[kBlock];
  const AdamW8BitMap r = map;
  const float largest = LargestOf(x);
  *absmax = largest;
  // Its inverse is finite; below it all but NaN is as good as 0.
  const float inverse = largest < 1e-36f ? 0.0f : 1.0f / largest;
  for (int i = 0; i < kBlock; ++i) {
    all[i] = Encode<kSigned>(r, x[i], x[i] * inverse);
  }
  std::memcpy(codes, all, count);
}

ALWAYS_INLINE void UpdateBlock(const AdamWFactors& f, const AdamW8BitArgs& b,
                               int64_t block, int count) {
  const int64_t at = block * kBlock;
  alignas(64) float g[kBlock], m[kBlock], v[kBlock], p[kBlock];
  alignas(64) uint8_t m_codes[kBlock], v_codes[kBlock];
  if (count < kBlock) {
    for (int i = 0; i < kBlock; ++i) g[i] = p[i] = 0.0f;
    std::memset(m_codes, kSignedZero, sizeof(m_codes));
    std::memset(v_codes, 0, sizeof(v_codes));
  }
  LoadGradient(b, at, count, g);
  std::memcpy(p, b.parameter + at, count * sizeof(float));
  std::memcpy(m_codes, b.exp_avg + at, count);
  std::memcpy(v_codes, b.exp_avg_sq + at, count);
  const float m_scale = b.exp_avg_absmax[block];
  const float v_scale = b.exp_avg_sq_absmax[block];
  const AdamW8BitMap m_map = b.signed_map;
  const AdamW8BitMap v_map = b.unsigned_map;
  for (int i = 0; i < kBlock; ++i) {
    m[i] = Decode<true>(m_map, m_codes[i]) * m_scale;
  }
  for (int i = 0; i < kBlock; ++i) {
    v[i] = Decode<false>(v_map, v_codes[i]) * v_scale;
  }
  const float inverse_root2 = 1.0f / f.root2;
  for (int i = 0; i < kBlock; ++i) {
    const float gradient = g[i] * f.gradient_scale;
    m[i] = m[i] + f.weight1 * (gradient - m[i]);
    v[i] = v[i] * f.beta2 + f.weight2 * gradient * gradient;
    const float denominator = std::sqrt(v[i]) * inverse_root2 + f.epsilon;
    p[i] = p[i] * f.decay - f.rate * m[i] / denominator;
  }
  std::memcpy(b.parameter + at, p, count * sizeof(float));
  if (b.working_dtype == DType::kBFloat16) {
    Store<at::BFloat16>(p, count, at, b.working);
  } else if (b.working_dtype == DType::kFloat16) {
    Store<at::Half>(p, count, at, b.working);
  }
  Quantize<true>(b.signed_map, m, count, b.exp_avg + at,
                 b.exp_avg_absmax + block);
  Quantize<false>(b.unsigned_map, v, count, b.exp_avg_sq + at,
                  b.exp_avg_sq_absmax + block);
}

ALWAYS_INLINE void UpdateBlocks(const AdamW8BitArgs& b, int64_t begin,
                                int64_t end) {
  const AdamWFactors f = b.factors;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t left = b.n - block * kBlock;
    UpdateBlock(f, b, block, left < kBlock ? static_cast<int>(left) : kBlock);
  }
}

// Throws unless they fit.
AdamW8BitArgs ArgsOf(const AdamWOptions& options, const AdamW8BitBuffers& b) {
  const int64_t n = b.parameter.numel();
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  const auto check = [&](const at::Tensor& t, int64_t numel, auto type) {
    CheckBuffer(kName8Bit, t, b.parameter, numel, type);
  };
  CheckGradientAndWorking(kName8Bit, b.gradient, b.working, b.parameter);
  AdamW8BitArgs args = {};
  SetAdamWArgs(kName8Bit, options, b, &args);
  check(b.exp_avg, n, at::kByte);
  check(b.exp_avg_sq, n, at::kByte);
  check(b.exp_avg_absmax, blocks, at::kFloat);
  check(b.exp_avg_sq_absmax, blocks, at::kFloat);
  args.exp_avg = b.exp_avg.mutable_data_ptr<uint8_t>();
  args.exp_avg_absmax = b.exp_avg_absmax.mutable_data_ptr<float>();
  args.exp_avg_sq = b.exp_avg_sq.mutable_data_ptr<uint8_t>();
  args.exp_avg_sq_absmax = b.exp_avg_sq_absmax.mutable_data_ptr<float>();
  args.signed_map = TheMap<true>();
  args.unsigned_map = TheMap<false>();
  return args;
}

}  // namespace

const std::array<float, 256>& DynamicMap(bool is_signed) {
  static const auto* const maps = [] {
    auto* const made = new std::array<float, 256>[2];
    for (int code = 0; code < 256; ++code) {
      made[0][code] = Decode<false>(TheMap<false>(), code);
      made[1][code] = Decode<true>(TheMap<true>(), code);
    }
    return made;
  }();
  return maps[is_signed ? 1 : 0];
}

void AdamW8BitByKernel(const cuda::CudaKernels& cuda,
                       const AdamWOptions& options, const AdamW8BitBuffers& b) {
  const char* error = cuda.adamw_8bit(
      ArgsOf(options, b), cuda.current_stream(b.parameter.get_device()));
  TORCH_CHECK(error == nullptr, "the GPU kernel adamw_8bit can't run: ", error);
}

void AdamW8BitStep(const AdamWOptions& options, const AdamW8BitBuffers& b) {
  AdamW8BitArgs args = ArgsOf(options, b);
  if (const auto* cuda = cuda::For(b.parameter)) {
    return AdamW8BitByKernel(*cuda, options, b);
  }
  if (!b.parameter.is_cpu()) {
    using B = AdamW8BitBuffers;
    return OnHost(b,
                  {&B::parameter, &B::exp_avg, &B::exp_avg_absmax,
                   &B::exp_avg_sq, &B::exp_avg_sq_absmax, &B::working},
                  [&](const B& host) { AdamW8BitStep(options, host); });
  }
  const absl::optional<AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  args.factors = *factors;
  const auto update = BestOf<UpdateBlocks>();
  at::parallel_for(
      0, b.exp_avg_absmax.numel(), kGrain,
      [&](int64_t begin, int64_t end) { update(args, begin, end); });
}

}  // namespace capstan::kernels
