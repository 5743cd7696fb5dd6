// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/rope.h"

#include <algorithm>
#include <cmath>

namespace capstan::decoder {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The channel whose wave makes `turns` turns in the trained positions.
double ChannelOfTurns(const Rope& rope, double turns, double channels) {
  const double positions = static_cast<double>(rope.trained_positions);
  return channels * std::log(positions / (turns * 2.0 * kPi)) /
         (2.0 * std::log(rope.theta));
}

void StretchYarn(const Rope& rope, double channels,
                 std::vector<double>* frequencies) {
  double low = ChannelOfTurns(rope, rope.beta_fast, channels);
  double high = ChannelOfTurns(rope, rope.beta_slow, channels);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, channels - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& f = (*frequencies)[i];
    f = f / rope.factor * ramp + f * (1.0 - ramp);
  }
}

void StretchLlama3(const Rope& rope, std::vector<double>* frequencies) {
  const double positions = static_cast<double>(rope.trained_positions);
  const double longest = positions / rope.low_frequency_factor;
  const double shortest = positions / rope.high_frequency_factor;
  for (double& f : *frequencies) {
    const double wave = 2.0 * kPi / f;
    if (wave > longest) {
      f /= rope.factor;
    } else if (wave >= shortest) {
      const double smooth =
          (positions / wave - rope.low_frequency_factor) /
          (rope.high_frequency_factor - rope.low_frequency_factor);
      f = (1.0 - smooth) * f / rope.factor + smooth * f;
    }
  }
}

}  // namespace

int64_t DecisiveLength(const Rope& rope, int64_t length) {
  switch (rope.kind) {
    case RopeKind::kDynamic:
      return std::max(length, rope.trained_positions);
    case RopeKind::kLongRope:
      return rope.trained_positions + (length > rope.trained_positions ? 1 : 0);
    default:
      return 0;
  }
}

std::vector<double> InverseFrequencies(const Rope& rope, int64_t head_dim,
                                       int64_t length) {
  const auto channels = static_cast<double>(rope.Channels(head_dim));
  double theta = rope.theta;
  if (rope.kind == RopeKind::kDynamic) {
    const double stretch = static_cast<double>(DecisiveLength(rope, length)) /
                           static_cast<double>(rope.trained_positions);
    theta *= std::pow(rope.factor * stretch - (rope.factor - 1.0),
                      channels / (channels - 2.0));
  }
  std::vector<double> frequencies(rope.Channels(head_dim) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        1.0 / std::pow(theta, static_cast<double>(2 * i) / channels);
  }
  switch (rope.kind) {
    case RopeKind::kLinear:
      for (double& f : frequencies) f /= rope.factor;
      break;
    case RopeKind::kYarn:
      StretchYarn(rope, channels, &frequencies);
      break;
    case RopeKind::kLlama3:
      StretchLlama3(rope, &frequencies);
      break;
    case RopeKind::kLongRope: {
      const std::vector<double>& factors = length > rope.trained_positions
                                               ? rope.long_factors
                                               : rope.short_factors;
      for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] /= factors[i];
      }
      break;
    }
    case RopeKind::kDefault:
    case RopeKind::kDynamic:
      break;
  }
  return frequencies;
}

}  // namespace capstan::decoder
