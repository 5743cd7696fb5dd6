// SPDX-License-Identifier: Apache-2.0
#include "desk/track/alerts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "desk/run_folder/file_times.h"

namespace capstan::track {
namespace {

using ::testing::HasSubstr;

AlertRule RuleOf(const std::string& text) {
  const absl::StatusOr<AlertRule> rule = AlertRule::Parse(text);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return rule.value_or(AlertRule());
}

TEST(AlertRuleTest, ComparesAMetric) {
  EXPECT_TRUE(RuleOf("loss>5").IsMetBy(5.5));
  EXPECT_FALSE(RuleOf("loss>5").IsMetBy(5.0));
  EXPECT_TRUE(RuleOf("loss >= 5").IsMetBy(5.0));
  EXPECT_TRUE(RuleOf("eval_loss<2e0").IsMetBy(1.0));
  EXPECT_FALSE(RuleOf("eval_loss<=2").IsMetBy(2.5));
  // A loss that isn't a number is what one wants to be told of.
  EXPECT_TRUE(RuleOf("loss>5").IsMetBy(NAN));
  EXPECT_EQ(RuleOf("hang>30").bound, 30.0);
}

TEST(AlertRuleTest, SaysWhatARuleMayBe) {
  for (const char* const text :
       {"loss", "loss=5", ">5", "loss>", "loss>five", "hang<5", "loss>inf"}) {
    EXPECT_THAT(std::string(AlertRule::Parse(text).status().message()),
                HasSubstr("must be NAME>NUMBER"))
        << text;
  }
}

TEST(AlertsTest, AMetricThatTheRunDoesNotHaveIsToldOnce) {
  AlertOptions options;
  options.rules = {RuleOf("los>5"), RuleOf("loss>5"), RuleOf("eval_los<1"),
                   RuleOf("spike")};
  Alerts alerts(options, "run", "/run", nlohmann::ordered_json::object());
  const auto said = [&alerts](bool ended) {
    ::testing::internal::CaptureStderr();
    alerts.SayUnknown(ended);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(false), "") << "there is no row yet";
  Row row;
  row.metrics = {{"loss", 2.0}, {"lr", 0.1}};
  alerts.Look(row);
  EXPECT_EQ(said(false),
            "NOTE: --alert=los>5: run has no los so far, but loss, lr\n");
  EXPECT_EQ(said(false), "") << "an evaluation may have the other";
  EXPECT_THAT(said(true), HasSubstr("--alert=eval_los<1: run has no eval_los"));
  EXPECT_EQ(said(true), "");
}

TEST(AlertsTest, ARunThatWritesNothingHangsUnlessItHasEnded) {
  AlertOptions options;
  options.rules = {RuleOf("hang>30")};
  Alerts alerts(options, "run", "/run", nlohmann::ordered_json::object());
  RunState state;
  alerts.LookAt(state, NowSeconds() - 20.0);
  EXPECT_FALSE(alerts.pending());
  state.ended = true;
  alerts.LookAt(state, NowSeconds() - 40.0);
  EXPECT_FALSE(alerts.pending());
  state.ended = false;
  alerts.LookAt(state, NowSeconds() - 40.0);
  alerts.LookAt(state, NowSeconds() - 41.0);
  EXPECT_TRUE(alerts.pending());
  EXPECT_TRUE(alerts.Deliver("id"));
  EXPECT_FALSE(alerts.pending());
  alerts.LookAt(state, NowSeconds() - 50.0);
  EXPECT_FALSE(alerts.pending());
}

}  // namespace
}  // namespace capstan::track
