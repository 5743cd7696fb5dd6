// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_8bit.h"

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
#include <vector>

#include "kernels/optimizer/normal_for_test.h"

namespace capstan::kernels {
namespace {

AdamWOptions Options(int64_t step) {
  AdamWOptions options;
  options.step = step;
  options.learning_rate = 1e-2 / static_cast<double>(step);
  options.weight_decay = 0.1;
  options.gradient_scale = 0.25;
  return options;
}

struct State {
  explicit State(int64_t length)
      : parameter(Normal(1, length, 0.1f)),
        exp_avg(at::zeros({length}, at::kByte)),
        exp_avg_absmax(at::zeros({(length + 255) / 256})),
        exp_avg_sq(at::zeros({length}, at::kByte)),
        exp_avg_sq_absmax(at::zeros({(length + 255) / 256})) {}
  AdamW8BitBuffers With(const at::Tensor& gradient) const {
    return {gradient,   parameter,         exp_avg, exp_avg_absmax,
            exp_avg_sq, exp_avg_sq_absmax, {},      {}};
  }
  at::Tensor parameter, exp_avg, exp_avg_absmax, exp_avg_sq, exp_avg_sq_absmax;
};

void ExpectEqual(const State& a, const State& b) {
  EXPECT_TRUE(at::equal(a.parameter, b.parameter));
  EXPECT_TRUE(at::equal(a.exp_avg, b.exp_avg));
  EXPECT_TRUE(at::equal(a.exp_avg_absmax, b.exp_avg_absmax));
  EXPECT_TRUE(at::equal(a.exp_avg_sq, b.exp_avg_sq));
  EXPECT_TRUE(at::equal(a.exp_avg_sq_absmax, b.exp_avg_sq_absmax));
}

// The formulas of the header in double, with a search for the nearest code.
class Reference {
 public:
  explicit Reference(const at::Tensor& parameter)
      : p(parameter.const_data_ptr<float>(),
          parameter.const_data_ptr<float>() + parameter.numel()),
        m(p.size()),
        v(p.size()) {}

  void Step(const AdamWOptions& o, const at::Tensor& gradient) {
    const float* g = gradient.const_data_ptr<float>();
    for (size_t i = 0; i < p.size(); ++i) {
      const double scaled = g[i] * o.gradient_scale;
      p[i] *= 1.0 - o.learning_rate * o.weight_decay;
      m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * scaled;
      v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * scaled * scaled;
      const double m_hat = m[i] / (1.0 - std::pow(o.beta1, o.step));
      const double v_hat = v[i] / (1.0 - std::pow(o.beta2, o.step));
      p[i] -= o.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
    }
    Round(true, &m);
    Round(false, &v);
  }

  std::vector<double> p, m, v;

 private:
  static void Round(bool is_signed, std::vector<double>* x) {
    for (size_t begin = 0; begin < x->size(); begin += 256) {
      const size_t end = std::min(x->size(), begin + 256);
      double most = 0.0;
      for (size_t i = begin; i < end; ++i) {
        most = std::max(most, std::abs((*x)[i]));
      }
      if (most == 0.0) continue;
      for (size_t i = begin; i < end; ++i) {
        (*x)[i] = most * Nearest(is_signed, (*x)[i] / most);
      }
    }
  }
  static double Nearest(bool is_signed, double x) {
    const std::array<float, 256>& map = DynamicMap(is_signed);
    double best = 2.0;
    for (const float value : map) {
      if (!is_signed && x > 0 && value == 0.0f) continue;
      if (std::abs(value - x) < std::abs(best - x)) best = value;
    }
    return best;
  }
};

TEST(AdamW8BitTest, MapsAreBitsandbytes) {
  const std::array<float, 256>& with_sign = DynamicMap(true);
  const std::array<float, 256>& without = DynamicMap(false);
  // create_dynamic_map(True)[0, 126 .. 129, 255] and (False)[0 .. 3, 254, 255].
  EXPECT_FLOAT_EQ(with_sign[0], -0.99296875f);
  EXPECT_FLOAT_EQ(with_sign[126], -5.5e-7f);
  EXPECT_EQ(with_sign[127], 0.0f);
  EXPECT_FLOAT_EQ(with_sign[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(with_sign[129], 3.25e-6f);
  EXPECT_EQ(with_sign[255], 1.0f);
  EXPECT_EQ(without[0], 0.0f);
  EXPECT_FLOAT_EQ(without[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(without[2], 7.75e-7f);
  EXPECT_FLOAT_EQ(without[254], 0.996484375f);
  EXPECT_EQ(without[255], 1.0f);
  EXPECT_TRUE(std::is_sorted(with_sign.begin(), with_sign.end()));
  EXPECT_TRUE(std::is_sorted(without.begin(), without.end()));
}

TEST(AdamW8BitTest, FollowsTheFormulas) {
  for (const int64_t length : {1, 255, 256, 257, 5000, 40001}) {
    SCOPED_TRACE(length);
    State state(length);
    Reference reference(state.parameter);
    for (int64_t step = 1; step <= 4; ++step) {
      const at::Tensor gradient = Normal(100 + step, length, 2.0f);
      AdamW8BitStep(Options(step), state.With(gradient));
      reference.Step(Options(step), gradient);
    }
    // Where float32 rounds to the other of two codes that are equally near, an
    // element goes another way: few do.
    int64_t apart = 0;
    for (int64_t i = 0; i < length; ++i) {
      const double difference =
          std::abs(state.parameter.const_data_ptr<float>()[i] - reference.p[i]);
      ASSERT_LT(difference, 2e-3) << i;
      apart += difference > 1e-6 ? 1 : 0;
    }
    EXPECT_LE(apart, length / 1000);
  }
}

// Each magnitude from far below the map's smallest value to 1 gets the nearest
// code, up to float32's rounding.
TEST(AdamW8BitTest, RoundsToTheNearestCode) {
  constexpr int64_t kLength = 256 * 400;
  const at::Tensor gradient = at::empty({kLength});
  float* const g = gradient.mutable_data_ptr<float>();
  for (int64_t i = 0; i < kLength; ++i) {
    const double u = RandomUniform(7, static_cast<uint64_t>(i));
    g[i] = static_cast<float>((i % 2 == 0 ? 1.0 : -1.0) *
                              (i % 3 == 0 ? u : std::pow(10.0, -8.5 * u)));
    if (i % 256 == 0) g[i] = 1.0f;
  }
  AdamWOptions o;
  o.beta1 = o.beta2 = 0.0;
  State state(kLength);
  AdamW8BitStep(o, state.With(gradient));
  for (const bool is_signed : {true, false}) {
    const std::array<float, 256>& map = DynamicMap(is_signed);
    const uint8_t* codes = (is_signed ? state.exp_avg : state.exp_avg_sq)
                               .const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < kLength; ++i) {
      const float x = is_signed ? g[i] : g[i] * g[i];
      const double error = std::abs(map[codes[i]] - x);
      for (const int other : {codes[i] - 1, codes[i] + 1}) {
        if (other < (is_signed ? 0 : 1) || other > 255) continue;
        ASSERT_LE(error, std::abs(map[other] - x) * (1 + 1e-5) + 1e-12)
            << x << " is code " << int{codes[i]} << ", not " << other;
      }
      if (!is_signed && x > 0) {
        ASSERT_GT(codes[i], 0) << i;
      }
    }
  }
}

TEST(AdamW8BitTest, ZerosStayAndNonFiniteIsSeen) {
  State state(300);
  state.parameter.zero_();
  AdamW8BitStep(Options(1), state.With(at::zeros({300})));
  EXPECT_FALSE(state.parameter.any().item<bool>());
  EXPECT_FALSE(state.exp_avg_absmax.any().item<bool>());
  EXPECT_FALSE(state.exp_avg_sq_absmax.any().item<bool>());
  const at::Tensor gradient = Normal(3, 300, 1.0f);
  gradient[7].fill_(std::numeric_limits<float>::quiet_NaN());
  AdamW8BitStep(Options(2), state.With(gradient));
  EXPECT_TRUE(state.exp_avg_absmax.isnan()[0].item<bool>());
  EXPECT_TRUE(state.exp_avg_absmax.isfinite()[1].item<bool>());
}

TEST(AdamW8BitTest, ReadsAndWritesSixteenBits) {
  constexpr int64_t kLength = 1003;
  for (const auto gradient_type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto working_type : {at::kBFloat16, at::kHalf}) {
      State mixed(kLength), plain(kLength);
      const at::Tensor gradient = Normal(5, kLength, 2.0f).to(gradient_type);
      AdamW8BitBuffers buffers = mixed.With(gradient);
      buffers.working = at::empty({kLength}, working_type);
      AdamW8BitStep(Options(1), buffers);
      AdamW8BitStep(Options(1), plain.With(gradient.to(at::kFloat)));
      ExpectEqual(mixed, plain);
      EXPECT_TRUE(at::equal(buffers.working, plain.parameter.to(working_type)));
    }
  }
}

TEST(AdamW8BitTest, BlocksDoNotDependOnTheirPlaceOrOnThreads) {
  constexpr int64_t kLength = 256 * 700 + 77;
  State whole(kLength), parts(kLength);
  const at::Tensor gradient = Normal(7, kLength, 1.0f);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  AdamW8BitStep(Options(1), whole.With(gradient));
  at::set_num_threads(threads);
  for (int64_t block = 0; block < 701; block += 1 + block % 97) {
    const int64_t blocks = std::min<int64_t>(1 + block % 97, 701 - block);
    const int64_t begin = block * 256;
    const int64_t count = std::min(blocks * 256, kLength - begin);
    AdamW8BitStep(Options(1), {gradient.narrow(0, begin, count),
                               parts.parameter.narrow(0, begin, count),
                               parts.exp_avg.narrow(0, begin, count),
                               parts.exp_avg_absmax.narrow(0, block, blocks),
                               parts.exp_avg_sq.narrow(0, begin, count),
                               parts.exp_avg_sq_absmax.narrow(0, block, blocks),
                               {},
                               {}});
  }
  ExpectEqual(whole, parts);
}

TEST(AdamW8BitTest, TakesAScaleFromTheDevice) {
  constexpr int64_t kLength = 1003;
  const at::Tensor gradient = Normal(8, kLength, 2.0f);
  State expected(kLength), scaled(kLength), skipped(kLength);
  AdamWOptions o = Options(1);
  o.gradient_scale = 0.125;
  AdamW8BitStep(o, expected.With(gradient));
  o.gradient_scale = 0.25;
  AdamW8BitBuffers buffers = scaled.With(gradient);
  buffers.device_scale = at::full({}, 0.5f);
  AdamW8BitStep(o, buffers);
  ExpectEqual(scaled, expected);
  buffers = skipped.With(gradient);
  buffers.device_scale = at::full({}, std::numeric_limits<float>::infinity());
  AdamW8BitStep(o, buffers);
  ExpectEqual(skipped, State(kLength));
}

TEST(AdamW8BitTest, RejectsBuffersThatDoNotFit) {
  State state(300);
  EXPECT_THROW(AdamW8BitStep(Options(1), state.With(at::zeros({299}))),
               c10::Error);
  state.exp_avg_absmax = at::zeros({1});
  EXPECT_THROW(AdamW8BitStep(Options(1), state.With(at::zeros({300}))),
               c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
