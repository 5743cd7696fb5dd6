// SPDX-License-Identifier: Apache-2.0
//
// One pass over flat buffers. Compiled without contraction to fused
// multiply-add, so that AdamW's bits equal the CPU's; it is memory-bound.
// Operations and their order are those of kernels/optimizer.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kPack = 4;

// Elements [first, first + V) of a buffer of any dtype: threads don't diverge,
// so the branch costs nothing and saves nine kernels.
template <int V>
__device__ __forceinline__ void LoadAs(DType dtype, const void* p,
                                       int64_t first, float (&x)[V]) {
  if (dtype == DType::kFloat32) {
    Load<V>(static_cast<const float*>(p) + first, x);
  } else if (dtype == DType::kBFloat16) {
    Load<V>(static_cast<const BFloat16*>(p) + first, x);
  } else {
    Load<V>(static_cast<const Float16*>(p) + first, x);
  }
}

// Writes the parameter, and its working copy.
template <int V, typename Args>
__device__ __forceinline__ void StoreParameter(const Args& a, int64_t first,
                                               const float (&p)[V]) {
  Store<V>(p, a.parameter + first);
  if (a.working_dtype == DType::kBFloat16) {
    Store<V>(p, static_cast<BFloat16*>(a.working) + first);
  } else if (a.working_dtype == DType::kFloat16) {
    Store<V>(p, static_cast<Float16*>(a.working) + first);
  }
}

// The factor of gradients. False: nothing is to be written.
template <typename Args>
__device__ __forceinline__ bool GradientScale(const Args& a, float& scale) {
  scale = a.factors.gradient_scale;
  if (a.device_scale == nullptr) return true;
  scale *= *a.device_scale;
  return fabsf(*a.device_scale) < INFINITY;
}

__device__ __forceinline__ uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
__device__ __forceinline__ float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// 32 random bits of an element.
__device__ __forceinline__ uint32_t RandomBits(uint64_t key, int64_t element) {
  key += static_cast<uint64_t>(element >> 32) * 0x9e3779b97f4a7c15;
  uint32_t x = static_cast<uint32_t>(element) + static_cast<uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x = ((x ^ (x >> 15)) + static_cast<uint32_t>(key >> 32)) * 0x846ca68b;
  return x ^ (x >> 16);
}

// A value of bfloat16. `random` is below 2^16; infinities stay.
__device__ __forceinline__ float RoundAtRandom(float x, uint32_t random) {
  const uint32_t bits = BitsOf(x);
  return fabsf(x) < INFINITY ? FloatOf((bits + random) & 0xffff0000) : x;
}

// State: float or BFloat16.
template <typename State, int V>
__device__ __forceinline__ void AdamWElements(const AdamWArgs& a, float scale,
                                              int64_t first) {
  const AdamWFactors& f = a.factors;
  State* const exp_avg = static_cast<State*>(a.exp_avg) + first;
  State* const exp_avg_sq = static_cast<State*>(a.exp_avg_sq) + first;
  float g[V], p[V], m[V], v[V];
  LoadAs<V>(a.gradient_dtype, a.gradient, first, g);
  Load<V>(a.parameter + first, p);
  Load<V>(exp_avg, m);
  Load<V>(exp_avg_sq, v);
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    m[i] = m[i] + f.weight1 * (g[i] - m[i]);
    v[i] = v[i] * f.beta2 + f.weight2 * g[i] * g[i];
    const float denominator = sqrtf(v[i]) / f.root2 + f.epsilon;
    p[i] = p[i] * f.decay - f.rate * m[i] / denominator;
    if constexpr (sizeof(State) == sizeof(BFloat16)) {
      const uint32_t random = RandomBits(a.key, a.begin + first + i);
      m[i] = RoundAtRandom(m[i], random & 0xffff);
      v[i] = RoundAtRandom(v[i], random >> 16);
    }
  }
  Store<V>(m, exp_avg);
  Store<V>(v, exp_avg_sq);
  StoreParameter<V>(a, first, p);
}

template <typename State, int V>
__global__ void __launch_bounds__(kBlockThreads)
    AdamWKernel(const AdamWArgs a) {
  float scale;
  if (!GradientScale(a, scale)) return;
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t first = thread * V;
  if (first + V <= a.n) {
    AdamWElements<State, V>(a, scale, first);
  } else {
    for (int64_t i = first; i < a.n; ++i) AdamWElements<State, 1>(a, scale, i);
  }
}

// A warp has a block of state in 8 bits.
constexpr int kLane = kAdamW8BitBlock / 32;  // elements of a lane
constexpr int kSignedZero = 127;             // the code

// In shared memory, where lanes read at different places at once. [0]: of the
// signed map, [1]: of the unsigned one.
struct Tables8Bit {
  struct alignas(8) Interval {
    float low, scale;
  };
  float values[2][256];  // of codes
  float threshold[2][kDecadesOf8Bit + 1];
  Interval intervals[2][kDecadesOf8Bit];
};

// The last d whose from[d] isn't above x; 0 if all are, or if x is NaN.
template <typename T>
__device__ __forceinline__ int DecadeOf(const T (&from)[kDecadesOf8Bit + 1],
                                        T x) {
  int decade = 0;
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
    if (x >= from[decade + step]) decade += step;
  }
  return decade;
}

// What a code's number, with the sign apart, stands for.
__device__ __forceinline__ float ValueOf(const AdamW8BitMap& map, int number) {
  const int d = DecadeOf(map.begin, number);
  const float value =
      map.first[d] + map.step[d] * static_cast<float>(number - map.begin[d]);
  return number < map.begin[0] ? 0.0f : value;
}

// Thread t < 256 makes the entries of code t.
__device__ __forceinline__ void MakeTables(const AdamW8BitArgs& a,
                                           Tables8Bit& tables) {
  const int t = threadIdx.x, number = t - kSignedZero;
  const float value = ValueOf(a.signed_map, number < 0 ? -number : number);
  tables.values[0][t] = number < 0 ? -value : value;
  tables.values[1][t] = ValueOf(a.unsigned_map, t + 1);
  if (t > kDecadesOf8Bit) return;
  for (int i = 0; i < 2; ++i) {
    const AdamW8BitMap& map = i == 0 ? a.signed_map : a.unsigned_map;
    const bool beyond = t == kDecadesOf8Bit;
    tables.threshold[i][t] = beyond ? INFINITY : map.threshold[t];
    if (!beyond) tables.intervals[i][t] = {map.low[t], map.scale[t]};
  }
}

// The code of x / absmax from `scaled`, that quotient.
template <bool kSigned>
__device__ __forceinline__ uint32_t Encode(const AdamW8BitMap& map,
                                           const Tables8Bit& tables, float x,
                                           float scaled) {
  constexpr int kTable = kSigned ? 0 : 1, kFirst = kSigned ? 1 : 2;
  const float size = fabsf(scaled);
  const int decade = DecadeOf(tables.threshold[kTable], size);
  const Tables8Bit::Interval interval = tables.intervals[kTable][decade];
  const int count = kFirst << decade;
  int k = static_cast<int>((size - interval.low) * interval.scale);
  k = k < 0 ? 0 : k;
  k = k < count ? k : count - 1;
  k += count - kFirst;
  const int up = k + 1 + (size >= map.top ? 1 : 0);
  if (!kSigned) return x > 0.0f ? up : 0;
  if (size < map.threshold[0]) return kSignedZero;
  return kSignedZero + (scaled < 0.0f ? -1 - k : up);
}

// Of a block's elements a lane has kLane / V parts, of V neighbours each.
template <int V>
using Lane = float[kLane / V][V];
template <int V>
__device__ __forceinline__ int PlaceOf(int part) {
  return (part * 32 + static_cast<int>(threadIdx.x % 32)) * V;
}

// Rounds the first `count` of a block's values x to codes.
template <bool kSigned, int V>
__device__ __forceinline__ void Quantize(const AdamW8BitMap& map,
                                         const Tables8Bit& tables,
                                         const Lane<V>& x, int count,
                                         uint8_t* codes, float* absmax) {
  // Bits of magnitudes order like them, and NaN above all.
  int most = 0;
#pragma unroll
  for (int i = 0; i < kLane; ++i) {
    most = Max()(most, static_cast<int>(BitsOf(fabsf(x[i / V][i % V]))));
  }
  const float largest = FloatOf(WarpReduce(most, Max()));
  if (threadIdx.x % 32 == 0) *absmax = largest;
  const float inverse = largest < 1e-36f ? 0.0f : 1.0f / largest;
#pragma unroll
  for (int i = 0; i < kLane / V; ++i) {
    Pack<uint8_t, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      pack.v[j] = Encode<kSigned>(map, tables, x[i][j], x[i][j] * inverse);
    }
    const int at = PlaceOf<V>(i);
    if (at < count) *reinterpret_cast<Pack<uint8_t, V>*>(codes + at) = pack;
  }
}

// The first `count` elements of a block; V > 1: all of them. The lanes' others
// are 0 as on the CPU.
template <int V>
__device__ __forceinline__ void UpdateBlock(const AdamW8BitArgs& a,
                                            const Tables8Bit& tables,
                                            float scale, int64_t block,
                                            int count) {
  const AdamWFactors& f = a.factors;
  const int64_t begin = block * kAdamW8BitBlock;
  const float m_scale = a.exp_avg_absmax[block];
  const float v_scale = a.exp_avg_sq_absmax[block];
  const float inverse_root2 = 1.0f / f.root2;
  Lane<V> g = {}, p = {}, m, v;
#pragma unroll
  for (int i = 0; i < kLane / V; ++i) {
    const int64_t first = begin + PlaceOf<V>(i);
    Pack<uint8_t, V> m_codes, v_codes;
    for (int j = 0; j < V; ++j) {
      m_codes.v[j] = kSignedZero;
      v_codes.v[j] = 0;
    }
    if (V > 1 || PlaceOf<V>(i) < count) {
      LoadAs<V>(a.gradient_dtype, a.gradient, first, g[i]);
      Load<V>(a.parameter + first, p[i]);
      m_codes = *reinterpret_cast<Pack<uint8_t, V>*>(a.exp_avg + first);
      v_codes = *reinterpret_cast<Pack<uint8_t, V>*>(a.exp_avg_sq + first);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      m[i][j] = tables.values[0][m_codes.v[j]] * m_scale;
      v[i][j] = tables.values[1][v_codes.v[j]] * v_scale;
    }
  }
#pragma unroll
  for (int i = 0; i < kLane / V; ++i) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float gradient = g[i][j] * scale;
      float &mean = m[i][j], &square = v[i][j];
      mean = mean + f.weight1 * (gradient - mean);
      square = square * f.beta2 + f.weight2 * gradient * gradient;
      const float denominator = sqrtf(square) * inverse_root2 + f.epsilon;
      p[i][j] = p[i][j] * f.decay - f.rate * mean / denominator;
    }
    if (V > 1 || PlaceOf<V>(i) < count) {
      StoreParameter<V>(a, begin + PlaceOf<V>(i), p[i]);
    }
  }
  Quantize<true, V>(a.signed_map, tables, m, count, a.exp_avg + begin,
                    a.exp_avg_absmax + block);
  Quantize<false, V>(a.unsigned_map, tables, v, count, a.exp_avg_sq + begin,
                     a.exp_avg_sq_absmax + block);
}

template <int V>
__global__ void __launch_bounds__(kBlockThreads)
    AdamW8BitKernel(const AdamW8BitArgs a) {
  __shared__ Tables8Bit tables;
  float scale;
  if (!GradientScale(a, scale)) return;
  MakeTables(a, tables);
  __syncthreads();
  const int64_t block =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t left = a.n - block * kAdamW8BitBlock;
  if (left >= kAdamW8BitBlock) {
    UpdateBlock<V>(a, tables, scale, block, kAdamW8BitBlock);
  } else if (left > 0) {
    UpdateBlock<1>(a, tables, scale, block, static_cast<int>(left));
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    SquaredSumKernel(const SquaredSumArgs a) {
  const T* x = static_cast<const T*>(a.x);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  int64_t first =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  double sum = 0.0;
  for (; first < a.n; first += stride) {
    if (first + V <= a.n) {
      float f[V];
      Load<V>(x + first, f);
      for (int i = 0; i < V; ++i) {
        sum += static_cast<double>(f[i]) * static_cast<double>(f[i]);
      }
    } else {
      for (int64_t i = first; i < a.n; ++i) {
        const double f = ToFloat(x[i]);
        sum += f * f;
      }
    }
  }
  sum = BlockReduce(sum, Add());
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

struct SumPartialsArgs {
  const double* partial;
  double* sum;
  int64_t n;
};

// One block.
__global__ void __launch_bounds__(kSquaredSumPartials)
    SumPartialsKernel(const SumPartialsArgs a) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) sum += a.partial[i];
  sum = BlockReduce(sum, Add());
  if (threadIdx.x == 0) *a.sum = sum;
}

// Whether Packs of kPack elements fit buffers.
bool PacksFit(DType dtype, std::initializer_list<const void*> p) {
  return dtype == DType::kFloat32 ? Vectors<float>({}, p, kPack)
                                  : Vectors<BFloat16>({}, p, kPack);
}
template <typename Args>
bool PacksFit(const Args& a) {
  return PacksFit(a.gradient_dtype, {a.gradient}) &&
         PacksFit(DType::kFloat32, {a.parameter}) &&
         PacksFit(a.working_dtype, {a.working});
}

}  // namespace

const char* LaunchAdamW(const AdamWArgs& a, void* stream) {
  const bool vectors =
      PacksFit(a) && PacksFit(a.state_dtype, {a.exp_avg, a.exp_avg_sq});
  const auto in_float = vectors ? AdamWKernel<float, kPack>  //
                                : AdamWKernel<float, 1>;
  const auto in_bfloat16 =
      vectors ? AdamWKernel<BFloat16, kPack> : AdamWKernel<BFloat16, 1>;
  return Launch(a.state_dtype == DType::kFloat32 ? in_float : in_bfloat16,
                CeilDiv(a.n, kBlockThreads * (vectors ? kPack : 1)),
                kBlockThreads, 0, a, stream);
}

const char* LaunchAdamW8Bit(const AdamW8BitArgs& a, void* stream) {
  static_assert(kBlockThreads == 256,
                "MakeTables wants a thread for each code");
  const bool vectors =
      PacksFit(a) && Vectors<uint8_t>({}, {a.exp_avg, a.exp_avg_sq}, kPack);
  return Launch(vectors ? AdamW8BitKernel<kPack> : AdamW8BitKernel<1>,
                CeilDiv(a.n, kBlockThreads / 32 * kAdamW8BitBlock),
                kBlockThreads, 0, a, stream);
}

const char* LaunchSquaredSum(const SquaredSumArgs& a, void* stream) {
  const int64_t blocks =
      std::min(kSquaredSumPartials, CeilDiv(a.n, kBlockThreads * kPack));
  const char* error = ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    return Launch(Vectors<T>({}, {a.x}) ? SquaredSumKernel<T, kVector<T>>
                                        : SquaredSumKernel<T, 1>,
                  blocks, kBlockThreads, 0, a, stream);
  });
  if (error != nullptr) return error;
  const SumPartialsArgs sum = {a.partial, a.sum, blocks};
  return Launch(SumPartialsKernel, 1, kSquaredSumPartials, 0, sum, stream);
}

}  // namespace capstan::kernels::cuda
