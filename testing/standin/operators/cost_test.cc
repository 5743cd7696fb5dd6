// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/cost.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>

#include <vector>

namespace capstan::standin {
namespace {

Cost Of(const char* name, const char* overload,
        const std::vector<c10::IValue>& arguments,
        const std::vector<c10::IValue>& results) {
  return CostOf(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema(),
      arguments, results);
}

at::Tensor Floats(std::vector<int64_t> sizes) { return at::empty(sizes); }
at::Tensor Halves(std::vector<int64_t> sizes) {
  return at::empty(sizes, at::kBFloat16);
}

TEST(CostTest, AProductIsTwoOperationsAPair) {
  const Cost cost =
      Of("aten::mm", "", {Halves({3, 5}), Halves({5, 7})}, {Halves({3, 7})});
  EXPECT_EQ(cost.flops, 2.0 * 3 * 5 * 7);
  EXPECT_EQ(cost.unit, Unit::kHalf);
  EXPECT_EQ(cost.products, 1);
  EXPECT_EQ(cost.m, 3);
  EXPECT_EQ(cost.n, 7);
  EXPECT_EQ(cost.k, 5);
  EXPECT_EQ(cost.bytes_read, 2 * (15 + 35));
  EXPECT_EQ(cost.bytes_written, 2 * 21);
  EXPECT_EQ(cost.launches, 1);
  const Cost batched =
      Of("aten::bmm", "", {Floats({4, 3, 5}), Floats({4, 5, 7})},
         {Floats({4, 3, 7})});
  EXPECT_EQ(batched.flops, 4 * cost.flops);
  EXPECT_EQ(batched.products, 4);
  EXPECT_EQ(batched.m, 3);
  EXPECT_EQ(batched.unit, Unit::kVector);
}

TEST(CostTest, AddingAMatrixToAProductCopiesItUnlessItIsTheResult) {
  const at::Tensor a = Floats({3, 5}), b = Floats({5, 7}), c = Floats({3, 7});
  EXPECT_EQ(Of("aten::addmm", "", {c, a, b, 1, 1}, {Floats({3, 7})}).launches,
            2);
  EXPECT_EQ(Of("aten::addmm", "", {Floats({7}), a, b, 1, 1}, {Floats({3, 7})})
                .launches,
            1);
  const Cost cost = Of("aten::addmm", "out", {c, a, b, 1, 1, c}, {});
  EXPECT_EQ(cost.launches, 1);
  EXPECT_EQ(cost.bytes_read, 4 * (21 + 15 + 35));
  EXPECT_EQ(cost.bytes_written, 4 * 21);
}

TEST(CostTest, InPlaceReadsAndWritesAndFillingOnlyWrites) {
  const at::Tensor a = Floats({6, 4});
  const Cost add = Of("aten::add_", "Tensor", {a, Floats({6, 4}), 1}, {});
  EXPECT_EQ(add.bytes_read, 2 * 96);
  EXPECT_EQ(add.bytes_written, 96);
  EXPECT_EQ(add.flops, 48);
  const Cost zero = Of("aten::zero_", "", {a}, {});
  EXPECT_EQ(zero.bytes_read, 0);
  EXPECT_EQ(zero.bytes_written, 96);
}

TEST(CostTest, WhatAnExpandedDimensionRepeatsIsReadOnce) {
  EXPECT_EQ(BytesOf(Floats({1, 4}).expand({6, 4})), 16);
  EXPECT_EQ(BytesOf(Floats({0, 4})), 0);
  EXPECT_EQ(BytesOf(at::Tensor()), 0);
}

TEST(CostTest, GatheringReadsWhatItReturns) {
  const at::Tensor index = at::empty({5}, at::kLong);
  const Cost cost = Of("aten::index_select", "", {Floats({1000, 8}), 0, index},
                       {Floats({5, 8})});
  EXPECT_EQ(cost.bytes_read, 5 * 8 * 4 + 5 * 8);
  EXPECT_EQ(cost.bytes_written, 5 * 8 * 4);
}

TEST(CostTest, LaunchesOfMoreThanOneKernel) {
  const at::Tensor few = at::empty({100}, at::kLong);
  const at::Tensor many = at::empty({10000}, at::kLong);
  EXPECT_EQ(Of("aten::sort", "", {few, 0, false}, {}).launches, 2);
  EXPECT_EQ(Of("aten::sort", "", {many, 0, false}, {}).launches, 11);
  EXPECT_EQ(
      Of("aten::copy_", "", {few, at::empty_like(few), false}, {}).launches, 0);
  EXPECT_EQ(Of("aten::copy_", "", {few, few.to(at::kInt), false}, {}).launches,
            1);
  const std::vector<at::Tensor> list(200, Floats({4}));
  EXPECT_EQ(Of("aten::_foreach_mul_", "Scalar", {list, 2.0}, {}).launches, 2);
  EXPECT_EQ(Of("aten::_foreach_add_", "List", {list, list, 1}, {}).launches, 4);
}

TEST(CostTest, Attention) {
  AttentionSizes sizes = {/*batch=*/2, /*heads=*/3, /*queries=*/64,
                          /*keys=*/64, /*head_dim=*/16};
  const double all = 4.0 * 2 * 3 * 64 * 64 * 16;
  EXPECT_EQ(AttentionFlops(sizes), all);
  EXPECT_EQ(AttentionBackwardFlops(sizes), 2.5 * all);
  sizes.causal = true;
  EXPECT_EQ(AttentionFlops(sizes), all / 2);
  sizes.window = 16;
  EXPECT_EQ(AttentionFlops(sizes), all / 4);
}

}  // namespace
}  // namespace capstan::standin
