// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_SAMPLER_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_SAMPLER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace capstan {
namespace causal_lm {

struct SamplerOptions {
  double temperature = 1.0;
  int64_t top_k = 0;   // 0: all
  double top_p = 1.0;  // 1: all
  bool greedy = false;
};

// FieldError for invalid values.
absl::Status CheckSamplerOptions(const SamplerOptions& options);

// Samples a token from softmax(logits / temperature), restricted first to the
// top_k likeliest tokens and then to the smallest set of the likeliest that
// reaches top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020), by `uniform` in [0, 1). A temperature of 0 is greedy;
// the first of equal tokens wins. INVALID_ARGUMENT if no logit is finite.
absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform);

}  // namespace causal_lm
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_SAMPLER_H_
