// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "trainer/metrics/progress_bar.h"

namespace capstan {
namespace {

// A run with its own clock.
class TimeLeftTest : public ::testing::Test {
 protected:
  void Begin(int64_t max_steps, int64_t eval_every, int64_t save_every) {
    facts_.max_steps = max_steps;
    facts_.eval_every = eval_every;
    facts_.save_every = save_every;
    left_ = std::make_unique<TimeLeft>(facts_);
  }
  void Step(double seconds) {
    now_ += seconds;
    left_->Step(++step_, now_, seconds);
  }
  void Steps(int count, double seconds) {
    for (int i = 0; i < count; ++i) Step(seconds);
  }
  void Pause(double seconds) { now_ += seconds; }

  RunFacts facts_;
  std::unique_ptr<TimeLeft> left_;
  int64_t step_ = 0;
  double now_ = 5000.0;
};

TEST_F(TimeLeftTest, NotKnownBeforeAStep) {
  Begin(10, 0, 0);
  EXPECT_LT(left_->Seconds(), 0.0);
}

TEST_F(TimeLeftTest, AnEvaluationDoesNotMakeStepsLookSlow) {
  // 49 ms a step, an evaluation of 12 s every 500 of 1,000.
  Begin(1000, 500, 0);
  Steps(500, 0.049);
  EXPECT_NEAR(left_->Seconds(), 500 * 0.049, 1e-6) << "none is known yet";
  Pause(12.0);
  Step(0.049);
  EXPECT_NEAR(left_->Seconds(), 499 * 0.049 + 12.0, 1e-6);
  Steps(499, 0.049);
  EXPECT_NEAR(left_->Seconds(), 12.0, 1e-6) << "the last one";
}

TEST_F(TimeLeftTest, CountsEvaluationsAndCheckpointsApart) {
  // Evaluations of 2 s every 10, checkpoints of 1 s every 15, until 100.
  Begin(100, 10, 15);
  for (int i = 0; i < 30; ++i) {
    Step(0.1);
    if (step_ % 10 == 0) Pause(2.0);
    if (step_ % 15 == 0) Pause(1.0);
  }
  Step(0.1);
  // After 40, 50, .. 100, and after 45, 60, 75, 90 and the end.
  EXPECT_NEAR(left_->Seconds(), 69 * 0.1 + 7 * 2.0 + 5 * 1.0, 1e-6);
}

TEST_F(TimeLeftTest, TogetherTheyAreMeasuredAsOne) {
  Begin(40, 10, 10);
  Steps(10, 0.5);
  Pause(3.0);
  Step(0.5);
  EXPECT_NEAR(left_->Seconds(), 29 * 0.5 + 3 * 3.0, 1e-6);
}

TEST_F(TimeLeftTest, TheEndHasAnEvaluationOfItsOwn) {
  Begin(25, 10, 0);
  Steps(10, 0.5);
  Pause(3.0);
  Steps(10, 0.5);
  Pause(3.0);
  Step(0.5);
  EXPECT_NEAR(left_->Seconds(), 4 * 0.5 + 3.0, 1e-6) << "after step 25";
}

TEST_F(TimeLeftTest, FollowsTheRunAndForgetsAccidents) {
  Begin(1000, 0, 0);
  Steps(50, 0.1);
  Step(60.0);  // the machine slept
  EXPECT_NEAR(left_->Seconds(), 949 * 0.1, 1e-6);
  Steps(100, 0.2);
  EXPECT_NEAR(left_->Seconds(), 849 * 0.2, 1e-6);
}

TEST_F(TimeLeftTest, WhatLiesBetweenStepsOtherwiseIsPartOfThem) {
  Begin(100, 0, 0);
  Step(0.1);
  for (int i = 0; i < 60; ++i) {
    Pause(0.1);
    Step(0.1);
  }
  EXPECT_NEAR(left_->Seconds(), 39 * 0.2, 0.1);
}

TEST_F(TimeLeftTest, AResumedRunBeginsWhereItIs) {
  step_ = 500;
  Begin(1000, 100, 0);
  Pause(30.0);
  Step(0.1);
  EXPECT_NEAR(left_->Seconds(), 499 * 0.1, 1e-6);
}

}  // namespace
}  // namespace capstan
