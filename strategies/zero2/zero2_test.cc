// SPDX-License-Identifier: Apache-2.0
//
// Settings only: tests/parity and tests/conformance compare zero2's results
// with `single` and with PyTorch, on real processes.
#include "strategies/zero2/zero2.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace capstan {
namespace zero2 {
namespace {

TEST(Zero2Test, NegativeSizesNameTheirField) {
  Config config;
  config.set_reduce_bucket_size(-1);
  EXPECT_EQ(FieldOf(Zero2::Create(config).status()), "reduce_bucket_size");
  config.set_reduce_bucket_size(1);
  config.set_allgather_bucket_size(-1);
  EXPECT_EQ(FieldOf(Zero2::Create(config).status()), "allgather_bucket_size");
}

TEST(Zero2Test, RefusesDtypesThatItCannotSum) {
  const auto zero2 = Zero2::Create(Config());
  ASSERT_TRUE(zero2.ok());
  StrategyRequest request;
  request.world_size = 3;
  EXPECT_TRUE((*zero2)->Check(request).ok());
  request.precision.reduce = c10::ScalarType::Char;
  EXPECT_EQ((*zero2)->Check(request).message(),
            "the precision asks for summing gradients in Char, this strategy "
            "works with Float, BFloat16 and Half: choose another precision");
}

}  // namespace
}  // namespace zero2
}  // namespace capstan
