// SPDX-License-Identifier: Apache-2.0
//
// Settings only: tests/parity compares ddp's results with `single` and with
// PyTorch, on real processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/ddp/ddp.pb.h"

namespace capstan::ddp {
namespace {

// A unit with two parameters of 32 elements.
class TwoParameters final : public Model {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t count,
                            float* out) const override {
    std::fill(out, out + count, 1.0f);
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

 private:
  const std::vector<std::string> units_ = {"unit"};
  const std::vector<ParameterSpec> specs_ = {{"a", {32}}, {"b", {32}}};
};

// A group of one that records the lengths of its all-reduces.
class LoneGroup final : public ProcessGroup {
 public:
  class Done final : public Work {
   public:
    void Wait() override {}
  };

  const std::vector<int64_t>& reduced() const { return reduced_; }

  int rank() const override { return 0; }
  int size() const override { return 1; }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "none"; }
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    reduced_.push_back(tensor.numel());
    return std::make_unique<Done>();
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor&,
                                      const at::Tensor&) override {
    return nullptr;
  }
  std::unique_ptr<Work> AllGather(const at::Tensor&,
                                  const at::Tensor&) override {
    return nullptr;
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor&, int) override {
    return nullptr;
  }
  void AllReduceHost(absl::Span<double>) override {}
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int) override {
    return absl::UnimplementedError("one rank");
  }
  CommunicationStats stats() const override { return {}; }

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
  TwoParameters model;
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
