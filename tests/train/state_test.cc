// SPDX-License-Identifier: Apache-2.0
//
// The states of objectives and models, and rollouts, in whole runs. The plugin
// tests/plugins/acme/replay has its own (end_to_end/rollout_test).
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/dataset.h"
#include "tests/conformance/toy_model.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kWeights[] = "/final/model.safetensors";

// Counts the micro-batches that it has trained on.
class CountingModel final : public conformance::ToyModel {
 public:
  std::string SaveState() const override {
    return count == 0 ? "" : absl::StrCat(count);
  }
  absl::Status RestoreState(absl::string_view state) override {
    if (absl::SimpleAtoi(state, &count)) return absl::OkStatus();
    return absl::InvalidArgumentError("isn't a count");
  }
  int64_t count = 0;
};

// A rank's losses grow with its model's count.
ToyRun WithCounts(int ranks) {
  ToyRun run;
  run.ranks = ranks;
  run.micro_batch = 2;
  run.change = [](int, RunParts* parts) {
    parts->model = std::make_unique<CountingModel>();
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective),
        [](Model& model, int64_t, LossSum* loss, UnitRunner&) {
          auto& counting = static_cast<CountingModel&>(model);
          loss->sum = loss->sum * (1.0 + 0.01 * ++counting.count);
        });
  };
  return run;
}

void ExpectSameRun(const std::string& folder, const std::string& straight) {
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

TEST(ModelStateTest, GoesOnOnAllRanks) {
  for (const bool sharded : {false, true}) {
    ToyRun run = WithCounts(2);
    run.sharded = sharded;
    run.train = "max_steps: 6";
    const std::string straight = MustTrain(run);
    run.train = "max_steps: 3";
    run.output_dir = MustTrain(run);
    run.train = "max_steps: 6 resume: AUTO";
    MustTrain(run);
    ExpectSameRun(run.output_dir, straight);
  }
}

// All ranks count alike, whatever their number.
TEST(ModelStateTest, GoesOnOnAnotherNumberOfRanks) {
  ToyRun run = WithCounts(2);
  run.train = "max_steps: 3";
  run.output_dir = MustTrain(run);
  run.ranks = 3;
  run.train = "max_steps: 4 resume: AUTO";
  run.change = [change = run.change](int rank, RunParts* parts) {
    change(rank, parts);
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective),
        [](Model& model, int64_t, LossSum*, UnitRunner&) {
          // 3 steps of 3 micro-batches, and those of this step.
          const int64_t count = static_cast<CountingModel&>(model).count;
          if (count < 10 || count > 11) throw std::runtime_error("lost count");
        });
  };
  MustTrain(run);
}

TEST(ModelStateTest, WhatCannotBeReadNamesTheFile) {
  ToyRun run = WithCounts(2);
  run.train = "max_steps: 3";
  run.output_dir = MustTrain(run);
  run.train = "max_steps: 6 resume: AUTO";
  // One that has no state.
  run.change = [](int, RunParts*) {};
  EXPECT_THAT(MustFail(&run),
              AllOf(HasSubstr("step-00000003/state-00000-of-00002.safetensors: "
                              "model, RestoreState: this model has no state"),
                    HasSubstr("start anew in another output_dir")));
}

// ---- Rollouts.

using RollOut =
    std::function<absl::Status(Model& model, std::vector<Batch>* batches,
                               const RolloutInfo& info, UnitRunner& runner)>;

// The toy's, with rollouts.
class Rolling final : public WrappedObjective {
 public:
  Rolling(std::unique_ptr<Objective> objective, RollOut roll_out)
      : WrappedObjective(std::move(objective),
                         Change([](int64_t, LossSum*) {})),
        roll_out_(std::move(roll_out)) {}
  bool has_rollouts() const override { return true; }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override {
    return roll_out_(model, batches, info, runner);
  }

 private:
  const RollOut roll_out_;
};

ToyRun WithRollouts(bool sharded, const RollOut& roll_out) {
  ToyRun run;
  run.ranks = 2;
  run.sharded = sharded;
  run.micro_batch = 2;
  run.train = "max_steps: 5";
  run.change = [roll_out](int, RunParts* parts) {
    parts->objective =
        std::make_unique<Rolling>(std::move(parts->objective), roll_out);
  };
  return run;
}

void Forward(Model& model, UnitRunner& runner) {
  conformance::ToyBatch toy = conformance::ToySamples(0, 1);
  toy.any_rare = true;
  static_cast<conformance::ToyModel&>(model).LossSum(toy, runner);
}

// Forwards of different numbers, of which `before` is called before each.
RollOut Ragged(const std::function<void(const RolloutInfo&, int)>& before) {
  return [before](Model& model, std::vector<Batch>* batches,
                  const RolloutInfo& info, UnitRunner& runner) {
    const auto mine = static_cast<int>(2 + (info.rank + info.step) % 3);
    for (int i = 0; !info.all_done(i >= mine); ++i) {
      before(info, i);
      Forward(model, runner);
    }
    // Trains on half of the targets.
    for (Batch& batch : *batches) {
      batch["targets"] = batch["targets"].clone();
      batch["targets"].select(1, 0).fill_(-100);
    }
    return absl::OkStatus();
  };
}

TEST(RolloutTest, RanksWaitForEachOther) {
  ToyRun plain;
  plain.micro_batch = 12;
  plain.train = "max_steps: 5";
  plain.trained = [](int64_t, int64_t place) { return place != 0; };
  const std::vector<double> want = ReadMetrics(MustTrain(plain)).losses();
  for (const bool sharded : {false, true}) {
    const ToyRun run =
        WithRollouts(sharded, Ragged([](const RolloutInfo&, int) {}));
    EXPECT_THAT(ReadMetrics(MustTrain(run)).losses(),
                ::testing::Pointwise(::testing::DoubleNear(2e-5), want));
  }
}

// Whatever training has made of them, which it goes on with.
TEST(RolloutTest, ForwardsMayHaveTheInitialWeights) {
  const auto loss_of = [](Model& model, UnitRunner& runner) {
    return static_cast<conformance::ToyModel&>(model)
        .LossSum(conformance::ToySamples(0, 4), runner)
        .item<float>();
  };
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    // Ranks are processes, each with its copy.
    const auto first = std::make_shared<float>();
    const ToyRun run =
        WithRollouts(sharded, [&](Model& model, std::vector<Batch>*,
                                  const RolloutInfo& info, UnitRunner& runner) {
          float initial = 0.0f;
          CAPSTAN_RETURN_IF_ERROR(info.with_initial_weights([&] {
            initial = loss_of(model, runner);
            return absl::OkStatus();
          }));
          const float present = loss_of(model, runner);
          if (info.step == 1) *first = present;
          const bool trained = info.step == 1 || present < initial;
          return initial == *first && trained
                     ? absl::OkStatus()
                     : absl::InternalError(
                           absl::StrCat(*first, ", ", initial, ", ", present));
        });
    const ToyRun plain = WithRollouts(
        sharded, [](Model&, std::vector<Batch>*, const RolloutInfo&,
                    UnitRunner&) { return absl::OkStatus(); });
    const std::vector<double> losses = ReadMetrics(MustTrain(run)).losses();
    EXPECT_EQ(losses.size(), 5);
    EXPECT_EQ(losses, ReadMetrics(MustTrain(plain)).losses());
  }
}

// A run that ends there saves what it has trained, not what it compares with.
TEST(RolloutTest, AfterAFailureWithTheInitialWeightsTheMastersAreBack) {
  const auto rolls = [](bool sharded, bool fails) {
    return WithRollouts(
        sharded, [fails](Model& model, std::vector<Batch>*,
                         const RolloutInfo& info, UnitRunner& runner) {
          return info.with_initial_weights([&] {
            Forward(model, runner);
            return fails && info.step == 4 ? absl::DataLossError("it is lost")
                                           : absl::OkStatus();
          });
        });
  };
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    ToyRun failing = rolls(sharded, true);
    EXPECT_THAT(MustFail(&failing), HasSubstr("it is lost"));
    EXPECT_EQ(CheckpointSteps(failing.output_dir).back(), 3);
    ToyRun resumed = rolls(sharded, false);
    resumed.output_dir = failing.output_dir;
    resumed.train = "max_steps: 5 resume: AUTO";
    EXPECT_EQ(ReadMetrics(MustTrain(resumed)).losses(),
              ReadMetrics(MustTrain(rolls(sharded, false))).losses());
  }
}

// Rank 1 throws amid its forwards; the other is in one, or asks whether all are
// done.
TEST(RolloutTest, AThrowOnOneRankEndsAll) {
  for (const char* collectives : {"", "gloo"}) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(absl::StrCat(collectives, " ", sharded));
      if (*collectives != '\0') {
        setenv("CAPSTAN_CPU_COLLECTIVES", collectives, 1);
      }
      ToyRun run = WithRollouts(
          sharded, Ragged([](const RolloutInfo& info, int forward) {
            if (info.rank == 1 && info.step == 3 && forward == 1) {
              throw std::runtime_error("no reward");
            }
          }));
      EXPECT_THAT(MustFail(&run),
                  HasSubstr("[rank 1] step 3: objective, Rollout: no reward"));
      unsetenv("CAPSTAN_CPU_COLLECTIVES");
    }
  }
}

TEST(RolloutTest, AnErrorIsNamedToo) {
  ToyRun run = WithRollouts(true, [](Model&, std::vector<Batch>*,
                                     const RolloutInfo& info, UnitRunner&) {
    return info.rank == 1 && info.step == 3
               ? absl::DataLossError("the rewards are lost")
               : absl::OkStatus();
  });
  EXPECT_THAT(
      MustFail(&run),
      HasSubstr("[rank 1] step 3: objective, Rollout: the rewards are lost"));
}

TEST(RolloutTest, MicroBatchesAndRowsStay) {
  const auto fail = [](const std::function<void(std::vector<Batch>*)>& change) {
    ToyRun run =
        WithRollouts(false, [change](Model&, std::vector<Batch>* batches,
                                     const RolloutInfo& info, UnitRunner&) {
          if (info.rank == 1 && info.step == 2) change(batches);
          return absl::OkStatus();
        });
    return MustFail(&run);
  };
  EXPECT_THAT(
      fail([](std::vector<Batch>* batches) { batches->pop_back(); }),
      HasSubstr("[rank 1] step 2: objective, Rollout: returned 2 micro-batches "
                "for 3: their number must stay"));
  EXPECT_THAT(fail([](std::vector<Batch>* batches) {
                at::Tensor& ids = (*batches)[1]["ids"];
                ids = ids.narrow(0, 0, 1);
              }),
              HasSubstr("objective, Rollout: returned another number of rows "
                        "of 'ids' in micro-batch 2 than 2: it must stay"));
}

}  // namespace
}  // namespace capstan
