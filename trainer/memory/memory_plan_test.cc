// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/machine.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

int64_t In(const MemoryPlan& plan, MemoryCategory category) {
  return plan.at_peak[static_cast<int>(category)];
}

// Three units: one that reads the data, a layer, and a head.
std::vector<UnitMemory> Units() {
  std::vector<UnitMemory> units(3);
  units[0].kept = units[0].output = 10;
  units[1].kept = 100;
  units[1].output = 10;
  units[1].forward_workspace = 5;
  units[1].backward_workspace = 60;
  units[2].kept = units[2].output = 1;
  units[2].logits_kept = 20;
  units[2].logits_passing = 30;
  return units;
}

StrategyPlan Holding() {
  StrategyPlan plan;
  plan.parameters = 1000;
  plan.gradients = 2000;
  plan.masters = 3000;
  plan.optimizer_elements = 3000;
  return plan;
}

ActivationCheckpointing EveryUnit() {
  ActivationCheckpointing checkpointing;
  checkpointing.every = 1;
  checkpointing.units = 3;
  return checkpointing;
}

// What units add at the peak of a step.
int64_t OfUnits(const StrategyPlan& strategy,
                const std::vector<UnitMemory>& units,
                const ActivationCheckpointing& checkpointing = {}) {
  return Total(PlanMemory(strategy, 0, units, checkpointing, false).at_peak) -
         strategy.parameters - strategy.gradients - strategy.masters;
}

TEST(MemoryPlanTest, HoldsWhatTheStrategyHolds) {
  StrategyPlan strategy = Holding();
  strategy.sent_for_gradients = 7;
  strategy.sent_for_parameters = 70;
  const MemoryPlan plan = PlanMemory(strategy, 5000, Units(), {}, false);
  EXPECT_EQ(In(plan, MemoryCategory::kParameters), 1000);
  EXPECT_EQ(In(plan, MemoryCategory::kGradients), 2000);
  EXPECT_EQ(In(plan, MemoryCategory::kMasters), 3000);
  EXPECT_EQ(In(plan, MemoryCategory::kOptimizerState), 5000);
  EXPECT_EQ(plan.host, 0);
  EXPECT_EQ(plan.sent, 77);
  EXPECT_TRUE(plan.activations_known);
}

TEST(MemoryPlanTest, PeaksInTheLayersBackward) {
  // 10 of the embedding; the layer's 100, whose output is replaced by its
  // gradient, and 60; 20 of logits that wait for the embedding.
  const MemoryPlan plan = PlanMemory({}, 0, Units(), {}, false);
  EXPECT_EQ(In(plan, MemoryCategory::kActivations), 10 + 90);
  EXPECT_EQ(In(plan, MemoryCategory::kWorkspace), 10 + 60);
  EXPECT_EQ(In(plan, MemoryCategory::kLogits), 20);
  EXPECT_EQ(In(plan, MemoryCategory::kBuckets), 0);
}

TEST(MemoryPlanTest, PeaksInTheHeadWhereLogitsAreLarge) {
  std::vector<UnitMemory> units = Units();
  units[2].logits_passing = 3000;
  const MemoryPlan plan = PlanMemory({}, 0, units, {}, false);
  EXPECT_EQ(In(plan, MemoryCategory::kLogits), 3020);
  EXPECT_EQ(In(plan, MemoryCategory::kActivations) +
                In(plan, MemoryCategory::kWorkspace),
            10 + 100 + 1);
}

TEST(MemoryPlanTest, BucketsCountWhileTheirUnitRuns) {
  StrategyPlan strategy;
  const int64_t before = OfUnits(strategy, Units());
  strategy.forward_buckets = {0, 40, 0};
  EXPECT_EQ(OfUnits(strategy, Units()), before) << "forward holds less";
  strategy.backward_buckets = {0, 40, 0};
  strategy.backward_workspace = {0, 3, 0};
  EXPECT_EQ(OfUnits(strategy, Units()), before + 43);
  strategy.publish_buckets = 1000;
  EXPECT_EQ(OfUnits(strategy, Units()), 1000) << "no activations by then";
}

TEST(MemoryPlanTest, BucketsFillWhenTheKernelsAreDone) {
  std::vector<UnitMemory> units = Units();
  StrategyPlan strategy;
  strategy.backward_workspace = {0, 40, 0};
  const int64_t before = OfUnits(strategy, units);
  strategy.collect_buckets = {0, 50, 0};
  EXPECT_EQ(OfUnits(strategy, units), before) << "60 of workspace are gone";
  strategy.collect_buckets = {0, 65, 0};
  EXPECT_EQ(OfUnits(strategy, units), before + 5);
}

TEST(MemoryPlanTest, OnGpusBucketsFillWhileTheKernelsRun) {
  StrategyPlan strategy;
  strategy.backward_workspace = {0, 40, 0};
  strategy.collect_buckets = {0, 50, 0};
  const auto planned = [&] {
    return Total(PlanMemory(strategy, 0, Units(), {}, /*on_gpu=*/true).at_peak);
  };
  const int64_t with = planned();
  strategy.collect_buckets.clear();
  EXPECT_EQ(with, planned() + 50);
}

TEST(MemoryPlanTest, CheckpointedUnitsKeepTheirOutput) {
  std::vector<UnitMemory> units = Units();
  units.insert(units.begin() + 1, 9, units[1]);
  ActivationCheckpointing all = EveryUnit();
  all.units = static_cast<int>(units.size());
  // Nine outputs of ten layers; the last one's 100 recomputed, next to the
  // gradient of its output.
  EXPECT_EQ(OfUnits({}, units, all), 10 + 9 * 10 + 100 + 10 + 60 + 20);
  ActivationCheckpointing half = all;
  half.every = 2;
  EXPECT_EQ(OfUnits({}, units, half),
            10 + 5 * 100 + 4 * 10 + 100 + 10 + 60 + 20);
  EXPECT_EQ(OfUnits({}, units), 10 + 10 * 100 + 60 + 20);
}

TEST(MemoryPlanTest, TheLastUnitAndTheOneThatReadsTheDataAreNotCheckpointed) {
  std::vector<UnitMemory> units = Units();
  units[0].kept = 500;
  units[2].kept = 700;
  EXPECT_EQ(OfUnits({}, units, EveryUnit()), 500 + 10 + 700 + 20 + 30);
}

TEST(MemoryPlanTest, UnknownUnitsAreSaidToBeUnknown) {
  StrategyPlan strategy;
  strategy.forward_buckets = {10, 30};
  strategy.backward_buckets = {10, 50};
  const MemoryPlan plan = PlanMemory(strategy, 0, {}, {}, false);
  EXPECT_FALSE(plan.activations_known);
  EXPECT_EQ(In(plan, MemoryCategory::kBuckets), 50);
  EXPECT_EQ(Total(plan.at_peak), 50);
}

TEST(MemoryPlanTest, OffloadedMemoryIsTheHostsOnGpusOnly) {
  StrategyPlan strategy = Holding();
  strategy.optimizer_on_host = true;
  MemoryPlan plan = PlanMemory(strategy, 5000, Units(), {}, /*on_gpu=*/true);
  EXPECT_EQ(plan.host, 2000 + 3000 + 5000);
  EXPECT_EQ(In(plan, MemoryCategory::kMasters), 0);
  EXPECT_EQ(In(plan, MemoryCategory::kGradients), 0);
  EXPECT_EQ(In(plan, MemoryCategory::kOptimizerState), 0);
  EXPECT_EQ(In(plan, MemoryCategory::kParameters), 1000);
  strategy.parameters_on_host = true;
  plan = PlanMemory(strategy, 5000, Units(), {}, /*on_gpu=*/true);
  EXPECT_EQ(plan.host, 1000 + 2000 + 3000 + 5000);
  EXPECT_EQ(In(plan, MemoryCategory::kParameters), 0);
  plan = PlanMemory(strategy, 5000, Units(), {}, /*on_gpu=*/false);
  EXPECT_EQ(plan.host, 0);
  EXPECT_EQ(In(plan, MemoryCategory::kOptimizerState), 5000);
}

TEST(MemoryPlanTest, OffloadThatDoesNotFitIsRefused) {
  StrategyPlan strategy = Holding();
  EXPECT_TRUE(CheckHostMemory(strategy, 5000, 2, 1).ok()) << "nothing is there";
  strategy.optimizer_on_host = true;
  EXPECT_TRUE(CheckHostMemory(strategy, 5000, 2, 20000).ok());
  const absl::Status status = CheckHostMemory(strategy, 5000, 2, 19999);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* words : {"offload needs 19.5 KiB of host memory for 2 ranks",
                            "this machine has 19.5 KiB available"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  strategy.parameters_on_host = true;
  EXPECT_FALSE(CheckHostMemory(strategy, 5000, 2, 20000).ok());
}

// Measured runs (docs/memory.md), within an eighth: the same run's libraries
// took between 31 and 52 MiB of it.
TEST(MemoryPlanTest, AProcessIsMoreThanItsTensors) {
  constexpr double kMiB = 1 << 20;
  struct Run {
    double resident, tensors, other_sizes, process;
    c10::ScalarType compute;
  };
  for (const Run& run : std::vector<Run>{
           {59.6, 24.8, 0.0, 137.9, c10::ScalarType::Float},
           {59.6, 16.6, 0.0, 130.1, c10::ScalarType::Float},
           {59.6, 42.0, 30.4, 174.9, c10::ScalarType::Float},
           {59.6, 34.6, 30.6, 167.9, c10::ScalarType::Float},
           {59.6, 197.8, 0.0, 313.9, c10::ScalarType::Float},
           {59.6, 130.0, 88.6, 304.1, c10::ScalarType::Float},
           {66.4, 42.2, 64.0, 224.0, c10::ScalarType::Float},
           {63.6, 42.2, 64.0, 199.5, c10::ScalarType::Float},
           {59.6, 9.1, 0.0, 123.2, c10::ScalarType::BFloat16},
           {59.6, 49.5, 0.0, 169.1, c10::ScalarType::BFloat16},
       }) {
    const auto bytes = [kMiB](double mib) {
      return static_cast<int64_t>(mib * kMiB);
    };
    const double expected =
        ExpectedProcess(bytes(run.resident), bytes(run.tensors),
                        bytes(run.other_sizes), run.compute);
    EXPECT_NEAR(expected / kMiB, run.process, run.process / 8);
  }
}

// Of a forward without gradients a unit leaves its output; longer rows than in
// training make it the peak.
TEST(MemoryPlanTest, AnEvaluationHoldsOneUnitAtATime) {
  const StrategyPlan strategy = Holding();
  const auto plan = [&](const std::vector<UnitMemory>& evaluation) {
    return PlanMemory(strategy, 5000, Units(), {}, /*on_gpu=*/false, false, 0,
                      evaluation);
  };
  EXPECT_EQ(plan({}).evaluation, 0);
  constexpr int64_t kState = 1000 + 2000 + 3000 + 5000;
  // The layer: 100 and 5, and its input; the head's logits are less.
  const MemoryPlan same = plan(Units());
  EXPECT_EQ(same.evaluation, kState + 10 + 100 + 5);
  EXPECT_EQ(Total(same.at_peak), Total(plan({}).at_peak));
  std::vector<UnitMemory> longer = Units();
  longer[1].kept = 1000;
  longer[0].kept += 7;  // tables for all units
  const MemoryPlan larger = plan(longer);
  EXPECT_EQ(larger.evaluation, kState + 17 + 1000 + 5);
  EXPECT_EQ(Total(larger.at_peak), larger.evaluation);
  EXPECT_EQ(In(larger, MemoryCategory::kActivations), 17 + 1000 + 5);
}

TEST(MemoryPlanTest, AvailableMemoryIsSane) {
  EXPECT_GT(AvailableHostMemory(), int64_t{1} << 20);
  EXPECT_LT(AvailableHostMemory(), int64_t{1} << 50);
}

// Inputs of recomputed units are on the host, and on the device only while
// their unit runs.
TEST(MemoryPlanTest, OffloadedActivationsAreOnTheHost) {
  std::vector<UnitMemory> units(6);
  for (UnitMemory& unit : units) {
    unit.kept = 100;
    unit.output = 10;
  }
  ActivationCheckpointing checkpointing = EveryUnit();
  checkpointing.units = 6;
  const auto plan = [&](bool offload) {
    checkpointing.offload = offload;
    return PlanMemory(Holding(), 0, units, checkpointing, /*on_gpu=*/true);
  };
  const MemoryPlan kept = plan(false);
  const MemoryPlan offloaded = plan(true);
  EXPECT_EQ(kept.host, 0);
  // Units 1 to 4 are recomputed; their inputs of 10 bytes take 16.
  EXPECT_EQ(offloaded.host, 64);
  EXPECT_LT(In(offloaded, MemoryCategory::kActivations),
            In(kept, MemoryCategory::kActivations));
}

// While there are no activations.
TEST(MemoryPlanTest, AnUpdateHasWorkspaceOfItsOwn) {
  StrategyPlan strategy = Holding();
  const auto total = [&](bool on_gpu, int64_t update) {
    return Total(
        PlanMemory(strategy, 0, Units(), {}, on_gpu, false, update).at_peak);
  };
  const int64_t rest = total(true, 0);
  EXPECT_EQ(total(true, 10), rest);
  EXPECT_EQ(total(true, 5000), 1000 + 2000 + 3000 + 5000);
  EXPECT_EQ(total(false, 5000), total(true, 5000));
  strategy.optimizer_on_host = true;
  EXPECT_EQ(total(true, 5000), rest - 2000 - 3000) << "the CPU updates";
}

TEST(MemoryPlanTest, OfOtherOptimizersAMatrixIsAllowedFor) {
  const IdleModel vectors({{"a", {1 << 30}}}, 1);
  const IdleModel matrix({{"a", {100, 10}}, {"b", {1000, 1000}, 0, false}}, 1);
  const IdleMatrixOptimizer optimizer;
  EXPECT_EQ(optimizer.UpdateBytes({&matrix, 1000, true}), 16 * 1000);
  EXPECT_EQ(optimizer.UpdateBytes({&matrix, 1000, false}), 0);
  EXPECT_EQ(optimizer.UpdateBytes({&vectors, 1000, true}), 0);
}

TEST(MemoryPlanTest, PagedStateIsOnTheHostOrInAFile) {
  const StrategyPlan strategy = Holding();
  const MemoryPlan cpu = PlanMemory(strategy, 6000, {}, {}, false, true);
  EXPECT_EQ(In(cpu, MemoryCategory::kOptimizerState), 0);
  EXPECT_EQ(cpu.file, 6000);
  EXPECT_EQ(cpu.host, 0);
  const MemoryPlan gpu = PlanMemory(strategy, 6000, {}, {}, true, true);
  // The shard is smaller than a piece.
  EXPECT_EQ(In(gpu, MemoryCategory::kOptimizerState), 6000);
  EXPECT_EQ(gpu.host, 6000);
  EXPECT_EQ(gpu.file, 0);
}

}  // namespace
}  // namespace capstan
