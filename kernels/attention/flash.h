// SPDX-License-Identifier: Apache-2.0
//
// Attention on GPUs by ATen's flash kernels (Dao, "FlashAttention-2", 2023),
// called directly: at::scaled_dot_product_attention takes neither documents of
// different lengths nor windows but as a mask of T x T, for which it takes
// other kernels and keys repeated for each head of a group.
#ifndef CAPSTAN_KERNELS_ATTENTION_FLASH_H_
#define CAPSTAN_KERNELS_ATTENTION_FLASH_H_

#include <ATen/core/Tensor.h>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// Whether the flash kernels support this: 16-bit q on a GPU of compute
// capability 8.0 or more, heads of up to 256 numbers, a multiple of 8, without
// a soft-cap, and not switched off in at::Context (setSDPUseFlash). `packing`
// (null: none) must know its documents.
bool CanUseFlash(const at::Tensor& q, const AttentionShape& shape,
                 const PackedRows* packing);
// The same for the shape alone.
bool IsFlashShape(const AttentionShape& shape, const PackedRows* packing);

// As Attention, or with k and v as for CachedAttention, whose queries are the
// last of L positions; within the documents of `packing` unless it is null, for
// which k and v must be Attention's. With gradients; their bits are the same in
// each run if at::Context wants deterministic algorithms, and more than a
// warning.
at::Tensor FlashAttention(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape,
                          const PackedRows* packing);

// As FlashAttention, of the queries of one chunk of each row; k and v end where
// the keys do that any of them sees.
at::Tensor FlashAttentionOfChunk(const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v,
                                 const AttentionShape& shape,
                                 const ChunkParts& parts);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_FLASH_H_
