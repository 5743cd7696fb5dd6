// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/metrics_log.h"

#include <cmath>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

std::string Path() {
  const auto* const test =
      testing::UnitTest::GetInstance()->current_test_info();
  return testing::TempDir() + "/" + test->name() + ".jsonl";
}

std::string ReadText() {
  std::ostringstream text;
  text << std::ifstream(Path()).rdbuf();
  return text.str();
}

std::string TextWithoutTimes() {
  return std::regex_replace(
      ReadText(), std::regex("\"time\": [0-9]{10}(\\.[0-9]{1,3})?, "), "");
}

void WriteText(const std::string& text) { std::ofstream(Path()) << text; }

std::vector<Json> ReadLines() {
  std::vector<Json> lines;
  std::istringstream text(ReadText());
  for (std::string line; std::getline(text, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

std::vector<std::string> Keys(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

StepMetrics SomeStep() {
  StepMetrics metrics;
  metrics.step = 7;
  metrics.loss = 0.1 + 0.2;
  metrics.grad_norm = 1.0 / 3.0;
  metrics.lr = 1e-5;
  metrics.tokens = 123456789012;
  metrics.trained_tokens = 98765432101;
  metrics.padding = 2.0 / 3.0;
  metrics.step_seconds = 5e-324;
  metrics.tokens_per_second = 1.7976931348623157e308;
  metrics.bytes_sent = 98765432109;
  metrics.communication_seconds = 0.7;
  metrics.exposed_seconds = 1.0 / 7.0;
  return metrics;
}

TEST(MetricsLog, KeysInOrderAndDoublesKeepEveryBit) {
  const StepMetrics metrics = SomeStep();
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Step(metrics).ok());
  // Read while open: lines are written at once.
  const std::vector<Json> lines = ReadLines();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(
      Keys(lines[0]),
      (std::vector<std::string>{
          "step", "time", "loss", "grad_norm", "lr", "tokens", "trained_tokens",
          "padding", "step_seconds", "tokens_per_second", "bytes_sent",
          "communication_seconds", "exposed_seconds"}));
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[0]["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(lines[0]["grad_norm"].get<double>(), metrics.grad_norm);
  EXPECT_EQ(lines[0]["lr"].get<double>(), metrics.lr);
  EXPECT_EQ(lines[0]["tokens"].get<int64_t>(), metrics.tokens);
  EXPECT_EQ(lines[0]["trained_tokens"].get<int64_t>(), metrics.trained_tokens);
  EXPECT_EQ(lines[0]["padding"].get<double>(), metrics.padding);
  EXPECT_EQ(lines[0]["step_seconds"].get<double>(), metrics.step_seconds);
  EXPECT_EQ(lines[0]["tokens_per_second"].get<double>(),
            metrics.tokens_per_second);
  EXPECT_EQ(lines[0]["bytes_sent"].get<int64_t>(), metrics.bytes_sent);
  EXPECT_EQ(lines[0]["communication_seconds"].get<double>(), 0.7);
  EXPECT_EQ(lines[0]["exposed_seconds"].get<double>(), 1.0 / 7.0);
}

TEST(MetricsLog, SamplesAreNotTokens) {
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 0, "samples");
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Step(SomeStep()).ok());
  EXPECT_EQ(ReadText().find("tokens"), std::string::npos);
  const Json line = ReadLines()[0];
  EXPECT_EQ(line["samples"], 123456789012);
  EXPECT_EQ(line["samples_per_second"], SomeStep().tokens_per_second);
  EXPECT_FALSE(line.contains("padding"));
}

TEST(MetricsLog, SkippedAndLossScaleOnlyWhenSet) {
  StepMetrics metrics = SomeStep();
  metrics.loss = NAN;
  metrics.grad_norm = INFINITY;
  metrics.skipped = true;
  metrics.spike = 7.25;
  metrics.loss_scale = 65536.0;
  metrics.exposed_seconds.reset();
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Step(metrics).ok());
  const std::vector<Json> lines = ReadLines();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0].size(), 16);
  EXPECT_TRUE(lines[0]["exposed_seconds"].is_null());
  EXPECT_TRUE(lines[0]["loss"].is_null());
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  EXPECT_EQ(lines[0]["skipped"], true);
  EXPECT_EQ(lines[0]["spike"], 7.25);
  EXPECT_EQ(lines[0]["loss_scale"], 65536.0);
}

TEST(MetricsLog, GpusTellMore) {
  StepMetrics metrics = SomeStep();
  metrics.mfu = 0.375;
  metrics.gpu_memory = {100, 200, 300, 400};
  metrics.loss_scale = 2.0;
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Step(metrics).ok());
  const Json line = ReadLines().at(0);
  std::vector<std::string> keys = Keys(line);
  keys.erase(keys.begin(), keys.begin() + 13);
  EXPECT_EQ(keys, (std::vector<std::string>{"mfu", "gpu_allocated_bytes",
                                            "gpu_reserved_bytes",
                                            "gpu_peak_bytes", "loss_scale"}));
  EXPECT_EQ(line["mfu"], 0.375);
  EXPECT_EQ(line["gpu_allocated_bytes"], 100);
  EXPECT_EQ(line["gpu_reserved_bytes"], 200);
  EXPECT_EQ(line["gpu_peak_bytes"], 300);
}

TEST(MetricsLog, EvalLines) {
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(
      log->Numbers(20, {{"eval/loss", 1.875}, {"test/acc_action", 0.5}}).ok());
  ASSERT_TRUE(log->Numbers(20, {{"eval/mean_return", 12.5}}).ok());
  EXPECT_EQ(TextWithoutTimes(),
            "{\"step\": 20, \"eval_loss\": 1.875, \"test_acc_action\": 0.5}\n"
            "{\"step\": 20, \"eval_mean_return\": 12.5}\n");
}

TEST(MetricsLog, AResumedRunDropsWhatItWillDoAgain) {
  const std::string kept =
      "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"loss\": 3.25}\n"
      "{\"step\": 2, \"eval_loss\": 3.0}\n";
  WriteText(kept +
            "{\"step\": 3, \"loss\": 3.0}\n{\"step\": 3, \"eval_loss\": 2.5}\n"
            "{\"step\": 4, \"lo");
  absl::StatusOr<MetricsLog> log = MetricsLog::Open(Path(), 2);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(ReadText(), kept);
  ASSERT_TRUE(log->Numbers(3, {{"eval/loss", 2.0}}).ok());
  EXPECT_EQ(TextWithoutTimes(), kept + "{\"step\": 3, \"eval_loss\": 2}\n");
  EXPECT_FALSE(PathExists(HiddenSibling(Path(), "new")));
}

TEST(MetricsLog, ALineCutShortIsDropped) {
  WriteText("{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2");
  ASSERT_TRUE(MetricsLog::Open(Path(), 5).ok());
  EXPECT_EQ(ReadText(), "{\"step\": 1, \"loss\": 3.5}\n");
}

TEST(MetricsLog, ARunFromTheStartBeginsAnew) {
  WriteText("{\"step\": 1, \"loss\": 3.5}\n");
  ASSERT_TRUE(MetricsLog::Open(Path(), 0).ok());
  EXPECT_EQ(ReadText(), "");
}

TEST(MetricsLog, AFullDiskIsReported) {
  absl::StatusOr<MetricsLog> log = MetricsLog::Open("/dev/full", 0);
  ASSERT_TRUE(log.ok()) << log.status();
  const absl::Status status = log->Step(SomeStep());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(),
            "/dev/full can't be written: No space left on device");
}

}  // namespace
}  // namespace capstan
