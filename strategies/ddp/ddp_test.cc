// SPDX-License-Identifier: Apache-2.0
//
// Settings only: what ddp computes is compared with `single` and with PyTorch
// in tests/parity, on real processes.
#include "strategies/ddp/ddp.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace capstan {
namespace ddp {
namespace {

TEST(DdpTest, DefaultsAreValid) {
  const auto ddp = Ddp::Create(Config());
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  StrategyRequest request;
  EXPECT_TRUE((*ddp)->Check(request).ok());
  request.world_size = 7;
  EXPECT_TRUE((*ddp)->Check(request).ok());
}

TEST(DdpTest, NegativeSizesNameTheirField) {
  Config config;
  config.set_bucket_cap_mib(-1);
  EXPECT_EQ(FieldOf(Ddp::Create(config).status()), "bucket_cap_mib");
  config.set_bucket_cap_mib(1);
  config.set_first_bucket_mib(-1);
  EXPECT_EQ(FieldOf(Ddp::Create(config).status()), "first_bucket_mib");
}

}  // namespace
}  // namespace ddp
}  // namespace capstan
