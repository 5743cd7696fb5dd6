// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/optimizer/normal_for_test.h"

namespace capstan::kernels {
namespace {

AdamWOptions Options(int64_t step) {
  AdamWOptions options;
  options.step = step;
  options.learning_rate = 1e-2 / step;
  options.weight_decay = 0.1;
  options.gradient_scale = 0.25;
  return options;
}

struct State {
  explicit State(int64_t length)
      : parameter(Normal(1, length, 0.1f)),
        exp_avg(at::zeros({length})),
        exp_avg_sq(at::zeros({length})) {}
  at::Tensor parameter;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

// The update in double.
class Reference {
 public:
  explicit Reference(const at::Tensor& parameter)
      : p(parameter.const_data_ptr<float>(),
          parameter.const_data_ptr<float>() + parameter.numel()),
        m(p.size()),
        v(p.size()) {}

  void Step(const AdamWOptions& o, const at::Tensor& gradient) {
    const at::Tensor wide = gradient.to(at::kDouble);
    const double* g = wide.const_data_ptr<double>();
    for (size_t i = 0; i < p.size(); ++i) {
      const double scaled = g[i] * o.gradient_scale;
      p[i] *= 1.0 - o.learning_rate * o.weight_decay;
      m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * scaled;
      v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * scaled * scaled;
      const double m_hat = m[i] / (1.0 - std::pow(o.beta1, o.step));
      const double v_hat = v[i] / (1.0 - std::pow(o.beta2, o.step));
      p[i] -= o.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
    }
  }

  std::vector<double> p;
  std::vector<double> m;
  std::vector<double> v;
};

void ExpectNear(const at::Tensor& actual, const std::vector<double>& expected,
                double tolerance) {
  const float* a = actual.const_data_ptr<float>();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(a[i], expected[i], tolerance) << i;
  }
}

TEST(AdamWTest, MatchesTheFormulaInDouble) {
  for (const int64_t length : {1, 7, 16, 63, 1001, 70001}) {
    State state(length);
    Reference reference(state.parameter);
    for (int64_t step = 1; step <= 5; ++step) {
      const at::Tensor gradient = Normal(100 + step, length, 2.0f);
      AdamWStep(Options(step),
                {gradient, state.parameter, state.exp_avg, state.exp_avg_sq});
      reference.Step(Options(step), gradient);
    }
    ExpectNear(state.parameter, reference.p, 2e-7);
    ExpectNear(state.exp_avg, reference.m, 2e-7);
    ExpectNear(state.exp_avg_sq, reference.v, 2e-8);
  }
}

TEST(AdamWTest, MatchesTorchFused) {
  constexpr int64_t kLength = 4099;
  State mine(kLength);
  State torch(kLength);
  for (int64_t step = 1; step <= 5; ++step) {
    const AdamWOptions o = Options(step);
    const at::Tensor gradient = Normal(200 + step, kLength, 2.0f);
    AdamWStep(o, {gradient, mine.parameter, mine.exp_avg, mine.exp_avg_sq});
    const at::Tensor scaled = gradient.mul(o.gradient_scale);
    const at::Tensor steps = at::full({}, static_cast<float>(step));
    at::_fused_adamw_({torch.parameter}, {scaled}, {torch.exp_avg},
                      {torch.exp_avg_sq}, {}, {steps}, o.learning_rate, o.beta1,
                      o.beta2, o.weight_decay, o.epsilon, false, false);
  }
  EXPECT_TRUE(mine.parameter.allclose(torch.parameter, 1e-6, 1e-7));
  EXPECT_TRUE(mine.exp_avg.allclose(torch.exp_avg, 1e-6, 1e-7));
  EXPECT_TRUE(mine.exp_avg_sq.allclose(torch.exp_avg_sq, 1e-6, 1e-9));
}

TEST(AdamWTest, ReadsAndWritesSixteenBits) {
  constexpr int64_t kLength = 1003;
  for (const auto gradient_type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto working_type : {at::kBFloat16, at::kHalf}) {
      State mixed(kLength);
      State plain(kLength);
      const at::Tensor working = at::empty({kLength}, working_type);
      for (int64_t step = 1; step <= 3; ++step) {
        // Down to float16's subnormals.
        const at::Tensor gradient =
            Normal(300 + step, kLength, step == 2 ? 2e-6f : 2.0f)
                .to(gradient_type);
        AdamWStep(Options(step), {gradient, mixed.parameter, mixed.exp_avg,
                                  mixed.exp_avg_sq, working});
        AdamWStep(Options(step), {gradient.to(at::kFloat), plain.parameter,
                                  plain.exp_avg, plain.exp_avg_sq});
      }
      EXPECT_TRUE(at::equal(mixed.parameter, plain.parameter));
      EXPECT_TRUE(at::equal(working, plain.parameter.to(working_type)));
    }
  }
}

// Every 16-bit value is converted as LibTorch does.
TEST(AdamWTest, ConvertsEveryValueAsTorchDoes) {
  constexpr int64_t kLength = 65536;
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor bits = at::empty({kLength}, at::kShort);
    for (int64_t i = 0; i < kLength; ++i) {
      bits.mutable_data_ptr<int16_t>()[i] = static_cast<int16_t>(i);
    }
    const at::Tensor gradient = bits.view(type);
    AdamWOptions o;
    o.beta1 = 0.0;  // exp_avg becomes the gradient
    State state(kLength);
    state.parameter.copy_(gradient);
    const at::Tensor working = at::empty({kLength}, type);
    // With a learning rate of 0 the parameter stays what it was.
    AdamWStep(o, {at::zeros({kLength}), state.parameter, state.exp_avg,
                  state.exp_avg_sq, working});
    const at::Tensor finite = gradient.isfinite();
    EXPECT_TRUE(at::equal(working.masked_select(finite),
                          gradient.masked_select(finite)));
    EXPECT_TRUE(at::equal(working.isnan(), gradient.isnan()));
    EXPECT_TRUE(at::equal(working.isinf(), gradient.isinf()));

    state.exp_avg.zero_();
    AdamWStep(o, {gradient, state.parameter, state.exp_avg, state.exp_avg_sq,
                  working});
    EXPECT_TRUE(at::equal(state.exp_avg.masked_select(finite),
                          gradient.to(at::kFloat).masked_select(finite)));
  }
}

// Rounding, overflow and underflow to 16 bits.
TEST(AdamWTest, RoundsAsTorchDoes) {
  std::vector<float> values = {
      0.0f,     -0.0f,    1.0f + 0x1p-11f, 65504.0f,
      65519.f,  65520.f,  1e30f,           -1e30f,
      0x1p-24f, 0x1p-25f, 1e-30f,          std::numeric_limits<float>::max()};
  for (uint32_t i = 0; i < 20000; ++i) {
    values.push_back(
        std::ldexp(1.0f + i * 3.1e-5f, static_cast<int>(i % 60) - 30));
  }
  const int64_t length = static_cast<int64_t>(values.size());
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    State state(length);
    std::copy(values.begin(), values.end(),
              state.parameter.mutable_data_ptr<float>());
    const at::Tensor working = at::empty({length}, type);
    AdamWStep(AdamWOptions(), {at::zeros({length}), state.parameter,
                               state.exp_avg, state.exp_avg_sq, working});
    EXPECT_TRUE(at::equal(working, state.parameter.to(type)));
  }
}

// An element's offset and the number of threads must not matter: shards of
// another layout continue a run bit by bit.
TEST(AdamWTest, AnElementsResultDoesNotDependOnItsPlace) {
  constexpr int64_t kLength = 200003;
  State whole(kLength);
  State parts(kLength);
  const at::Tensor gradient = Normal(7, kLength, 1.0f);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  AdamWStep(Options(1),
            {gradient, whole.parameter, whole.exp_avg, whole.exp_avg_sq});
  at::set_num_threads(threads);
  for (int64_t begin = 0; begin < kLength;) {
    const int64_t count = std::min<int64_t>(kLength - begin, 1 + begin % 9973);
    const auto piece = [&](const at::Tensor& t) {
      return t.narrow(0, begin, count);
    };
    AdamWStep(Options(1), {piece(gradient), piece(parts.parameter),
                           piece(parts.exp_avg), piece(parts.exp_avg_sq)});
    begin += count;
  }
  EXPECT_TRUE(at::equal(whole.parameter, parts.parameter));
  EXPECT_TRUE(at::equal(whole.exp_avg, parts.exp_avg));
  EXPECT_TRUE(at::equal(whole.exp_avg_sq, parts.exp_avg_sq));
}

TEST(AdamWTest, TakesAScaleFromTheDevice) {
  constexpr int64_t kLength = 1003;
  const at::Tensor gradient = Normal(8, kLength, 2.0f);
  const auto run = [&](double scale, const at::Tensor& device_scale,
                       bool by_libtorch) {
    State s(kLength);
    const at::Tensor working = s.parameter.to(at::kBFloat16);
    AdamWOptions o = Options(1);
    o.gradient_scale = scale;
    o.epsilon = 1.0;  // a gradient's size shows in the first step
    const AdamWBuffers buffers = {gradient,     s.parameter, s.exp_avg,
                                  s.exp_avg_sq, working,     device_scale};
    by_libtorch ? AdamWByLibTorch(o, buffers) : AdamWStep(o, buffers);
    EXPECT_TRUE(at::equal(working, s.parameter.to(at::kBFloat16)));
    return s;
  };
  for (const bool by_libtorch : {false, true}) {
    const State expected = run(0.125, at::Tensor(), by_libtorch);
    const State scaled = run(0.25, at::full({}, 0.5f), by_libtorch);
    EXPECT_TRUE(at::equal(scaled.parameter, expected.parameter));
    EXPECT_TRUE(at::equal(scaled.exp_avg_sq, expected.exp_avg_sq));
    EXPECT_FALSE(at::equal(scaled.parameter, State(kLength).parameter));
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      const State same = run(0.25, at::full({}, bad), by_libtorch);
      EXPECT_TRUE(at::equal(same.parameter, State(kLength).parameter));
      EXPECT_TRUE(at::equal(same.exp_avg, State(kLength).exp_avg));
      EXPECT_TRUE(at::equal(same.exp_avg_sq, State(kLength).exp_avg_sq));
    }
  }
}

TEST(AdamWTest, RejectsBuffersThatDoNotFit) {
  State state(8);
  EXPECT_THROW(AdamWStep(AdamWOptions(), {at::zeros({7}), state.parameter,
                                          state.exp_avg, state.exp_avg_sq}),
               c10::Error);
  EXPECT_THROW(
      AdamWStep(AdamWOptions(), {at::zeros({8}, at::kDouble), state.parameter,
                                 state.exp_avg, state.exp_avg_sq}),
      c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
