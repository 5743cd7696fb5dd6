// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/ppo.h"

namespace capstan::darkroom {
namespace {

// The weight from `from` to `to`, as in the script that produced
// stable-baselines3's numbers below.
float Weight(int tag, int to, int from) {
  return static_cast<float>(0.25 * std::sin(tag + 0.7 * from + 1.3 * to));
}

EnvironmentSpec Spec(int size) {
  return Darkroom(Variant::kGoals, {size, 20}).spec();
}

void SetParameters(PpoNetworks* networks) {
  for (int n = 0; n < 2; ++n) {
    Network& net = networks->parameters()[n];
    for (int to = 0; to < kHidden; ++to) {
      for (int i = 0; i < kInputs; ++i)
        net.w1[i][to] = Weight(1 + 10 * n, to, i);
      for (int i = 0; i < kHidden; ++i)
        net.w2[i][to] = Weight(2 + 10 * n, to, i);
      net.b1[to] = 0.1f;
      net.b2[to] = -0.05f;
    }
    for (int o = 0; o < (n == 0 ? kActions : 1); ++o) {
      for (int i = 0; i < kHidden; ++i) net.wo[o][i] = Weight(3 + 10 * n, o, i);
      net.bo[o] = 0.02f;
    }
  }
}

std::vector<PpoSample> Samples(int count) {
  std::vector<PpoSample> samples(count);
  for (int i = 0; i < count; ++i) {
    samples[i].observation = static_cast<uint16_t>(7 * i % 81);
    samples[i].action = static_cast<uint16_t>(3 * i % 5);
    samples[i].log_probability = static_cast<float>(-1.5 - 0.3 * std::sin(i));
    samples[i].advantage = static_cast<float>(2.0 * std::cos(i) + 0.3);
    samples[i].target = static_cast<float>(std::sin(2.0 * i));
  }
  return samples;
}

struct After {
  double entropy_weight;
  double parameters[2][7];
  double log_probabilities[kActions];  // at row 0, column 8
  double value;
};

// Three steps of PPO.train() of stable-baselines3 2.9.2 on these weights and
// samples.
constexpr After kAfter[] = {
    {0.0,
     {{0.23591189, 0.10089235, -0.10888937, 0.15191171, -0.04920025, 0.03142717,
       0.02082631},
      {-0.15181883, 0.09912998, -0.03205317, -0.01979158, -0.04984334,
       0.10870153, 0.0200922}},
     {-1.7368391752243042, -1.5017900466918945, -1.4375755786895752,
      -1.6076382398605347, -1.8119841814041138},
     0.09834957867860794},
    {0.01,
     {{0.23590915, 0.10089239, -0.10888728, 0.15191181, -0.04920278, 0.03142574,
       0.02082597},
      {-0.15181871, 0.09913012, -0.03205322, -0.01979159, -0.04984326,
       0.10870178, 0.02009228}},
     {-1.7369880676269531, -1.5021631717681885, -1.4376118183135986,
      -1.6072673797607422, -1.8117170333862305},
     0.09842748939990997},
};

TEST(PpoNetworksTest, StepsAsStableBaselines) {
  for (const After& after : kAfter) {
    const auto networks = std::make_unique<PpoNetworks>(Spec(9), 0);
    SetParameters(networks.get());
    PpoSettings settings;
    settings.entropy_weight = after.entropy_weight;
    const std::vector<PpoSample> samples = Samples(40);
    for (int i = 0; i < 3; ++i) networks->Step(settings, samples.data(), 40);
    for (int n = 0; n < 2; ++n) {
      const Network& net = networks->parameters()[n];
      const float got[] = {net.w1[1][5],  net.b1[7],  net.w2[3][40],
                           net.w2[40][3], net.b2[63], net.wo[0][9],
                           net.bo[0]};
      // A step is 3e-4 at most.
      for (int i = 0; i < 7; ++i) {
        EXPECT_NEAR(got[i], after.parameters[n][i], 1e-7) << n << " " << i;
      }
    }
    std::vector<float> log_probabilities, values;
    networks->Evaluate(&log_probabilities, &values);
    for (int a = 0; a < kActions; ++a) {
      EXPECT_NEAR(log_probabilities[8 * kActions + a],
                  after.log_probabilities[a], 5e-6);
    }
    EXPECT_NEAR(values[8], after.value, 5e-6);
  }
}

TEST(PpoNetworksTest, GradientIsTheDifference) {
  for (const double entropy_weight : {0.0, 0.1}) {
    const auto networks = std::make_unique<PpoNetworks>(Spec(9), 0);
    SetParameters(networks.get());
    PpoSettings settings;
    settings.entropy_weight = entropy_weight;
    // Not a multiple of the kernels' blocks; some cells come twice.
    const std::vector<PpoSample> samples = Samples(91);
    networks->Gradient(settings, samples.data(), 91);
    const std::vector<Network> gradient(networks->gradient(),
                                        networks->gradient() + 2);
    int checked = 0;
    for (int n = 0; n < 2; ++n) {
      float* const p = networks->parameters()[n].w1[0];
      const float* const g = gradient[n].w1[0];
      for (int64_t i = 0; i < kNetworkSize - kHidden; i += i < 256 ? 7 : 97) {
        const float kept = p[i];
        p[i] = kept + 2e-3f;
        const double above = networks->Gradient(settings, samples.data(), 91);
        p[i] = kept - 2e-3f;
        const double below = networks->Gradient(settings, samples.data(), 91);
        p[i] = kept;
        const double difference = (above - below) / 4e-3;
        // The objective has a kink where a ratio is clipped.
        EXPECT_NEAR(g[i], difference, 1e-4 + 0.02 * std::abs(difference))
            << n << " " << i;
        checked += std::abs(difference) > 1e-3;
      }
    }
    EXPECT_GT(checked, 20);
  }
}

TEST(PpoNetworksTest, ClippedRatiosHaveNoGradient) {
  const auto networks = std::make_unique<PpoNetworks>(Spec(9), 0);
  SetParameters(networks.get());
  PpoSettings settings;
  PpoSample sample;
  sample.observation = 3;
  sample.action = 1;
  // A single sample's advantage is not normalised.
  const auto gradient = [&](float log_probability, float advantage) {
    sample.log_probability = log_probability;
    sample.advantage = advantage;
    networks->Gradient(settings, &sample, 1);
    return networks->gradient()[0].bo[1];
  };
  std::vector<float> log_probabilities, values;
  networks->Evaluate(&log_probabilities, &values);
  const float now = log_probabilities[3 * kActions + 1];
  const float probability = std::exp(now);
  EXPECT_EQ(gradient(now - 0.5f, 1.0f), 0.0f);   // likelier enough
  EXPECT_EQ(gradient(now + 0.5f, -1.0f), 0.0f);  // rarer enough
  EXPECT_NEAR(gradient(now - 0.5f, -1.0f),
              std::exp(0.5f) * (1.0f - probability), 1e-5);
  EXPECT_NEAR(gradient(now + 0.5f, 1.0f),
              -std::exp(-0.5f) * (1.0f - probability), 1e-5);
  EXPECT_NEAR(gradient(now, 2.0f), -2.0f * (1.0f - probability), 1e-5);
}

TEST(PpoNetworksTest, StartsOrthogonal) {
  const auto networks = std::make_unique<PpoNetworks>(Spec(9), 42);
  const auto expect = [](const float* rows, int count, double gain) {
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j <= i; ++j) {
        double dot = 0.0;
        for (int k = 0; k < kHidden; ++k) {
          dot += double{rows[i * kHidden + k]} * rows[j * kHidden + k];
        }
        EXPECT_NEAR(dot, i == j ? gain * gain : 0.0, 1e-6 * gain * gain);
      }
    }
  };
  for (int n = 0; n < 2; ++n) {
    const Network& net = networks->parameters()[n];
    const int inputs = Spec(9).numbers;
    expect(net.w1[0], inputs, std::sqrt(2.0));
    for (int i = inputs; i < kInputs; ++i) {
      for (int k = 0; k < kHidden; ++k) EXPECT_EQ(net.w1[i][k], 0.0f);
    }
    expect(net.w2[0], kHidden, std::sqrt(2.0));
    expect(net.wo[0], n == 0 ? kActions : 1, n == 0 ? 0.01 : 1.0);
    for (int o = n == 0 ? kActions : 1; o < kOutputs; ++o) {
      for (int k = 0; k < kHidden; ++k) EXPECT_EQ(net.wo[o][k], 0.0f);
    }
    for (const float b : net.b2) EXPECT_EQ(b, 0.0f);
  }
  const auto other = std::make_unique<PpoNetworks>(Spec(9), 43);
  EXPECT_NE(networks->parameters()[0].w2[0][0],
            other->parameters()[0].w2[0][0]);
  EXPECT_NE(networks->parameters()[0].w2[0][0],
            networks->parameters()[1].w2[0][0]);
}

TEST(PpoNetworksTest, EvaluatesEveryCell) {
  const auto networks = std::make_unique<PpoNetworks>(Spec(7), 1);
  SetParameters(networks.get());
  std::vector<float> log_probabilities, values;
  networks->Evaluate(&log_probabilities, &values);
  ASSERT_EQ(values.size(), 49);
  const Network& critic = networks->parameters()[1];
  for (int cell = 0; cell < 49; ++cell) {
    double value = critic.bo[0], sum = 0.0;
    double h1[kHidden];
    for (int j = 0; j < kHidden; ++j) {
      h1[j] = std::tanh(double{critic.b1[j]} + critic.w1[0][j] * (cell / 7) +
                        critic.w1[1][j] * (cell % 7));
    }
    for (int j = 0; j < kHidden; ++j) {
      double z = critic.b2[j];
      for (int k = 0; k < kHidden; ++k) z += h1[k] * critic.w2[k][j];
      value += std::tanh(z) * critic.wo[0][j];
    }
    EXPECT_NEAR(values[cell], value, 1e-5) << cell;
    for (int a = 0; a < kActions; ++a) {
      sum += std::exp(log_probabilities[cell * kActions + a]);
    }
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

}  // namespace
}  // namespace capstan::darkroom
