// SPDX-License-Identifier: Apache-2.0
//
// Rope, SwiGLU and dropout: elementwise kernels.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kWarps = kBlockThreads / 32;

// One warp per row. In each head, channels i and i + half are rotated.
template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads) RopeKernel(const RopeArgs a) {
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const int half = static_cast<int>(a.head_dim / 2), packs = half / V;
  const float* cosines = a.table + row % a.positions * a.head_dim;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  T* y = static_cast<T*>(a.y) + row * a.y_stride;
  const int items = static_cast<int>(a.heads) * packs;
  for (int item = threadIdx.x % 32; item < items; item += 32) {
    const int head = item / packs, c = item % packs * V;
    const int at = head * static_cast<int>(a.head_dim) + c;
    float lower[V], upper[V], cosine[V], sine[V];
    Load<V>(x + at, lower);
    Load<V>(x + at + half, upper);
    Load<V>(cosines + c, cosine);
    Load<V>(cosines + half + c, sine);
    for (int i = 0; i < V; ++i) {
      const float s = a.sign * sine[i], low = lower[i];
      lower[i] = low * cosine[i] - upper[i] * s;
      upper[i] = upper[i] * cosine[i] + low * s;
    }
    Store<V>(lower, y + at);
    Store<V>(upper, y + at + half);
  }
}

// GELU by tanh, g * (1 + tanh(u)) / 2 = g * s with s = sigmoid(2 u) and u = k
// (g + c g^3); `slope` becomes its derivative, s + 2 g s (1 - s) k (1 + 3 c
// g^2).
__device__ __forceinline__ float GeluTanh(float g, float& slope) {
  constexpr float kK = 0.7978845608028654f, kC = 0.044715f;
  const float s = 1.0f / (1.0f + expf(-2.0f * kK * (g + kC * g * g * g)));
  slope = s + 2.0f * g * s * (1.0f - s) * kK * (1.0f + 3.0f * kC * g * g);
  return g * s;
}

// silu'(g) = s + g * s * (1 - s) with s = sigmoid(g).
__device__ __forceinline__ float Activated(float g, bool gelu, float& slope) {
  if (gelu) return GeluTanh(g, slope);
  const float s = 1.0f / (1.0f + expf(-g)), silu = g * s;
  slope = s + silu * (1.0f - s);
  return silu;
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    SwiGluKernel(const SwiGluArgs a) {
  const Place place = PlaceIn<V>(a.rows, a.n);
  if (place.column >= a.n) return;
  const int64_t at = place.row * a.stride + place.column;
  float gate[V], up[V];
  Load<V>(static_cast<const T*>(a.gate) + at, gate);
  Load<V>(static_cast<const T*>(a.up) + at, up);
  for (int i = 0; i < V; ++i) {
    float slope;
    gate[i] = a.gelu ? GeluTanh(gate[i], slope) * up[i]
                     : gate[i] / (1.0f + expf(-gate[i])) * up[i];
  }
  Store<V>(gate, static_cast<T*>(a.out) + place.row * a.n + place.column);
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    SwiGluBackwardKernel(const SwiGluBackwardArgs a) {
  const Place place = PlaceIn<V>(a.rows, a.n);
  if (place.column >= a.n) return;
  const int64_t at = place.row * a.stride + place.column;
  const int64_t to = place.row * a.d_stride + place.column;
  T* d_out = static_cast<T*>(a.d_out) + place.row * a.n + place.column;
  float gate[V], up[V], d[V];
  Load<V>(static_cast<const T*>(a.gate) + at, gate);
  Load<V>(static_cast<const T*>(a.up) + at, up);
  Load<V>(d_out, d);
  for (int i = 0; i < V; ++i) {
    float slope;
    const float act = Activated(gate[i], a.gelu, slope);
    gate[i] = d[i] * up[i] * slope;
    const float u = up[i];
    up[i] = d[i] * act;
    d[i] = act * u;
  }
  Store<V>(gate, static_cast<T*>(a.d_gate) + to);
  Store<V>(up, static_cast<T*>(a.d_up) + to);
  Store<V>(d, d_out);
}

// Philox4x32-10, as in base/random.cc.
__device__ __forceinline__ void Philox(uint64_t key, uint64_t low,
                                       uint64_t high, uint32_t (&x)[4]) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  x[0] = static_cast<uint32_t>(low);
  x[1] = static_cast<uint32_t>(low >> 32);
  x[2] = static_cast<uint32_t>(high);
  x[3] = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * x[2];
    x[0] = static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0;
    x[1] = static_cast<uint32_t>(product1);
    x[2] = static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1;
    x[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

constexpr int kDropoutColumns = 4;  // that share a counter

// V columns a thread, a multiple of kDropoutColumns; kPacked: as one Pack;
// kNoise: with DropoutArgs::noise.
template <typename T, bool kNoise, int V, bool kPacked>
__global__ void __launch_bounds__(kBlockThreads)
    DropoutKernel(const DropoutArgs a) {
  // PlaceIn takes two registers more, which cost a quarter of the occupancy. In
  // 32 bits: a 64-bit division takes as long as everything else.
  const uint32_t chunk = blockDim.x * V;
  const uint32_t chunks = (static_cast<uint32_t>(a.n) + chunk - 1) / chunk;
  const uint32_t block = blockIdx.x;
  const int64_t row = block / chunks;
  const int64_t column =
      static_cast<int64_t>(block % chunks) * chunk + threadIdx.x * V;
  if (column >= a.n) return;
  const int count = static_cast<int>(a.n - column < V ? a.n - column : V);
  const T* x = static_cast<const T*>(a.x) + row * a.n + column;
  T* out = static_cast<T*>(a.out) + row * a.n + column;
  float f[V] = {};
  if (kPacked) {
    Load<V>(x, f);
  } else {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      if (c < count) f[c] = ToFloat(x[c]);
    }
  }
  const int64_t groups = (a.n + kDropoutColumns - 1) / kDropoutColumns;
  const uint64_t sample = static_cast<uint64_t>(a.samples[row / a.length]);
  const int64_t counter =
      (a.first + row % a.length) * groups + column / kDropoutColumns;
  const float noise = kNoise ? a.noise[row / a.length] : 0.0f;
#pragma unroll
  for (int group = 0; group < V / kDropoutColumns; ++group) {
    uint32_t bits[kDropoutColumns];
    Philox(a.key, counter + group, sample, bits);
#pragma unroll
    for (int i = 0; i < kDropoutColumns; ++i) {
      float& y = f[group * kDropoutColumns + i];
      if (kNoise) {
        y += noise * (bits[i] * 0x1p-31f - 1.0f);
      } else {
        y = bits[i] < a.dropped_below ? 0.0f : y * a.factor;
      }
    }
  }
  if (kPacked) {
    Store<V>(f, out);
  } else {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      if (c < count) FromFloat(f[c], out[c]);
    }
  }
}

}  // namespace

const char* LaunchRope(const RopeArgs& a, void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t half = a.head_dim / 2;
    const bool vectors =
        Vectors<T>({half, a.x_stride, a.y_stride}, {a.x, a.y}) &&
        Vectors<float>({half}, {a.table}, kVector<T>);
    return Launch(vectors ? RopeKernel<T, kVector<T>> : RopeKernel<T, 1>,
                  CeilDiv(a.rows, kWarps), kBlockThreads, 0, a, stream);
  });
}

const char* LaunchSwiGlu(const SwiGluArgs& a, void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors = Vectors<T>({a.n, a.stride}, {a.gate, a.up, a.out});
    return LaunchRows(
        vectors ? SwiGluKernel<T, kVector<T>> : SwiGluKernel<T, 1>, a.rows, a,
        vectors ? kVector<T> : 1, stream);
  });
}

const char* LaunchSwiGluBackward(const SwiGluBackwardArgs& a, void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors = Vectors<T>({a.n, a.stride, a.d_stride},
                                    {a.gate, a.up, a.d_out, a.d_gate, a.d_up});
    return LaunchRows(vectors ? SwiGluBackwardKernel<T, kVector<T>>
                              : SwiGluBackwardKernel<T, 1>,
                      a.rows, a, vectors ? kVector<T> : 1, stream);
  });
}

const char* LaunchDropout(const DropoutArgs& a, void* stream) {
  if (a.n > INT32_MAX) return "rows are too long";
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kV = kVector<T>;
    const bool vectors = Vectors<T>({a.n}, {a.x, a.out});
    const auto dropout = vectors
                             ? DropoutKernel<T, false, kV, true>
                             : DropoutKernel<T, false, kDropoutColumns, false>;
    const auto noise = vectors ? DropoutKernel<T, true, kV, true>
                               : DropoutKernel<T, true, kDropoutColumns, false>;
    return LaunchRows(a.noise == nullptr ? dropout : noise, a.rows, a,
                      vectors ? kV : kDropoutColumns, stream);
  });
}

}  // namespace capstan::kernels::cuda
