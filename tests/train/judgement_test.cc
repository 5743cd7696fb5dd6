// SPDX-License-Identifier: Apache-2.0
//
// What a run says and does about steps that go wrong: which tensor isn't finite
// and on which rank, loss spikes, memory that is full, weights and optimizer
// state that must not be saved, ranks that don't have the same.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "cluster/launch/launcher.h"
#include "tests/conformance/toy_model.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// 12 samples a step, in micro-batches of 2.
ToyRun ToySteps(int ranks, const std::string& train) {
  ToyRun run;
  run.ranks = ranks;
  run.micro_batch = 2;
  run.train = train;
  return run;
}

// Multiplies the losses of micro-batches.
ToyRun WithFactors(ToyRun run, std::function<double(int64_t position)> factor) {
  run.change = [factor](int, RunParts* parts) {
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective), [factor](int64_t position, LossSum* loss) {
          const double by = factor(position);
          if (by != 1.0) loss->sum = loss->sum * by;
        });
  };
  return run;
}

double InStep(int64_t step, int64_t position, double factor) {
  return position / 12 + 1 == step ? factor : 1.0;
}

// ---- Non-finite numbers.

TEST(NonFiniteTest, NamesTheLossTheRankAndTheSamples) {
  // Step 3 begins at position 24. Of two ranks the second has positions 26, 30
  // and 34 (sample 34), in its third micro-batch of three.
  const auto factor = [](int64_t position) {
    return position == 34 ? kNan : 1.0;
  };
  for (const bool sharded : {false, true}) {
    ToyRun run = WithFactors(ToySteps(2, "max_steps: 5"), factor);
    run.sharded = sharded;
    const std::string said = Printed(MustTrain(run));
    EXPECT_THAT(said,
                HasSubstr("step 3 makes no update: the loss is nan on "
                          "rank 1's micro-batch 3 of 3 (samples 34, 35 of "
                          "train_data)"));
    EXPECT_THAT(said, Not(HasSubstr("step 4 makes no update")));
  }
}

TEST(NonFiniteTest, NamesTheFirstOfSeveralLosses) {
  const auto factor = [](int64_t position) {
    return position >= 28 && position < 36
               ? -std::numeric_limits<double>::infinity()
               : 1.0;
  };
  EXPECT_THAT(
      Printed(MustTrain(WithFactors(ToySteps(2, "max_steps: 4"), factor))),
      HasSubstr("the loss is -inf on rank 0's micro-batch 2 of 3 "
                "(samples 28, 29 of train_data), the first of 4 such"));
}

TEST(NonFiniteTest, NamesTheGradient) {
  for (const bool sharded : {false, true}) {
    ToyRun run = ToySteps(2, "max_steps: 5");
    run.sharded = sharded;
    run.change = [](int, RunParts* parts) {
      parts->objective = std::make_unique<WrappedObjective>(
          std::move(parts->objective), [](int64_t position, LossSum* loss) {
            if (position != 30) return;
            loss->sum = loss->sum * 1.0;
            loss->sum.register_hook(
                [](const at::Tensor& gradient) { return gradient * kNan; });
          });
    };
    EXPECT_THAT(Printed(MustTrain(run)),
                AllOf(HasSubstr("step 3 makes no update"),
                      HasSubstr("all ranks' losses are finite"),
                      HasSubstr("but the gradient of 'norm.weight' isn't"),
                      HasSubstr("it comes from rank 1's micro-batch 2 of 3 "
                                "(samples 30, 31 of train_data)")));
  }
}

// The first loss that is a number is what the last ones are compared with.
TEST(NonFiniteTest, ARunThatGrewFromASecondStepHasDiverged) {
  ToyRun run = WithFactors(ToySteps(1, "max_steps: 12 max_grad_norm: 1e-6"),
                           [](int64_t position) {
                             if (position < 12) return kNan;
                             return position < 24 ? 1.0 : 1e4;
                           });
  EXPECT_THAT(MustFail(&run), HasSubstr("the run has diverged: its last "
                                        "losses are about"));
}

class OfPolicy final : public Precision {
 public:
  explicit OfPolicy(PrecisionPolicy policy) : policy_(policy) {}
  PrecisionPolicy policy() const override { return policy_; }

 private:
  const PrecisionPolicy policy_;
};

// Overflows that a smaller loss scale mends aren't told of; others are.
TEST(NonFiniteTest, UnderALossScale) {
  for (const bool in_loss : {false, true}) {
    ToyRun run = ToySteps(1, "max_steps: 5");
    run.change = [in_loss](int, RunParts* parts) {
      PrecisionPolicy policy;
      policy.loss_scaling = LossScaling();
      parts->precision = std::make_unique<OfPolicy>(policy);
      parts->objective = std::make_unique<WrappedObjective>(
          std::move(parts->objective), [=](int64_t position, LossSum* loss) {
            if (position != 24) return;
            loss->sum = loss->sum * (in_loss ? kNan : 1.0);
            loss->sum.register_hook(
                [](const at::Tensor& gradient) { return gradient * kNan; });
          });
    };
    const std::string folder = MustTrain(run);
    EXPECT_EQ(ReadMetrics(folder).steps[2].value("skipped", false), true);
    EXPECT_EQ(
        Printed(folder).find("step 3 makes no update") != std::string::npos,
        in_loss);
  }
}

TEST(NonFiniteTest, TheErrorOfARunThatEndsNamesIt) {
  ToyRun run = WithFactors(ToySteps(2, "max_steps: 60"), [](int64_t position) {
    return position >= 24 ? kNan : 1.0;
  });
  EXPECT_THAT(
      MustFail(&run),
      AllOf(HasSubstr("since step 3"),
            HasSubstr("in step 3 the loss is nan on rank 0's micro-batch 1")));
}

// ---- Loss spikes.

std::string Spikes(const std::string& action) {
  return absl::StrCat(
      "max_steps: 20 save_every: 5 max_grad_norm: 0.6 loss_spikes { z_score: 6 "
      "window: 10 action: ",
      action, " }");
}

TEST(SpikesTest, AllRanksJudgeAlike) {
  for (const char* action : {"NOTE", "SKIP", "GO_BACK"}) {
    Metrics one;
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(action, " ", ranks));
      // One rank's samples alone make it.
      const std::string folder = MustTrain(WithFactors(
          ToySteps(ranks, Spikes(action)),
          [](int64_t position) { return position == 12 * 13 ? 1000.0 : 1.0; }));
      const Metrics run = ReadMetrics(folder);
      ASSERT_EQ(run.steps.size(), 20u);
      for (const nlohmann::json& line : run.steps) {
        const bool spike = line["step"] == 14;
        EXPECT_EQ(line.contains("spike"), spike);
        EXPECT_EQ(line.contains("skipped"),
                  spike && std::string(action) != "NOTE");
        EXPECT_EQ(line.value("spike", 0.0) > 6.0, spike);
      }
      EXPECT_THAT(Printed(folder), HasSubstr("step 14: the loss "));
      if (ranks == 1) one = run;
      for (size_t i = 0; i < 20; ++i) {
        EXPECT_NEAR(run.losses()[i], one.losses()[i],
                    1e-5 * std::abs(one.losses()[i]));
      }
    }
  }
}

TEST(SpikesTest, GoesBackThreeTimesToOneCheckpoint) {
  ToyRun run =
      WithFactors(ToySteps(2, Spikes("GO_BACK")), [](int64_t position) {
        return position >= 12 * 10 && position < 12 * 14 ? 1000.0 : 1.0;
      });
  const std::string said = MustFail(&run);
  EXPECT_THAT(said, AllOf(HasSubstr("step 14"), HasSubstr("step-00000010"),
                          HasSubstr("3 times")));
  EXPECT_THAT(Printed(run.output_dir),
              AllOf(HasSubstr("step 11: back to the weights of step 10"),
                    HasSubstr("step 13: back to the weights of step 10")));
}

TEST(SpikesTest, NothingToGoBackTo) {
  ToyRun run =
      ToySteps(2,
               "max_steps: 12 save_every: 100 loss_spikes { z_score: 6 "
               "window: 8 action: GO_BACK }");
  const std::string folder = MustTrain(WithFactors(
      run, [](int64_t position) { return InStep(10, position, 1000.0); }));
  EXPECT_THAT(Printed(folder), HasSubstr("no checkpoint yet"));
}

// ---- Memory.

TEST(MemoryTest, NamesRankPhaseAndBytes) {
  constexpr int64_t kAsked = int64_t{1} << 46;
  ToyRun run = ToySteps(2, "max_steps: 3");
  run.change = [](int rank, RunParts* parts) {
    parts->objective = std::make_unique<WrappedObjective>(
        std::move(parts->objective), [rank](int64_t position, LossSum*) {
          if (rank == 1 && position >= 18) at::empty({kAsked}, at::kByte);
        });
  };
  const std::string said = MustFail(&run);
  EXPECT_THAT(said,
              AllOf(HasSubstr("[rank 1]"),
                    HasSubstr("step 2: rank 1 is out of memory in forward of "
                              "micro-batch 2 of 3"),
                    HasSubstr("lower batch.micro_batch_size (now 2)"),
                    // With the allocator's padding.
                    HasSubstr("tried to allocate 703687441777")));
}

TEST(MemoryTest, InAnEvaluation) {
  ToyRun run = ToySteps(2, "max_steps: 3 eval_every: 2");
  run.change = [](int rank, RunParts* parts) {
    if (rank != 1) return;
    parts->eval_data = std::make_unique<WrappedData>(
        std::move(parts->eval_data),
        [](int64_t) -> absl::Status { throw std::bad_alloc(); });
  };
  EXPECT_THAT(MustFail(&run),
              AllOf(HasSubstr("[rank 1] rank 1 is out of memory"),
                    HasSubstr("lower batch.micro_batch_size (now 2)"),
                    HasSubstr("evaluation")));
}

// ---- What is poisoned isn't saved.

enum class Poison { kMaster, kState };

// Poisons the last element that rank `rank` saves of its first shard, in update
// 6, in which a signal comes if `stopped`.
ToyRun Poisoned(Poison poison, int ranks, bool sharded,
                const std::string& train, bool stopped = false) {
  ToyRun run = ToySteps(ranks, train);
  run.sharded = sharded;
  run.change = [=](int rank, RunParts* parts) {
    Strategy* const strategy = parts->strategy.get();
    parts->optimizer = std::make_unique<WrappedOptimizer>(
        std::move(parts->optimizer),
        [=](int64_t step, OptimizerShard& shard, absl::Span<at::Tensor> state) {
          if (step != 6) return;
          if (rank == 0 && stopped) AdoptStop(SIGTERM);
          if (rank != ranks - 1) return;
          for (const OwnedSlice& slice : strategy->OwnedSlices()) {
            const ParameterRange& range = shard.ranges.back();
            const int64_t at =
                std::min(slice.end, range.offset + range.length) - 1;
            at::Tensor& tensor =
                poison == Poison::kMaster ? shard.master : state[0];
            if (slice.shard == 0) tensor.data_ptr<float>()[at] = kNan;
          }
        });
  };
  return run;
}

TEST(PoisonedTest, NoPathSavesIt) {
  for (const Poison poison : {Poison::kMaster, Poison::kState}) {
    for (const bool sharded : {false, true}) {
      for (const int ranks : {1, 2}) {
        // Periodically; at the end; as the best.
        for (const char* train :
             {"max_steps: 9 save_every: 3", "max_steps: 6",
              "max_steps: 6 eval_every: 6 eval_batches: 1 keep_best: true"}) {
          SCOPED_TRACE(absl::StrCat(train, " state ", poison == Poison::kState,
                                    " sharded ", sharded, " ranks ", ranks));
          ToyRun run = Poisoned(poison, ranks, sharded, train);
          EXPECT_THAT(
              MustFail(&run),
              AllOf(HasSubstr("after step 6"), HasSubstr("holds NaN"),
                    HasSubstr(poison == Poison::kMaster ? "'"
                                                        : "momentum of '")));
          for (const int64_t step : CheckpointSteps(run.output_dir)) {
            EXPECT_LT(step, 6);
          }
          EXPECT_FALSE(PathExists(run.output_dir + "/final"));
        }
      }
    }
  }
}

TEST(PoisonedTest, NorDoesASignal) {
  ToyRun run = Poisoned(Poison::kState, 2, false, "max_steps: 9", true);
  EXPECT_THAT(MustFail(&run), HasSubstr("holds NaN"));
  EXPECT_TRUE(CheckpointSteps(run.output_dir).empty());
}

// Finite in the checkpoint's float32, infinite in final/'s float16.
TEST(PoisonedTest, WhatFloat16CannotHold) {
  ToyRun run = ToySteps(1, "max_steps: 3");
  run.change = [](int, RunParts* parts) {
    PrecisionPolicy policy;
    policy.compute = at::kHalf;
    parts->precision = std::make_unique<OfPolicy>(policy);
    parts->optimizer = std::make_unique<WrappedOptimizer>(
        std::move(parts->optimizer),
        [](int64_t step, OptimizerShard& shard, absl::Span<at::Tensor>) {
          if (step == 3) shard.master.data_ptr<float>()[0] = -65600.0f;
        });
  };
  EXPECT_THAT(MustFail(&run), AllOf(HasSubstr("after step 3"),
                                    HasSubstr("beyond float16's 65504")));
  EXPECT_EQ(CheckpointSteps(run.output_dir), std::vector<int64_t>{3});
  EXPECT_FALSE(PathExists(run.output_dir + "/final"));
}

// ---- Ranks that don't have the same.

class ShorterData final : public DatasetReader {
 public:
  // size: samples; by: added to each of its numbers.
  ShorterData(std::unique_ptr<DatasetReader> data, int64_t size, int64_t by)
      : data_(std::move(data)), size_(size), by_(by) {}
  int64_t size() const override { return size_; }
  bool shuffle() const override { return data_->shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    CAPSTAN_RETURN_IF_ERROR(data_->Read(indices, batch));
    (*batch)["rare"].add_(by_);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }

 private:
  const std::unique_ptr<DatasetReader> data_;
  const int64_t size_;
  const int64_t by_;
};

TEST(RanksTest, OtherData) {
  for (const auto& [size, by] : {std::pair<int64_t, int64_t>{39, 0}, {40, 1}}) {
    ToyRun run = ToySteps(3, "max_steps: 3");
    run.change = [size = size, by = by](int rank, RunParts* parts) {
      if (rank != 2) return;
      parts->train_data =
          std::make_unique<ShorterData>(std::move(parts->train_data), size, by);
    };
    const std::string said = MustFail(&run);
    EXPECT_THAT(
        said, HasSubstr(size == 39 ? "[rank 2] rank 2 has another number of "
                                     "training samples than rank 0: 39, where "
                                     "rank 0 has 40"
                                   : "[rank 2] rank 2 has other training "
                                     "samples than rank 0: checksum "));
  }
}

// Samples that are alike where they are compared.
class OtherSequence final : public DatasetReader {
 public:
  OtherSequence(std::unique_ptr<DatasetReader> data, std::string digest)
      : data_(std::move(data)), digest_(std::move(digest)) {}
  int64_t size() const override { return data_->size(); }
  bool shuffle() const override { return false; }
  bool draws_anew() const override { return true; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    return data_->Read(indices, batch);
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  absl::StatusOr<std::string> Digest() const override { return digest_; }

 private:
  const std::unique_ptr<DatasetReader> data_;
  const std::string digest_;
};

TEST(RanksTest, OtherShardsOfASequence) {
  ToyRun run = ToySteps(3, "max_steps: 3");
  run.change = [](int rank, RunParts* parts) {
    parts->train_data = std::make_unique<OtherSequence>(
        std::move(parts->train_data), rank == 2 ? "shards B" : "shards A");
  };
  EXPECT_THAT(MustFail(&run),
              HasSubstr("[rank 2] rank 2 has other training data than rank 0: "
                        "shards B, where rank 0 has shards A"));
}

class OtherModel final : public Model {
 public:
  explicit OtherModel(std::unique_ptr<Model> model)
      : model_(std::move(model)), specs_(model_->parameters()) {
    specs_.back().shape.push_back(1);
  }
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override {
    return model_->units();
  }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Model> model_;
  std::vector<ParameterSpec> specs_;
};

TEST(RanksTest, AnotherModel) {
  ToyRun run = ToySteps(2, "max_steps: 3");
  run.change = [](int rank, RunParts* parts) {
    if (rank == 1) {
      parts->model = std::make_unique<OtherModel>(std::move(parts->model));
    }
  };
  EXPECT_THAT(MustFail(&run),
              HasSubstr("rank 1 has another model than rank 0"));
}

}  // namespace
}  // namespace capstan
