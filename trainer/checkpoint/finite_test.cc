// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/idle_for_test.h"
#include "trainer/checkpoint/checkpoint_testing.h"
#include "trainer/checkpoint/state_kinds.h"

namespace capstan {
namespace {

constexpr int64_t kFlat = FakeRun::kFlat;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// For a run with `value` in element `at` of the flat tensor of `kind`.
absl::optional<NonFiniteTensor> FoundWith(float value, int kind, int64_t at) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  run.SetValues();
  run.tensor(kind).data_ptr<float>()[at] = value;
  return FindNonFinite(run.Parts(group));
}

TEST(FiniteTest, LargeNumbers) {
  for (const int kind : {1, 2}) {
    EXPECT_FALSE(
        FoundWith(std::numeric_limits<float>::max(), kind, 3).has_value());
    EXPECT_FALSE(
        FoundWith(std::numeric_limits<float>::lowest(), kind, 3).has_value());
  }
  // A weight is multiplied with others.
  EXPECT_FALSE(FoundWith(1.8e19f, 0, 3).has_value());
  EXPECT_FALSE(FoundWith(-1.8e19f, 0, 3).has_value());
  EXPECT_TRUE(FoundWith(1.9e19f, 0, 3).has_value());
  EXPECT_TRUE(FoundWith(-1.9e19f, 0, 3).has_value());
}

TEST(FiniteTest, NamesTheTensor) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const int kind : {0, 1, 2}) {
      // The last of a.weight, and the first of b.
      for (const int64_t at : {19, 22}) {
        const auto found = FoundWith(value, kind, at);
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->kind, kind);
        EXPECT_EQ(found->parameter, at == 19 ? 0 : 1);
      }
    }
  }
}

TEST(FiniteTest, TheFirstParameterAndItsMasterFirst) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  run.SetValues();
  run.tensor(0).data_ptr<float>()[25] = kNan;
  run.tensor(2).data_ptr<float>()[5] = kNan;
  EXPECT_EQ(FindNonFinite(run.Parts(group))->parameter, 0);
  EXPECT_EQ(FindNonFinite(run.Parts(group))->kind, 2);
  run.tensor(0).data_ptr<float>()[6] = kNan;
  EXPECT_EQ(FindNonFinite(run.Parts(group))->kind, 0);
}

class StrategyWithState final : public IdleStrategy {
 public:
  explicit StrategyWithState(at::Tensor anchor) : anchor_(std::move(anchor)) {}
  std::vector<std::string> state_names() const override { return {"anchor"}; }
  std::vector<at::Tensor> ShardState(int) override { return {anchor_}; }

 private:
  const at::Tensor anchor_;
};

TEST(FiniteTest, TheStrategysOwnState) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  run.SetValues();
  const at::Tensor anchor = at::zeros({kFlat}, at::kFloat);
  StrategyWithState strategy(anchor);
  CheckpointParts parts = run.Parts(group);
  parts.strategy = &strategy;
  EXPECT_FALSE(FindNonFinite(parts).has_value());
  anchor.data_ptr<float>()[22] = kNan;
  const auto found = FindNonFinite(parts);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->parameter, 1);
  EXPECT_EQ(AllKinds(parts)[found->kind].name(), "strategy.anchor");
}

TEST(FiniteTest, OnlyWhatTheRankSaves) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  run.SetValues();
  run.tensor(0).data_ptr<float>()[3] = kNan;
  CheckpointParts parts = run.Parts(group);
  parts.owned = {{0, 4, kFlat}, {0, 2, 2}};
  EXPECT_FALSE(FindNonFinite(parts).has_value());
  parts.owned = {{0, 0, 4}};
  EXPECT_TRUE(FindNonFinite(parts).has_value());
}

}  // namespace
}  // namespace capstan
