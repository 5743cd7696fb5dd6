// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_EXACT_PINNED_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_EXACT_PINNED_H_

namespace capstan {

// From now on pinned tensors that stay for the run (MemoryCategory parameters,
// gradients, masters, optimizer state) take what they hold. LibTorch's own
// allocator, which makes the others, rounds up to a power of two, so that what
// was freed fits the next: a shard of 33 GiB would take 64.
void TakeExactPinnedMemory();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_EXACT_PINNED_H_
