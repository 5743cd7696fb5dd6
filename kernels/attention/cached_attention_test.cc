// SPDX-License-Identifier: Apache-2.0
//
// Attention with a cache equals the last rows of attention without one, also
// for sequences that are padded on the left.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/layer_cache.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kKeys = 90;

AttentionShape Gemma() { return {2, 4, 2, 8, true, 0.5, 2.0, 17}; }

struct Cached {
  explicit Cached(const AttentionShape& shape, at::ScalarType type)
      : q(Make(shape.heads, shape, type)),
        k(Make(shape.kv_heads, shape, type)),
        v(Make(shape.kv_heads, shape, type)) {}
  static at::Tensor Make(int64_t heads, const AttentionShape& shape,
                         at::ScalarType type) {
    return Wave({shape.batch, kKeys, heads * shape.head_dim}, 2.0).to(type);
  }
  at::Tensor q, k, v;  // [batch, kKeys, ..]
};

// Rows [batch * n, ..] of positions [begin, kKeys).
at::Tensor Rows(const at::Tensor& x, int64_t begin) {
  return x.narrow(1, begin, kKeys - begin)
      .reshape({-1, x.size(2)})
      .contiguous();
}

double Bound(at::ScalarType type) { return type == at::kFloat ? 1e-6 : 0.02; }

TEST(CachedAttentionTest, EqualsTheLastRows) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 4, 2, 8},
        AttentionShape{2, 4, 4, 8, true, 0.0, 0.0, 17}, Gemma(),
        AttentionShape{2, 4, 2, 8, /*causal=*/false}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Cached c(shape, type);
      const at::Tensor all =
          Attention(Rows(c.q, 0), Rows(c.k, 0), Rows(c.v, 0), shape)
              .view(c.q.sizes());
      for (const int64_t queries : {1, 2, 70, 90}) {
        const at::Tensor got =
            CachedAttention(Rows(c.q, kKeys - queries), c.k, c.v, shape);
        EXPECT_LT(Difference(got, Rows(all, kKeys - queries)), Bound(type))
            << queries;
      }
    }
  }
}

TEST(CachedAttentionTest, PaddingIsNotSeen) {
  const AttentionShape shape = Gemma();
  const at::Tensor first = at::tensor({40, 0}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Cached c(shape, type);
    AttentionShape alone = shape;
    alone.batch = 1;
    const auto real = [](const at::Tensor& x) {
      return x.narrow(0, 0, 1)
          .narrow(1, 40, kKeys - 40)
          .reshape({-1, x.size(2)});
    };
    const at::Tensor wanted = Attention(real(c.q), real(c.k), real(c.v), alone);
    // What stands in the padding is of no matter.
    c.k[0].narrow(0, 0, 40).fill_(1e4);
    c.v[0].narrow(0, 0, 40).fill_(1e4);
    for (const int64_t queries : {1, 50, 70, 90}) {
      const at::Tensor got =
          CachedAttention(Rows(c.q, kKeys - queries), c.k, c.v, shape, first)
              .view({2, queries, -1});
      EXPECT_TRUE(got.isfinite().all().item<bool>());
      const int64_t seen = std::min<int64_t>(queries, kKeys - 40);
      EXPECT_LT(Difference(got[0].narrow(0, queries - seen, seen),
                           wanted.narrow(0, kKeys - 40 - seen, seen)),
                Bound(type))
          << queries;
      const at::Tensor whole =
          CachedAttention(Rows(c.q, kKeys - queries), c.k, c.v, shape)
              .view({2, queries, -1});
      EXPECT_LT(Difference(got[1], whole[1]), Bound(type)) << queries;
    }
  }
}

// As the batch grows, shrinks and is put in another order.
TEST(LayerCacheTest, KeepsWhatIsAppended) {
  constexpr int64_t kWidth = 3;
  const at::Tensor all = Wave({3, kKeys, kWidth}, 2.0);
  CacheExtent extent = {3, kKeys, kWidth, all.options()};
  LayerCache cache(&extent);
  at::Tensor rows = at::tensor({0, 1, 2}, at::kLong);  // of `all`
  const auto append = [&](int64_t count) {
    const at::Tensor of_rows = all.index_select(0, rows);
    const at::Tensor k =
        of_rows.narrow(1, extent.length, count).reshape({-1, kWidth});
    const CachedKeyValue so_far = cache.Append(k, k * 2.0);
    extent.length += count;
    const at::Tensor wanted = of_rows.narrow(1, 0, extent.length);
    EXPECT_TRUE(so_far.k.equal(wanted));
    EXPECT_TRUE(so_far.v.equal(wanted * 2.0));
  };
  const auto keep = [&](const at::Tensor& kept) {
    cache.KeepRows(kept);
    extent.batch = kept.numel();
    rows = rows.index_select(0, kept);
  };
  append(40);
  append(1);
  keep(at::tensor({0, 2}, at::kLong));
  append(30);  // more room than at first
  keep(at::tensor({1, 0, 1}, at::kLong));
  append(1);
  extent.length = 50;  // back
  append(40);
}

// A batch that never ends, of ever longer newcomers.
TEST(LayerCacheTest, HasFewMoreRowsThanAreUsed) {
  constexpr int64_t kWidth = 2, kRows = 8, kMost = 1000;
  CacheExtent extent = {1, kMost, kWidth, at::TensorOptions(at::kFloat)};
  LayerCache cache(&extent);
  const auto append = [&](CacheExtent* to, LayerCache* of, int64_t count) {
    const at::Tensor k = Wave({to->batch * count, kWidth}, 2.0);
    const CachedKeyValue all = of->Append(k, k);
    to->length += count;
    return static_cast<int64_t>(all.k.storage().nbytes()) /
           (all.k.stride(0) * static_cast<int64_t>(sizeof(float)));
  };
  append(&extent, &cache, 10);
  int64_t held = 0;
  for (int64_t i = 0; i < 50; ++i) {
    CacheExtent other_extent = {1, kMost, kWidth, extent.options};
    LayerCache other(&other_extent);
    append(&other_extent, &other, 12 + 2 * i);
    if (extent.batch == kRows) {
      cache.KeepRows(at::tensor({0, 1, 2, 3, 4, 5, 6}, at::kLong));
      extent.batch = kRows - 1;
    }
    cache.Join(other, other_extent.length);
    extent.length = other_extent.length;
    ++extent.batch;
    held = append(&extent, &cache, 1);
    EXPECT_LE(held, kRows + kRows / 4) << i;
  }
  cache.KeepRows(at::tensor({0, 5}, at::kLong));
  extent.batch = 2;
  EXPECT_LE(append(&extent, &cache, 1), 3);
  cache.DropFront(extent.length - 5);
  extent.length = 5;
  const at::Tensor k = Wave({2, kWidth}, 2.0);
  EXPECT_LE(cache.Append(k, k).k.stride(0), 64 * kWidth);
}

}  // namespace
}  // namespace capstan::kernels
