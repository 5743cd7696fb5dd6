// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of past positions, for generation token by token.
#ifndef CAPSTAN_KERNELS_ATTENTION_LAYER_CACHE_H_
#define CAPSTAN_KERNELS_ATTENTION_LAYER_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan::kernels {

// All keys and values so far, [batch, L, width], with any strides in the first
// two dimensions.
struct CachedKeyValue {
  at::Tensor k;
  at::Tensor v;
};

// What the layers of a cache have in common.
struct CacheExtent {
  int64_t batch = 1;
  int64_t max_length = 0;
  int64_t width = 0;  // kv_heads * head_dim
  at::TensorOptions options;
  int64_t length = 0;  // positions that all layers hold
};

// What one layer keeps, [batch or more, room, width], whose room grows by need,
// up to max_length.
class LayerCache {
 public:
  // `extent` outlives this. Its owner adds to the length once all layers have
  // appended.
  explicit LayerCache(const CacheExtent* extent) : extent_(extent) {}

  // Writes k and v [batch * T, width] of new tokens after the first
  // extent->length positions; returns all up to them.
  CachedKeyValue Append(const at::Tensor& k, const at::Tensor& v);

  // Row i is then what rows[i] was, for int64 rows on the CPU, of which the
  // extent is to have as many.
  void KeepRows(const at::Tensor& rows);

  // Adds the rows of `other`. All then have `length` positions, the greater of
  // both lengths, of which the first of a shorter row are zeros. The extent is
  // changed afterwards.
  void Join(const LayerCache& other, int64_t length);
  // Forgets the first positions of all rows. The extent is changed afterwards.
  void DropFront(int64_t positions);

 private:
  // Makes room for `positions`.
  void Grow(int64_t positions);

  const CacheExtent* const extent_;
  at::Tensor k_, v_;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_LAYER_CACHE_H_
