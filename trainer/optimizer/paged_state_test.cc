// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/paged_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/plugin_for_test.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

class FakeModel final : public IdleModel {
 public:
  FakeModel()
      : IdleModel({{"a", {100, 90}}, {"b", {70}}, {"c", {41, 130}}, {"d", {9}}},
                  /*units=*/1) {}
};

// Rank's shard of a model whose first parameter is cut.
OptimizerShard NewShard() {
  OptimizerShard shard;
  shard.ranges = {{0, 512, 8488, 0},
                  {1, 0, 70, 8704},
                  {2, 0, 5330, 8960},
                  {3, 0, 9, 14336}};
  shard.master = at::zeros({14592});
  for (const ParameterRange& r : shard.ranges) {
    FillNormal(1, r.offset, r.length, 0.0f, 0.3f,
               shard.master.mutable_data_ptr<float>() + r.offset);
  }
  shard.gradient = at::empty({14592});
  shard.working = shard.master.to(at::kBFloat16);
  return shard;
}

void NewGradient(int step, OptimizerShard* shard) {
  shard->gradient.zero_();
  for (const ParameterRange& r : shard->ranges) {
    FillNormal(10 + step, r.offset, r.length, 0.0f, 1.0f,
               shard->gradient.mutable_data_ptr<float>() + r.offset);
  }
}

// The optimizer, but of whole parameters, each with a count of its updates.
class Counting final : public Optimizer {
 public:
  double learning_rate() const override { return 1.0; }
  std::vector<std::string> state_names() const override {
    return {"count", "sum"};
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    return {{"count", at::kLong, 1, 2}, {"sum"}};
  }
  bool NeedsWhole(const Model&, int) const override { return true; }
  void Update(const OptimizerStep&, const std::vector<ParameterSpec>&,
              OptimizerShard& shard, absl::Span<at::Tensor> state) override {
    EXPECT_EQ(state[0].numel(), 2 * static_cast<int64_t>(shard.ranges.size()));
    state[0].add_(1);
    state[1].add_(shard.gradient);
    shard.master.sub_(state[1]);
    ++updates;
  }
  int updates = 0;
};

void ExpectSameInPieces(Optimizer& optimizer) {
  const FakeModel model;
  for (const int64_t most : {int64_t{1}, int64_t{600}, int64_t{5000},
                             std::numeric_limits<int64_t>::max() / 2}) {
    SCOPED_TRACE(most);
    OptimizerShard at_once = NewShard(), in_pieces = NewShard();
    std::vector<std::vector<at::Tensor>> states(2);
    for (std::vector<at::Tensor>& state : states) {
      for (const StateShape& shape :
           StateShapesOf(optimizer, model.parameters())) {
        state.push_back(at::zeros({StateLength(shape, at_once)},
                                  shape.spec.dtype == c10::ScalarType::Undefined
                                      ? at::kFloat
                                      : shape.spec.dtype));
      }
    }
    for (int number = 1; number <= 3; ++number) {
      OptimizerStep step;
      step.step = number;
      step.learning_rate = 0.01;
      NewGradient(number, &at_once);
      NewGradient(number, &in_pieces);
      optimizer.Update(step, model.parameters(), at_once,
                       absl::MakeSpan(states[0]));
      UpdateInPieces(optimizer, step, model, in_pieces,
                     absl::MakeSpan(states[1]), most);
    }
    EXPECT_TRUE(at::equal(at_once.master, in_pieces.master));
    EXPECT_TRUE(at::equal(at_once.working, in_pieces.working));
    for (size_t k = 0; k < states[0].size(); ++k) {
      EXPECT_TRUE(at::equal(states[0][k], states[1][k])) << k;
    }
  }
}

TEST(PagedStateTest, PiecesMakeTheSameUpdate) {
  for (const auto kind : {adamw::Config::FLOAT32, adamw::Config::BFLOAT16,
                          adamw::Config::EIGHT_BIT}) {
    SCOPED_TRACE(kind);
    adamw::Config config;
    config.set_learning_rate(0.01);
    config.set_state(kind);
    auto made = MakePlugin<Optimizer>(config);
    ASSERT_TRUE(made.ok());
    ExpectSameInPieces(**made);
  }
}

TEST(PagedStateTest, WholeParametersAndWhatTheyHaveOnce) {
  Counting optimizer;
  ExpectSameInPieces(optimizer);
  OptimizerShard shard = NewShard();
  std::vector<at::Tensor> state = {at::zeros({8}, at::kLong),
                                   at::zeros({14592})};
  NewGradient(1, &shard);
  optimizer.updates = 0;
  UpdateInPieces(optimizer, {}, FakeModel(), shard, absl::MakeSpan(state), 600);
  EXPECT_EQ(optimizer.updates, 4);
  optimizer.updates = 0;
  UpdateWhereItIs(optimizer, {}, FakeModel(), shard, absl::MakeSpan(state));
  EXPECT_EQ(optimizer.updates, 1);
}

TEST(PagedStateTest, WithoutAGpuItIsInAFileThatHasNoName) {
  const std::string folder = ::testing::TempDir() + "/paged_state";
  std::filesystem::create_directories(folder);
  auto state = NewPagedState(100000, at::kBFloat16, at::kCPU, folder);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->numel(), 100000);
  EXPECT_EQ(state->scalar_type(), at::kBFloat16);
  EXPECT_FALSE(state->any().item<bool>());
  state->fill_(3.0);
  EXPECT_EQ(state->sum(at::kDouble).item<double>(), 300000.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_EQ(NewPagedState(0, at::kFloat, at::kCPU, folder)->numel(), 0);
}

TEST(PagedStateTest, AFolderWithoutRoomIsAnError) {
  const absl::Status status =
      NewPagedState(10, at::kFloat, at::kCPU, "/proc/no_such").status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("optimizer state in a file in /proc/no"));
  EXPECT_EQ(
      NewPagedState(int64_t{1} << 52, at::kByte, at::kCPU, ::testing::TempDir())
              .status()
              .code() == absl::StatusCode::kOk,
      false);
}

}  // namespace
}  // namespace capstan
