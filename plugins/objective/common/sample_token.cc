// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/sample_token.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/status.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void Forbid(absl::Span<const int64_t> tokens, absl::Span<float> logits) {
  for (const int64_t token : tokens) {
    if (token >= 0 && token < static_cast<int64_t>(logits.size())) {
      logits[token] = kForbidden;
    }
  }
}

void Penalize(double penalty, absl::Span<const int64_t> text,
              absl::Span<float> logits) {
  std::vector<int64_t> seen(text.begin(), text.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  const float factor = static_cast<float>(penalty);
  for (const int64_t token : seen) {
    if (token < 0 || token >= static_cast<int64_t>(logits.size())) continue;
    float& logit = logits[token];
    logit = logit < 0.0f ? logit * factor : logit / factor;
  }
}

// Forbids what would end a run of `size` tokens that the text has.
void ForbidRepeats(int64_t size, absl::Span<const int64_t> text,
                   absl::Span<float> logits) {
  const int64_t length = static_cast<int64_t>(text.size());
  if (length < size) return;
  const absl::Span<const int64_t> last = text.last(size - 1);
  for (int64_t i = 0; i + size <= length; ++i) {
    if (std::equal(last.begin(), last.end(), text.begin() + i)) {
      Forbid(text.subspan(i + size - 1, 1), logits);
    }
  }
}

// The first of the greatest; a NaN counts as the least.
absl::Span<const float>::iterator Greatest(absl::Span<const float> logits) {
  // Which block has it, by sixteen running maxima, which are a register.
  constexpr size_t kBlock = 256, kLanes = 16;
  float most = -std::numeric_limits<float>::infinity();
  size_t block = 0;
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    const size_t end = std::min(i + kBlock, logits.size());
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, most);
    size_t j = i;
    for (; j + kLanes <= end; j += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) {
        const float x = logits[j + k];
        lanes[k] = x > lanes[k] ? x : lanes[k];
      }
    }
    for (; j < end; ++j) lanes[0] = std::max(lanes[0], logits[j]);
    const float greatest = *std::max_element(lanes, lanes + kLanes);
    if (greatest > most) {
      most = greatest;
      block = i;
    }
  }
  return std::find(logits.begin() + block, logits.end(), most);
}

// A token that may be chosen.
struct Candidate {
  int64_t token;
  float logit;
  float weight;  // relative to the likeliest one's
};

// The likeliest first.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

double TotalOf(absl::Span<const Candidate> candidates) {
  return std::accumulate(
      candidates.begin(), candidates.end(), 0.0,
      [](double sum, const Candidate& c) { return sum + c.weight; });
}

// Moves the smallest set of the likeliest that weighs at least `weight` to the
// front, and returns how many they are: all, if they weigh less. A quickselect
// by weight, since sorting a vocabulary takes longer than the rest of a draw.
size_t SelectLikeliest(double weight, absl::Span<Candidate> all) {
  constexpr size_t kSorted = 32;
  size_t begin = 0, end = all.size();
  while (end - begin > kSorted) {
    Candidate* const middle = &all[begin + (end - begin) / 2];
    std::nth_element(&all[begin], middle, all.data() + end, Before);
    const size_t half = middle - all.data();
    const double likelier = TotalOf(all.subspan(begin, half - begin));
    if (likelier >= weight) {
      end = half;
    } else {
      weight -= likelier;
      begin = half;
    }
  }
  std::sort(all.begin() + begin, all.begin() + end, Before);
  while (begin < end && weight > 0.0) weight -= all[begin++].weight;
  return begin;
}

void RemoveBelow(double weight, std::vector<Candidate>* all) {
  all->erase(std::remove_if(
                 all->begin(), all->end(),
                 [weight](const Candidate& c) { return c.weight < weight; }),
             all->end());
}

// All that may be chosen.
std::vector<Candidate> Restrict(absl::Span<const float> logits, float best,
                                const SamplerOptions& options) {
  std::vector<Candidate> kept;
  kept.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    kept.push_back({static_cast<int64_t>(i), logits[i], 0.0f});
  }
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + options.top_k, kept.end(),
                     Before);
    kept.resize(options.top_k);
  }
  // Neither 0 nor infinite, with which 0 / 0 or a forbidden token would be NaN.
  constexpr double kLeast = std::numeric_limits<float>::min();
  constexpr double kMost = std::numeric_limits<float>::max();
  const float divisor =
      static_cast<float>(std::clamp(options.temperature, kLeast, kMost));
  for (Candidate& c : kept) c.weight = std::exp((c.logit - best) / divisor);
  if (options.top_p < 1.0) {
    const double total = TotalOf(kept);
    // What weighs less than its part of 1 - top_p can't be needed.
    RemoveBelow((1.0 - options.top_p) * total / kept.size(), &kept);
    kept.resize(SelectLikeliest(options.top_p * total, absl::MakeSpan(kept)));
  }
  RemoveBelow(options.min_p, &kept);
  return kept;
}

}  // namespace

bool LogitRules::any() const {
  return repetition_penalty != 1.0 || no_repeat_ngram_size > 0 ||
         min_new_tokens > 0 || !suppress_tokens.empty() ||
         !begin_suppress_tokens.empty();
}

absl::Status CheckSamplerOptions(const SamplerOptions& o) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.temperature >= 0.0 && std::isfinite(o.temperature),
                 "temperature", "0 or greater", o.temperature));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.top_k >= 0, "top_k", "0 or greater", o.top_k));
  CAPSTAN_RETURN_IF_ERROR(CheckField(o.top_p > 0.0 && o.top_p <= 1.0, "top_p",
                                     "greater than 0 and at most 1", o.top_p));
  CAPSTAN_RETURN_IF_ERROR(CheckField(o.min_p >= 0.0 && o.min_p <= 1.0, "min_p",
                                     "from 0 to 1", o.min_p));
  const LogitRules& rules = o.rules;
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      rules.repetition_penalty > 0.0 && std::isfinite(rules.repetition_penalty),
      "repetition_penalty", "greater than 0", rules.repetition_penalty));
  CAPSTAN_RETURN_IF_ERROR(CheckField(rules.no_repeat_ngram_size >= 0,
                                     "no_repeat_ngram_size", "0 or greater",
                                     rules.no_repeat_ngram_size));
  return CheckField(rules.min_new_tokens >= 0, "min_new_tokens", "0 or greater",
                    rules.min_new_tokens);
}

void ApplyRules(const LogitRules& rules, absl::Span<const int64_t> text,
                int64_t prompt, absl::Span<const int64_t> ends,
                absl::Span<float> logits) {
  if (rules.repetition_penalty != 1.0) {
    Penalize(rules.repetition_penalty, text, logits);
  }
  if (rules.no_repeat_ngram_size > 0) {
    ForbidRepeats(rules.no_repeat_ngram_size, text, logits);
  }
  const int64_t made = static_cast<int64_t>(text.size()) - prompt;
  if (made < rules.min_new_tokens) Forbid(ends, logits);
  Forbid(rules.suppress_tokens, logits);
  if (made == 0) Forbid(rules.begin_suppress_tokens, logits);
}

absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform) {
  const auto best = Greatest(logits);
  if (best == logits.end() || !std::isfinite(*best)) {
    return absl::InvalidArgumentError(
        options.rules.any()
            ? "no token can be chosen: the model's logits are not finite, or "
              "no_repeat_ngram_size and suppress_tokens leave none"
            : "the model's logits are not finite: nothing can be sampled");
  }
  if (options.greedy || options.temperature == 0.0) {
    return best - logits.begin();
  }
  std::vector<Candidate> kept = Restrict(logits, *best, options);
  double rest = uniform * TotalOf(kept);
  if (options.top_k > 0 || options.top_p < 1.0 || options.min_p > 0.0) {
    const size_t drawn = SelectLikeliest(rest, absl::MakeSpan(kept));
    return kept[std::max<size_t>(drawn, 1) - 1].token;
  }
  size_t i = 0;  // in the vocabulary's order
  while (i + 1 < kept.size() && rest >= kept[i].weight) {
    rest -= kept[i++].weight;
  }
  return kept[i].token;
}

}  // namespace capstan
