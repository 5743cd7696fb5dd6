// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_DDP_BUCKET_SIZE_H_
#define CAPSTAN_STRATEGIES_DDP_BUCKET_SIZE_H_

#include <algorithm>
#include <cstdint>

namespace capstan::ddp {

constexpr int64_t kLeastBucketBytes = int64_t{25} << 20;

// The default size of a bucket in bytes, for so many gradients of
// `element_bytes` each. On the CPU, where ranks meet in memory, 25 MiB, as
// PyTorch's. Among GPUs a collective's latency grows with the ranks: 40 million
// elements, or a million for each rank if that is more, as Megatron-Core's
// DistributedDataParallelConfig.bucket_size; but at most a quarter of all, so
// that most of them are reduced while backward runs.
inline int64_t DefaultBucketBytes(bool on_gpus, int world_size,
                                  int64_t elements, int64_t element_bytes) {
  if (!on_gpus) return kLeastBucketBytes;
  constexpr int64_t kMillion = 1000 * 1000;
  const int64_t bucket = std::max(40 * kMillion, kMillion * world_size);
  return std::max(kLeastBucketBytes,
                  std::min(bucket, elements / 4) * element_bytes);
}

}  // namespace capstan::ddp

#endif  // CAPSTAN_STRATEGIES_DDP_BUCKET_SIZE_H_
