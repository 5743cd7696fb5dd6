// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_BUCKET_SIZE_H_
#define CAPSTAN_STRATEGIES_COMMON_BUCKET_SIZE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plugins/sdk/model.h"

namespace capstan {

// How many of the gradients of `specs` to reduce at a time, if the user doesn't
// say; at least `least`, which is what ranks on CPUs take, as they meet in
// memory. Among GPUs a collective's latency grows with the ranks: 40 million,
// or a million for each rank if that is more, as Megatron-Core's
// DistributedDataParallelConfig.bucket_size; but at most a quarter of all, so
// that most of them are reduced while backward runs.
inline int64_t DefaultBucket(bool on_gpus, int world_size,
                             const std::vector<ParameterSpec>& specs,
                             int64_t least) {
  if (!on_gpus) return least;
  int64_t elements = 0;
  for (const ParameterSpec& spec : specs) {
    if (spec.trainable) elements += spec.numel();
  }
  constexpr int64_t kMillion = 1000 * 1000;
  const int64_t bucket = std::max(40 * kMillion, kMillion * world_size);
  return std::max(least, std::min(bucket, elements / 4));
}

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_BUCKET_SIZE_H_
