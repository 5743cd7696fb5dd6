// SPDX-License-Identifier: Apache-2.0
//
// Dequantisation of NF4. Compiled without contraction: a double-quantised scale
// is rounded twice.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kValues = kNf4ThreadValues;  // of one block of kNf4ScaleValues
constexpr int kTables = 16 + 256;

__device__ __forceinline__ float ScaleOf(const DequantizeNf4Args& a,
                                         const float* numbers, int64_t block) {
  if (a.scales != nullptr) return a.scales[block];
  const float product =
      numbers[a.quantised_scales[block]] * a.group_scales[block / 256];
  return product + *a.offset;
}

// V: values in a store; 1: for pointers that aren't aligned.
template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    DequantizeNf4Kernel(const DequantizeNf4Args a) {
  __shared__ float tables[kTables];
  for (int i = threadIdx.x; i < kTables; i += blockDim.x) {
    tables[i] = i < 16 ? a.values[i] : a.scale_values[i - 16];
  }
  __syncthreads();
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kValues;
  if (at >= a.n) return;
  const int64_t from = a.first + at;
  const float scale = ScaleOf(a, tables + 16, from / kNf4ScaleValues);
  const uint8_t* packed = a.packed + from / 2;
  const int bytes =
      static_cast<int>(a.n - at < kValues ? (a.n - at + 1) / 2 : kValues / 2);
  Pack<uint8_t, kValues / 2> pairs = {};
  if (V > 1) {
    pairs = *reinterpret_cast<const Pack<uint8_t, kValues / 2>*>(packed);
  } else {
    for (int i = 0; i < kValues / 2; ++i)
      pairs.v[i] = i < bytes ? packed[i] : 0;
  }
  float x[kValues];
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) {
    const int two = pairs.v[i];
    x[2 * i] = tables[two >> 4] * scale;
    x[2 * i + 1] = tables[two & 15] * scale;
  }
  T* out = static_cast<T*>(a.out) + at;
  if constexpr (V == 1) {
    for (int i = 0; i < kValues && at + i < a.n; ++i) FromFloat(x[i], out[i]);
  } else {
    for (int i = 0; i < kValues; i += V) {
      float part[V];
      for (int j = 0; j < V; ++j) part[j] = x[i + j];
      Store<V>(part, out + i);
    }
  }
}

}  // namespace

const char* LaunchDequantizeNf4(const DequantizeNf4Args& a, void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors = a.n % kValues == 0 && Vectors<T>({a.n}, {a.out}) &&
                         Vectors<uint8_t>({}, {a.packed}, kValues / 2);
    return Launch(vectors ? DequantizeNf4Kernel<T, kVector<T>>
                          : DequantizeNf4Kernel<T, 1>,
                  CeilDiv(a.n, kBlockThreads * kValues), kBlockThreads, 0, a,
                  stream);
  });
}

}  // namespace capstan::kernels::cuda
