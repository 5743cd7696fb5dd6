// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/causal_sampler.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/types/optional.h"
#include "base/status.h"
#include "plugins/objective/common/beam_search.h"
#include "plugins/objective/common/causal_batch.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/next_token.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/generation_config.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

namespace {

constexpr int64_t kDefaultMaxNewTokens = 200;

// Draws how texts go on, and sets those aside that have ended.
class Sampling {
 public:
  // All outlive this; on_token and ended may be null.
  Sampling(const SamplerOptions& sampler, bool stop_at_eos,
           const std::function<void(int64_t)>& on_token,
           const Objective::Ended& ended)
      : sampler_(sampler),
        stop_at_eos_(stop_at_eos),
        on_token_(on_token),
        ended_(ended) {}

  // The next text begins with `prompt`. `place`: what `ended` knows it by;
  // `result` gets the text at its end.
  void Add(const TokenModel& model, const BatchPrompt& prompt, size_t place,
           std::vector<int64_t>* result) {
    texts_.push_back(prompt.ids);
    rows_.push_back({{static_cast<int64_t>(prompt.ids.size()),
                      EndsOf(model, prompt.stop_tokens), prompt.seed},
                     place,
                     result});
  }
  bool empty() const { return texts_.empty(); }
  const Texts& texts() const { return texts_; }

  // A single text.
  absl::Status RunAlone(CausalContext* context, TokenModel* model,
                        int64_t wanted, const std::function<bool()>& stop,
                        UnitRunner& runner) {
    context->Begin(model, texts_[0],
                   static_cast<int64_t>(texts_[0].size()) + wanted);
    return Run(context, wanted, stop, runner);
  }
  absl::Status Run(Continuation* model, int64_t wanted,
                   const std::function<bool()>& stop, UnitRunner& runner) {
    CAPSTAN_RETURN_IF_ERROR(DecodeLoop(
        model, wanted, stop, runner, &texts_,
        [this](const at::Tensor& logits, std::vector<int64_t>* left) {
          return Extend(logits, left);
        }));
    for (size_t row = 0; row < texts_.size(); ++row) {
      *rows_[row].result = std::move(texts_[row]);
    }
    return absl::OkStatus();
  }

 private:
  struct Row {
    TokenDraw draw;
    size_t place;
    std::vector<int64_t>* result;
  };

  // As ExtendTexts.
  absl::Status Extend(const at::Tensor& logits, std::vector<int64_t>* left) {
    const size_t count = texts_.size();
    for (size_t row = 0; row < count; ++row) {
      const Row& of = rows_[row];
      std::vector<int64_t>& text = texts_[row];
      const at::Tensor of_text = logits.select(0, row);
      CAPSTAN_ASSIGN_OR_RETURN(const int64_t next,
                               NextToken({of_text.mutable_data_ptr<float>(),
                                          static_cast<size_t>(of_text.numel())},
                                         sampler_, of.draw, text));
      text.push_back(next);
      if (on_token_) on_token_(next);
      if ((stop_at_eos_ && of.draw.EndsWith(next)) ||
          (ended_ && ended_(of.place, text))) {
        *of.result = std::move(text);
        continue;
      }
      if (left->size() < row) {
        texts_[left->size()] = std::move(text);
        rows_[left->size()] = std::move(rows_[row]);
      }
      left->push_back(static_cast<int64_t>(row));
    }
    texts_.resize(left->size());
    rows_.resize(left->size());
    if (left->size() == count) left->clear();
    return absl::OkStatus();
  }

  const SamplerOptions& sampler_;
  const bool stop_at_eos_;
  const std::function<void(int64_t)>& on_token_;
  const Objective::Ended& ended_;
  Texts texts_;
  std::vector<Row> rows_;  // of texts_
};

template <typename T>
void Override(const absl::optional<T>& value, T* setting) {
  if (value.has_value()) *setting = *value;
}

// What flags, an objective's config and a model's may all say.
template <typename Given>
void OverrideCommon(const Given& given, SamplerOptions* sampler) {
  Override(given.temperature, &sampler->temperature);
  Override(given.top_k, &sampler->top_k);
  Override(given.top_p, &sampler->top_p);
  Override(given.min_p, &sampler->min_p);
  Override(given.repetition_penalty, &sampler->rules.repetition_penalty);
  Override(given.no_repeat_ngram_size, &sampler->rules.no_repeat_ngram_size);
}

void Override(const SampleOptions& given, SamplerOptions* sampler) {
  OverrideCommon(given, sampler);
  // Who says how to sample wants that.
  if (given.temperature || given.top_k || given.top_p || given.min_p) {
    sampler->greedy = false;
  }
  if (given.greedy) sampler->greedy = true;
}

void Override(const GenerationConfig& config, SamplerOptions* sampler) {
  OverrideCommon(config, sampler);
  LogitRules& rules = sampler->rules;
  Override(config.min_new_tokens, &rules.min_new_tokens);
  rules.suppress_tokens = config.suppress_tokens;
  rules.begin_suppress_tokens = config.begin_suppress_tokens;
  sampler->greedy = !config.do_sample.value_or(true);
}

}  // namespace

absl::Status CausalObjective::CheckSampling(const SampleOptions& given) {
  SamplerOptions sampler;
  Override(given, &sampler);
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(sampler));
  return CheckField(given.max_new_tokens >= 0, "max_new_tokens",
                    "greater than 0, or 0 for the default",
                    given.max_new_tokens);
}

absl::StatusOr<CausalObjective::Plan> CausalObjective::PlanFor(
    const TokenModel& model, const SampleOptions& options) const {
  CAPSTAN_ASSIGN_OR_RETURN(const GenerationConfig config,
                           GenerationConfigOf(model));
  Plan plan;
  Override(config, &plan.sampler);
  const absl::Status its = CheckSamplerOptions(plan.sampler);
  CAPSTAN_RETURN_IF_ERROR(Annotate(its, "the model's generation_config.json"));
  Override(given_, &plan.sampler);
  Override(options, &plan.sampler);
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(plan.sampler));
  plan.wanted = config.max_new_tokens.value_or(kDefaultMaxNewTokens);
  for (const int64_t tokens : {given_.max_new_tokens, options.max_new_tokens}) {
    if (tokens > 0) plan.wanted = tokens;
  }
  return plan;
}

absl::StatusOr<std::vector<int64_t>> CausalObjective::Sample(
    Model& any, const std::vector<int64_t>& prompt,
    const SampleOptions& options, UnitRunner& runner) {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(any));
  TokenModel& model = *any.token_model();
  CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, PlanFor(model, options));
  CAPSTAN_RETURN_IF_ERROR(CheckPrompt(model, prompt));
  at::AutoGradMode no_gradients(false);
  Ended ended;
  if (options.ended) {
    ended = [&](size_t, absl::Span<const int64_t> text) {
      return options.ended(text);
    };
  }
  std::vector<int64_t> text;
  Sampling sampling(plan.sampler, options.stop_at_eos, options.on_token, ended);
  sampling.Add(model, {prompt, options.seed, options.stop_tokens}, 0, &text);
  CausalContext own(/*kept=*/false);
  CAPSTAN_RETURN_IF_ERROR(
      sampling.RunAlone(context_ == nullptr ? &own : context_.get(), &model,
                        plan.wanted, options.stop, runner));
  return text;
}

void CausalObjective::KeepContext(bool keep) {
  context_ = keep ? std::make_unique<CausalContext>(/*kept=*/true) : nullptr;
}

absl::StatusOr<std::unique_ptr<TextBatch>> CausalObjective::NewTextBatch(
    Model& any, bool keep_context) {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(any));
  TokenModel* const model = any.token_model();
  return CausalBatch::Create(
      model, keep_context,
      [this,
       model](const SampleOptions& options) -> absl::StatusOr<SamplerOptions> {
        CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, PlanFor(*model, options));
        return plan.sampler;
      });
}

absl::StatusOr<std::vector<Beam>> CausalObjective::SearchBeams(
    Model& any, const std::vector<int64_t>& prompt,
    const SampleOptions& options, const BeamSettings& settings,
    UnitRunner& runner) {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(any));
  TokenModel& model = *any.token_model();
  CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, PlanFor(model, options));
  CAPSTAN_RETURN_IF_ERROR(CheckPrompt(model, prompt));
  at::AutoGradMode no_gradients(false);
  BeamSearch search(&model, plan.sampler.rules,
                    options.stop_at_eos ? EndsOf(model, options.stop_tokens)
                                        : std::vector<int64_t>(),
                    settings, options);
  return search.Run(prompt, plan.wanted, runner);
}

absl::StatusOr<std::vector<std::vector<int64_t>>> CausalObjective::SampleBatch(
    Model& any, absl::Span<const BatchPrompt> prompts,
    const SampleOptions& options, const Ended& ended, UnitRunner& runner) {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(any));
  TokenModel& model = *any.token_model();
  CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, PlanFor(model, options));
  for (const BatchPrompt& prompt : prompts) {
    CAPSTAN_RETURN_IF_ERROR(CheckPrompt(model, prompt.ids));
  }
  at::AutoGradMode no_gradients(false);
  Texts texts(prompts.size());
  const std::function<void(int64_t)> no_listener;
  Sampling together(plan.sampler, options.stop_at_eos, no_listener, ended);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t length = static_cast<int64_t>(prompts[i].ids.size());
    if (length + plan.wanted <= model.max_positions()) {
      together.Add(model, prompts[i], i, &texts[i]);
      continue;
    }
    // Needs its beginning dropped on the way.
    Sampling alone(plan.sampler, options.stop_at_eos, no_listener, ended);
    alone.Add(model, prompts[i], i, &texts[i]);
    CausalContext context(/*kept=*/false);
    CAPSTAN_RETURN_IF_ERROR(
        alone.RunAlone(&context, &model, plan.wanted, options.stop, runner));
  }
  if (together.empty()) return texts;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Continuation> batch,
      ContinueTogether(&model, together.texts(), plan.wanted, runner));
  CAPSTAN_RETURN_IF_ERROR(
      together.Run(batch.get(), plan.wanted, options.stop, runner));
  return texts;
}

}  // namespace capstan
