// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/conformance/difference.h"
#include "tests/conformance/strategy.h"
#include "tests/conformance/strategy_checks.h"
#include "tests/conformance/toy_model.h"

namespace capstan {
namespace conformance {
namespace {

// Compared with float64. A loss is a sum of 45 float32 terms with a dozen
// roundings each (2^-24 relative); the order of sums over ranks and micro-steps
// is free. Measured: losses and norms 2e-7, values 2e-7. Mistakes of a strategy
// change them by percents.
constexpr CurveBounds kFp32 = {1e-6, 1e-6, 2e-6, 1e-6};

// Compared with the same micro-batches computed sequentially in the same 16
// bits. Forward and backward of a micro-batch are the same operations on the
// same numbers; gradients are then summed in float32, in any order. So the
// first step differs only by float32's rounding; sums in 16 bits would show.
// Later ones differ if a master, off by 2^-24, crosses the midpoint between two
// 16-bit numbers, which happens to few of 1,300 in a run: the working copy then
// changes by 2^-8 of itself (fp16: 2^-11), the loss by less than 1e-4, the norm
// by less than 1e-3.
constexpr CurveBounds k16Bit = {1e-6, 1e-4, 1e-3, 5e-4};

std::vector<int> AllParameters() {
  std::vector<int> all(kToyParameters);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<double> InitialValue(int parameter) {
  const ToyModel model;
  const int64_t numel = model.parameters()[parameter].numel();
  std::vector<float> values(numel);
  EXPECT_TRUE(
      model.InitialValue(parameter, kToySeed, 0, numel, values.data()).ok());
  return std::vector<double>(values.begin(), values.end());
}

std::vector<double> Rounded(const std::vector<double>& values,
                            at::ScalarType dtype) {
  const at::Tensor wide =
      at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), wide.mutable_data_ptr<double>());
  const at::Tensor narrow = wide.to(dtype).to(at::kDouble);
  const double* data = narrow.const_data_ptr<double>();
  return std::vector<double>(data, data + values.size());
}

// What ForEachFullParameter passed on rank 0; empty if it didn't.
std::vector<double> Full(const Launch& launch, const std::string& name,
                         int parameter) {
  const auto& values = launch.result.ranks[0].values;
  const auto it = values.find(absl::StrCat(name, "/full/", parameter));
  return it == values.end() || it->second.size() != 1 ? std::vector<double>()
                                                      : it->second[0];
}

TEST_P(StrategyConformance, PlansWhatItHolds) {
  for (const char* name : {"whole", "matrices"}) {
    ForEach(
        name, [&](int world, const Scenario& scenario, const Launch& launch) {
          const absl::StatusOr<StrategyPlan> plan =
              ToyTrainer::Plan(plugin(), scenario.run, world);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_EQ(plan->forward_buckets.size(), kToyUnits);
          EXPECT_EQ(plan->backward_buckets.size(), kToyUnits);
          EXPECT_EQ(plan->backward_workspace.size(), kToyUnits);
          double most = 0.0;
          for (const RankResult& rank : launch.result.ranks) {
            const auto it = rank.values.find(scenario.name + "/elements");
            ASSERT_NE(it, rank.values.end());
            most = std::max(most, it->second[0][0]);
          }
          EXPECT_EQ(plan->optimizer_elements, most);
          if (world == 1) {
            EXPECT_EQ(plan->sent_for_gradients + plan->sent_for_parameters, 0);
          } else {
            EXPECT_GT(own_curve().has_value() ? plan->sent_for_parameters
                                              : plan->sent_for_gradients,
                      0);
          }
        });
  }
}

TEST_P(StrategyConformance, BindsTensorsAsTheModelSays) {
  ForEach("whole", [](int, const Scenario&, const Launch&) {});
  ForEach("bf16", [](int, const Scenario&, const Launch&) {});
  ExpectNoProblems(kBindingTopic);
}

TEST_P(StrategyConformance, ShardsAreWellFormed) {
  ForEach("whole", [](int, const Scenario&, const Launch&) {});
  ExpectNoProblems(kShardsTopic);
}

TEST_P(StrategyConformance, StartsFromTheModelsValues) {
  ForEach("whole", [](int, const Scenario&, const Launch& launch) {
    for (int p = 0; p < kToyParameters; ++p) {
      EXPECT_EQ(MaxDifference(Full(launch, "whole/start", p), InitialValue(p)),
                0.0)
          << "parameter " << p;
    }
  });
}

TEST_P(StrategyConformance, FullParametersComeInOrderOnRank0) {
  ForEach("accumulated", [&](int world, const Scenario& scenario,
                             const Launch& launch) {
    const Curve& want = ReferenceOf(world, scenario);
    if (own_curve().has_value()) return;
    for (int p = 0; p < kToyParameters; ++p) {
      EXPECT_LE(MaxDifference(Full(launch, scenario.name, p), want.values[p]),
                kFp32.value)
          << "parameter " << p;
    }
  });
  ExpectNoProblems(kFullParametersTopic);
}

TEST_P(StrategyConformance, OneBigBatchGivesTheReferencesCurve) {
  ForEach("whole",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
          });
}

TEST_P(StrategyConformance, AccumulationIsOneBigBatch) {
  ForEach("accumulated",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
          });
}

// Strategies then keep the micro-steps' gradients apart, and add them in an
// order of their own.
TEST_P(StrategyConformance, ADeterministicRunAddsUpAllMicroSteps) {
  ForEach("deterministic",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
            ExpectValues(world, scenario, launch, kFp32, AllParameters());
          });
}

TEST_P(StrategyConformance, EachElementHasOneOwnerAndItsValue) {
  for (const char* name : {"whole", "accumulated"}) {
    ForEach(name,
            [&](int world, const Scenario& scenario, const Launch& launch) {
              ExpectValues(world, scenario, launch, kFp32, AllParameters());
            });
  }
}

TEST_P(StrategyConformance, ATiedWeightGetsTheGradientsOfAllItsUses) {
  ForEach("accumulated",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectValues(world, scenario, launch, kFp32, {kToyEmbed});
          });
}

// Also for one that a rank's micro-batches, or those of all ranks, didn't use.
TEST_P(StrategyConformance, AnUnusedParameterHasAGradientOfZeroAndDecays) {
  for (const char* name : {"whole", "accumulated"}) {
    ForEach(
        name, [&](int world, const Scenario& scenario, const Launch& launch) {
          ExpectValues(world, scenario, launch, kFp32, {kToyUnused, kToyRare});
        });
  }
}

// At least in the compute dtype, bit by bit.
TEST_P(StrategyConformance, FrozenParametersStayToTheBit) {
  for (const char* name : {"accumulated", "bf16"}) {
    ForEach(name, [&](int, const Scenario& scenario, const Launch& launch) {
      for (int p : {kToyScale, kToyFrozen}) {
        const std::vector<double> before = InitialValue(p);
        const std::vector<double> after = Full(launch, name, p);
        ASSERT_EQ(after.size(), before.size());
        EXPECT_TRUE(after == before ||
                    after == Rounded(before, scenario.run.precision.compute))
            << "parameter " << p << " differs by up to "
            << MaxDifference(after, before);
      }
    });
  }
}

// With an optimizer whose update is a function of whole matrices, and whose
// state has its own dtypes, blocks and per-parameter numbers.
TEST_P(StrategyConformance, MatricesStayWholeWhereTheOptimizerNeedsThem) {
  ForEach("matrices",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
            ExpectValues(world, scenario, launch, kFp32, AllParameters());
          });
}

TEST_P(StrategyConformance, Bf16) {
  ForEach("bf16",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, k16Bit);
            ExpectValues(world, scenario, launch, k16Bit, AllParameters());
          });
}

// The same operations again: in fp32 the same numbers. In 16 bits, too: no
// parameter of the toy is used both by a recomputed unit and by another.
TEST_P(StrategyConformance, ActivationCheckpointingChangesNothing) {
  ForEach("recomputed",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
            ExpectValues(world, scenario, launch, kFp32, AllParameters());
          });
  ForEach("bf16_recomputed",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, k16Bit);
            ExpectValues(world, scenario, launch, k16Bit, AllParameters());
          });
}

TEST_P(StrategyConformance, EvaluationsGiveTheModelsLossAndDisturbNothing) {
  ForEach("evaluated", [&](int world, const Scenario& scenario,
                           const Launch& launch) {
    ExpectCurve(world, scenario, launch, kFp32);
    ExpectValues(world, scenario, launch, kFp32, AllParameters());
    const Curve& want = ReferenceOf(world, scenario);
    constexpr size_t kSteps[] = {0, 2, 3};  // done before each evaluation
    const absl::optional<OwnCurve> own = own_curve();
    for (int rank = 0; rank < world; ++rank) {
      const auto& values = launch.result.ranks[rank].values;
      const auto it = values.find("evaluated/eval");
      ASSERT_NE(it, values.end());
      ASSERT_EQ(it->second.size(), 3);
      for (size_t i = 0; i < 3; ++i) {
        const double wanted = want.evals[kSteps[i]][rank];
        const bool bounded = i > 0 && own.has_value();
        EXPECT_NEAR(it->second[i][0], wanted,
                    (bounded ? own->loss : kFp32.loss) * wanted)
            << "rank " << rank << " after " << kSteps[i] << " steps";
      }
    }
  });
  ExpectNoProblems(kEvaluationTopic);
}

TEST_P(StrategyConformance, WhatOneRankHasNotFiniteAllSkip) {
  ForEach("broken_fp32",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, kFp32);
            ExpectValues(world, scenario, launch, kFp32, AllParameters());
          });
  ForEach("broken_fp16",
          [&](int world, const Scenario& scenario, const Launch& launch) {
            ExpectCurve(world, scenario, launch, k16Bit);
            ExpectValues(world, scenario, launch, k16Bit, AllParameters());
          });
}

TEST_P(StrategyConformance, NanReachesNoCheckpoint) {
  ForEach("broken_fp32", [](int, const Scenario&, const Launch&) {});
  ForEach("broken_fp16", [](int, const Scenario&, const Launch&) {});
  ExpectNoProblems(kNonFiniteTopic);
}

// Of one with local steps.
TEST_P(StrategyConformance, TheSharedModelIsOneAndReplicasAreKept) {
  if (!local_steps()) GTEST_SKIP() << "it has no local steps";
  ForEach("accumulated", [](int, const Scenario&, const Launch&) {});
  ForEach("evaluated", [](int, const Scenario&, const Launch&) {});
  ExpectNoProblems(kSharedTopic);
}

TEST_P(StrategyConformance, BeforeExportLeavesNothingPending) {
  ForEach("exported", [](int, const Scenario&, const Launch&) {});
  ExpectNoProblems(kExportTopic);
}

TEST_P(StrategyConformance, ResumesOnAnyNumberOfRanks) {
  int resumed = 0;
  for (int world = 1; world <= kMaxWorld; ++world) {
    const Launch& launch = Resuming(world);
    for (const Scenario& scenario : launch.scenarios) {
      SCOPED_TRACE(absl::StrCat(scenario.name, " ranks to ", world));
      ASSERT_NO_FATAL_FAILURE(ExpectFinished(scenario, launch));
      const CurveBounds& bounds =
          scenario.run.precision.compute == at::kFloat ? kFp32 : k16Bit;
      ExpectCurve(world, scenario, launch, bounds);
      ExpectValues(world, scenario, launch, bounds, AllParameters());
      ++resumed;
    }
  }
  EXPECT_GT(resumed, 0) << "no world has left a checkpoint";
}

// For a strategy with a curve of its own nothing else says that state is lost.
TEST_P(StrategyConformance, ContinuesItsOwnCurveOnAsManyRanks) {
  if (!own_curve().has_value()) GTEST_SKIP() << "its curve is that of others";
  for (const char* name : {"accumulated", "deterministic", "bf16"}) {
    ExpectResumedToTheBit(name);
  }
}

TEST_P(StrategyConformance, ADeterministicRunResumesToTheBit) {
  ExpectResumedToTheBit("deterministic");
}

TEST_P(StrategyConformance, ARankThatFailsLeavesNoneWaiting) {
  bool any = false;
  for (int world : {2, 3}) {
    const Launch& launch = Failing(world);
    for (const Scenario& scenario : launch.scenarios) {
      any = true;
      SCOPED_TRACE(absl::StrCat(world, " ranks, ", scenario.name));
      ASSERT_NO_FATAL_FAILURE(ExpectFinished(scenario, launch));
    }
    for (const RankResult& rank : launch.result.ranks) {
      const auto [begin, end] = rank.problems.equal_range(kFaultTopic);
      for (auto it = begin; it != end; ++it) ADD_FAILURE() << it->second;
    }
  }
  if (!any) GTEST_SKIP() << "the strategy takes neither 2 nor 3 ranks";
}

}  // namespace
}  // namespace conformance
}  // namespace capstan
