// SPDX-License-Identifier: Apache-2.0
//
// What a plugin does wrong in a step is told with the plugin, the unit, the
// step and the rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "plugins/sdk/dataset.h"
#include "tests/conformance/toy_model.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// 12 samples a step; sample 30 is rank 1's second micro-batch in step 3.
constexpr int64_t kPosition = 30;

ToyRun TwoRanks() {
  ToyRun run;
  run.ranks = 2;
  run.micro_batch = 2;
  run.train = "max_steps: 5";
  return run;
}

// Makes a training micro-batch's loss of the objective's.
using Extra =
    std::function<at::Tensor(Model& model, int64_t position,
                             const at::Tensor& loss, UnitRunner& runner)>;

ToyRun With(Extra extra) {
  ToyRun run = TwoRanks();
  run.change = [extra](int, RunParts* parts) {
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective),
        [extra](Model& model, int64_t position, LossSum* loss,
                UnitRunner& runner) {
          loss->sum = extra(model, position, loss->sum, runner);
        });
  };
  return run;
}

// A run whose unit kToyPlainUnit does this once.
ToyRun InUnit(UnitRunner::Body body) {
  return With([body](Model&, int64_t position, const at::Tensor& loss,
                     UnitRunner& runner) {
    return position == kPosition
               ? runner.Run(conformance::kToyPlainUnit, loss, body)
               : loss;
  });
}

std::string PlainUnit() {
  return conformance::ToyModel().units()[conformance::kToyPlainUnit];
}

TEST(PluginErrorTest, AThrowInAUnit) {
  ToyRun run = InUnit([](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("no such expert");
  });
  EXPECT_THAT(MustFail(&run), HasSubstr("[rank 1] step 3: model, unit '" +
                                        PlainUnit() + "': no such expert"));
}

TEST(PluginErrorTest, AWrongShapeInAUnit) {
  ToyRun run = InUnit([](const at::Tensor&) {
    return at::mm(at::empty({2, 3}), at::empty({2, 3}));
  });
  EXPECT_THAT(
      MustFail(&run),
      AllOf(HasSubstr("[rank 1] step 3: model, unit '" + PlainUnit() +
                      "': mat1 and mat2 shapes cannot be multiplied"),
            Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised"))));
}

TEST(PluginErrorTest, AThrowInTheObjective) {
  ToyRun run = With([](Model&, int64_t position, const at::Tensor& loss,
                       UnitRunner&) -> at::Tensor {
    if (position == kPosition) throw std::runtime_error("no reward");
    return loss;
  });
  EXPECT_THAT(MustFail(&run),
              HasSubstr("[rank 1] step 3: objective, Compute: no reward"));
}

TEST(PluginErrorTest, ACrashInAUnit) {
  ToyRun run = InUnit([](const at::Tensor& input) {
    raise(SIGSEGV);
    return input;
  });
  EXPECT_THAT(
      MustFail(&run),
      AllOf(HasSubstr("SIGSEGV on rank 1 in step 3 (forward), in the code of "
                      "model, unit '" +
                      PlainUnit() + "'"),
            HasSubstr("[rank 1] killed by signal 11 (SIGSEGV)")));
}

// Fails where it is told to.
class Failing final : public OneBucket {
 public:
  enum Place { kBeginMicroStep, kReduce, kPublish };
  explicit Failing(Place place) : place_(place) {}
  void BeginStep(int64_t step) override { step_ = step; }
  void BeginMicroStep(int index, int count) override {
    OneBucket::BeginMicroStep(index, count);
    Fail(kBeginMicroStep);
  }
  void PublishParameters(PublishCause) override { Fail(kPublish); }
  void Reduce() override {
    Fail(kReduce);
    OneBucket::Reduce();
  }

 private:
  void Fail(Place place) {
    if (place == place_ && step_ == 3 && group().rank() == 1) {
      throw std::runtime_error("the other bucket");
    }
  }

  const Place place_;
  int64_t step_ = 0;
};

TEST(PluginErrorTest, AThrowInTheStrategy) {
  for (const auto& [place, name] :
       {std::pair<Failing::Place, const char*>{Failing::kBeginMicroStep,
                                               "BeginMicroStep"},
        {Failing::kReduce, "FinishBackward"},
        {Failing::kPublish, "PublishParameters"}}) {
    ToyRun run = TwoRanks();
    run.change = [place = place](int, RunParts* parts) {
      parts->strategy = std::make_unique<Failing>(place);
    };
    EXPECT_THAT(MustFail(&run),
                HasSubstr(std::string("[rank 1] step 3: strategy, ") + name +
                          ": the other bucket"));
  }
}

// ---- A forward outside of UnitRunner::Run.

TEST(OutsideUnitsTest, IsAnErrorUnderEveryStrategy) {
  for (const bool sharded : {false, true}) {
    ToyRun run =
        With([](Model& model, int64_t, const at::Tensor& loss, UnitRunner&) {
          return loss * static_cast<conformance::ToyModel&>(model)
                            .bound()[conformance::kToyNorm]
                            .sum();
        });
    run.sharded = sharded;
    EXPECT_THAT(MustFail(&run),
                AllOf(HasSubstr("step 1: "),
                      HasSubstr("model uses its parameter 'norm.weight' in "
                                "aten::sum outside of UnitRunner::Run")))
        << sharded;
  }
}

// What reads a view, or a list in which the parameter is, reads the parameter.
TEST(OutsideUnitsTest, SeesThroughViewsAndLists) {
  using Read = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<Read, std::string>> reads = {
      {[](const at::Tensor& norm) { return norm.view({-1}).sum(); },
       "aten::sum"},
      {[](const at::Tensor& norm) {
         return at::cat({norm, norm}).sum();
       },
       "aten::cat"}};
  for (const auto& [read, name] : reads) {
    ToyRun run = With([read = read](Model& model, int64_t,
                                    const at::Tensor& loss, UnitRunner&) {
      return loss * read(static_cast<conformance::ToyModel&>(model)
                             .bound()[conformance::kToyNorm]);
    });
    EXPECT_THAT(MustFail(&run),
                HasSubstr("model uses its parameter 'norm.weight' in " + name));
  }
}

// A view reads nothing: what is inside may use it.
TEST(OutsideUnitsTest, AViewIsNone) {
  MustTrain(With([](Model& model, int64_t, const at::Tensor& loss,
                    UnitRunner& runner) {
    const at::Tensor norm = static_cast<conformance::ToyModel&>(model)
                                .bound()[conformance::kToyNorm];
    const at::Tensor view = norm.view({-1}).detach();
    return runner.Run(
        conformance::kToyHeadUnit, loss,
        [norm](const at::Tensor& input) { return input + 0.0 * norm.sum(); });
  }));
}

// No parameter has its shape.
TEST(OutsideUnitsTest, ALeafOfTheObjectivesOwnIsNone) {
  MustTrain(With([](Model&, int64_t, const at::Tensor& loss, UnitRunner&) {
    const at::Tensor own =
        at::empty({1, 2, 3}).fill_(1.0).set_requires_grad(true);
    return loss + 0.0 * own.sum();
  }));
}

// ---- A rank that fails on its way back to a checkpoint.

class FailsGoingBack final : public OneBucket {
 public:
  explicit FailsGoingBack(std::string paired) : paired_(std::move(paired)) {}
  void BeginStep(int64_t step) override { step_ = step; }
  // The spike's step makes no update: whoever publishes then goes back.
  void PublishParameters(PublishCause) override {
    if (step_ != 14) return;
    if (group().rank() == 1) throw std::runtime_error("no way back");
    // As long as what ranks agree by, with which it mustn't be paired.
    group().AllReduce(at::empty({4}, at::kFloat))->Wait();
    WriteText(paired_, "");
  }

 private:
  const std::string paired_;
  int64_t step_ = 0;
};

TEST(GoBackTest, ARankThatFailsPairsNoOthersCollective) {
  // Without PhaseGroup, which would end the others' collectives.
  setenv("CAPSTAN_CPU_COLLECTIVES", "gloo", 1);
  const std::string paired = NewTestFolder("paired") + "/paired";
  ToyRun run = TwoRanks();
  run.train =
      "max_steps: 20 save_every: 5 max_grad_norm: 0.6 loss_spikes { z_score: 6 "
      "window: 10 action: GO_BACK }";
  run.change = [paired](int, RunParts* parts) {
    parts->strategy = std::make_unique<FailsGoingBack>(paired);
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective), [](int64_t position, LossSum* loss) {
          if (position == 12 * 13) loss->sum = loss->sum * 1000.0;
        });
  };
  EXPECT_THAT(MustFail(&run), HasSubstr("no way back"));
  unsetenv("CAPSTAN_CPU_COLLECTIVES");
  EXPECT_FALSE(PathExists(paired));
}

}  // namespace
}  // namespace capstan
