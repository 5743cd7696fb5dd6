// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/causal_lm/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace causal_lm {

absl::Status CheckSamplerOptions(const SamplerOptions& options) {
  if (!(options.temperature >= 0.0 && std::isfinite(options.temperature))) {
    return FieldError("temperature", absl::StrCat("must be 0 or greater, is ",
                                                  options.temperature));
  }
  if (options.top_k < 0) {
    return FieldError("top_k",
                      absl::StrCat("must be 0 or greater, is ", options.top_k));
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    return FieldError("top_p",
                      absl::StrCat("must be greater than 0 and at most 1, is ",
                                   options.top_p));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform) {
  const auto best =
      std::max_element(logits.begin(), logits.end(), [](float a, float b) {
        return a < b || (std::isnan(a) && !std::isnan(b));
      });
  if (best == logits.end() || !std::isfinite(*best)) {
    return absl::InvalidArgumentError(
        "the model's logits are not finite: nothing can be sampled");
  }
  if (options.greedy || options.temperature == 0.0) {
    return best - logits.begin();
  }
  // Candidate tokens by descending probability, ties by lower id.
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(std::remove_if(order.begin(), order.end(),
                             [&](int64_t i) { return std::isnan(logits[i]); }),
              order.end());
  size_t kept = order.size();
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < kept) {
    kept = options.top_k;
  }
  if (kept < order.size() || options.top_p < 1.0) {
    std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                      [&](int64_t a, int64_t b) {
                        return logits[a] > logits[b] ||
                               (logits[a] == logits[b] && a < b);
                      });
    order.resize(kept);
  }
  const float temperature = static_cast<float>(options.temperature);
  std::vector<float> weights(order.size());
  double total = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[order[i]] - *best) / temperature);
    total += weights[i];
  }
  if (options.top_p < 1.0) {
    double sum = 0.0;
    size_t i = 0;
    while (i < order.size() && sum < options.top_p * total) sum += weights[i++];
    order.resize(i);
    total = sum;
  }
  double left = uniform * total;
  size_t i = 0;
  while (i + 1 < order.size() && left >= weights[i]) left -= weights[i++];
  return order[i];
}

}  // namespace causal_lm
}  // namespace capstan
