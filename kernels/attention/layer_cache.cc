// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/layer_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/to_device.h"

namespace capstan::kernels {
namespace {

// Room that a cache begins with.
constexpr int64_t kFirstPositions = 64;

}  // namespace

void LayerCache::Grow(int64_t positions) {
  const int64_t room = k_.defined() ? k_.size(1) : 0;
  if (positions <= room) return;
  const int64_t length = extent_->length;
  // On a GPU all of it at once: it has been counted, and growing would hold old
  // and new. A host's memory isn't taken before it is written.
  const int64_t more =
      extent_->options.device().is_cuda()
          ? extent_->max_length
          : std::min(extent_->max_length,
                     std::max(positions, std::max(2 * room, kFirstPositions)));
  for (at::Tensor* const x : {&k_, &v_}) {
    const at::Tensor grown =
        at::empty({extent_->batch, more, extent_->width}, extent_->options);
    if (length > 0) {
      grown.narrow(1, 0, length).copy_(x->narrow(1, 0, length));
    }
    *x = grown;
  }
}

CachedKeyValue LayerCache::Append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t batch = extent_->batch, length = extent_->length;
  const int64_t added = k.size(0) / batch;
  Grow(length + added);
  const auto put = [&](const at::Tensor& cache, const at::Tensor& x) {
    if (cache.is_cpu() && x.is_contiguous() &&
        x.scalar_type() == cache.scalar_type()) {
      // As copy_, which takes longer than a row's memory does.
      const int64_t bytes = x.element_size() * extent_->width;
      auto* to = static_cast<char*>(cache.mutable_data_ptr()) + length * bytes;
      const auto* from = static_cast<const char*>(x.const_data_ptr());
      for (int64_t row = 0; row < batch; ++row) {
        std::memcpy(to, from, added * bytes);
        to += cache.stride(0) * x.element_size();
        from += added * bytes;
      }
    } else {
      cache.narrow(1, length, added).copy_(x.view({batch, added, -1}));
    }
    return cache.narrow(1, 0, length + added);
  };
  return {put(k_, k), put(v_, v)};
}

void LayerCache::KeepRows(const at::Tensor& rows) {
  if (!k_.defined()) return;
  const int64_t* const from = rows.const_data_ptr<int64_t>();
  const int64_t count = rows.numel(), length = extent_->length;
  // In place where none is overwritten before it has moved.
  const bool ascending =
      std::adjacent_find(from, from + count, std::greater_equal<int64_t>()) ==
      from + count;
  for (at::Tensor* const x : {&k_, &v_}) {
    if (!ascending) {
      *x = x->index_select(0, ToDevice(rows, x->device()));
      continue;
    }
    for (int64_t to = 0; to < count; ++to) {
      if (from[to] == to) continue;
      x->select(0, to)
          .narrow(0, 0, length)
          .copy_(x->select(0, from[to]).narrow(0, 0, length));
    }
    *x = x->narrow(0, 0, count);
  }
}

}  // namespace capstan::kernels
