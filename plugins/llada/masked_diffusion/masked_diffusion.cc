// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/masked_diffusion/masked_diffusion.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/llada/masked_diffusion/noise.h"
#include "plugins/objective/common/pairs.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/token_model.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::masked_diffusion {
namespace {

constexpr double kDefaultEps = 1e-3;
constexpr double kPretrainRandomLengths = 0.01;

SamplerOptions SamplerOf(const Config& config) {
  SamplerOptions sampler;
  if (config.max_new_tokens() != 0) {
    sampler.max_new_tokens = config.max_new_tokens();
  }
  sampler.block_length = config.block_length();
  sampler.steps = config.steps();
  sampler.temperature = config.temperature();
  sampler.random_remasking = config.remasking() == Config::RANDOM;
  sampler.cfg_scale = config.cfg_scale();
  sampler.confidence_threshold = config.confidence_threshold();
  sampler.cache = config.cache();
  if (config.has_cache_refresh()) {
    sampler.cache_refresh = config.cache_refresh();
  }
  return sampler;
}

double RandomLengthRatio(const Config& config) {
  if (config.has_random_length_ratio()) return config.random_length_ratio();
  return config.loss() == Config::PRETRAIN ? kPretrainRandomLengths : 0.0;
}

// Null for another loss.
absl::StatusOr<std::unique_ptr<const Vrpo>> VrpoOf(const Config& config,
                                                   double eps) {
  const bool is_vrpo = config.loss() == Config::VRPO;
  for (const auto& [set, name] :
       {std::make_pair(config.has_beta(), "beta"),
        std::make_pair(config.has_bound_samples(), "bound_samples")}) {
    if (set && !is_vrpo) return FieldError(name, "is for loss: VRPO");
  }
  if (!is_vrpo) return nullptr;
  if (config.has_random_length_ratio()) {
    return FieldError("random_length_ratio",
                      "isn't for loss: VRPO, which compares whole answers");
  }
  VrpoOptions options;
  if (config.has_beta()) options.beta = config.beta();
  if (config.has_bound_samples()) {
    options.bound_samples = config.bound_samples();
  }
  options.eps = eps;
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.beta > 0.0 && std::isfinite(options.beta), "beta",
                 "greater than 0", options.beta));
  CAPSTAN_RETURN_IF_ERROR(CheckField(options.bound_samples >= 1,
                                     "bound_samples", "1 or more",
                                     options.bound_samples));
  return std::make_unique<const Vrpo>(options);
}

// Checks that the data has texts to learn, which the model has positions for.
absl::Status CheckTexts(const TokenModel& model, const DatasetReader& data) {
  Batch batch;
  // One that can't be read is told where it is trained on.
  if (data.Read({0}, &batch).ok()) {
    if (batch.count(kRowText) > 0) {
      return absl::InvalidArgumentError(
          "the data has prompts without answers (kind: PROMPT), which are for "
          "capstan.grpo and a causal model: leave `kind` out to learn from "
          "answers");
    }
    if (batch.count(kPairKeys) > 0) {
      return absl::InvalidArgumentError(
          "the data has pairs of answers (kind: PREFERENCE or UNPAIRED): set "
          "loss: VRPO to learn from preferences");
    }
  }
  if (data.max_sequence_length() > model.max_positions()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has sequences of ", data.max_sequence_length(),
                     " tokens, the model has ", model.max_positions(),
                     " positions: raise that, or shorten the data's"));
  }
  return CheckVocabulary(model, data);
}

}  // namespace

MaskedDiffusion::MaskedDiffusion(const Config& config)
    : config_(config),
      eps_(config.has_eps() ? config.eps() : kDefaultEps),
      random_length_ratio_(RandomLengthRatio(config)),
      sampler_(SamplerOf(config)) {}

absl::StatusOr<std::unique_ptr<MaskedDiffusion>> MaskedDiffusion::Create(
    const Config& config) {
  auto made = std::unique_ptr<MaskedDiffusion>(new MaskedDiffusion(config));
  if (!Config::Loss_IsValid(config.loss())) {
    return FieldError("loss", absl::StrCat("is none of PRETRAIN, SFT, "
                                           "MASKED_MEAN and VRPO: ",
                                           config.loss()));
  }
  if (!Config::Remasking_IsValid(config.remasking())) {
    return FieldError("remasking",
                      absl::StrCat("is none of LOW_CONFIDENCE and RANDOM: ",
                                   config.remasking()));
  }
  if (!Config::Cache_IsValid(config.cache())) {
    return FieldError(
        "cache",
        absl::StrCat("is none of NONE, PREFIX and DUAL: ", config.cache()));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckField(made->eps_ > 0.0 && made->eps_ < 1.0,
                                     "eps", "between 0 and 1", made->eps_));
  const double ratio = made->random_length_ratio_;
  CAPSTAN_RETURN_IF_ERROR(CheckField(ratio >= 0.0 && ratio <= 1.0,
                                     "random_length_ratio", "from 0 to 1",
                                     ratio));
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.mask_token_id() >= 0,
                                     "mask_token_id", "0 or greater",
                                     config.mask_token_id()));
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(made->sampler_));
  CAPSTAN_ASSIGN_OR_RETURN(made->vrpo_, VrpoOf(config, made->eps_));
  return made;
}

int64_t MaskedDiffusion::MaskToken(const TokenModel& model) const {
  return config_.has_mask_token_id() ? config_.mask_token_id()
                                     : model.mask_token();
}

absl::Status MaskedDiffusion::CheckModel(Model& model) const {
  const TokenModel* const tokens = model.token_model();
  if (tokens == nullptr) {
    return absl::InvalidArgumentError(
        "masked_diffusion needs a model of token sequences, which this model "
        "isn't");
  }
  if (tokens->causal()) {
    return absl::InvalidArgumentError(
        "masked_diffusion needs a model in which a token sees the text on both "
        "sides (capstan.llada); this one sees only what comes before it: use "
        "capstan.causal_lm");
  }
  const int64_t mask = MaskToken(*tokens);
  if (mask < 0) {
    return FieldError("mask_token_id",
                      "must be set, since the model names no mask token");
  }
  if (mask >= tokens->vocab_size()) {
    return FieldError(
        "mask_token_id",
        absl::StrCat("the mask token is ", mask, ", the model's vocab_size is ",
                     tokens->vocab_size(), ": it must be at least ", mask + 1,
                     ", or the mask token another"));
  }
  return absl::OkStatus();
}

absl::Status MaskedDiffusion::Check(Model& model,
                                    const DatasetReader& data) const {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(model));
  // Not in Create: a caller may sample other lengths than the config's.
  CAPSTAN_RETURN_IF_ERROR(
      ScheduleOf(sampler_, std::numeric_limits<int64_t>::max()).status());
  TokenModel& tokens = *model.token_model();
  CAPSTAN_RETURN_IF_ERROR(vrpo_ != nullptr ? vrpo_->Check(tokens, data)
                                           : CheckTexts(tokens, data));
  return CheckMask(tokens, data);
}

absl::Status MaskedDiffusion::CheckMask(const TokenModel& model,
                                        const DatasetReader& data) const {
  const Tokenizer* const tokenizer = data.tokenizer();
  if (tokenizer == nullptr) return absl::OkStatus();
  const int64_t mask = MaskToken(model);
  if (mask >= tokenizer->vocab_size() || tokenizer->IsSpecial(mask)) {
    return absl::OkStatus();
  }
  const std::string text = tokenizer->Decode(absl::MakeSpan(&mask, 1));
  if (text.empty()) return absl::OkStatus();
  return FieldError(
      "mask_token_id",
      absl::StrCat("the mask token, ", mask, ", is the data's \"",
                   absl::CEscape(text), "\": it must be one that no text has"));
}

MaskedDiffusion::Drawn MaskedDiffusion::Draw(const Batch& batch,
                                             const StepInfo& info) const {
  const NoiseKey key = info.training ? NoiseKey::ForTraining(info.seed)
                                     : NoiseKey::ForEvaluation();
  Drawn drawn;
  // Evaluations use the whole data.
  drawn.layout =
      LayoutOf(batch, key, info.training ? random_length_ratio_ : 0.0);
  drawn.noise = DrawNoise(drawn.layout, key, eps_);
  return drawn;
}

int64_t MaskedDiffusion::CountTargets(const Batch& batch,
                                      const StepInfo& info) const {
  if (vrpo_ != nullptr) return PairsOf(batch);
  const Drawn drawn = Draw(batch, info);
  return CountOf(drawn.layout, drawn.noise, config_.loss());
}

std::vector<MetricTags> MaskedDiffusion::metrics() const {
  if (vrpo_ != nullptr) return vrpo_->metrics();
  return {{"", "eval/accuracy"}, {"", "eval/bound_nats_per_token"}};
}

absl::Status MaskedDiffusion::Rollout(Model& model, std::vector<Batch>* batches,
                                      const RolloutInfo& info,
                                      UnitRunner& runner) {
  CHECK(vrpo_ != nullptr) << "no other loss has rollouts";
  return vrpo_->Rollout(model, MaskToken(*model.token_model()), batches, info,
                        runner);
}

LossSum MaskedDiffusion::Compute(Model& model, const Batch& batch,
                                 const StepInfo& info, UnitRunner& runner) {
  TokenModel* const tokens = model.token_model();
  CHECK(tokens != nullptr) << "Check comes first";
  if (vrpo_ != nullptr) {
    return vrpo_->Compute(model, MaskToken(*tokens), batch, info, runner);
  }
  const Drawn drawn = Draw(batch, info);
  HiddenBatch hidden = Hide(batch, drawn.layout, drawn.noise, config_.loss(),
                            MaskToken(*tokens), TakesHostTargets(*tokens));
  // Dropout only in training.
  if (info.training) {
    hidden.input.sample_positions = RequiredTensor(batch, kSamplePosition);
  }
  const int64_t more = TokensToAdd(batch, tokens->max_positions());
  AddPadding(*tokens, more, &hidden.input, &hidden.targets);
  LossSum loss;
  loss.sum = tokens->CrossEntropySum(hidden.input, hidden.targets, runner);
  if (info.thorough) {
    loss.metrics = at::cat(
        {CountCorrect(*tokens, hidden.input, hidden.targets.tokens, runner),
         Bound(*tokens, batch, drawn, runner)});
  }
  loss.count = CountOf(drawn.layout, drawn.noise, config_.loss());
  // Whatever the loss is averaged over, it is computed at masked tokens.
  loss.trained = CountOf(drawn.layout, drawn.noise, Config::MASKED_MEAN);
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding + more * drawn.layout.batch;
  return loss;
}

at::Tensor MaskedDiffusion::Bound(TokenModel& model, const Batch& batch,
                                  const Drawn& drawn,
                                  UnitRunner& runner) const {
  at::Tensor bound = at::zeros({1, 2}, at::kDouble);
  // A prompt is never masked: its tokens have no bound.
  if (batch.count(kLabels) > 0) return bound.to(batch.at(kInputIds).device());
  const HiddenBatch hidden = Hide(batch, drawn.layout, drawn.noise,
                                  Config::PRETRAIN, MaskToken(model));
  bound[0][0] = model.CrossEntropySum(hidden.input, hidden.targets, runner)
                    .item<double>();
  bound[0][1] =
      static_cast<double>(CountOf(drawn.layout, drawn.noise, Config::PRETRAIN));
  return bound.to(batch.at(kInputIds).device());
}

std::vector<std::pair<std::string, double>> MaskedDiffusion::DerivedFromLoss(
    double loss) const {
  // Only this loss bounds a token's negative log-likelihood.
  if (config_.loss() != Config::PRETRAIN) return {};
  return {{"perplexity_bound", std::exp(loss)}};
}

absl::StatusOr<SamplerOptions> MaskedDiffusion::Merged(
    const SampleOptions& options, const TokenModel& model) const {
  for (const auto& [name, set] :
       {std::make_pair("top_k", options.top_k.value_or(0) > 0),
        std::make_pair("top_p", options.top_p.value_or(1.0) < 1.0),
        std::make_pair("min_p", options.min_p.value_or(0.0) > 0.0),
        std::make_pair("repetition_penalty",
                       options.repetition_penalty.value_or(1.0) != 1.0),
        std::make_pair("no_repeat_ngram_size",
                       options.no_repeat_ngram_size.value_or(0) > 0)}) {
    if (set) {
      return absl::InvalidArgumentError(absl::StrCat(
          "masked_diffusion doesn't sample by ", name, ": use temperature"));
    }
  }
  SamplerOptions merged = sampler_;
  if (options.max_new_tokens > 0) {
    merged.max_new_tokens = options.max_new_tokens;
  }
  if (options.temperature.has_value()) {
    merged.temperature = *options.temperature;
  }
  if (options.greedy) merged.temperature = 0.0;
  merged.seed = options.seed;
  merged.stop = options.stop;
  if (options.stop_at_eos) {
    merged.stop_tokens = options.stop_tokens;
    const std::vector<int64_t> ends = EndTokensOf(model);
    merged.stop_tokens.insert(merged.stop_tokens.end(), ends.begin(),
                              ends.end());
  }
  return merged;
}

absl::StatusOr<std::vector<int64_t>> MaskedDiffusion::Sample(
    Model& model, const std::vector<int64_t>& prompt,
    const SampleOptions& options, UnitRunner& runner) {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(model));
  TokenModel* const tokens = model.token_model();
  CAPSTAN_RETURN_IF_ERROR(CheckPrompt(*tokens, prompt));
  CAPSTAN_ASSIGN_OR_RETURN(const SamplerOptions sampler,
                           Merged(options, *tokens));
  const int64_t mask = MaskToken(*tokens);
  OnText on_text = options.on_text;
  if (on_text && mask != tokens->mask_token()) {
    on_text = [&](absl::Span<const int64_t> text) {
      std::vector<int64_t> told(text.begin(), text.end());
      std::replace(told.begin(), told.end(), mask, tokens->mask_token());
      options.on_text(told);
    };
  }
  return Unmask(*tokens, prompt, mask, sampler, on_text, runner);
}

}  // namespace capstan::masked_diffusion
