// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/grpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "kernels/to_device.h"
#include "plugins/grpo/objective/advantages.h"
#include "plugins/grpo/objective/check_rows.h"
#include "plugins/grpo/objective/preferences.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/lib/field_check.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::grpo {
namespace {

constexpr int64_t kDefaultAnswers = 8, kDefaultNewTokens = 256;
constexpr double kDefaultDpoBeta = 0.1;

uint64_t SeedOf(uint64_t key, int64_t position) {
  const auto bits = RandomBits(key, static_cast<uint64_t>(position), 0);
  return uint64_t{bits[0]} << 32 | bits[1];
}

// To a prompt.
int64_t AnswersOf(const Config& config) {
  return config.has_num_generations() ? config.num_generations()
                                      : kDefaultAnswers;
}

absl::Status CheckConfig(const Config& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(AnswersOf(config) >= 2, "num_generations",
                                     "2 or more", config.num_generations()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      !config.has_updates_per_rollout() || config.updates_per_rollout() >= 1,
      "updates_per_rollout", "1 or more", config.updates_per_rollout()));
  const int64_t answers = AnswersOf(config);
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      config.rollout_batch() == 0 || config.rollout_batch() >= answers,
      "rollout_batch",
      absl::StrCat("at least num_generations, ", answers,
                   ", as a prompt's answers are sampled together, or 0"),
      config.rollout_batch()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.eval_prompts() >= 0, "eval_prompts",
                                     "0 or greater", config.eval_prompts()));
  if (config.has_temperature() && !(config.temperature() > 0.0)) {
    return FieldError("temperature",
                      "must be greater than 0: answers to a prompt that are "
                      "all the same teach nothing");
  }
  if (config.kind() != POLICY_GRADIENT) {
    for (const auto& [is_set, name] :
         {std::make_pair(config.loss() != DAPO, "loss"),
          std::make_pair(config.advantage() != GROUP_STD, "advantage"),
          std::make_pair(config.has_clip_low(), "clip_low"),
          std::make_pair(config.has_clip_high(), "clip_high"),
          std::make_pair(config.clip_most() != 0.0, "clip_most"),
          std::make_pair(config.sequence_ratios(), "sequence_ratios"),
          std::make_pair(config.has_unbiased_kl(), "unbiased_kl"),
          std::make_pair(config.kind() == ONLINE_DPO && config.mask_truncated(),
                         "mask_truncated"),
          std::make_pair(config.kind() == REJECTION && config.beta() != 0.0,
                         "beta")}) {
      if (!is_set) continue;
      return FieldError(
          name, absl::StrCat("isn't used by kind: ", Kind_Name(config.kind())));
    }
  }
  if (config.reward().empty()) {
    return FieldError("reward",
                      "is missing: say what an answer is worth, as "
                      "reward { exact_match {} }");
  }
  return absl::OkStatus();
}

}  // namespace

// Where this rank's rows are.
struct Grpo::Places {
  struct Row {
    size_t batch;     // of the step's micro-batches
    int64_t place;    // in the step
    size_t question;  // of `questions`
    size_t answer;    // of all questions' answers, in order
  };
  std::vector<Row> rows;  // in order
  std::vector<Question> questions;
  std::vector<std::string> texts;  // each question's row
};

absl::StatusOr<std::unique_ptr<Grpo>> Grpo::Create(const Config& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckConfig(config));
  CAPSTAN_ASSIGN_OR_RETURN(SampleOptions given, SamplingOf(config));
  if (given.max_new_tokens == 0) given.max_new_tokens = kDefaultNewTokens;
  if (!given.temperature.has_value()) given.temperature = 1.0;
  AnswerOptions sampling;
  sampling.max_new_tokens = given.max_new_tokens;
  sampling.rows = config.rollout_batch();
  // Not as the model's generation_config.json says, whose limits would hide
  // from training what it is to learn of.
  sampling.sampler.temperature = *given.temperature;
  sampling.sampler.top_k = given.top_k.value_or(0);
  sampling.sampler.top_p = given.top_p.value_or(1.0);
  sampling.sampler.min_p = given.min_p.value_or(0.0);
  sampling.sampler.rules.repetition_penalty =
      given.repetition_penalty.value_or(1.0);
  sampling.sampler.rules.no_repeat_ngram_size =
      given.no_repeat_ngram_size.value_or(0);
  std::unique_ptr<Grpo> grpo(new Grpo(config, std::move(given)));
  CAPSTAN_ASSIGN_OR_RETURN(grpo->loss_, LossOptionsOf(config));
  grpo->loss_.max_new_tokens = sampling.max_new_tokens;
  if (config.kind() == ONLINE_DPO && grpo->loss_.beta == 0.0) {
    grpo->loss_.beta = kDefaultDpoBeta;
  }
  grpo->sampling_ = std::move(sampling);
  grpo->plan_ = {AnswersOf(config), config.has_updates_per_rollout()
                                        ? config.updates_per_rollout()
                                        : 1};
  CAPSTAN_ASSIGN_OR_RETURN(grpo->rewards_, Rewards::Create(config.reward()));
  if (config.has_tools()) {
    CAPSTAN_ASSIGN_OR_RETURN(grpo->tools_, ToolProgram::Create(config.tools()));
  }
  grpo->told_ = std::make_unique<AnswerMetrics>(config.has_tools(),
                                                grpo->rewards_->names());
  return grpo;
}

absl::Status Grpo::CheckModel(Model& model) const {
  TokenModel* const tokens = model.token_model();
  if (tokens != nullptr && tokens->causal() &&
      tokens->text_scores() == nullptr && tokens->row_losses() != nullptr &&
      tokens->row_losses()->has_token_log_probs()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "grpo needs a model of token sequences that writes from left to right "
      "and gives each token's log-probability (RowLosses::TokenLogProbs), as "
      "capstan.decoder; this model isn't one");
}

absl::Status Grpo::Check(Model& model, const DatasetReader& data) const {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(model));
  const TokenModel& tokens = *model.token_model();
  CAPSTAN_RETURN_IF_ERROR(CheckVocabulary(tokens, data));
  if (data.tokenizer() == nullptr) {
    return absl::InvalidArgumentError("grpo needs data of text");
  }
  if (tokenizer_ == nullptr) tokenizer_ = data.tokenizer();
  Batch batch;
  const int64_t first[] = {0};
  CAPSTAN_RETURN_IF_ERROR(data.Read(first, &batch));
  if (batch.count(kRowText) == 0) {
    return absl::InvalidArgumentError(
        "grpo needs prompts, whose answers it samples, and the data has texts "
        "that are learnt as they are: set kind: PROMPT in the reader "
        "(capstan.chat)");
  }
  const int64_t longest = data.max_sequence_length();
  longest_ = std::max(longest_, longest + sampling_.max_new_tokens);
  if (longest + sampling_.max_new_tokens > tokens.max_positions()) {
    return FieldError(
        "max_new_tokens",
        absl::StrCat(
            "is ", sampling_.max_new_tokens, ", which with prompts of up to ",
            longest,
            " tokens (the data's max_length) is more than the model's ",
            tokens.max_positions(), " positions: lower one of them"));
  }
  const std::string row = RowTexts(batch)[0];
  if (tools_ != nullptr) {
    if (!tools_->prepared()) tools_->Prepare(data);
    CAPSTAN_RETURN_IF_ERROR(Annotate(
        tools_->CheckPrompt(tokenizer_->Decode(PromptsOf(batch)[0]), row),
        "tools: the first prompt"));
  }
  return CheckRows(data, *rewards_);
}

int64_t Grpo::CountTargets(const Batch& batch, const StepInfo& info) const {
  const at::Tensor labels = HostTensor(batch, kLabels);
  if (!info.training || !labels.defined()) return 0;
  at::Tensor trained = labels.ge(0);
  if (config_.mask_truncated()) {
    trained = trained & HostTensor(batch, kTruncated).eq(0).unsqueeze(1);
  }
  if (config_.kind() != POLICY_GRADIENT) {
    return PreferenceCount(config_.kind(), HostTensor(batch, kAdvantages),
                           trained.sum(1));
  }
  return LossCount(loss_, labels.size(0), trained.sum().item<int64_t>());
}

std::vector<MetricTags> Grpo::metrics() const {
  std::vector<MetricTags> tags;
  const auto add = [&tags](const std::string& name) {
    tags.push_back({absl::StrCat("train/", name), ""});
  };
  for (const std::string& name : told_->names()) add(name);
  tags[0].eval = "eval/reward";  // of Summarize, for train.best_metric
  for (const std::string& name : config_.kind() == POLICY_GRADIENT
                                     ? MetricNames(loss_)
                                     : PreferenceMetrics(config_.kind())) {
    add(name);
  }
  add("log_ratio_max");
  return tags;
}

LossSum Grpo::Compute(Model& model, const Batch& batch, const StepInfo& info,
                      UnitRunner& runner) {
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  LossSum loss;
  if (!info.training) {
    loss.sum = at::zeros({}, ids.options().dtype(at::kFloat));
    return loss;
  }
  const at::Device device = ids.device();
  const bool host = TakesHostTargets(*model.token_model());
  const at::Tensor targets = NextOf(
      host ? HostTensor(batch, kLabels) : batch.at(kLabels), kIgnoredTarget);
  TokenInput input;
  input.tokens = ids;
  const auto samples = batch.find(kSamplePosition);
  if (samples != batch.end()) input.sample_positions = samples->second;
  AnswerTokens answers;
  answers.logps = model.token_model()->row_losses()->TokenLogProbs(
      input, targets, sampling_.sampler.temperature,
      config_.kind() == POLICY_GRADIENT ? &answers.entropies : nullptr, runner);
  answers.old_logps = NextOf(batch.at(kOldLogProbs), 0);
  const auto reference = batch.find(kReferenceLogProbs);
  if (reference != batch.end()) {
    answers.reference = NextOf(reference->second, 0);
  }
  answers.mask = kernels::ToDevice(targets, device).ge(0);
  if (config_.mask_truncated()) {
    answers.mask = answers.mask & batch.at(kTruncated).eq(0).unsqueeze(1);
  }
  answers.advantages = batch.at(kAdvantages);
  at::Tensor metrics;
  if (config_.kind() == POLICY_GRADIENT) {
    const AnswersLoss of = LossOf(loss_, answers);
    loss.sum = of.sum;
    metrics = of.metrics;
  } else if (config_.kind() == ONLINE_DPO &&
             ids.size(0) % plan_.rows_per_sample != 0) {
    const auto count =
        static_cast<int64_t>(PreferenceMetrics(config_.kind()).size());
    metrics = at::zeros({count, 2}, ids.options().dtype(at::kDouble));
  } else {
    const PreferenceLoss of = PreferenceLossOf(config_.kind(), loss_.beta,
                                               plan_.rows_per_sample, answers);
    loss.sum = of.sum;
    metrics = of.metrics;
  }
  loss.count = CountTargets(batch, info);
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding;
  loss.trained = HostTensor(batch, kLabels).ge(0).sum().item<int64_t>();
  const at::Tensor most =
      at::where(answers.mask, answers.logps.detach() - answers.old_logps, 0.0)
          .abs()
          .max()
          .to(at::kDouble)
          .view({1, 1});
  loss.metrics =
      at::cat({told_->SumsOf(batch.at(kAnswerMetrics)), metrics.to(at::kDouble),
               at::cat({most, at::ones_like(most)}, 1)});
  return loss;
}

absl::StatusOr<Grpo::Places> Grpo::PlacesOf(const std::vector<Batch>& batches,
                                            const RolloutInfo& info,
                                            bool all) const {
  const uint64_t key = RandomKey(info.seed, "rollouts");
  Places places;
  std::map<int64_t, size_t> known;  // questions, by their place in the step
  std::map<int64_t, size_t> order;  // the prompts, as they come
  for (size_t b = 0; b < batches.size(); ++b) {
    const Batch& batch = batches[b];
    const at::Tensor positions = HostTensor(batch, kSamplePosition);
    const auto prompts = PromptsOf(batch);
    const std::vector<std::string> texts = RowTexts(batch);
    if (config_.kind() == ONLINE_DPO &&
        prompts.size() % plan_.rows_per_sample != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "kind is ONLINE_DPO, and num_generations ", plan_.rows_per_sample,
          ", of which the micro-batch's ", prompts.size(),
          " rows must be a multiple, as a pair's loss takes both "
          "of its answers: set batch.micro_batch_size"));
    }
    for (size_t r = 0; r < prompts.size(); ++r) {
      const int64_t position =
          positions[static_cast<int64_t>(r)].item<int64_t>();
      const int64_t place = position - info.first_position;
      const int64_t prompt = place / plan_.rows_per_sample;
      const size_t number = order.emplace(prompt, order.size()).first->second;
      if (!all && static_cast<int64_t>(number) % info.sequence_ranks !=
                      info.sequence_index) {
        continue;
      }
      const auto [question, is_new] =
          known.emplace(prompt, places.questions.size());
      if (is_new) {
        places.questions.push_back({prompts[r], {}});
        places.texts.push_back(texts[r]);
      }
      Question& of = places.questions[question->second];
      places.rows.push_back({b, place, question->second, of.seeds.size()});
      of.seeds.push_back(SeedOf(key, position));
    }
  }
  // Answers come question by question.
  std::vector<size_t> before(places.questions.size(), 0);
  for (size_t q = 1; q < before.size(); ++q) {
    before[q] = before[q - 1] + places.questions[q - 1].seeds.size();
  }
  for (Places::Row& row : places.rows) row.answer += before[row.question];
  return places;
}

absl::Status Grpo::Rollout(Model& model, std::vector<Batch>* batches,
                           const RolloutInfo& info, UnitRunner& runner) {
  CHECK(tokenizer_ != nullptr) << "Check comes first";
  const std::string note = std::exchange(note_, "");
  if (info.rank == 0) std::cerr << note;
  CAPSTAN_ASSIGN_OR_RETURN(const Places places,
                           PlacesOf(*batches, info, /*all=*/true));
  const int64_t steps = (info.step - 1) % plan_.steps_per_sample;
  const int64_t first = info.first_position - steps * info.global_batch_size;
  if (plan_.steps_per_sample == 1 || first_position_ != first ||
      static_cast<int64_t>(rollouts_.size()) != info.global_batch_size) {
    first_position_ = -1;
    more_steps_ = false;
    Places part;
    const bool shares = info.sequence_ranks > 1;
    if (shares) {
      CAPSTAN_ASSIGN_OR_RETURN(part, PlacesOf(*batches, info, /*all=*/false));
    }
    CAPSTAN_RETURN_IF_ERROR(
        RollOut(model, shares ? part : places, places, info, runner));
    first_position_ = first;
  }
  more_steps_ = info.step % plan_.steps_per_sample != 0;
  std::vector<std::vector<const grpo::Rollout*>> rows(batches->size());
  for (const Places::Row& row : places.rows) {
    rows[row.batch].push_back(&rollouts_[row.place]);
  }
  for (size_t b = 0; b < batches->size(); ++b) {
    const at::Device device = (*batches)[b].at(kInputIds).device();
    (*batches)[b] = BatchOf(rows[b], device, longest_);
  }
  return absl::OkStatus();
}

absl::Status Grpo::RollOut(Model& model, const Places& sampled,
                           const Places& places, const RolloutInfo& info,
                           UnitRunner& runner) {
  CAPSTAN_ASSIGN_OR_RETURN(
      std::vector<Conversation> answers,
      Converse(model.token_model(), sampled.questions, sampled.texts, sampling_,
               *tokenizer_, tools_.get(), info.all_done, runner));
  CAPSTAN_ASSIGN_OR_RETURN(const Rewards::Scores scores,
                           Score(info.all_done, &answers));
  rollouts_.assign(info.global_batch_size, {});
  for (const Places::Row& row : sampled.rows) {
    grpo::Rollout& out = rollouts_[row.place];
    Conversation& answer = answers[row.answer];
    out.metrics = told_->Of(answer, scores, row.answer);
    out.prompt = answer.prompt;
    out.told = std::move(answer.told);
    out.truncated = answer.truncated;
    out.log_probs = std::move(answer.log_probs);
    out.text = std::move(answer.text);
  }
  if (info.sequence_ranks > 1) Share(info.all_sum, &rollouts_);
  Judge(places, info);
  if (loss_.beta > 0.0) {
    CAPSTAN_RETURN_IF_ERROR(AddReference(model, places, info, runner));
  }
  if (plan_.steps_per_sample > 1) ShareSteps(places, info);
  return absl::OkStatus();
}

void Grpo::ShareSteps(const Places& places, const RolloutInfo& info) {
  // Each answer has to be of one rank.
  std::vector<grpo::Rollout> own(rollouts_.size());
  for (const Places::Row& row : places.rows) {
    if (info.sequence_index > 0) break;
    own[row.place] = std::move(rollouts_[row.place]);
  }
  rollouts_ = std::move(own);
  Share(info.all_sum, &rollouts_);
}

// Advantages and what is told of groups depend on answers that other ranks may
// have.
void Grpo::Judge(const Places& places, const RolloutInfo& info) {
  std::vector<double> rewards(rollouts_.size(), 0.0);
  for (const Places::Row& row : places.rows) {
    if (info.sequence_index > 0) break;  // another rank has them, too
    rewards[row.place] = rollouts_[row.place].metrics[0];
  }
  info.all_sum(absl::MakeSpan(rewards));
  const int64_t group = plan_.rows_per_sample;
  const std::vector<double> advantages =
      config_.kind() == POLICY_GRADIENT
          ? AdvantagesOf(config_.advantage(), group, rewards)
          : RolesOf(config_.kind(), group, rewards);
  for (const Places::Row& row : places.rows) {
    grpo::Rollout& out = rollouts_[row.place];
    out.advantage = advantages[row.place];
    AnswerMetrics::SetGroup(
        absl::MakeConstSpan(rewards).subspan(row.place / group * group, group),
        &out.metrics);
  }
}

absl::Status Grpo::AddReference(Model& model, const Places& places,
                                const RolloutInfo& info, UnitRunner& runner) {
  const auto forwards = [&]() -> absl::Status {
    SetReference(model, places, runner);
    return absl::OkStatus();
  };
  if (!model.has_adapter()) return info.with_initial_weights(forwards);
  struct WithoutAdapter {
    explicit WithoutAdapter(Model* model) : model(*model) {
      model->SetAdapterEnabled(false);
    }
    ~WithoutAdapter() { model.SetAdapterEnabled(true); }
    Model& model;
  };
  const WithoutAdapter without(&model);
  return forwards();
}

void Grpo::SetReference(Model& model, const Places& places,
                        UnitRunner& runner) {
  for (auto row = places.rows.begin(); row != places.rows.end();) {
    const auto end = std::find_if(
        row, places.rows.end(),
        [&](const Places::Row& other) { return other.batch != row->batch; });
    std::vector<const grpo::Rollout*> rows;
    for (auto it = row; it != end; ++it) rows.push_back(&rollouts_[it->place]);
    const Batch batch = BatchOf(rows, at::kCPU);
    TokenInput input;
    input.tokens = batch.at(kInputIds);
    const at::Tensor found =
        model.token_model()
            ->row_losses()
            ->TokenLogProbs(input, NextOf(batch.at(kLabels), kIgnoredTarget),
                            sampling_.sampler.temperature, nullptr, runner)
            .cpu();
    for (int64_t r = 0; row != end; ++row, ++r) {
      grpo::Rollout& out = rollouts_[row->place];
      const float* const values =
          found.const_data_ptr<float>() + r * found.size(1) + out.prompt - 1;
      out.reference.assign(values, values + out.answer());
    }
  }
}

absl::StatusOr<Rewards::Scores> Grpo::Score(
    const std::function<bool(bool done)>& all_done,
    std::vector<Conversation>* conversations) {
  struct Work {
    std::shared_ptr<Rewards> rewards;
    std::vector<Conversation> conversations;
    absl::StatusOr<Rewards::Scores> scores = absl::UnknownError("not asked");
  };
  const auto work =
      std::make_shared<Work>(Work{rewards_, std::move(*conversations)});
  side_.Begin([work] {
    std::vector<Answer> answers;
    for (const Conversation& one : work->conversations) {
      answers.push_back(one.answer());
    }
    work->scores = work->rewards->Score(answers);
    return work->scores.status();
  });
  // No rank runs forwards any more.
  bool ended = side_.Ended();
  while (!all_done(ended)) ended = side_.Ended();
  if (!ended) return absl::CancelledError("rewards were waited for");
  CAPSTAN_RETURN_IF_ERROR(side_.Take());
  *conversations = std::move(work->conversations);
  return std::move(work->scores);
}

absl::StatusOr<std::vector<double>> Grpo::Measure(
    Model& model, const DatasetReader& eval_data, const MeasureInfo& info,
    UnitRunner& runner) {
  const int64_t count = config_.eval_prompts() > 0
                            ? std::min(config_.eval_prompts(), eval_data.size())
                            : eval_data.size();
  const uint64_t key = RandomKey(info.seed, "evaluation's answers");
  std::vector<Question> questions;
  std::vector<std::string> rows;
  for (int64_t i = info.rank; i < count; i += info.world_size) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(eval_data.Read({i}, &batch));
    questions.push_back({PromptsOf(batch)[0], {SeedOf(key, i)}});
    rows.push_back(RowTexts(batch)[0]);
  }
  // As many at once as a step's micro-batch would be too few.
  AnswerOptions options = sampling_;
  constexpr int64_t kAtOnce = 64;
  if (options.rows == 0) options.rows = kAtOnce;
  CAPSTAN_ASSIGN_OR_RETURN(
      std::vector<Conversation> answers,
      Converse(model.token_model(), questions, rows, options, *tokenizer_,
               tools_.get(), info.all_done, runner));
  CAPSTAN_ASSIGN_OR_RETURN(const Rewards::Scores scores,
                           Score(info.all_done, &answers));
  return told_->Measure(answers, scores);
}

Measurement Grpo::Summarize(absl::Span<const double> sums,
                            const MeasureInfo&) const {
  return told_->Summarize(sums);
}

std::string Grpo::SaveState() const {
  Saved saved;
  if (more_steps_) {
    saved.first_position = first_position_;
    saved.rows = rollouts_;
  }
  saved.probes = rewards_->probes();
  return grpo::SaveState(saved);
}

absl::Status Grpo::RestoreState(absl::string_view state) {
  CAPSTAN_ASSIGN_OR_RETURN(Saved saved, ReadState(state));
  if (!saved.rows.empty() &&
      saved.rows[0].metrics.size() != told_->names().size()) {
    return absl::InvalidArgumentError(
        "the rollouts are of other rewards or tools than the config's");
  }
  note_ = WhatScoresOtherwise(saved.probes, rewards_->probes());
  more_steps_ = !saved.rows.empty();
  first_position_ = more_steps_ ? saved.first_position : -1;
  rollouts_ = std::move(saved.rows);
  return absl::OkStatus();
}

}  // namespace capstan::grpo
