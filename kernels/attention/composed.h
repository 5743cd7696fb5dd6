// SPDX-License-Identifier: Apache-2.0
//
// Attention by ATen's operators: for float64 on CPUs, and on GPUs what the
// flash kernels don't take.
#ifndef CAPSTAN_KERNELS_ATTENTION_COMPOSED_H_
#define CAPSTAN_KERNELS_ATTENTION_COMPOSED_H_

#include <ATen/core/Tensor.h>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// What limits attention besides AttentionShape.
struct AttentionLimits {
  const PackedRows* packing = nullptr;  // as a mask
  AttentionMasks* masks = nullptr;
  at::Tensor first = {};  // see CachedAttention
  // [rows, 1, queries, keys] bool: a packing's mask of a chunk of queries.
  at::Tensor seen = {};
};

// As Attention, or with k and v as for CachedAttention.
at::Tensor ComposedAttention(const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionShape& shape,
                             const AttentionLimits& limits);

// On CPUs (of float64) document by document; on GPUs, which would have to
// launch kernels for each, with a mask.
at::Tensor ComposedPackedAttention(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const PackedRows& packing,
                                   AttentionMasks* masks);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_COMPOSED_H_
