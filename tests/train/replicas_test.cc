// SPDX-License-Identifier: Apache-2.0
//
// Strategies whose ranks don't hold what they should: nothing of it is saved.
#include "trainer/session/replicas.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// 12 samples a step.
ToyRun ToySteps(int ranks) {
  ToyRun run;
  run.ranks = ranks;
  run.micro_batch = 2;
  run.train = "max_steps: 9 save_every: 3";
  return run;
}

// Changes what `rank` has after its fifth update.
ToyRun Changed(
    int ranks, int rank,
    std::function<void(OptimizerShard&, absl::Span<at::Tensor>)> change) {
  ToyRun run = ToySteps(ranks);
  run.change = [=](int this_rank, RunParts* parts) {
    if (this_rank != rank) return;
    parts->optimizer = std::make_unique<WrappedOptimizer>(
        std::move(parts->optimizer),
        [change](int64_t step, OptimizerShard& shard,
                 absl::Span<at::Tensor> state) {
          if (step == 5) change(shard, state);
        });
  };
  return run;
}

void ExpectOnlyStep3(const ToyRun& run) {
  EXPECT_EQ(CheckpointSteps(run.output_dir), std::vector<int64_t>{3});
  EXPECT_FALSE(PathExists(run.output_dir + "/final"));
  EXPECT_EQ(ReadJson(run.output_dir + "/summary.json")["status"], "failed");
}

TEST(ReplicasTest, AnotherWeight) {
  ToyRun run = Changed(3, 1, [](OptimizerShard& shard, absl::Span<at::Tensor>) {
    shard.master.data_ptr<float>()[shard.ranges.back().offset] += 1e-6f;
  });
  EXPECT_THAT(
      MustFail(&run),
      AllOf(HasSubstr("after step 6 rank 1 has other bits in '"),
            HasSubstr("' than rank 0"), HasSubstr("doesn't sum all gradients"),
            HasSubstr("step-00000003 is the newest good checkpoint")));
  ExpectOnlyStep3(run);
}

// Two of three have what the third hasn't.
TEST(ReplicasTest, NamesTheRankThatIsAlone) {
  ToyRun run = Changed(3, 0, [](OptimizerShard& shard, absl::Span<at::Tensor>) {
    shard.master.data_ptr<float>()[0] += 1.0f;
  });
  EXPECT_THAT(MustFail(&run),
              AllOf(HasSubstr("after step 6 rank 0 has other bits in '"),
                    HasSubstr("' than rank 1, which holds it, too")));
}

// No checkpoint could hold it.
TEST(ReplicasTest, StateOfARanksOwn) {
  ToyRun run = Changed(2, 1, [](OptimizerShard&, absl::Span<at::Tensor> state) {
    state[0].data_ptr<float>()[0] += 1e-3f;
    // Takes effect in the next step only.
  });
  run.train = "max_steps: 5";
  EXPECT_THAT(
      MustFail(&run),
      AllOf(HasSubstr("after step 5 rank 1 has other bits in momentum of '"),
            HasSubstr("keep state of their own without saying so "
                      "(Strategy::local_steps)")));
  EXPECT_FALSE(PathExists(run.output_dir + "/final"));
}

class Forgetful final : public OneBucket {
 public:
  void Reduce() override { gradients().Take(0); }
};

TEST(ReplicasTest, AStrategyThatForgetsToReduce) {
  ToyRun run = ToySteps(2);
  run.change = [](int, RunParts* parts) {
    parts->strategy = std::make_unique<Forgetful>();
    parts->strategy_name = "acme.forgetful";
  };
  EXPECT_THAT(MustFail(&run),
              AllOf(HasSubstr("after step 3 rank 1 has other bits in '"),
                    HasSubstr("Either acme.forgetful doesn't sum all "
                              "gradients over the ranks")));
  EXPECT_TRUE(CheckpointSteps(run.output_dir).empty());
  EXPECT_FALSE(PathExists(run.output_dir + "/final"));
}

// One that knows nothing of exact sums, and adds gradients over the ranks in
// float32, still has the curve.
TEST(ReplicasTest, AStrategyThatSumsGradientsInADeterministicRun) {
  ToyRun run = ToySteps(2);
  run.train += " deterministic: true";
  const std::vector<double> want = ReadMetrics(MustTrain(run)).losses();
  run.change = [](int, RunParts* parts) {
    parts->strategy = std::make_unique<OneBucket>();
  };
  const std::vector<double> got = ReadMetrics(MustTrain(run)).losses();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
  EXPECT_NE(got.front(), got.back());
}

// Rank 1's shard has a range of no elements, which is no part of a replica.
class EmptyRange final : public OneBucket {
 public:
  absl::Status Setup(const StrategyContext& context) override {
    const absl::Status status = OneBucket::Setup(context);
    if (group().rank() == 1) {
      std::vector<ParameterRange>& ranges = OptimizerShards()[0].ranges;
      ranges.insert(ranges.begin(), ParameterRange());
    }
    return status;
  }
};

TEST(ReplicasTest, ARangeOfNoElements) {
  ToyRun run = ToySteps(2);
  run.change = [](int, RunParts* parts) {
    parts->strategy = std::make_unique<EmptyRange>();
  };
  MustTrain(run);
}

// ---- A strategy's own state.

class Poisoned final : public OneBucket {
 public:
  explicit Poisoned(int64_t step) : step_(step) {}
  absl::Status Setup(const StrategyContext& context) override {
    const absl::Status status = OneBucket::Setup(context);
    state_ = at::zeros({OptimizerShards()[0].master.numel()}, at::kFloat);
    if (step_ == 0) state_.fill_(kNan);
    return status;
  }
  void BeginStep(int64_t step) override {
    if (step == step_) state_.fill_(kNan);
  }
  std::vector<std::string> state_names() const override { return {"outer"}; }
  std::vector<at::Tensor> ShardState(int) override { return {state_}; }

 private:
  const int64_t step_;  // 0: from the beginning
  at::Tensor state_;
};

TEST(StrategyStateTest, ThatIsNotFiniteIsTheStrategys) {
  for (const int64_t step : {0, 5}) {
    ToyRun run = ToySteps(1);
    run.change = [step](int, RunParts* parts) {
      parts->strategy = std::make_unique<Poisoned>(step);
      parts->strategy_name = "acme.poisoned";
    };
    EXPECT_THAT(
        MustFail(&run),
        AllOf(HasSubstr("strategy.outer of '"),
              HasSubstr(step == 0 ? "acme.poisoned: after its Setup"
                                  : "state of acme.poisoned's own"),
              Not(HasSubstr("learning_rate")), Not(HasSubstr("model"))));
    EXPECT_EQ(CheckpointSteps(run.output_dir).size(), step == 0 ? 0u : 1u);
  }
}

// ---- The digest of what is on a GPU, here of host tensors.

TEST(DeviceDigestTest, SeesEachBitAndEachPlace) {
  const at::Tensor numbers = at::arange(1000, at::kFloat);
  const uint32_t digest = DeviceDigest(numbers);
  EXPECT_EQ(DeviceDigest(numbers.clone()), digest);
  for (const int64_t at : {0, 1, 500, 999}) {
    for (const int bit : {0, 13, 31}) {
      const at::Tensor other = numbers.clone();
      reinterpret_cast<uint32_t*>(other.data_ptr<float>())[at] ^= 1u << bit;
      EXPECT_NE(DeviceDigest(other), digest) << at << " " << bit;
    }
  }
  const at::Tensor swapped = numbers.clone();
  std::swap(swapped.data_ptr<float>()[3], swapped.data_ptr<float>()[4]);
  EXPECT_NE(DeviceDigest(swapped), digest);
  for (const at::ScalarType type : {at::kBFloat16, at::kByte, at::kDouble}) {
    const at::Tensor other = at::full({7}, 1, type);
    const uint32_t one = DeviceDigest(other);
    other[6] = 2;
    EXPECT_NE(DeviceDigest(other), one) << type;
  }
}

}  // namespace
}  // namespace capstan
