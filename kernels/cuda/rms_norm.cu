// SPDX-License-Identifier: Apache-2.0
//
// One block per row; the second pass rereads the row, from the L1 cache and by
// the same thread.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kTile = 32;
// On a multiprocessor at once: left to itself, ptxas aims at more for sm_80 and
// sm_100, and spills.
constexpr int kBackwardBlocks = 3;
constexpr int kSumRowsThreads = kTile * kTile;

template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    RmsNormKernel(const RmsNormArgs a) {
  const int64_t row = blockIdx.x, begin = row * a.n;
  const int step = blockDim.x * V;
  const T* x = static_cast<const T*>(a.x) + begin;
  if (a.heads > 0) {
    x += static_cast<int64_t>(blockIdx.x / static_cast<unsigned>(a.heads)) *
         (a.x_stride - a.heads * a.n);
  }
  float rstd;
  if (a.rstd_given) {
    rstd = a.rstd[row];
  } else {
    float squares = 0.0f;
    for (int64_t c = threadIdx.x * V; c < a.n; c += step) {
      float f[V];
      Load<V>(x + c, f);
      if (a.add != nullptr) {
        float more[V];
        Load<V>(static_cast<const T*>(a.add) + begin + c, more);
        for (int i = 0; i < V; ++i) f[i] = Rounded<T>(f[i] + more[i]);
        Store<V>(f, static_cast<T*>(a.sum) + begin + c);
        if (a.again != nullptr) {
          Store<V>(f, static_cast<T*>(a.again) + begin + c);
        }
      }
      for (int i = 0; i < V; ++i) squares += f[i] * f[i];
    }
    if (a.add != nullptr) x = static_cast<const T*>(a.sum) + begin;
    const float mean = BlockReduce(squares, Add()) / a.n;
    rstd = 1.0f / sqrtf(mean + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
  }
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t c = threadIdx.x * V; c < a.n; c += step) {
    float f[V], w[V];
    Load<V>(x + c, f);
    Load<V>(weight + c, w);
    for (int i = 0; i < V; ++i) {
      const float h = f[i] * rstd;
      f[i] = a.plus_one ? (1.0f + w[i]) * h : w[i] * Rounded<T>(h);
    }
    Store<V>(f, static_cast<T*>(a.y) + begin + c);
  }
}

// Columns that are accessed at once in sums over rows.
template <int V>
constexpr int kPart = V < 4 ? V : 4;

// Where shared memory has the sums of columns c to c + kPart<V>. With eight
// columns a thread, the eight lanes that are served at once would want the same
// banks twice: in every other 32 columns neighbouring parts change places.
template <int V>
__device__ __forceinline__ Pack<float, kPart<V>>& SharedSums(int64_t c) {
  return *reinterpret_cast<Pack<float, kPart<V>>*>(
      SharedFloats() + (V == 8 ? c ^ ((c & 32) / 8) : c));
}

// With g = dy * weight and h = x * rstd: dx = rstd * (g - h * mean(g * h)) and
// dweight = sum of dy * h over rows. A block processes consecutive rows; each
// thread sums its own columns for dweight over them, which needs no barrier.
// kShared: in shared memory; else in `partial`, unless it is null.
template <typename T, bool kShared, int V>
__global__ void __launch_bounds__(kBlockThreads, kBackwardBlocks)
    RmsNormBackwardKernel(const RmsNormBackwardArgs a) {
  constexpr int kP = kPart<V>;
  const int64_t first = a.rows * blockIdx.x / gridDim.x;
  const int64_t last = a.rows * (blockIdx.x + int64_t{1}) / gridDim.x;
  const int step = blockDim.x * V;
  float* partial =
      a.partial == nullptr ? nullptr : a.partial + blockIdx.x * a.n;
  if (kShared) {  // others' columns, too: BlockReduce has a barrier
    for (int64_t c = threadIdx.x * kP; c < a.n; c += blockDim.x * kP) {
      SharedSums<V>(c) = {};
    }
  } else if (partial != nullptr) {
    const float zeros[V] = {};
    for (int64_t c = threadIdx.x * V; c < a.n; c += step) {
      Store<V>(zeros, partial + c);
    }
  }
  const T* weight = static_cast<const T*>(a.weight);
  const float one = a.plus_one ? 1.0f : 0.0f;
  for (int64_t row = first; row < last; ++row) {
    const int64_t begin = row * a.n;
    const T* x = static_cast<const T*>(a.x) + begin;
    const T* dy = static_cast<const T*>(a.dy) + begin;
    T* dx = static_cast<T*>(a.dx) + begin;
    if (a.heads > 0) {
      const int64_t group =
          static_cast<unsigned>(row) / static_cast<unsigned>(a.heads);
      x += group * (a.x_stride - a.heads * a.n);
      dx += group * (a.dx_stride - a.heads * a.n);
    }
    const float rstd = a.rstd[row];
    float dot = 0.0f;
    for (int64_t c = threadIdx.x * V; c < a.n; c += step) {
      float f[V], w[V], d[V];
      Load<V>(x + c, f);
      Load<V>(weight + c, w);
      Load<V>(dy + c, d);
      for (int i = 0; i < V; ++i) dot += d[i] * (w[i] + one) * (f[i] * rstd);
    }
    const float mean = BlockReduce(dot, Add()) / a.n;
    for (int64_t c = threadIdx.x * V; c < a.n; c += step) {
      float f[V], w[V], d[V];
      Load<V>(x + c, f);
      Load<V>(weight + c, w);
      Load<V>(dy + c, d);
      for (int i = 0; i < V; ++i) f[i] *= rstd;
      if (kShared) {
        for (int p = 0; p < V; p += kP) {
          Pack<float, kP> sums = SharedSums<V>(c + p);
          for (int i = 0; i < kP; ++i) sums.v[i] += d[p + i] * f[p + i];
          SharedSums<V>(c + p) = sums;
        }
      } else if (partial != nullptr) {
        float sums[V];
        Load<V>(partial + c, sums);
        for (int i = 0; i < V; ++i) sums[i] += d[i] * f[i];
        Store<V>(sums, partial + c);
      }
      for (int i = 0; i < V; ++i) {
        d[i] = rstd * (d[i] * (w[i] + one) - f[i] * mean);
      }
      if (a.residual != nullptr) {
        Load<V>(static_cast<const T*>(a.residual) + begin + c, f);
        for (int i = 0; i < V; ++i) d[i] += f[i];
      }
      Store<V>(d, dx + c);
    }
  }
  if constexpr (kShared) {
    __syncthreads();  // others' columns, so that neighbours write neighbours
    for (int64_t c = threadIdx.x * kP; c < a.n; c += blockDim.x * kP) {
      Store<kP>(SharedSums<V>(c).v, partial + c);
    }
  }
}

struct SumRowsArgs {
  const float* partial;  // [partials, n]
  void* out;             // [n]
  int64_t partials, n;
  bool add;  // to `out`
};

// A block has kTile columns, with kTile threads per column.
template <typename T>
__global__ void __launch_bounds__(kSumRowsThreads)
    SumRowsKernel(const SumRowsArgs a) {
  __shared__ float tile[kTile][kTile + 1];
  const int column = threadIdx.x % kTile, part = threadIdx.x / kTile;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kTile + column;
  float sum = 0.0f;
  if (c < a.n) {
    for (int64_t r = part; r < a.partials; r += kTile) {
      sum += a.partial[r * a.n + c];
    }
  }
  tile[part][column] = sum;
  __syncthreads();
  if (part != 0 || c >= a.n) return;
  for (int p = 1; p < kTile; ++p) sum += tile[p][column];
  T& out = static_cast<T*>(a.out)[c];
  FromFloat(a.add ? ToFloat(out) + sum : sum, out);
}

}  // namespace

const char* LaunchRmsNorm(const RmsNormArgs& a, void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors = Vectors<T>(
        {a.n, a.x_stride}, {a.x, a.weight, a.y, a.add, a.sum, a.again});
    return Launch(vectors ? RmsNormKernel<T, kVector<T>> : RmsNormKernel<T, 1>,
                  a.rows, ThreadsFor(vectors ? a.n / kVector<T> : a.n), 0, a,
                  stream);
  });
}

const char* LaunchRmsNormBackward(const RmsNormBackwardArgs& a, void* stream) {
  const bool want_weight = a.partial != nullptr;
  const int64_t blocks = want_weight ? RmsNormPartials(a.rows, a.n) : a.rows;
  const size_t shared = want_weight ? RmsNormSharedBytes(a.n) : 0;
  const char* error = ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kV = kVector<T>;
    const bool vectors = Vectors<T>({a.n, a.x_stride, a.dx_stride},
                                    {a.dy, a.x, a.weight, a.residual, a.dx}) &&
                         Vectors<float>({}, {a.partial}, kV);
    const auto in_shared = vectors ? RmsNormBackwardKernel<T, true, kV>
                                   : RmsNormBackwardKernel<T, true, 1>;
    const auto in_global = vectors ? RmsNormBackwardKernel<T, false, kV>
                                   : RmsNormBackwardKernel<T, false, 1>;
    return Launch(shared > 0 ? in_shared : in_global, blocks,
                  ThreadsFor(vectors ? a.n / kV : a.n), shared, a, stream);
  });
  if (error != nullptr || !want_weight) return error;
  const SumRowsArgs sum = {a.partial, a.dweight, blocks, a.n, a.add_dweight};
  return ByType(a.dweight_dtype, [&](auto type) {
    return Launch(SumRowsKernel<decltype(type)>, CeilDiv(a.n, kTile),
                  kSumRowsThreads, 0, sum, stream);
  });
}

}  // namespace capstan::kernels::cuda
