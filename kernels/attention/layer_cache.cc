// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/layer_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/to_device.h"

namespace capstan::kernels {
namespace {

// Room that a cache begins with.
constexpr int64_t kFirstPositions = 64;

// Copies `x` [rows, L, width] so that it ends at position `length` of `to`, and
// zeros before it: what isn't attended to is multiplied by 0, and must not be a
// NaN.
void PutEnd(const at::Tensor& x, int64_t length, const at::Tensor& to) {
  const int64_t padding = length - x.size(1);
  to.narrow(1, 0, padding).zero_();
  to.narrow(1, padding, x.size(1)).copy_(x);
}

// Rows that a cache has where more than `held` are needed: some more, so that
// each newcomer seldom has all of them copied.
int64_t RowsFor(int64_t needed, int64_t held) {
  return needed <= held ? held : std::max(needed, held + held / 4);
}

// Fewer than `held` where most of them are empty.
int64_t RowsLeft(int64_t needed, int64_t held) {
  return held > needed + needed / 2 + 1 ? needed + needed / 4 : held;
}

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
    const int64_t rows = room == 0 ? extent_->batch : x->size(0);
    const at::Tensor grown =
        at::empty({rows, more, extent_->width}, extent_->options);
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
      cache.narrow(0, 0, batch)
          .narrow(1, length, added)
          .copy_(x.view({batch, added, -1}));
    }
    return cache.narrow(0, 0, batch).narrow(1, 0, length + added);
  };
  return {put(k_, k), put(v_, v)};
}

void LayerCache::KeepRows(const at::Tensor& rows) {
  if (!k_.defined()) return;
  const int64_t* const from = rows.const_data_ptr<int64_t>();
  const int64_t count = rows.numel(), length = extent_->length;
  // In place where none is overwritten before it has moved.
  bool in_place = true;
  for (int64_t to = 0; to < count; ++to) {
    in_place = in_place && from[to] >= to;
  }
  for (at::Tensor* const x : {&k_, &v_}) {
    if (!in_place) {
      *x = x->index_select(0, ToDevice(rows, x->device()));
      continue;
    }
    for (int64_t to = 0; to < count; ++to) {
      if (from[to] == to) continue;
      x->select(0, to)
          .narrow(0, 0, length)
          .copy_(x->select(0, from[to]).narrow(0, 0, length));
    }
    const int64_t left = RowsLeft(count, x->size(0));
    if (left == x->size(0)) continue;
    const at::Tensor less =
        at::empty({left, x->size(1), extent_->width}, extent_->options);
    less.narrow(0, 0, count)
        .narrow(1, 0, length)
        .copy_(x->narrow(0, 0, count).narrow(1, 0, length));
    *x = less;
  }
}

void LayerCache::Join(const LayerCache& other, int64_t length) {
  const int64_t mine = extent_->batch, theirs = other.extent_->batch;
  const int64_t moved = length - extent_->length;
  for (const auto& [x, y] : {std::pair(&k_, &other.k_), {&v_, &other.v_}}) {
    const int64_t rows = mine + theirs;
    if (moved > 0 || x->size(0) < rows || x->size(1) < length) {
      const at::Tensor grown =
          at::empty({RowsFor(rows, x->size(0)), std::max(length, x->size(1)),
                     extent_->width},
                    extent_->options);
      PutEnd(x->narrow(0, 0, mine).narrow(1, 0, extent_->length), length,
             grown.narrow(0, 0, mine));
      *x = grown;
    }
    PutEnd(y->narrow(0, 0, theirs).narrow(1, 0, other.extent_->length), length,
           x->narrow(0, mine, theirs));
  }
}

void LayerCache::DropFront(int64_t positions) {
  const int64_t left = extent_->length - positions;
  for (at::Tensor* const x : {&k_, &v_}) {
    // A GPU's cache would take all its room again with the next token.
    const int64_t room =
        x->is_cuda()
            ? x->size(1)
            : std::min(x->size(1), std::max(2 * left, kFirstPositions));
    const at::Tensor moved =
        at::empty({x->size(0), room, extent_->width}, extent_->options);
    moved.narrow(0, 0, extent_->batch)
        .narrow(1, 0, left)
        .copy_(x->narrow(0, 0, extent_->batch).narrow(1, positions, left));
    *x = moved;
  }
}

}  // namespace capstan::kernels
