// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/ppo_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace capstan::darkroom {
namespace {

// Each set that this processor runs, by its place among them.
class EachSet : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const PpoKernels* sets[3];
    if (GetParam() >= kPpo.Runnable(sets)) {
      GTEST_SKIP() << "not on this processor";
    }
    set_ = sets[GetParam()];
  }

  const PpoKernels* set_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Sets, EachSet, testing::Values(0, 1, 2));

void Fill(float phase, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0.3f * std::sin(1.7f * i + phase);
}

struct Numbers {
  Numbers(int64_t rows, int outputs)
      : rows(rows),
        outputs(outputs),
        x(rows * kInputs),
        h1(rows * kHidden),
        h2(rows * kHidden),
        out(rows * kOutputs),
        d_out(rows * kOutputs) {
    Fill(1, kNetworkSize, net->w1[0]);
    for (int o = outputs; o < kOutputs; ++o) {
      std::fill_n(net->wo[o], kHidden, 0.0f);
      net->bo[o] = 0.0f;
    }
    Fill(2, rows * kInputs, x.data());
    for (int64_t r = 0; r < rows; ++r) {
      Fill(3.0f + r, outputs, &d_out[r * kOutputs]);
    }
  }

  // In double precision; the sum of d_out * out.
  double Reference(std::vector<double>* h1_out = nullptr,
                   std::vector<double>* out_out = nullptr) const {
    double sum = 0.0;
    for (int64_t r = 0; r < rows; ++r) {
      double a[kHidden], b[kHidden];
      for (int j = 0; j < kHidden; ++j) {
        a[j] = std::tanh(net->b1[j] + double{net->w1[0][j]} * x[r * kInputs] +
                         double{net->w1[1][j]} * x[r * kInputs + 1] +
                         double{net->w1[2][j]} * x[r * kInputs + 2] +
                         double{net->w1[3][j]} * x[r * kInputs + 3]);
        if (h1_out != nullptr) h1_out->push_back(a[j]);
      }
      for (int j = 0; j < kHidden; ++j) {
        double z = net->b2[j];
        for (int k = 0; k < kHidden; ++k) z += a[k] * net->w2[k][j];
        b[j] = std::tanh(z);
      }
      for (int o = 0; o < outputs; ++o) {
        double z = net->bo[o];
        for (int j = 0; j < kHidden; ++j) z += b[j] * net->wo[o][j];
        if (out_out != nullptr) out_out->push_back(z);
        sum += z * d_out[r * kOutputs + o];
      }
    }
    return sum;
  }

  const int64_t rows;
  const int outputs;
  std::unique_ptr<Network> net = std::make_unique<Network>();
  std::vector<float> x, h1, h2, out, d_out;
};

TEST_P(EachSet, ForwardIsTheFormula) {
  for (const int64_t rows : {4, 12, 40}) {
    for (const int outputs : {1, 5, 8}) {
      Numbers n(rows, outputs);
      set_->forward(*n.net, n.x.data(), rows, outputs, n.h1.data(), n.h2.data(),
                    n.out.data());
      std::vector<double> h1, out;
      n.Reference(&h1, &out);
      for (int64_t i = 0; i < rows * kHidden; ++i) {
        ASSERT_NEAR(n.h1[i], h1[i], 1e-6);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int o = 0; o < outputs; ++o) {
          ASSERT_NEAR(n.out[r * kOutputs + o], out[r * outputs + o], 3e-6);
        }
      }
    }
  }
}

TEST_P(EachSet, BackwardIsTheDifference) {
  for (const int outputs : {1, 5}) {
    Numbers n(8, outputs);
    set_->forward(*n.net, n.x.data(), n.rows, outputs, n.h1.data(), n.h2.data(),
                  n.out.data());
    const auto gradient = std::make_unique<Network>();
    set_->backward(*n.net, n.x.data(), n.d_out.data(), n.rows, outputs,
                   n.h1.data(), n.h2.data(), gradient.get());
    float* const parameters = n.net->w1[0];
    const float* const got = gradient->w1[0];
    for (int64_t i = 0; i < kNetworkSize; i += i % 5 + 1) {
      // Of outputs that are not in use, and what is after them.
      const int64_t unused =
          kNetworkSize - kHidden - (kOutputs - outputs) * kHidden;
      const int64_t biases = kNetworkSize - kHidden;
      if ((i >= unused && i < biases) || i >= biases + outputs) {
        ASSERT_EQ(got[i], 0.0f) << i;
        continue;
      }
      const float kept = parameters[i];
      const float step = 1e-3f;
      parameters[i] = kept + step;
      const double up = parameters[i], above = n.Reference();
      parameters[i] = kept - step;
      const double down = parameters[i], below = n.Reference();
      parameters[i] = kept;
      ASSERT_NEAR(got[i], (above - below) / (up - down), 1e-5) << i;
    }
  }
}

TEST_P(EachSet, SumOfSquares) {
  std::vector<float> x(640);
  Fill(1, 640, x.data());
  double sum = 0.0;
  for (const float v : x) sum += double{v} * v;
  EXPECT_NEAR(set_->sum_of_squares(x.data(), 640), sum, 1e-5 * sum);
}

TEST_P(EachSet, AdamIsTheFormula) {
  constexpr int64_t kCount = 48;
  std::vector<float> p(kCount), m(kCount), v(kCount), g(kCount);
  Fill(1, kCount, p.data());
  std::vector<double> wanted(p.begin(), p.end()), mean(kCount), square(kCount);
  for (int t = 1; t <= 4; ++t) {
    Fill(t, kCount, g.data());
    AdamStep step;
    step.gradient_scale = 0.5f;
    step.beta1 = 0.9f;
    step.beta2 = 0.999f;
    step.weight1 = 0.1f;
    step.weight2 = 0.001f;
    step.rate = static_cast<float>(3e-4 / (1.0 - std::pow(0.9, t)));
    step.root2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(0.999, t)));
    step.epsilon = 1e-5f;
    set_->adam(step, g.data(), kCount, p.data(), m.data(), v.data());
    for (int64_t i = 0; i < kCount; ++i) {
      const double d = 0.5 * g[i];
      mean[i] = 0.9 * mean[i] + 0.1 * d;
      square[i] = 0.999 * square[i] + 0.001 * d * d;
      wanted[i] -= 3e-4 * (mean[i] / (1.0 - std::pow(0.9, t))) /
                   (std::sqrt(square[i] / (1.0 - std::pow(0.999, t))) + 1e-5);
    }
  }
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(p[i], wanted[i], 1e-7);
    EXPECT_NEAR(m[i], mean[i], 1e-7);
    EXPECT_NEAR(v[i], square[i], 1e-8);
  }
}

}  // namespace
}  // namespace capstan::darkroom
