// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/causal_sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/batched_cache.h"
#include "plugins/sdk/end_tokens.h"
#include "plugins/sdk/kept_context.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/prompt_batch.h"
#include "plugins/sdk/next_logits.h"

namespace capstan {

absl::Status CheckSamplerOptions(const SamplerOptions& o) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.temperature >= 0.0 && std::isfinite(o.temperature),
                 "temperature", "0 or greater", o.temperature));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.top_k >= 0, "top_k", "0 or greater", o.top_k));
  return CheckField(o.top_p > 0.0 && o.top_p <= 1.0, "top_p",
                    "greater than 0 and at most 1", o.top_p);
}

namespace {

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

}  // namespace

absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform) {
  const auto best = Greatest(logits);
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

namespace {

constexpr int64_t kDefaultMaxNewTokens = 200;

bool Ends(const TokenModel& model, const std::vector<int64_t>& stop_tokens,
          int64_t token) {
  for (const std::vector<int64_t>& ends : {EndTokensOf(model), stop_tokens}) {
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) return true;
  }
  return false;
}

// Several texts, of which those that have ended leave the batch.
class TextBatch {
 public:
  TextBatch(TokenModel* model, const SamplerOptions& sampler,
            absl::Span<const BatchPrompt> prompts, bool stop_at_eos,
            const BatchSampler::Ended& ended)
      : model_(model),
        sampler_(sampler),
        prompts_(prompts),
        stop_at_eos_(stop_at_eos),
        ended_(ended) {
    for (const BatchPrompt& prompt : prompts) texts_.push_back(prompt.ids);
    active_.resize(prompts.size());
    std::iota(active_.begin(), active_.end(), 0);
  }

  absl::Status Run(int64_t wanted, const std::function<bool()>& stop,
                   UnitRunner& runner) {
    // The last token of each prompt is what the first step appends.
    std::vector<absl::Span<const int64_t>> known;
    for (const std::vector<int64_t>& text : texts_) {
      known.push_back(absl::MakeConstSpan(text).first(text.size() - 1));
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::unique_ptr<PromptBatch> batch,
        PromptBatch::Create(model_, known, wanted, runner));
    for (int64_t i = 0; i < wanted && !active_.empty(); ++i) {
      if (stop()) return absl::CancelledError("sampling was stopped");
      const at::Tensor last =
          at::empty({static_cast<int64_t>(active_.size()), 1}, at::kLong);
      for (size_t row = 0; row < active_.size(); ++row) {
        last.mutable_data_ptr<int64_t>()[row] = texts_[active_[row]].back();
      }
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> left,
                               Choose(batch->Append(last, runner)));
      if (left.size() == active_.size()) continue;
      std::vector<size_t> active;
      for (const int64_t row : left) active.push_back(active_[row]);
      active_ = std::move(active);
      if (!left.empty()) batch->KeepRows(left);
    }
    return absl::OkStatus();
  }

  std::vector<std::vector<int64_t>> Take() { return std::move(texts_); }

 private:
  // Adds a token to each active text by logits [active, 1, V]; returns the rows
  // that go on.
  absl::StatusOr<std::vector<int64_t>> Choose(const at::Tensor& logits) {
    const size_t vocab = static_cast<size_t>(logits.size(2));
    std::vector<int64_t> left;
    for (size_t row = 0; row < active_.size(); ++row) {
      const size_t i = active_[row];
      std::vector<int64_t>& text = texts_[i];
      const uint64_t key = RandomKey(prompts_[i].seed, "sample");
      CAPSTAN_ASSIGN_OR_RETURN(
          const int64_t next,
          SampleToken({logits.const_data_ptr<float>() + row * vocab, vocab},
                      sampler_, RandomUniform(key, text.size())));
      text.push_back(next);
      const bool at_end =
          (stop_at_eos_ && Ends(*model_, prompts_[i].stop_tokens, next)) ||
          ended_(i, text);
      if (!at_end) left.push_back(static_cast<int64_t>(row));
    }
    return left;
  }

  TokenModel* const model_;
  const SamplerOptions& sampler_;
  const absl::Span<const BatchPrompt> prompts_;
  const bool stop_at_eos_;
  const BatchSampler::Ended& ended_;
  std::vector<std::vector<int64_t>> texts_;
  std::vector<size_t> active_;  // indices of texts_, a row of the cache each
};

// The most tokens that go through a model at once, so that what it makes on the
// way stays small, and a long prompt can be stopped.
constexpr int64_t kPromptTokens = 256;

}  // namespace

void CausalContext::Begin(TokenModel* model, absl::Span<const int64_t> prompt,
                          int64_t longest) {
  // A kept cache, which grows by need, may serve longer texts than this one.
  capacity_ = kept_ ? model->max_positions()
                    : std::min(longest, model->max_positions());
  auto* const batched = dynamic_cast<BatchedCache*>(cache_.get());
  const auto* const dependent =
      dynamic_cast<const LengthDependentCache*>(cache_.get());
  if (!kept_ || model != model_ || batched == nullptr || begin_ > 0 ||
      (dependent != nullptr &&
       !dependent->FitsLength(static_cast<int64_t>(prompt.size())))) {
    cache_.reset();
    cached_.clear();
    begin_ = 0;
  } else {
    // The prompt's last token is computed in any case, for its logits.
    const size_t most = std::min(cached_.size(), prompt.size() - 1);
    const auto end =
        std::mismatch(cached_.begin(), cached_.begin() + most, prompt.begin());
    cached_.erase(end.first, cached_.end());
    batched->Rewind(static_cast<int64_t>(cached_.size()));
  }
  model_ = model;
}

absl::StatusOr<at::Tensor> CausalContext::NextLogits(
    std::vector<int64_t>& text, const std::function<bool()>& stop,
    UnitRunner& runner) {
  const int64_t length = static_cast<int64_t>(text.size());
  if (cache_ == nullptr || length - begin_ > capacity_) {
    if (cache_ != nullptr) begin_ = length - (capacity_ + 1) / 2;
    cached_.clear();
    CAPSTAN_ASSIGN_OR_RETURN(cache_, model_->NewCache(1, capacity_));
  }
  // In pieces, at the positions of the whole.
  if (auto* const batched = dynamic_cast<BatchedCache*>(cache_.get())) {
    batched->ExpectLengths({length - begin_});
  }
  // Everything not in the cache: the prompt, later one token at a time.
  at::Tensor logits;
  for (int64_t past = begin_ + cache_->length(); past < length;) {
    const int64_t count = std::min(kPromptTokens, length - past);
    if (past + count < length && stop()) {
      return absl::CancelledError("sampling was stopped");
    }
    TokenInput input;
    input.tokens = at::from_blob(text.data() + past, {1, count}, at::kLong);
    input.cache = cache_.get();
    logits = LastLogitsOf(*model_, input, runner);
    cached_.insert(cached_.end(), text.begin() + past,
                   text.begin() + past + count);
    past += count;
  }
  return logits.view({-1}).to(at::kFloat).cpu().contiguous();
}

absl::StatusOr<CausalSampler> CausalSampler::Create(
    const SamplerOptions& options, int64_t max_new_tokens) {
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(options));
  CAPSTAN_RETURN_IF_ERROR(CheckField(max_new_tokens >= 0, "max_new_tokens",
                                     "greater than 0", max_new_tokens));
  return CausalSampler(
      options, max_new_tokens > 0 ? max_new_tokens : kDefaultMaxNewTokens);
}

SamplerOptions CausalSampler::Merged(const SampleOptions& options) const {
  SamplerOptions merged = options_;
  if (options.temperature.has_value()) {
    merged.temperature = *options.temperature;
    merged.greedy = false;
  }
  if (options.top_k.has_value()) merged.top_k = *options.top_k;
  if (options.top_p.has_value()) merged.top_p = *options.top_p;
  if (options.greedy) merged.greedy = true;
  return merged;
}

absl::StatusOr<std::vector<int64_t>> CausalSampler::Sample(
    TokenModel& model, const std::vector<int64_t>& prompt,
    const SampleOptions& options, UnitRunner& runner,
    CausalContext* context) const {
  const SamplerOptions sampler = Merged(options);
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(sampler));
  const int64_t wanted =
      options.max_new_tokens > 0 ? options.max_new_tokens : max_new_tokens_;
  CAPSTAN_RETURN_IF_ERROR(CheckPrompt(model, prompt));
  at::AutoGradMode no_gradients(false);
  std::vector<int64_t> text = prompt;
  CausalContext own(/*kept=*/false);
  if (context == nullptr) context = &own;
  context->Begin(&model, prompt, static_cast<int64_t>(text.size()) + wanted);
  const uint64_t key = RandomKey(options.seed, "sample");
  for (int64_t i = 0; i < wanted; ++i) {
    if (options.stop()) return absl::CancelledError("sampling was stopped");
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor logits,
                             context->NextLogits(text, options.stop, runner));
    CAPSTAN_ASSIGN_OR_RETURN(
        const int64_t next,
        SampleToken({logits.const_data_ptr<float>(),
                     static_cast<size_t>(logits.numel())},
                    sampler, RandomUniform(key, text.size())));
    text.push_back(next);
    if (options.on_token) options.on_token(next);
    if (options.stop_at_eos && Ends(model, options.stop_tokens, next)) break;
  }
  return text;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> CausalSampler::SampleBatch(
    TokenModel& model, absl::Span<const BatchPrompt> prompts,
    const SampleOptions& options, const BatchSampler::Ended& ended,
    UnitRunner& runner) const {
  const SamplerOptions sampler = Merged(options);
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(sampler));
  for (const BatchPrompt& prompt : prompts) {
    CAPSTAN_RETURN_IF_ERROR(CheckPrompt(model, prompt.ids));
  }
  const int64_t wanted =
      options.max_new_tokens > 0 ? options.max_new_tokens : max_new_tokens_;
  std::vector<std::vector<int64_t>> texts(prompts.size());
  std::vector<BatchPrompt> together;
  std::vector<size_t> places;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t length = static_cast<int64_t>(prompts[i].ids.size());
    if (length + wanted <= model.max_positions()) {
      together.push_back(prompts[i]);
      places.push_back(i);
      continue;
    }
    // Needs its beginning dropped on the way.
    SampleOptions alone = options;
    alone.seed = prompts[i].seed;
    alone.stop_tokens = prompts[i].stop_tokens;
    alone.on_token = nullptr;
    CAPSTAN_ASSIGN_OR_RETURN(texts[i],
                             Sample(model, prompts[i].ids, alone, runner));
  }
  if (together.empty()) return texts;
  at::AutoGradMode no_gradients(false);
  const BatchSampler::Ended ends = [&](size_t row,
                                       absl::Span<const int64_t> text) {
    return ended != nullptr && ended(places[row], text);
  };
  TextBatch batch(&model, sampler, together, options.stop_at_eos, ends);
  CAPSTAN_RETURN_IF_ERROR(batch.Run(wanted, options.stop, runner));
  std::vector<std::vector<int64_t>> made = batch.Take();
  for (size_t i = 0; i < made.size(); ++i)
    texts[places[i]] = std::move(made[i]);
  return texts;
}

}  // namespace capstan
