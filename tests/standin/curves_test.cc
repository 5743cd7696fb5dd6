// SPDX-License-Identifier: Apache-2.0
//
// Losses and gradients on stand-in devices are the CPU's, under every strategy,
// and the devices find nothing wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

void ExpectNear(const std::vector<double>& actual,
                const std::vector<double>& expected, double relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]))
        << "step " << i + 1;
  }
}

struct Bounds {
  double loss, grad_norm;
};

// Of the CPU's, relative. Sums have other orders: by 3e-8 and 1e-8 (float32)
// when this was written; bfloat16's roundings differ too, where the CPU fuses
// operators: 5e-5 and 1e-3.
constexpr Bounds kFloat32 = {1e-6, 1e-6}, kBFloat16 = {1e-4, 2e-3};

void ExpectCurveOfCpu(int gpus, const std::string& strategy,
                      const std::string& precision, const Bounds& bounds) {
  SCOPED_TRACE(strategy + " on " + std::to_string(gpus) + " in " + precision);
  const std::string in = "precision=capstan." + precision;
  const StandinRun cpu = RunOn(0, ShortRun(1, {"strategy=capstan.single", in}));
  ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
  const StandinRun gpu =
      RunOn(gpus, ShortRun(gpus, {"strategy=capstan." + strategy, in}));
  ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
  EXPECT_NE(gpu.result.out.find("GPU"), std::string::npos) << gpu.result.out;
  ASSERT_EQ(gpu.metrics.steps.size(), 2);
  ExpectNear(gpu.metrics.losses(), cpu.metrics.losses(), bounds.loss);
  ExpectNear(gpu.metrics.grad_norms(), cpu.metrics.grad_norms(),
             bounds.grad_norm);
  EXPECT_TRUE(gpu.findings.empty()) << gpu.findings[0];
}

TEST(StandinCurvesTest, Single) {
  ExpectCurveOfCpu(1, "single", "fp32", kFloat32);
}
TEST(StandinCurvesTest, SingleBFloat16) {
  ExpectCurveOfCpu(1, "single", "bf16", kBFloat16);
}
TEST(StandinCurvesTest, Ddp) { ExpectCurveOfCpu(2, "ddp", "fp32", kFloat32); }
TEST(StandinCurvesTest, Zero2) {
  ExpectCurveOfCpu(2, "zero2", "fp32", kFloat32);
}
TEST(StandinCurvesTest, FsdpBFloat16) {
  ExpectCurveOfCpu(2, "fsdp", "bf16", kBFloat16);
}
TEST(StandinCurvesTest, FsdpOnFour) {
  ExpectCurveOfCpu(4, "fsdp", "fp32", kFloat32);
}

// Its batches are pairs, whose counts stay on the host.
TEST(StandinCurvesTest, Preferences) {
  const std::vector<std::string> args = {
      "--config=" + Runfile("configs/dpo_quickstart.pbtxt"),
      "--set",
      "train.max_steps=2",
      "--set",
      "train.sample_prompts=",
      "--set",
      "train.eval_every=0",
      "--set",
      "train.eval_batches=1",
      "--set",
      "train.log_every=1",
      "--set",
      "launch.processes=1",
      "--set",
      "strategy=capstan.single"};
  const StandinRun cpu = RunOn(0, args);
  ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
  const StandinRun gpu = RunOn(1, args);
  ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
  ExpectNear(gpu.metrics.losses(), cpu.metrics.losses(), kFloat32.loss);
  EXPECT_TRUE(gpu.findings.empty()) << gpu.findings[0];
}

}  // namespace
}  // namespace capstan
