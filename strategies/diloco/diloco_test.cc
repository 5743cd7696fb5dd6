// SPDX-License-Identifier: Apache-2.0
//
// Settings and the outer step: tests/conformance trains with it,
// tests/end_to_end resumes.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/diloco/diloco.pb.h"

namespace capstan::diloco {
namespace {

std::string FieldOf(const Config& config) {
  const absl::optional<std::string> field =
      capstan::FieldOf(MakePlugin<Strategy>(config).status());
  return field.value_or("none");
}

TEST(DiLoCoTest, DefaultsAreThePapers) {
  const auto diloco = MakePlugin<Strategy>(Config());
  ASSERT_TRUE(diloco.ok()) << diloco.status();
  EXPECT_TRUE((*diloco)->local_steps());
  const absl::optional<OwnCurve> curve = (*diloco)->own_curve();
  ASSERT_TRUE(curve.has_value());
  EXPECT_EQ(curve->why, "ranks synchronise every 500 steps");
  EXPECT_EQ(curve->loss, 0.1);
}

TEST(DiLoCoTest, WrongSettingsNameTheirField) {
  Config config;
  config.set_local_steps(-1);
  EXPECT_EQ(FieldOf(config), "local_steps");
  config.set_local_steps(2);
  config.set_outer_learning_rate(0.0);
  EXPECT_EQ(FieldOf(config), "outer_learning_rate");
  config.set_outer_learning_rate(1.0);
  config.set_outer_momentum(1.0);
  EXPECT_EQ(FieldOf(config), "outer_momentum");
  config.set_outer_momentum(0.0);
  config.set_loss_bound(-0.1);
  EXPECT_EQ(FieldOf(config), "loss_bound");
  config.set_loss_bound(0.0);
  config.set_parts(3);
  EXPECT_EQ(FieldOf(config), "parts");
  config.set_parts(2);
  config.set_overlap_steps(2);
  EXPECT_EQ(FieldOf(config), "overlap_steps");
  config.set_overlap_steps(1);
  config.set_own_share(1.0);
  EXPECT_EQ(FieldOf(config), "own_share");
  config.set_own_share(0.5);
  config.set_site_ranks(-1);
  EXPECT_EQ(FieldOf(config), "site_ranks");
  config.set_site_ranks(1);
  EXPECT_EQ(FieldOf(config), "none");
}

TEST(DiLoCoTest, ARunItDoesNotFitNamesTheField) {
  IdleModel model({{"a", {3}}}, 1);
  StrategyRequest request;
  request.model = &model;
  request.world_size = 9;
  Config config;
  config.set_deltas(Config::INT8);
  const auto field = [&] {
    const auto diloco = MakePlugin<Strategy>(config);
    EXPECT_TRUE(diloco.ok()) << diloco.status();
    return capstan::FieldOf((*diloco)->Check(request)).value_or("none");
  };
  EXPECT_EQ(field(), "none");
  config.set_overlap_steps(1);
  EXPECT_EQ(field(), "deltas");
  request.world_size = 8;
  EXPECT_EQ(field(), "none");
}

// Two outer steps of one rank, as torch.optim.SGD(lr=0.7, momentum=0.9,
// nesterov=True) takes them: b = 0.9 b + g; x -= 0.7 (g + 0.9 b).
TEST(DiLoCoTest, TheOuterOptimizerIsNesterovs) {
  Config config;
  config.set_local_steps(2);
  auto diloco = MakePlugin<Strategy>(config);
  ASSERT_TRUE(diloco.ok()) << diloco.status();
  IdleModel model({{"a", {3}}}, 1);
  IdleGroup group(0, 1);
  StrategyContext context;
  context.model = &model;
  context.group = &group;
  ASSERT_TRUE((*diloco)->Setup(context).ok());
  // Without padding.
  const at::Tensor own = (*diloco)->OptimizerShards()[0].master.narrow(0, 0, 3);
  const at::Tensor shared = (*diloco)->SharedMaster(0).narrow(0, 0, 3);
  shared.fill_(1.0);
  own.fill_(1.0);
  double x = 1.0, b = 0.0;
  for (int step = 1; step <= 4; ++step) {
    own.sub_(0.125);
    (*diloco)->EndStep(step);
    if (step % 2 == 1) {
      EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
      (*diloco)->UseSharedModel(true);
      EXPECT_NEAR(own[0].item<double>(), x, 1e-6);
      (*diloco)->UseSharedModel(false);
      EXPECT_NEAR(own[0].item<double>(), x - 0.125, 1e-6);
      continue;
    }
    const double g = 0.25;
    b = 0.9 * b + g;
    x -= 0.7 * (g + 0.9 * b);
    EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
    EXPECT_TRUE(own.equal(shared));
  }
  // Nothing is left.
  (*diloco)->BeforeExport();
  EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
  own.sub_(0.5);
  (*diloco)->BeforeExport();
  b = 0.9 * b + 0.5;
  x -= 0.7 * (0.5 + 0.9 * b);
  EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
}

// Two replicas whose changes are alike. Counts exchanges begun and waited for.
class TwinGroup final : public IdleGroup {
 public:
  struct Counts {
    int begun = 0;
    int waited = 0;
    int splits = 0;
  };
  TwinGroup(int rank, int size, Counts* counts)
      : IdleGroup(rank, size), counts_(*counts) {}
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    ++counts_.begun;
    return std::make_unique<Twice>(tensor, &counts_);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int) override {
    ++counts_.splits;
    // First the ranks of a replica, then the replicas.
    if (counts_.splits == 1) return std::make_unique<IdleGroup>(0, 1);
    return std::make_unique<TwinGroup>(rank(), size(), &counts_);
  }

 private:
  class Twice final : public Work {
   public:
    Twice(at::Tensor tensor, Counts* counts)
        : tensor_(std::move(tensor)), counts_(*counts) {}
    void Wait() override {
      ++counts_.waited;
      tensor_.mul_(2.0);
    }

   private:
    const at::Tensor tensor_;
    Counts& counts_;
  };
  Counts& counts_;
};

// A strategy with a model of one parameter of four elements, whose replica the
// test moves.
struct OneOfTwo {
  explicit OneOfTwo(const Config& config)
      : strategy(*MakePlugin<Strategy>(config)) {
    StrategyContext context;
    context.model = &model;
    context.group = &group;
    EXPECT_TRUE(strategy->Setup(context).ok());
    own().fill_(1.0);
    shared().fill_(1.0);
  }
  // Without padding.
  at::Tensor own() {
    return strategy->OptimizerShards()[0].master.narrow(0, 0, 4);
  }
  at::Tensor shared() { return strategy->SharedMaster(0).narrow(0, 0, 4); }
  void Step(int64_t step) {
    own().sub_(0.125);
    strategy->EndStep(step);
  }

  IdleModel model{{{"a", {4}}}, 1};
  TwinGroup::Counts counts;
  TwinGroup group{0, 2, &counts};
  std::unique_ptr<Strategy> strategy;
};

Config Streaming() {
  Config config;
  config.set_local_steps(4);
  config.set_parts(2);
  config.set_overlap_steps(1);
  config.set_outer_learning_rate(1.0);
  config.set_outer_momentum(0.0);
  return config;
}

// The first half is exchanged after steps 2 and 6, and mixed after 3 and 7, the
// other after 4 and 5.
TEST(DiLoCoTest, AnExchangeRunsBesideTheNextStep) {
  OneOfTwo run(Streaming());
  run.Step(1);
  EXPECT_EQ(run.counts.begun, 0);
  run.Step(2);
  EXPECT_EQ(run.counts.begun, 1);
  EXPECT_EQ(run.counts.waited, 0);
  run.Step(3);
  EXPECT_EQ(run.counts.waited, 1);
  // Half of 1 - 3 / 8, and half of the shared model, 1 - 2 / 8.
  EXPECT_EQ(run.own()[0].item<double>(), 0.5 * 0.625 + 0.5 * 0.75);
  EXPECT_EQ(run.own()[3].item<double>(), 0.625);
  run.Step(4);
  EXPECT_EQ(run.counts.begun, 2);
  EXPECT_EQ(run.counts.waited, 1);
  // Who reads the shared model waits for it.
  const at::Tensor shared = run.shared();
  EXPECT_EQ(run.counts.waited, 2);
  EXPECT_EQ(shared[0].item<double>(), 0.75);
  EXPECT_EQ(shared[3].item<double>(), 0.5);
}

// Whoever reads the shared model when.
TEST(DiLoCoTest, ReadersDoNotChangeTheCurve) {
  OneOfTwo alone(Streaming());
  OneOfTwo read(Streaming());
  for (int64_t step = 1; step <= 11; ++step) {
    alone.Step(step);
    read.Step(step);
    read.strategy->ShardState(0);
    read.strategy->UseSharedModel(true);
    read.strategy->UseSharedModel(false);
    EXPECT_TRUE(alone.own().equal(read.own())) << step;
  }
  EXPECT_TRUE(alone.shared().equal(read.shared()));
}

// What began with the last step is taken up as if it had been waited for, and
// isn't exchanged again; the rest is. So it is in a run that goes on from
// there.
TEST(DiLoCoTest, AnExportTakesUpWhatIsUnderWay) {
  OneOfTwo run(Streaming());
  for (int64_t step = 1; step <= 6; ++step) run.Step(step);
  OneOfTwo resumed(Streaming());
  resumed.own().copy_(run.own());
  resumed.shared().copy_(run.shared());
  resumed.strategy->Restored(6);
  for (OneOfTwo* const one : {&run, &resumed}) {
    const int before = one->counts.begun;
    const double first = one->shared()[0].item<double>();
    one->strategy->BeforeExport();
    EXPECT_EQ(one->counts.begun, before + 1);  // of the other half
    EXPECT_EQ(one->shared()[0].item<double>(), first);
    EXPECT_TRUE(one->own().equal(one->shared()));
    const at::Tensor exported = one->own().clone();
    one->strategy->BeforeExport();
    EXPECT_TRUE(exported.equal(one->own()));
    EXPECT_EQ(one->counts.begun, before + 1);
  }
  EXPECT_TRUE(run.own().equal(resumed.own()));
}

}  // namespace
}  // namespace capstan::diloco
