// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/product_model.h"

#include <gtest/gtest.h>

#include "trainer/profile/gpu_specs.h"

namespace capstan {
namespace {

constexpr int kH100 = 132;

double Of(int64_t m, int64_t n, int64_t k, int64_t products = 1) {
  return ProductFraction({products, m, n, k}, kH100);
}

TEST(ProductModel, LargeProductsAreNearTheBest) {
  EXPECT_GT(Of(8192, 8192, 8192), 0.94);
  EXPECT_LE(Of(6144, 17920, 2816), 1.0);
  EXPECT_GT(Of(6144, 17920, 2816), 0.93);
}

TEST(ProductModel, ALastWaveThatIsNotFullIsLost) {
  // 132 tiles of 256 x 128 are one wave, 133 two.
  const double full = Of(256 * 132, 128, 4096);
  EXPECT_NEAR(full, 4096.0 / (4096 + 128), 1e-9);
  EXPECT_LT(Of(256 * 133, 128, 4096), 0.75 * full);
}

TEST(ProductModel, TilesOverTheEdgeAreLost) {
  // One row takes a tile's time.
  EXPECT_LT(Of(1, 8192, 8192), 0.02);
  EXPECT_LT(Of(4096, 1, 4096), 0.02);
}

TEST(ProductModel, AShortLoopOverKIsMostlyStartAndEnd) {
  EXPECT_LT(Of(8192, 8192, 64), 0.5 * Of(8192, 8192, 8192));
}

// Few tiles and a long k: the gradient of a small weight.
TEST(ProductModel, ALongKIsSplit) {
  EXPECT_GT(Of(576, 576, 16384), 0.4);
  EXPECT_LT(Of(576, 576, 512), 0.3);
}

TEST(ProductModel, BatchesFillTheMultiprocessors) {
  EXPECT_GT(Of(256, 128, 256, 132), 4 * Of(256, 128, 256));
}

TEST(ProductModel, UnknownShapesAndCardsAreTheBest) {
  EXPECT_EQ(ProductFraction({}, kH100), 1.0);
  EXPECT_EQ(ProductFraction({1, 1, 1, 1}, 0), 1.0);
}

TEST(ProductModel, EveryCardsMultiprocessorsAreKnown) {
  for (const GpuSpecs& gpu : AllGpuSpecs()) {
    EXPECT_GT(MultiprocessorsOf(gpu.key), 0) << gpu.key;
  }
}

}  // namespace
}  // namespace capstan
