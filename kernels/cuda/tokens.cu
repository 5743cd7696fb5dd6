// SPDX-License-Identifier: Apache-2.0
//
// Both ends of a language model: cross-entropy, and the embedding's backward.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kSumThreads = 1024;
constexpr int kTokenWarps = 4;

// One block per row. One pass computes maximum and sum of exponentials: each
// thread rescales its sum when its maximum grows. kSmooth: with a smoothing.
template <typename T, bool kSmooth, int V>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyKernel(const CrossEntropyArgs a) {
  const int64_t row = blockIdx.x, target = a.targets[row];
  T* x = static_cast<T*>(a.logits) + row * a.vocab;
  const int step = blockDim.x * V;
  if (target < 0) {
    if (threadIdx.x == 0) a.losses[row] = 0.0f;
    if (!a.gradient) return;
    const float zeros[V] = {};
    for (int64_t c = threadIdx.x * V; c < a.vocab; c += step) {
      Store<V>(zeros, x + c);
    }
    return;
  }
  float most = -INFINITY, sum = 0.0f, total = 0.0f;
  for (int64_t c = threadIdx.x * V; c < a.vocab; c += step) {
    float f[V];
    Load<V>(x + c, f);
    if (kSmooth) {
      for (int i = 0; i < V; ++i) total += f[i];
    }
    float m = most;
    for (int i = 0; i < V; ++i) m = fmaxf(m, f[i]);
    if (m == -INFINITY) continue;  // -inf - -inf would be NaN
    sum *= expf(most - m);
    for (int i = 0; i < V; ++i) sum += expf(f[i] - m);
    most = m;
  }
  const float all = BlockReduce(most, Max());
  sum = BlockReduce(most == -INFINITY ? sum : sum * expf(most - all), Add());
  const float log_sum = all + logf(sum);
  const float weight = a.weights == nullptr ? 1.0f : a.weights[row];
  const float at_others = kSmooth ? a.smoothing / a.vocab : 0.0f;
  const float at_target = kSmooth ? 1.0f - a.smoothing : 1.0f;
  if (kSmooth) total = BlockReduce(total, Add());
  if (threadIdx.x == 0) {
    float loss = target < a.vocab ? log_sum - ToFloat(x[target]) : NAN;
    if (kSmooth) {
      loss = at_target * loss + (a.smoothing * log_sum - at_others * total);
    }
    a.losses[row] = weight * loss;
  }
  if (!a.gradient) return;
  __syncthreads();  // x[target] has been read
  const float factor = weight * a.factor;
  for (int64_t c = threadIdx.x * V; c < a.vocab; c += step) {
    float f[V];
    Load<V>(x + c, f);
    for (int i = 0; i < V; ++i) {
      const float learnt = (c + i == target ? at_target : 0.0f) + at_others;
      f[i] = factor * (expf(f[i] - log_sum) - learnt);
    }
    Store<V>(f, x + c);
  }
}

// One block.
__global__ void __launch_bounds__(kSumThreads)
    SumLossesKernel(const CrossEntropyArgs a) {
  double sum = 0.0;
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x) sum += a.losses[r];
  sum = BlockReduce(sum, Add());
  if (threadIdx.x == 0) *a.sum = static_cast<float>(sum);
}

// The end of the run of equal tokens that begins at `first`.
__device__ __forceinline__ int64_t EndOfRun(const int64_t* tokens,
                                            int64_t first, int64_t rows) {
  const int64_t token = tokens[first];
  int64_t same = first, step = 1;  // most runs are short
  while (same + step < rows && tokens[same + step] == token) {
    same += step;
    step *= 2;
  }
  int64_t other = same + step < rows ? same + step : rows;
  while (same + 1 < other) {
    const int64_t middle = (same + other) / 2;
    if (tokens[middle] == token) {
      same = middle;
    } else {
      other = middle;
    }
  }
  return other;
}

// A block is for one index of the sorted list and 32 * V columns, and works if
// a token's rows begin there: warp w sums its rows w, w + kTokenWarps, ..., and
// warp 0 adds the warps' sums.
template <typename T, typename W, int V>
__global__ void __launch_bounds__(32 * kTokenWarps)
    EmbeddingBackwardKernel(const EmbeddingBackwardArgs a) {
  __shared__ float sums[kTokenWarps][32 * V];
  const uint32_t tiles =
      static_cast<uint32_t>((a.hidden + 32 * V - 1) / (32 * V));
  const int64_t first = static_cast<uint32_t>(blockIdx.x) / tiles;
  const int64_t token = a.tokens[first];
  if (first > 0 && a.tokens[first - 1] == token) return;
  if (token < 0 || token >= a.vocab) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t tile = static_cast<uint32_t>(blockIdx.x) % tiles;
  const int64_t column = (int64_t{tile} * 32 + lane) * V;
  const bool inside = column < a.hidden;
  const int64_t last = EndOfRun(a.tokens, first, a.rows);
  float sum[V] = {};
  if (inside) {
    const T* dy = static_cast<const T*>(a.dy) + column;
#pragma unroll 4
    for (int64_t i = first + warp; i < last; i += kTokenWarps) {
      float f[V];
      Load<V>(dy + a.order[i] * a.hidden, f);
      for (int j = 0; j < V; ++j) sum[j] += f[j];
    }
  }
  // By lane, so that lanes want different banks.
  for (int j = 0; j < V; ++j) sums[warp][j * 32 + lane] = sum[j];
  __syncthreads();
  if (warp != 0 || !inside) return;
  for (int w = 1; w < kTokenWarps; ++w) {
    for (int j = 0; j < V; ++j) sum[j] += sums[w][j * 32 + lane];
  }
  W* out = static_cast<W*>(a.d_weight) + token * a.hidden + column;
  float before[V];
  Load<V>(out, before);
  for (int j = 0; j < V; ++j) sum[j] += before[j];
  Store<V>(sum, out);
}

template <typename T, typename W>
const char* LaunchEmbeddingBackwardOf(const EmbeddingBackwardArgs& a,
                                      void* stream) {
  constexpr int kV = kVector<T>;
  const bool vectors = Vectors<T>({a.hidden}, {a.dy}) &&
                       Vectors<W>({a.hidden}, {a.d_weight}, kV);
  const int64_t tiles = CeilDiv(a.hidden, 32 * (vectors ? kV : 1));
  return Launch(vectors ? EmbeddingBackwardKernel<T, W, kV>
                        : EmbeddingBackwardKernel<T, W, 1>,
                a.rows * tiles, 32 * kTokenWarps, 0, a, stream);
}

}  // namespace

const char* LaunchCrossEntropy(const CrossEntropyArgs& a, void* stream) {
  const char* error = ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kV = kVector<T>;
    const bool vectors = Vectors<T>({a.vocab}, {a.logits});
    const auto plain = vectors ? CrossEntropyKernel<T, false, kV>
                               : CrossEntropyKernel<T, false, 1>;
    const auto smooth = vectors ? CrossEntropyKernel<T, true, kV>
                                : CrossEntropyKernel<T, true, 1>;
    return Launch(a.smoothing == 0.0f ? plain : smooth, a.rows, kRowThreads, 0,
                  a, stream);
  });
  if (error != nullptr) return error;
  return Launch(SumLossesKernel, 1, kSumThreads, 0, a, stream);
}

const char* LaunchEmbeddingBackward(const EmbeddingBackwardArgs& a,
                                    void* stream) {
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    if (a.weight_dtype == DType::kFloat32) {
      return LaunchEmbeddingBackwardOf<T, float>(a, stream);
    }
    if (a.weight_dtype != a.dtype) {
      return "the embedding's gradient has neither dy's dtype nor float32";
    }
    return LaunchEmbeddingBackwardOf<T, T>(a, stream);
  });
}

}  // namespace capstan::kernels::cuda
