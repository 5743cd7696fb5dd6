// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_8bit.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/simd/instruction_set.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_loops.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

using cuda::AdamWFactors;

constexpr int kBlock = static_cast<int>(kBlockOf8Bit);
// Blocks per thread, below which waking one costs more than it saves.
constexpr int64_t kGrain = 64;
// Decade d of the map holds kFirst << d values between 10^(d-7) and 10^(d-6).
constexpr int kDecades = 7;
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

// How a magnitude is rounded: its decade is found by comparisons, and its
// interval there by a product.
struct Rounding {
  float top;                  // from here on 1 is nearest
  float smallest;             // below this 0 is nearest
  float threshold[kDecades];  // from here on the decade's values are nearest
  float low[kDecades];        // where its first interval begins
  float scale[kDecades];      // 1 / an interval's width
};

// The values of codes by arithmetic, which is faster than to look them up: code
// numbers, counted from 0 with the sign apart, begin a decade at a power of
// two.
struct Values {
  int32_t begin[kDecades + 1];  // the last "decade" is 1 alone
  float first[kDecades + 1];
  float step[kDecades + 1];
};

Values MakeValues(int first) {
  Values values = {};
  for (int d = 0; d < kDecades; ++d) {
    const int count = first << d;
    values.begin[d] = count;
    values.first[d] = static_cast<float>(ValueIn(d, 0, count));
    values.step[d] = static_cast<float>(0.9 * DecadeTop(d) / count);
  }
  values.begin[kDecades] = first << kDecades;
  values.first[kDecades] = 1.0f;
  return values;
}

Rounding MakeRounding(int first) {
  Rounding r = {};
  double before = 0.0;  // the value before the decade's first
  for (int d = 0; d < kDecades; ++d) {
    const int count = first << d;
    r.threshold[d] = static_cast<float>((before + ValueIn(d, 0, count)) / 2.0);
    r.low[d] = static_cast<float>(0.1 * DecadeTop(d));
    r.scale[d] = static_cast<float>(count / (0.9 * DecadeTop(d)));
    before = ValueIn(d, count - 1, count);
  }
  r.smallest = r.threshold[0];
  r.top = static_cast<float>((before + 1.0) / 2.0);
  return r;
}

struct Tables {
  Values signed_values;
  Values unsigned_values;
  Rounding signed_rounding;
  Rounding unsigned_rounding;
};

const Tables& TheTables() {
  static const Tables* const tables = new Tables{
      MakeValues(FirstDecade<true>()), MakeValues(FirstDecade<false>()),
      MakeRounding(FirstDecade<true>()), MakeRounding(FirstDecade<false>())};
  return *tables;
}

struct Memory {
  const void* gradient;
  at::ScalarType gradient_type;
  float* parameter;
  uint8_t* exp_avg;
  float* exp_avg_absmax;
  uint8_t* exp_avg_sq;
  float* exp_avg_sq_absmax;
  void* working;
  at::ScalarType working_type;
  int64_t length;
};

// What a code stands for.
template <bool kSigned>
ALWAYS_INLINE float Decode(const Values& values, uint8_t code) {
  const int number = kSigned ? code - kSignedZero : code + 1;
  const int n = number < 0 ? -number : number;
  int32_t begin = values.begin[0];
  float first = values.first[0];
  float step = values.step[0];
#pragma GCC unroll 7
  for (int d = 1; d <= kDecades; ++d) {
    const bool above = n >= values.begin[d];
    begin = above ? values.begin[d] : begin;
    first = above ? values.first[d] : first;
    step = above ? values.step[d] : step;
  }
  float value = first + step * static_cast<float>(n - begin);
  value = n < values.begin[0] ? 0.0f : value;
  return number < 0 ? -value : value;
}

// The code of x / absmax, 0 <= |x| <= absmax, from `scaled`, that quotient.
template <bool kSigned>
ALWAYS_INLINE uint8_t Encode(const Rounding& r, float x, float scaled) {
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
    code = a < r.smallest ? kSignedZero : code;
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

ALWAYS_INLINE void LoadGradient(const Memory& b, int64_t at, int count,
                                float* out) {
  if (b.gradient_type == at::kFloat) {
    Load<float>(b.gradient, at, count, out);
  } else if (b.gradient_type == at::kBFloat16) {
    Load<at::BFloat16>(b.gradient, at, count, out);
  } else {
    Load<at::Half>(b.gradient, at, count, out);
  }
}

template <bool kSigned>
ALWAYS_INLINE void Quantize(const Rounding& rounding, const float* x, int count,
                            uint8_t* codes, float* absmax) {
  alignas(64) uint8_t all[kBlock];
  const Rounding r = rounding;
  const float largest = LargestOf(x);
  *absmax = largest;
  // Its inverse is finite; below it all but NaN is as good as 0.
  const float inverse = largest < 1e-36f ? 0.0f : 1.0f / largest;
  for (int i = 0; i < kBlock; ++i) {
    all[i] = Encode<kSigned>(r, x[i], x[i] * inverse);
  }
  std::memcpy(codes, all, count);
}

ALWAYS_INLINE void UpdateBlock(const AdamWFactors& f, const Tables& tables,
                               const Memory& b, int64_t block, int count) {
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
  const Values m_values = tables.signed_values;
  const Values v_values = tables.unsigned_values;
  for (int i = 0; i < kBlock; ++i) {
    m[i] = Decode<true>(m_values, m_codes[i]) * m_scale;
  }
  for (int i = 0; i < kBlock; ++i) {
    v[i] = Decode<false>(v_values, v_codes[i]) * v_scale;
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
  if (b.working != nullptr && b.working_type == at::kBFloat16) {
    Store<at::BFloat16>(p, count, at, b.working);
  } else if (b.working != nullptr) {
    Store<at::Half>(p, count, at, b.working);
  }
  Quantize<true>(tables.signed_rounding, m, count, b.exp_avg + at,
                 b.exp_avg_absmax + block);
  Quantize<false>(tables.unsigned_rounding, v, count, b.exp_avg_sq + at,
                  b.exp_avg_sq_absmax + block);
}

ALWAYS_INLINE void UpdateBlocks(const AdamWFactors& factors,
                                const Tables& tables, const Memory& b,
                                int64_t begin, int64_t end) {
  const AdamWFactors f = factors;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t left = b.length - block * kBlock;
    UpdateBlock(f, tables, b, block,
                left < kBlock ? static_cast<int>(left) : kBlock);
  }
}

void CheckBuffers(const AdamW8BitBuffers& b) {
  const int64_t n = b.parameter.numel();
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  const auto check = [&](const at::Tensor& t, int64_t numel, auto... types) {
    CheckBuffer("AdamW in 8 bits", t, b.parameter, numel, types...);
  };
  CheckGradientAndWorking("AdamW in 8 bits", b.gradient, b.working,
                          b.parameter);
  check(b.exp_avg, n, at::kByte);
  check(b.exp_avg_sq, n, at::kByte);
  check(b.exp_avg_absmax, blocks, at::kFloat);
  check(b.exp_avg_sq_absmax, blocks, at::kFloat);
}

// For devices without loops of ours.

struct DeviceMap {
  at::Tensor values;   // [256] float32
  at::Tensor middles;  // [255], between neighbours
};

// Copied to each device once and never freed.
const DeviceMap& MapOn(bool is_signed, const at::Device& device) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const maps = new std::map<std::string, DeviceMap>;
  const std::string key = device.str() + (is_signed ? " signed" : "");
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto found = maps->find(key);
  if (found != maps->end()) return found->second;
  const std::array<float, 256>& map = DynamicMap(is_signed);
  std::array<float, 255> middles;
  for (size_t i = 0; i < middles.size(); ++i) {
    middles[i] = (map[i] + map[i + 1]) / 2.0f;
  }
  // Blocking copies: any stream may read them afterwards.
  return maps
      ->emplace(
          key, DeviceMap{at::tensor(at::ArrayRef<float>(map.data(), map.size()))
                             .to(device),
                         at::tensor(at::ArrayRef<float>(middles.data(),
                                                        middles.size()))
                             .to(device)})
      .first->second;
}

// [n] codes and [blocks] scales to [n] values.
at::Tensor Dequantize(bool is_signed, const at::Tensor& codes,
                      const at::Tensor& absmax) {
  const int64_t n = codes.numel();
  const int64_t full = n / kBlockOf8Bit;
  at::Tensor values = at::index_select(MapOn(is_signed, codes.device()).values,
                                       0, codes.to(at::kInt));
  values.narrow(0, 0, full * kBlockOf8Bit)
      .view({full, kBlockOf8Bit})
      .mul_(absmax.narrow(0, 0, full).unsqueeze(1));
  if (full < absmax.numel()) {
    values.narrow(0, full * kBlockOf8Bit, n - full * kBlockOf8Bit)
        .mul_(absmax.narrow(0, full, 1));
  }
  return values;
}

void QuantizeTo(bool is_signed, const at::Tensor& x, const GuardedStep& guarded,
                const at::Tensor& codes, const at::Tensor& absmax) {
  const int64_t padding = absmax.numel() * kBlockOf8Bit - x.numel();
  const at::Tensor blocks =
      (padding == 0 ? x : at::constant_pad_nd(x, {0, padding}))
          .view({-1, kBlockOf8Bit});
  const at::Tensor largest = at::amax(at::abs(blocks), {1}, true);
  at::Tensor nearest =
      at::bucketize(blocks / at::where(largest == 0, 1.0, largest),
                    MapOn(is_signed, x.device()).middles, /*out_int32=*/true,
                    /*right=*/true)
          .to(at::kByte);
  if (!is_signed) nearest = at::maximum(nearest, (blocks > 0).to(at::kByte));
  nearest = nearest.view({-1}).narrow(0, 0, x.numel());
  guarded.Write(codes, nearest);
  guarded.Write(absmax, largest.view({-1}));
}

// Holds kBytesOfAdamW8BitPiece an element at most.
void UpdatePieceByLibTorch(const AdamWFactors& f, const AdamW8BitBuffers& b,
                           const GuardedStep& guarded) {
  at::Tensor g = guarded.Scaled(b.gradient);
  at::Tensor m = Dequantize(true, b.exp_avg, b.exp_avg_absmax);
  m.add_((g - m).mul_(f.weight1));
  at::Tensor v = Dequantize(false, b.exp_avg_sq, b.exp_avg_sq_absmax);
  v.mul_(f.beta2).add_((g * f.weight2).mul_(g));
  g.reset();
  const auto update = [&] {
    const at::Tensor change =
        (m * f.rate).div_(v.sqrt().div_(f.root2).add_(f.epsilon));
    guarded.Write(b.parameter, (b.parameter * f.decay).sub_(change));
  };
  update();
  if (b.working.defined()) b.working.copy_(b.parameter);
  QuantizeTo(true, m, guarded, b.exp_avg, b.exp_avg_absmax);
  m.reset();
  QuantizeTo(false, v, guarded, b.exp_avg_sq, b.exp_avg_sq_absmax);
}

}  // namespace

const std::array<float, 256>& DynamicMap(bool is_signed) {
  static const auto* const maps = [] {
    auto* const made = new std::array<float, 256>[2];
    for (int code = 0; code < 256; ++code) {
      made[0][code] = Decode<false>(TheTables().unsigned_values, code);
      made[1][code] = Decode<true>(TheTables().signed_values, code);
    }
    return made;
  }();
  return maps[is_signed ? 1 : 0];
}

void AdamW8BitByLibTorch(const AdamWOptions& options, const AdamW8BitBuffers& b,
                         int64_t at_once) {
  at::NoGradGuard no_grad;
  CheckBuffers(b);
  TORCH_CHECK(at_once > 0 && at_once % kBlockOf8Bit == 0,
              "AdamW in 8 bits works on whole blocks");
  const AdamWFactors factors = AdamWFactorsOf(options);
  const GuardedStep guarded(options.gradient_scale, b.device_scale);
  const int64_t length = b.parameter.numel();
  for (int64_t begin = 0; begin < length; begin += at_once) {
    const int64_t count = std::min(at_once, length - begin);
    const auto piece = [&](const at::Tensor& t) {
      return t.defined() ? t.narrow(0, begin, count) : t;
    };
    const auto scales = [&](const at::Tensor& t) {
      return t.narrow(0, begin / kBlockOf8Bit,
                      (count + kBlockOf8Bit - 1) / kBlockOf8Bit);
    };
    UpdatePieceByLibTorch(
        factors,
        {piece(b.gradient), piece(b.parameter), piece(b.exp_avg),
         scales(b.exp_avg_absmax), piece(b.exp_avg_sq),
         scales(b.exp_avg_sq_absmax), piece(b.working), b.device_scale},
        guarded);
  }
}

void AdamW8BitStep(const AdamWOptions& options, const AdamW8BitBuffers& b) {
  CheckBuffers(b);
  if (!b.parameter.is_cpu()) return AdamW8BitByLibTorch(options, b);
  const absl::optional<AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  const bool mixed = b.working.defined();
  const Memory memory = {
      b.gradient.const_data_ptr(),
      b.gradient.scalar_type(),
      b.parameter.mutable_data_ptr<float>(),
      b.exp_avg.mutable_data_ptr<uint8_t>(),
      b.exp_avg_absmax.mutable_data_ptr<float>(),
      b.exp_avg_sq.mutable_data_ptr<uint8_t>(),
      b.exp_avg_sq_absmax.mutable_data_ptr<float>(),
      mixed ? b.working.mutable_data_ptr() : nullptr,
      mixed ? b.working.scalar_type() : at::ScalarType::Undefined,
      b.parameter.numel()};
  const Tables& tables = TheTables();
  const auto update = BestOf<UpdateBlocks>();
  at::parallel_for(0, b.exp_avg_absmax.numel(), kGrain,
                   [&](int64_t begin, int64_t end) {
                     update(*factors, tables, memory, begin, end);
                   });
}

}  // namespace capstan::kernels
