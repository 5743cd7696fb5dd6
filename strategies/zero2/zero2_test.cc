// SPDX-License-Identifier: Apache-2.0
//
// Settings only: tests/parity and tests/conformance compare zero2's results
// with `single` and with PyTorch, on real processes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/zero2/zero2.pb.h"

namespace capstan::zero2 {
namespace {

TEST(Zero2Test, NegativeSizesNameTheirField) {
  Config config;
  config.set_reduce_bucket_size(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()),
            "reduce_bucket_size");
  config.set_reduce_bucket_size(1);
  config.set_allgather_bucket_size(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()),
            "allgather_bucket_size");
}

TEST(Zero2Test, RefusesDtypesThatItCannotSum) {
  const auto zero2 = MakePlugin<Strategy>(Config());
  ASSERT_TRUE(zero2.ok());
  StrategyRequest request;
  request.world_size = 3;
  EXPECT_TRUE((*zero2)->Check(request).ok());
  request.precision.reduce = c10::ScalarType::Char;
  EXPECT_EQ((*zero2)->Check(request).message(),
            "the precision asks for summing gradients in Char, this strategy "
            "works with Float, BFloat16 and Half: choose another precision");
}

// Six units, each of a vector and a matrix. One bucket has all vectors, three
// have two matrices each. While the vectors' fills, two others are reduced and
// the third fills.
TEST(Zero2Test, ThePlanCountsAllBucketsThatFill) {
  std::vector<ParameterSpec> specs;
  for (int unit = 0; unit < 6; ++unit) {
    specs.push_back({"vector", {32}, unit});
    specs.push_back({"matrix", {32, 32}, unit});
  }
  const IdleModel model(specs, 6);
  const IdleMatrixOptimizer optimizer;
  StrategyRequest request;
  request.model = &model;
  request.optimizer = &optimizer;
  request.world_size = 2;
  Config config;
  config.set_reduce_bucket_size(1000);
  const auto zero2 = MakePlugin<Strategy>(config);
  ASSERT_TRUE(zero2.ok());
  const StrategyPlan plan = (*zero2)->Plan(request);
  constexpr int64_t kMatrices = 2 * 32 * 32 * 4;
  constexpr int64_t kVectors = 6 * 32 * 4;
  EXPECT_EQ(plan.backward_buckets[5] + plan.collect_buckets[5],
            kMatrices + kVectors);
  EXPECT_EQ(plan.backward_buckets[1] + plan.collect_buckets[1],
            3 * kMatrices + kVectors);
  EXPECT_EQ(plan.backward_buckets[0], 3 * kMatrices + kVectors);
  EXPECT_EQ(plan.publish_buckets, kMatrices + kVectors);
}

// How many matrices of a million a bucket has, of a model with one a unit,
// which fill the first bucket and then some more.
int64_t PlannedBucket(const Config& config, int64_t matrices, int ranks) {
  constexpr int64_t kMatrix = 1000 * 1000;
  std::vector<ParameterSpec> specs;
  for (int unit = 0; unit < matrices; ++unit) {
    specs.push_back({"matrix", {kMatrix}, unit});
  }
  const IdleModel model(specs, static_cast<int>(matrices));
  StrategyRequest request;
  request.model = &model;
  request.world_size = ranks;
  const auto zero2 = MakePlugin<Strategy>(config);
  const StrategyPlan plan = (*zero2)->Plan(request);
  // The last one fills while two are reduced.
  return plan.backward_buckets[0] / (3 * kMatrix * 4);
}

TEST(Zero2Test, BucketsOfGpusGrowWithTheRanks) {
  const RunDevice before = CurrentRunDevice();
  EXPECT_EQ(PlannedBucket(Config(), 321, 64), 8);
  SetRunDevice({/*gpu=*/true, /*memory=*/0});
  EXPECT_EQ(PlannedBucket(Config(), 321, 8), 40);
  EXPECT_EQ(PlannedBucket(Config(), 321, 40), 40);
  EXPECT_EQ(PlannedBucket(Config(), 321, 64), 64);
  // Most of a small model is reduced during backward, too.
  EXPECT_EQ(PlannedBucket(Config(), 81, 8), 20);
  EXPECT_EQ(PlannedBucket(Config(), 25, 8), 8);
  Config config;
  config.set_reduce_bucket_size(5 * 1000 * 1000);
  EXPECT_EQ(PlannedBucket(config, 321, 64), 5);
  SetRunDevice(before);
}

// One rank of two, whose gathers do nothing but know whether they were waited
// for.
class TwoRanks final : public IdleGroup {
 public:
  TwoRanks() : IdleGroup(0, 2) {}

  int started() const { return started_; }
  int dropped() const { return dropped_; }  // without a Wait

  std::unique_ptr<Work> AllGather(const at::Tensor&,
                                  const at::Tensor&) override {
    ++started_;
    return std::make_unique<Gather>(&dropped_);
  }

 private:
  class Gather final : public Work {
   public:
    explicit Gather(int* dropped) : dropped_(dropped) {}
    ~Gather() override { *dropped_ += waited_ ? 0 : 1; }
    void Wait() override { waited_ = true; }

   private:
    int* const dropped_;
    bool waited_ = false;
  };

  int started_ = 0;
  int dropped_ = 0;
};

// After a loss spike a run goes back to a checkpoint's weights: the update
// before has been published, and no forward has used it.
TEST(Zero2Test, PublishingAgainWaitsForWhatWasPublished) {
  TwoRanks group;
  IdleModel model({{"a", {32}, 0}, {"b", {32}, 1}}, 2);
  const IdleMatrixOptimizer optimizer;
  Config config;
  config.set_reduce_bucket_size(32);
  const auto zero2 = MakePlugin<Strategy>(config);
  ASSERT_TRUE(zero2.ok());
  StrategyContext context;
  context.model = &model;
  context.group = &group;
  context.optimizer = &optimizer;
  ASSERT_TRUE((*zero2)->Setup(context).ok());
  const int shards = static_cast<int>((*zero2)->OptimizerShards().size());
  ASSERT_GT(shards, 1);
  for (int times = 0; times < 2; ++times) {
    for (int i = 0; i < shards; ++i) (*zero2)->PublishShard(i);
    (*zero2)->PublishParameters(PublishCause::kUpdated);
  }
  for (int unit = 0; unit < 2; ++unit) (*zero2)->PreForward(unit);
  EXPECT_EQ(group.started(), 2 * shards);
  EXPECT_EQ(group.dropped(), 0);
}

}  // namespace
}  // namespace capstan::zero2
