// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al., "RoFormer", 2021) and the ways to
// stretch it over longer texts, as transformers' modeling_rope_utils.py
// computes them.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_ROPE_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_ROPE_H_

#include <cstdint>
#include <vector>

namespace capstan::decoder {

enum class RopeKind {
  kDefault,
  kLinear,    // all frequencies over `factor`
  kDynamic,   // a greater base beyond trained_positions ("NTK-aware")
  kYarn,      // "YaRN", Peng et al., 2023, sections 3.2 to 3.4
  kLongRope,  // "LongRoPE", Ding et al., 2024: a factor for each frequency
  kLlama3,    // Llama 3.1: low frequencies over `factor`
};

// The values of a rope_parameters of config.json, where they apply.
struct Rope {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double share = 1.0;   // of each head's channels that rotate, the first ones
  double factor = 1.0;  // 1 or more
  // Of cosines and sines.
  double attention_factor = 1.0;
  int64_t trained_positions = 0;  // before it was stretched
  double low_frequency_factor = 1.0, high_frequency_factor = 4.0;  // kLlama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // kYarn
  bool truncate = true;                                            // kYarn
  // kLongRope: one for each pair of channels, in texts of up to
  // trained_positions and in longer ones.
  std::vector<double> short_factors, long_factors;

  // The number of channels that rotate; even if the config is valid.
  int64_t Channels(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * share);
  }
};

// The text length that decides the frequencies: texts of `length` positions
// rotate alike if it is the same.
int64_t DecisiveLength(const Rope& rope, int64_t length);

// Radians a position of each pair of channels, for a text of `length`
// positions.
std::vector<double> InverseFrequencies(const Rope& rope, int64_t head_dim,
                                       int64_t length);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_ROPE_H_
