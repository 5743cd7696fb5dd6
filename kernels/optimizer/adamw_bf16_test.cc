// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_bf16.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/optimizer/normal_for_test.h"

namespace capstan::kernels {
namespace {

AdamWOptions Options(int64_t step) {
  AdamWOptions options;
  options.step = step;
  options.learning_rate = 1e-2;
  options.gradient_scale = 0.25;
  return options;
}

struct State {
  explicit State(int64_t length)
      : parameter(Normal(1, length, 0.1f)),
        exp_avg(at::zeros({length}, at::kBFloat16)),
        exp_avg_sq(at::zeros({length}, at::kBFloat16)) {}
  AdamWBuffers With(const at::Tensor& gradient) const {
    return {gradient, parameter, exp_avg, exp_avg_sq, {}, {}};
  }
  at::Tensor parameter, exp_avg, exp_avg_sq;
};

void ExpectEqual(const State& a, const State& b) {
  EXPECT_TRUE(at::equal(a.parameter, b.parameter));
  EXPECT_TRUE(at::equal(a.exp_avg, b.exp_avg));
  EXPECT_TRUE(at::equal(a.exp_avg_sq, b.exp_avg_sq));
}

// The first update is float32's, as it is made before state is rounded.
TEST(AdamWBf16Test, UpdatesAsFloat32DoesBeforeItRounds) {
  constexpr int64_t kLength = 1003;
  State state(kLength);
  at::Tensor parameter = state.parameter.clone();
  at::Tensor m = at::zeros({kLength}), v = at::zeros({kLength});
  const at::Tensor gradient = Normal(2, kLength, 1.0f);
  AdamWBf16Step(Options(1), state.With(gradient), 11, 0);
  AdamWStep(Options(1), {gradient, parameter, m, v});
  EXPECT_TRUE(at::equal(state.parameter, parameter));
  // To one of the two neighbours.
  EXPECT_LT(
      ((state.exp_avg.to(at::kFloat) - m).abs() / m.abs()).max().item<float>(),
      1.0f / 128);
  EXPECT_FALSE(at::equal(state.exp_avg, m.to(at::kBFloat16)));
}

// A second moment that grows by a thousandth a step, less than half of
// bfloat16's last place, arrives where it should: on average exactly.
TEST(AdamWBf16Test, TheMeanIsExact) {
  constexpr int64_t kLength = 1 << 14;
  constexpr int kSteps = 300;
  State state(kLength);
  AdamWOptions o = Options(1);
  o.gradient_scale = 1.0;
  const at::Tensor gradient = at::full({kLength}, 1.0f);
  double m = 0.0, v = 0.0;
  for (int step = 1; step <= kSteps; ++step) {
    o.step = step;
    AdamWBf16Step(o, state.With(gradient), RandomKey(step, "test"), 0);
    m = o.beta1 * m + (1 - o.beta1);
    v = o.beta2 * v + (1 - o.beta2);
  }
  const auto mean = [](const at::Tensor& t) {
    return t.to(at::kDouble).mean().item<double>();
  };
  // One value strays by about 2^-9 sqrt(300) of it, the mean of 2^14 by 2^-7
  // of that.
  EXPECT_NEAR(mean(state.exp_avg_sq), v, 2e-3 * v);
  EXPECT_NEAR(mean(state.exp_avg), m, 2e-3 * m);
}

TEST(AdamWBf16Test, AnElementsResultDoesNotDependOnItsPlace) {
  constexpr int64_t kLength = 200003;
  // Elements on both sides of 2^32, where the keys change.
  for (const int64_t begin : {int64_t{0}, (int64_t{1} << 32) - 70000}) {
    State whole(kLength), parts(kLength);
    const at::Tensor gradient = Normal(7, kLength, 1.0f);
    const int threads = at::get_num_threads();
    at::set_num_threads(3);
    AdamWBf16Step(Options(1), whole.With(gradient), 5, begin);
    at::set_num_threads(threads);
    for (int64_t at = 0; at < kLength;) {
      const int64_t count = std::min<int64_t>(kLength - at, 1 + at % 9973);
      const auto piece = [&](const at::Tensor& t) {
        return t.narrow(0, at, count);
      };
      AdamWBf16Step(Options(1),
                    {piece(gradient),
                     piece(parts.parameter),
                     piece(parts.exp_avg),
                     piece(parts.exp_avg_sq),
                     {},
                     {}},
                    5, begin + at);
      at += count;
    }
    ExpectEqual(whole, parts);
    State other(kLength);
    AdamWBf16Step(Options(1), other.With(gradient), 6, begin);
    EXPECT_TRUE(at::equal(other.parameter, whole.parameter));
    EXPECT_FALSE(at::equal(other.exp_avg, whole.exp_avg));
  }
}

TEST(AdamWBf16Test, ReadsAndWritesSixteenBits) {
  constexpr int64_t kLength = 1003;
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    State mixed(kLength), plain(kLength);
    const at::Tensor gradient = Normal(5, kLength, 2.0f).to(type);
    AdamWBuffers buffers = mixed.With(gradient);
    buffers.working = at::empty({kLength}, type);
    AdamWBf16Step(Options(1), buffers, 3, 9);
    AdamWBf16Step(Options(1), plain.With(gradient.to(at::kFloat)), 3, 9);
    ExpectEqual(mixed, plain);
    EXPECT_TRUE(at::equal(buffers.working, plain.parameter.to(type)));
  }
}

TEST(AdamWBf16Test, ADeviceScaleThatIsNotFiniteSkips) {
  constexpr int64_t kLength = 100;
  State state(kLength);
  AdamWBuffers buffers = state.With(Normal(8, kLength, 2.0f));
  buffers.device_scale = at::full({}, std::numeric_limits<float>::quiet_NaN());
  AdamWBf16Step(Options(1), buffers, 1, 0);
  ExpectEqual(state, State(kLength));
}

TEST(AdamWBf16Test, RejectsBuffersThatDoNotFit) {
  State state(8);
  state.exp_avg = at::zeros({8});
  EXPECT_THROW(AdamWBf16Step(Options(1), state.With(at::zeros({8})), 0, 0),
               c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
