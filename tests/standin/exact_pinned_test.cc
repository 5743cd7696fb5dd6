// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory that stays for a run is what the plan says. Started by run.sh.
#include "cluster/comm/nccl/exact_pinned.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/plugin_for_test.h"
#include "strategies/zero2/zero2.pb.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan {
namespace {

using standin::Outcome;
using standin::RunOnStandin;

int64_t Pinned() {
  return at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes.current;
}

at::Tensor NewPinned(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
}

constexpr int64_t kMiB = 1 << 20;

TEST(ExactPinnedTest, OnlyWhatStays) {
  const Outcome outcome = RunOnStandin("", [] {
    at::globalContext().lazyInitDevice(at::kCUDA);
    TakeExactPinnedMemory();
    {
      const MemoryScope scope(MemoryCategory::kMasters);
      const at::Tensor stays = NewPinned(5 * kMiB);
      CAPSTAN_CHECK(stays.is_pinned());
      CAPSTAN_CHECK(Pinned() == 5 * kMiB);
    }
    CAPSTAN_CHECK(Pinned() == 0);
    const at::Tensor passes = NewPinned(5 * kMiB);
    CAPSTAN_CHECK(Pinned() == 8 * kMiB);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.Findings(), "");
}

// The device may still be copying what is freed.
TEST(ExactPinnedTest, IsFreedAfterItsCopies) {
  for (const std::string& order : standin::Orders()) {
    SCOPED_TRACE(order);
    const Outcome outcome = RunOnStandin(order, [] {
      at::globalContext().lazyInitDevice(at::kCUDA);
      TakeExactPinnedMemory();
      const at::Tensor on_device =
          at::ones({kMiB}, at::TensorOptions(at::kByte).device(at::kCUDA));
      const MemoryScope scope(MemoryCategory::kGradients);
      NewPinned(kMiB).copy_(on_device, /*non_blocking=*/true);
      const at::Tensor next = NewPinned(kMiB).zero_();
      CAPSTAN_CHECK(next.sum().item<int64_t>() == 0);
    });
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.Findings(), "");
  }
}

class GroupOfGpu final : public IdleGroup {
 public:
  GroupOfGpu() : IdleGroup(0, 1) {}
  at::Device device() const override { return {at::kCUDA, 0}; }
};

TEST(ExactPinnedTest, IsWhatIsPlanned) {
  const Outcome outcome = RunOnStandin("", [] {
    at::globalContext().lazyInitDevice(at::kCUDA);
    TakeExactPinnedMemory();
    zero2::Config config;
    config.mutable_offload_optimizer()->set_device(
        zero2::Config::OffloadOptimizer::CPU);
    const auto zero2 = MakePlugin<Strategy>(config);
    CAPSTAN_CHECK(zero2.ok());
    IdleModel model({{"a", {5 * kMiB}, 0}, {"b", {1000}, 1}}, 2);
    GroupOfGpu group;
    StrategyRequest request;
    request.model = &model;
    request.precision.compute = at::kBFloat16;
    const StrategyPlan plan = (*zero2)->Plan(request);
    StrategyContext context;
    context.model = &model;
    context.group = &group;
    context.precision = request.precision;
    CAPSTAN_CHECK((*zero2)->Setup(context).ok());
    const double planned = static_cast<double>(plan.masters + plan.gradients);
    CAPSTAN_CHECK(planned > 40 * kMiB);
    CAPSTAN_CHECK(Pinned() > 0.9 * planned && Pinned() < 1.1 * planned);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

}  // namespace
}  // namespace capstan
