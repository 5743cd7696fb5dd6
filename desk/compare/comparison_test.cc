// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ComparedRun Completed(const std::string& strategy, int processes,
                      std::vector<double> loss, std::vector<double> grad_norm,
                      const std::string& precision = "fp32") {
  ComparedRun run;
  run.id = strategy + "-" + precision + "-" + std::to_string(processes);
  run.strategy = strategy;
  run.precision = precision;
  run.processes = processes;
  run.status = ComparedRun::Status::kCompleted;
  run.bounds.loss = 1e-5;
  run.bounds.grad_norm = 1e-4;
  run.measured.loss = std::move(loss);
  run.measured.grad_norm = std::move(grad_norm);
  return run;
}

ComparedRun Skipped(const std::string& strategy, int processes) {
  ComparedRun run = Completed(strategy, processes, {}, {});
  run.status = ComparedRun::Status::kSkipped;
  return run;
}

Comparison Of(std::vector<ComparedRun> runs,
              const std::vector<std::string>& precisions = {"fp32"}) {
  Comparison comparison;
  for (const std::string& name : precisions) {
    ComparedPrecision precision;
    precision.name = name;
    comparison.precisions.push_back(precision);
  }
  comparison.runs = std::move(runs);
  Compare(&comparison);
  return comparison;
}

TEST(DeltaTest, IsRelativeToTheReference) {
  const CurveDelta delta = DeltaOf({4.0, 2.0, 1.0}, {4.0, 2.5, 0.8});
  ASSERT_EQ(delta.values.size(), 3);
  EXPECT_EQ(delta.values[0], 0.0);
  EXPECT_DOUBLE_EQ(delta.values[1], 0.2);
  EXPECT_DOUBLE_EQ(delta.values[2], 0.25);
  EXPECT_DOUBLE_EQ(delta.max, 0.25);
  EXPECT_EQ(delta.max_step, 3);
}

TEST(DeltaTest, NegativeReferencesCountByTheirSize) {
  EXPECT_DOUBLE_EQ(DeltaOf({-3.0}, {-2.0}).max, 0.5);
}

TEST(DeltaTest, WhatIsNotFinite) {
  EXPECT_THAT(DeltaOf({kNan, kInfinity, kNan, 1.0, 1.0},
                      {kNan, kNan, 1.0, kInfinity, 1.0})
                  .values,
              ElementsAre(0.0, 0.0, kInfinity, kInfinity, 0.0));
}

TEST(DeltaTest, AReferenceOfZeroHasNoScale) {
  EXPECT_THAT(DeltaOf({0.0, 1e-9}, {0.0, 0.0}).values,
              ElementsAre(0.0, kInfinity));
}

TEST(CompareTest, RunsWithinTheBoundsPass) {
  const Comparison comparison =
      Of({Completed("single", 1, {2.0, 1.0}, {1.0, 1.0}),
          Completed("ddp", 2, {2.0, 1.0 + 0.9e-5}, {1.0 + 0.9e-4, 1.0})});
  EXPECT_TRUE(comparison.passed());
  EXPECT_EQ(comparison.precisions[0].reference, "single-fp32-1");
  EXPECT_EQ(comparison.runs[1].reference, "single-fp32-1");
  EXPECT_NEAR(comparison.runs[1].loss_delta.max, 0.9e-5, 1e-9);
  EXPECT_EQ(comparison.runs[1].loss_delta.max_step, 2);
  EXPECT_EQ(comparison.runs[0].loss_delta.max, 0.0);
}

TEST(CompareTest, EachBoundThatIsPassedIsOneProblem) {
  const Comparison comparison =
      Of({Completed("single", 1, {2.0, 1.0}, {1.0, 1.0}),
          Completed("ddp", 1, {2.0, 1.0 + 2e-5}, {1.0, 1.0}),
          Completed("ddp", 2, {2.1, 1.0}, {1.0, 1.1})});
  EXPECT_FALSE(comparison.passed());
  EXPECT_THAT(
      comparison.problems,
      ElementsAre(
          AllOf(HasSubstr("ddp fp32 on 1 rank: loss"),
                HasSubstr("single fp32 on 1 rank by 2.00e-05 at step 2"),
                HasSubstr("1e-05")),
          AllOf(HasSubstr("ddp fp32 on 2 ranks: loss"), HasSubstr("step 1")),
          AllOf(HasSubstr("ddp fp32 on 2 ranks: gradient norm"),
                HasSubstr("step 2"), HasSubstr("0.0001"))));
}

// One that is known to differ has a bound of its own; the others stay exact.
TEST(CompareTest, EachRunHasItsOwnBounds) {
  ComparedRun exact = Completed("fsdp", 2, {2.0, 1.0 + 1e-9}, {1.0, 1.0});
  exact.bounds.loss = exact.bounds.grad_norm = 0.0;
  ComparedRun loose = Completed("async", 2, {2.0, 1.1}, {1.0, 1.0});
  loose.bounds.loss = 0.2;
  EXPECT_THAT(
      Of({Completed("single", 1, {2.0, 1.0}, {1.0, 1.0}), exact, loose})
          .problems,
      ElementsAre(AllOf(HasSubstr("fsdp fp32 on 2 ranks: loss differs"),
                        HasSubstr("by 1.00e-09 at step 2; the bound is 0 "))));
}

TEST(CompareTest, CostsAreMultiplesOfTheReferences) {
  const auto costing = [](const char* strategy, double seconds, double bytes) {
    ComparedRun run = Completed(strategy, 1, {1.0}, {1.0});
    run.measured.step_seconds = seconds;
    run.measured.memory = {{"total", 1.0, bytes}};
    run.bounds.step_time = 1.2;
    run.bounds.peak_memory = 0.5;
    return run;
  };
  ComparedRun unmeasured = costing("fsdp", 0.1, 1.0);
  unmeasured.measured.memory.clear();
  ComparedRun any = costing("zero2", 9.0, 9e9);
  any.bounds.step_time = any.bounds.peak_memory = absl::nullopt;
  const Comparison comparison =
      Of({costing("single", 0.1, 1000.0), costing("ddp", 0.119, 500.0),
          costing("async", 0.13, 501.0), unmeasured, any});
  EXPECT_THAT(
      comparison.problems,
      ElementsAre(
          "async fp32 on 1 rank: the median step's time is 1.3 times that of "
          "single fp32 on 1 rank; the bound is 1.2",
          "async fp32 on 1 rank: the tensors' peak memory is 0.501 times that "
          "of single fp32 on 1 rank; the bound is 0.5",
          "fsdp fp32 on 1 rank: the tensors' peak memory has a bound, 0.5 "
          "times that of single fp32 on 1 rank, but wasn't measured"));
}

TEST(CompareTest, BitsAreComparedWhereTheBoundSaysSo) {
  const std::string folder = ::testing::TempDir() + "/bits";
  const auto write = [&folder](const ComparedRun& run, const char* digest) {
    std::filesystem::create_directories(folder + "/" + run.id);
    std::ofstream(folder + "/" + run.id + "/digests.jsonl")
        << R"({"step":1,"gradient":{"w":"ab"},"weight":{"w":")" << digest
        << "\"}}\n";
  };
  std::vector<ComparedRun> runs;
  for (const char* name : {"single", "ddp", "fsdp", "async", "zero2"}) {
    runs.push_back(Completed(name, 1, {1.0}, {1.0}));
    runs.back().bounds.bit_identical = name != std::string("async");
  }
  write(runs[0], "12");
  write(runs[1], "12");
  write(runs[2], "13");
  write(runs[3], "13");
  Comparison comparison = Of(runs);  // zero2 has written none
  CompareBits(folder, &comparison);
  EXPECT_THAT(
      comparison.problems,
      ElementsAre(
          "fsdp fp32 on 1 rank: the bound is bit_identical, but it parts from "
          "single fp32 on 1 rank in step 1: the weight of 'w' differs; --blame "
          "shows by how much",
          AllOf(HasSubstr("zero2 fp32 on 1 rank: the bound is bit_identical"),
                HasSubstr("zero2-fp32-1/digests.jsonl"))));
}

TEST(CompareTest, OnlyOneThatIsFiniteIsAProblem) {
  const Comparison comparison =
      Of({Completed("single", 1, {2.0, 1.0}, {1.0, kNan}),
          Completed("ddp", 1, {2.0, 1.0}, {1.0, kNan}),
          Completed("ddp", 2, {2.0, kNan}, {1.0, kNan})});
  EXPECT_THAT(comparison.problems,
              ElementsAre(AllOf(HasSubstr("ddp fp32 on 2 ranks: loss"),
                                HasSubstr("finite at step 2"))));
}

// Otherwise they would agree with anything that diverges, too.
TEST(CompareTest, AReferenceWithoutALossIsAProblem) {
  const Comparison comparison =
      Of({Completed("single", 1, {2.0, kNan, kNan}, {1.0, 1.0, 1.0}),
          Completed("ddp", 2, {2.0, kNan, kNan}, {1.0, 1.0, 1.0})});
  EXPECT_THAT(comparison.problems,
              ElementsAre(AllOf(HasSubstr("single fp32 on 1 rank"),
                                HasSubstr("not finite at step 2"))));
}

TEST(CompareTest, TheReferenceIsTheFirstStrategyOnItsFewestRanks) {
  const Comparison comparison = Of(
      {Skipped("odd", 2), Skipped("odd", 1), Completed("ddp", 4, {1.0}, {1.0}),
       Completed("ddp", 2, {1.0}, {1.0}), Completed("zero2", 1, {1.0}, {1.0})});
  EXPECT_EQ(comparison.precisions[0].reference, "ddp-fp32-2");
  for (const ComparedRun& run : comparison.runs) {
    const bool skipped = run.status == ComparedRun::Status::kSkipped;
    EXPECT_EQ(run.reference, skipped ? "" : "ddp-fp32-2") << run.id;
  }
}

TEST(CompareTest, FailedRunsAreProblemsAndAreNotCompared) {
  ComparedRun failed = Completed("ddp", 2, {}, {});
  failed.status = ComparedRun::Status::kFailed;
  failed.reason = "out of memory";
  const Comparison comparison = Of({Completed("single", 1, {1.0}, {1.0}),
                                    failed, Completed("ddp", 1, {1.0}, {1.0})});
  EXPECT_THAT(comparison.problems,
              ElementsAre("ddp fp32 on 2 ranks failed: out of memory"));
  EXPECT_EQ(comparison.runs[1].reference, "");
  EXPECT_EQ(comparison.runs[2].reference, "single-fp32-1");
}

TEST(CompareTest, WithoutItsReferenceNothingIsCompared) {
  ComparedRun failed = Completed("single", 1, {}, {});
  failed.status = ComparedRun::Status::kFailed;
  const Comparison comparison = Of({failed, Completed("ddp", 2, {1.0}, {1.0})});
  EXPECT_EQ(comparison.precisions[0].reference, "single-fp32-1");
  EXPECT_EQ(comparison.runs[1].reference, "");
  EXPECT_EQ(comparison.problems.size(), 1);
}

TEST(CompareTest, PrecisionsAreMeasuredAgainstTheFirstWithoutABound) {
  const Comparison comparison =
      Of({Completed("single", 1, {1.0, 1.0}, {1.0, 2.0}),
          Completed("single", 1, {1.0, 1.5}, {1.0, 1.0}, "bf16"),
          Completed("ddp", 2, {1.0, 1.5}, {1.0, 1.0}, "bf16")},
         {"fp32", "bf16"});
  EXPECT_THAT(comparison.problems, IsEmpty());
  EXPECT_FALSE(comparison.precisions[0].from_first.has_value());
  ASSERT_TRUE(comparison.precisions[1].from_first.has_value());
  EXPECT_DOUBLE_EQ(comparison.precisions[1].from_first->loss.max, 0.5);
  EXPECT_EQ(comparison.precisions[1].from_first->loss.max_step, 2);
  EXPECT_DOUBLE_EQ(comparison.precisions[1].from_first->grad_norm.max, 0.5);
  EXPECT_EQ(comparison.runs[2].reference, "single-bf16-1");
}

}  // namespace
}  // namespace capstan
