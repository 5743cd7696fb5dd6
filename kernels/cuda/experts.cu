// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts: rows to the places of their choices, and back.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

// A block makes one group. Each thread has a strip of the choices, of which it
// counts those of the groups before and those of this one; then it knows where
// its own go.
__global__ void __launch_bounds__(kBlockThreads)
    GroupChoicesKernel(const GroupChoicesArgs a) {
  __shared__ int32_t counts[kBlockThreads];
  const int thread = threadIdx.x, threads = blockDim.x;
  const int32_t group = blockIdx.x;
  const int32_t expert = a.reversed ? a.experts - 1 - group : group;
  const int64_t strip = (a.choices + threads - 1) / threads;
  const int64_t begin = thread * strip;
  const int64_t end = begin + strip < a.choices ? begin + strip : a.choices;
  int32_t before = 0, mine = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t e = a.expert[i];
    mine += e == expert ? 1 : 0;
    before += (a.reversed ? e > expert : e < expert) ? 1 : 0;
  }
  before = BlockReduce(before, Add());
  counts[thread] = mine;
  __syncthreads();
  int32_t earlier = 0, all = 0;  // this group's, of threads before; of all
  for (int t = 0; t < threads; ++t) {
    if (t < thread) earlier += counts[t];
    all += counts[t];
  }
  const int32_t first = before + (a.padded ? group : 0);
  int32_t place = first + earlier;
  for (int64_t i = begin; i < end; ++i) {
    if (a.expert[i] != expert) continue;
    a.row[place] = i / a.top_k;
    a.sorted_share[place] = a.share[i];
    a.order[i] = place;
    ++place;
  }
  if (thread != 0) return;
  if (a.padded) {
    a.row[first + all] = 0;
    a.sorted_share[first + all] = 0.0f;
  }
  a.ends[group] = first + all + (a.padded ? 1 : 0);
  a.chosen[expert] = static_cast<float>(all);
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlockThreads)
    SumChosenKernel(const SumChosenArgs a) {
  const auto [row, column] = PlaceIn<V>(a.rows, a.n);
  if (column >= a.n) return;
  float sum[V] = {};
  if (a.add != nullptr) {
    Load<V>(static_cast<const T*>(a.add) + row * a.n + column, sum);
  }
  const T* x = static_cast<const T*>(a.x) + column;
  for (int64_t i = row * a.top_k; i < (row + 1) * a.top_k; ++i) {
    float f[V];
    Load<V>(x + a.order[i] * a.n, f);
    const float share = a.share == nullptr ? 1.0f : a.share[i];
    for (int j = 0; j < V; ++j) sum[j] += share * f[j];
  }
  Store<V>(sum, static_cast<T*>(a.y) + row * a.n + column);
}

}  // namespace

const char* LaunchGroupChoices(const GroupChoicesArgs& a, void* stream) {
  if (a.choices + a.experts > INT32_MAX) return "there are too many rows";
  return Launch(GroupChoicesKernel, a.experts, kBlockThreads, 0, a, stream);
}

const char* LaunchSumChosen(const SumChosenArgs& a, void* stream) {
  if (a.n > INT32_MAX) return "rows are too long";
  return ByType(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors = Vectors<T>({a.n}, {a.x, a.add, a.y});
    return LaunchRows(
        vectors ? SumChosenKernel<T, kVector<T>> : SumChosenKernel<T, 1>,
        a.rows, a, vectors ? kVector<T> : 1, stream);
  });
}

}  // namespace capstan::kernels::cuda
