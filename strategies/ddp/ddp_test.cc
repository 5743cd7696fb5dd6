// SPDX-License-Identifier: Apache-2.0
//
// Settings only: tests/parity compares ddp's results with `single` and with
// PyTorch, on real processes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/status.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/ddp/ddp.pb.h"

namespace capstan::ddp {
namespace {

// A group of one that records the lengths of its all-reduces.
class LoneGroup final : public IdleGroup {
 public:
  LoneGroup() : IdleGroup(0, 1) {}

  const std::vector<int64_t>& reduced() const { return reduced_; }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    reduced_.push_back(tensor.numel());
    return IdleGroup::AllReduce(tensor);
  }

 private:
  std::vector<int64_t> reduced_;
};

TEST(DdpTest, DefaultsAreValid) {
  const auto ddp = MakePlugin<Strategy>(Config());
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  StrategyRequest request;
  EXPECT_TRUE((*ddp)->Check(request).ok());
  request.world_size = 7;
  EXPECT_TRUE((*ddp)->Check(request).ok());
}

TEST(DdpTest, NegativeSizesNameTheirField) {
  Config config;
  config.set_bucket_cap_mib(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()), "bucket_cap_mib");
  config.set_bucket_cap_mib(1);
  config.set_first_bucket_mib(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()), "first_bucket_mib");
  EXPECT_EQ(MakePlugin<Strategy>(config).status().message(),
            "must be a size, or 0 for the default, is -1");
}

// A size of more than 2^63 bytes just makes one bucket.
TEST(DdpTest, AHugeSizeIsOneBucket) {
  Config config;
  config.set_bucket_cap_mib(1e300);
  config.set_first_bucket_mib(1e300);
  const auto ddp = MakePlugin<Strategy>(config);
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  IdleModel model({{"a", {32}}, {"b", {32}}}, 1);
  LoneGroup group;
  StrategyContext context;
  context.model = &model;
  context.group = &group;
  ASSERT_TRUE((*ddp)->Setup(context).ok());
  (*ddp)->BeginMicroStep(0, 1);
  (*ddp)->FinishBackward();
  EXPECT_EQ(group.reduced(), std::vector<int64_t>({64}));
}

}  // namespace
}  // namespace capstan::ddp
