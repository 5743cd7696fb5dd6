// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RooflineReport, SaysSpeedAndWhatDoesNotFit) {
  RooflineRun run;
  run.name = "job";
  run.gpus = 8;
  run.strategy = "capstan.ddp";
  run.precision = "capstan.bf16";
  run.tokens = 1000;
  run.model_flops = 1e12;
  RooflineRow row;
  row.gpu = FindGpuSpecs("h100");
  ASSERT_NE(row.gpu, nullptr);
  row.step.step = 0.01;
  row.fastest = 0.008;
  row.slowest = 0.02;
  row.micro_batch = 4;
  row.planned_bytes = int64_t{90} << 30;
  row.room_bytes = int64_t{70} << 30;
  row.totals.kernels["aten::mm"] = {3, 3, 1e12, 5e9, 0, 0.005};
  row.totals.launches = 3;
  row.totals.waits = 2;
  EXPECT_NEAR(row.TokensPerSecond(run, row.step.step), 800000, 1e-6);
  EXPECT_NEAR(row.Mfu(run), 1e14 / row.gpu->bf16, 1e-9);
  const std::string text = RooflineText(run, {row});
  EXPECT_THAT(text, HasSubstr("never compared"));
  EXPECT_THAT(text, HasSubstr("aten::mm"));
  EXPECT_THAT(text, HasSubstr("800 k"));
  EXPECT_THAT(text, HasSubstr("doesn't fit: needs 90 of 70 GiB"));
  EXPECT_THAT(text, HasSubstr("8.00 .. 20.00"));
  row.planned_bytes = int64_t{60} << 30;
  EXPECT_THAT(RooflineText(run, {row}), Not(HasSubstr("doesn't fit")));
  const auto json = nlohmann::json::parse(RooflineJson(run, {row}));
  EXPECT_EQ(json["launches"], 3);
  EXPECT_EQ(json["waits"], 2);
  EXPECT_EQ(json["predictions"][0]["gpu"], "h100");
  EXPECT_EQ(json["predictions"][0]["fits"], true);
  EXPECT_EQ(json["predictions"][0]["tokens_per_second_range"],
            (std::vector<double>{400000, 1000000}));
  EXPECT_EQ(json["kernels"][0]["name"], "aten::mm");
}

}  // namespace
}  // namespace capstan
