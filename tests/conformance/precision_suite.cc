// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "tests/conformance/precision.h"
#include "tests/conformance/reference.h"
#include "trainer/session/loss_scaler.h"

namespace capstan {
namespace conformance {
namespace {

bool IsPowerOfTwo(double x) {
  int exponent = 0;
  return std::isfinite(x) && x > 0 && std::frexp(x, &exponent) == 0.5;
}

void ExpectSame(const PrecisionPolicy& a, const PrecisionPolicy& b) {
  EXPECT_EQ(a.compute, b.compute);
  EXPECT_EQ(a.reduce, b.reduce);
  EXPECT_EQ(a.master, b.master);
  ASSERT_EQ(a.loss_scaling.has_value(), b.loss_scaling.has_value());
  if (!a.loss_scaling.has_value()) return;
  EXPECT_EQ(a.loss_scaling->initial_scale, b.loss_scaling->initial_scale);
  EXPECT_EQ(a.loss_scaling->growth_factor, b.loss_scaling->growth_factor);
  EXPECT_EQ(a.loss_scaling->backoff_factor, b.loss_scaling->backoff_factor);
  EXPECT_EQ(a.loss_scaling->growth_interval, b.loss_scaling->growth_interval);
  EXPECT_EQ(a.loss_scaling->min_scale, b.loss_scaling->min_scale);
}

// Whether `wide` represents every number of `narrow`; tests all magnitudes.
bool Holds(at::ScalarType wide, at::ScalarType narrow) {
  constexpr int64_t kCount = 1000;
  at::Tensor values = at::empty({kCount}, at::kFloat);
  FillNormal(RandomKey(3, "precision"), 0, kCount, 0.0f, 1.0f,
             values.mutable_data_ptr<float>());
  for (int exponent = -30; exponent <= 30; exponent += 5) {
    const at::Tensor numbers =
        (values * std::ldexp(1.0, exponent)).to(narrow).nan_to_num();
    if (!numbers.to(wide).to(narrow).equal(numbers)) return false;
  }
  return true;
}

DeviceFacts Gpu(int compute_capability) {
  DeviceFacts device;
  device.gpu = true;
  device.compute_capability = compute_capability;
  return device;
}

// A CPU, and GPUs of every capability.
std::vector<DeviceFacts> Devices() {
  return {DeviceFacts(), Gpu(0), Gpu(61), Gpu(70), Gpu(80), Gpu(90)};
}

TEST_P(PrecisionConformance, ThePolicyIsConstant) {
  ExpectSame(precision().policy(), precision().policy());
  ExpectSame(New()->policy(), precision().policy());
  for (const DeviceFacts& device : Devices()) {
    ExpectSame(New()->PolicyOn(device), precision().PolicyOn(device));
    if (!precision().depends_on_device()) {
      ExpectSame(precision().PolicyOn(device), precision().policy());
    }
  }
}

void ExpectSumsAndMastersHoldIt(const PrecisionPolicy& policy) {
  for (const at::ScalarType type :
       {policy.compute, policy.reduce, policy.master}) {
    ASSERT_TRUE(c10::isFloatingType(type)) << c10::toString(type);
  }
  EXPECT_TRUE(Holds(policy.reduce, policy.compute))
      << c10::toString(policy.reduce) << " sums of "
      << c10::toString(policy.compute);
  EXPECT_TRUE(Holds(policy.master, policy.compute))
      << c10::toString(policy.master) << " masters of "
      << c10::toString(policy.compute);
}

TEST_P(PrecisionConformance, SumsAndMastersHoldWhatIsComputed) {
  for (const DeviceFacts& device : Devices()) {
    ExpectSumsAndMastersHoldIt(precision().PolicyOn(device));
  }
}

// float16's smallest number is 6e-8: without scaling, gradients vanish.
TEST_P(PrecisionConformance, Float16ScalesItsLoss) {
  for (const DeviceFacts& device : Devices()) {
    const PrecisionPolicy policy = precision().PolicyOn(device);
    if (policy.compute != at::kHalf) continue;
    EXPECT_TRUE(policy.loss_scaling.has_value());
  }
}

void ExpectPowersOfTwoWithinTheirLimits(const LossScaling& s) {
  EXPECT_TRUE(IsPowerOfTwo(s.initial_scale)) << s.initial_scale;
  EXPECT_TRUE(IsPowerOfTwo(s.min_scale)) << s.min_scale;
  EXPECT_TRUE(IsPowerOfTwo(s.growth_factor)) << s.growth_factor;
  EXPECT_TRUE(IsPowerOfTwo(s.backoff_factor)) << s.backoff_factor;
  EXPECT_GE(s.initial_scale, s.min_scale);
  EXPECT_GT(s.growth_factor, 1.0);
  EXPECT_LT(s.backoff_factor, 1.0);
  EXPECT_GE(s.growth_interval, 1);
  // The loss itself is a float32.
  EXPECT_LE(s.initial_scale, std::ldexp(1.0, 64));
}

TEST_P(PrecisionConformance, LossScalesArePowersOfTwoWithinTheirLimits) {
  for (const DeviceFacts& device : Devices()) {
    const PrecisionPolicy policy = precision().PolicyOn(device);
    if (!policy.loss_scaling.has_value()) continue;
    ExpectPowersOfTwoWithinTheirLimits(*policy.loss_scaling);
  }
}

// As many bad steps as a run allows in a row, then good ones.
TEST_P(PrecisionConformance, TheScaleFallsToItsMinimumAndRisesAgain) {
  const PrecisionPolicy policy = precision().policy();
  if (!policy.loss_scaling.has_value()) GTEST_SKIP() << "no loss scaling";
  LossScaler scaler(policy.loss_scaling);
  for (int step = 0; step < 200; ++step) {
    scaler.Update(/*finite=*/false);
    ASSERT_TRUE(IsPowerOfTwo(scaler.scale()));
    ASSERT_GE(scaler.scale(), policy.loss_scaling->min_scale);
  }
  EXPECT_TRUE(scaler.at_minimum());
  for (int64_t i = 0; i < policy.loss_scaling->growth_interval; ++i) {
    scaler.Update(/*finite=*/true);
  }
  EXPECT_EQ(scaler.scale(), policy.loss_scaling->min_scale *
                                policy.loss_scaling->growth_factor);
}

// Trains, within a hundredth of float64: 8 bits give 2^-9 per number, and the
// roundings of many numbers cancel.
TEST_P(PrecisionConformance, TrainsTheToy) {
  ReferenceOptions options;
  options.steps = 10;
  const Curve& wide = ReferenceCurve(options);
  options.precision = precision().policy();
  options.micro_batches = 2;
  const Curve& curve = ReferenceCurve(options);
  ASSERT_EQ(curve.failure, "");
  const auto eval = [](const Curve& c, size_t step) {
    return std::accumulate(c.evals[step].begin(), c.evals[step].end(), 0.0);
  };
  double applied = 0.0;
  for (double one : curve.applied) applied += one;
  // A scale that starts too high may first have to fall.
  ASSERT_GE(applied, 5.0);
  EXPECT_LT(eval(curve, 10), eval(curve, 0));
  EXPECT_NEAR(curve.losses[0], wide.losses[0], 0.01 * wide.losses[0]);
  if (applied < 10.0) return;
  EXPECT_NEAR(eval(curve, 10), eval(wide, 10), 0.01 * eval(wide, 10));
}

}  // namespace

}  // namespace conformance
}  // namespace capstan
