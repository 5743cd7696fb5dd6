// SPDX-License-Identifier: Apache-2.0
//
// One pass over flat buffers. Compiled without contraction to fused
// multiply-add, so that AdamW's bits equal the CPU's; it is memory-bound.
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

template <int V>
__device__ __forceinline__ void AdamWElements(const AdamWArgs& a, float scale,
                                              int64_t first) {
  const AdamWFactors& f = a.factors;
  float g[V], p[V], m[V], v[V];
  LoadAs<V>(a.gradient_dtype, a.gradient, first, g);
  Load<V>(a.parameter + first, p);
  Load<V>(a.exp_avg + first, m);
  Load<V>(a.exp_avg_sq + first, v);
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    m[i] = m[i] + f.weight1 * (g[i] - m[i]);
    v[i] = v[i] * f.beta2 + f.weight2 * g[i] * g[i];
    const float denominator = sqrtf(v[i]) / f.root2 + f.epsilon;
    p[i] = p[i] * f.decay - f.rate * m[i] / denominator;
  }
  Store<V>(m, a.exp_avg + first);
  Store<V>(v, a.exp_avg_sq + first);
  Store<V>(p, a.parameter + first);
  if (a.working_dtype == DType::kBFloat16) {
    Store<V>(p, static_cast<BFloat16*>(a.working) + first);
  } else if (a.working_dtype == DType::kFloat16) {
    Store<V>(p, static_cast<Float16*>(a.working) + first);
  }
}

template <int V>
__global__ void __launch_bounds__(kBlockThreads)
    AdamWKernel(const AdamWArgs a) {
  float scale = a.factors.gradient_scale;
  if (a.device_scale != nullptr) {
    if (!(fabsf(*a.device_scale) < INFINITY)) return;
    scale *= *a.device_scale;
  }
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t first = thread * V;
  if (first + V <= a.n) {
    AdamWElements<V>(a, scale, first);
  } else {
    for (int64_t i = first; i < a.n; ++i) AdamWElements<1>(a, scale, i);
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

// Whether Packs of kPack elements fit a buffer.
bool PacksFit(DType dtype, const void* p) {
  return dtype == DType::kFloat32 ? Vectors<float>({}, {p}, kPack)
                                  : Vectors<BFloat16>({}, {p}, kPack);
}

}  // namespace

const char* LaunchAdamW(const AdamWArgs& a, void* stream) {
  const bool vectors =
      PacksFit(a.gradient_dtype, a.gradient) &&
      PacksFit(a.working_dtype, a.working) &&
      Vectors<float>({}, {a.parameter, a.exp_avg, a.exp_avg_sq}, kPack);
  return Launch(vectors ? AdamWKernel<kPack> : AdamWKernel<1>,
                CeilDiv(a.n, kBlockThreads * (vectors ? kPack : 1)),
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
