// SPDX-License-Identifier: Apache-2.0
//
// What a run does between its steps: evaluation, and texts by the model.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/session/evaluation.h"
#include "trainer/session/stop.h"
#include "trainer/session/train_loop.h"

namespace capstan {

absl::Status TrainLoop::StopIfCancelled(const absl::Status& status) {
  if (!absl::IsCancelled(status)) return status;
  stopping_ = true;
  return absl::OkStatus();
}

absl::Status TrainLoop::Evaluate() {
  if (parts_.eval_data == nullptr || evaluated_step_ == state_.step) {
    return absl::OkStatus();
  }
  EvaluationRequest request;
  request.model = parts_.model.get();
  request.objective = parts_.objective.get();
  request.data = parts_.eval_data.get();
  request.group = group_.get();
  request.runner = &runner_;
  request.strategy = parts_.strategy.get();
  request.micro_batch_size = job_->evaluation_batch > 0
                                 ? job_->evaluation_batch
                                 : job_->batch.micro_batch_size;
  request.max_batches = config_.train().eval_batches();
  request.seed = config_.train().seed();
  request.last = state_.step >= max_steps_;
  if (reporter_ != nullptr) {
    request.measuring = [this](double done) { reporter_->Evaluating(done); };
  }
  const absl::StatusOr<EvaluationResult> result = capstan::Evaluate(request);
  if (!result.ok()) return StopIfCancelled(result.status());
  evaluated_step_ = state_.step;
  if (reporter_ != nullptr && result->measurement.has_value()) {
    reporter_->Measured(state_.step, *result->measurement);
  }
  if (result->count == 0) {
    if (reporter_ != nullptr && !std::exchange(told_empty_evaluation_, true)) {
      reporter_->Note(absl::StrCat(
          "step ", state_.step,
          ": the evaluation's data has no targets, so that there is no loss; "
          "this is said once"));
    }
    return absl::OkStatus();
  }
  eval_loss_ = result->loss_sum / result->count;
  if (reporter_ != nullptr) {
    reporter_->Eval(state_.step, *eval_loss_, result->tagged);
  }
  return Remember(*eval_loss_);
}

absl::Status TrainLoop::Remember(double eval_loss) {
  // A resumed run evaluates its first step again if that is its last, too.
  if (state_.eval_step == state_.step) return absl::OkStatus();
  state_.eval_step = state_.step;
  if (std::isfinite(eval_loss) &&
      (state_.best_step < 0 || eval_loss < state_.best_eval_loss)) {
    state_.best_eval_loss = eval_loss;
    state_.best_step = state_.step;
    state_.evals_without_better = 0;
    return config_.train().keep_best() ? Save() : absl::OkStatus();
  }
  ++state_.evals_without_better;
  if (OutOfPatience() && reporter_ != nullptr) {
    reporter_->Note(absl::StrFormat(
        "step %d: %d evaluations without a lower eval loss than %.4f of step "
        "%d; the run ends here (train.early_stopping_patience)",
        state_.step, state_.evals_without_better, state_.best_eval_loss,
        state_.best_step));
  }
  return absl::OkStatus();
}

bool TrainLoop::OutOfPatience() const {
  const int64_t patience = config_.train().early_stopping_patience();
  return patience > 0 && state_.evals_without_better >= patience;
}

absl::Status TrainLoop::Generate(const std::string& title) {
  if (prompts_.empty()) return absl::OkStatus();
  const bool collective = parts_.strategy->collective_forward();
  // Ranks that have no part in it may be all that the signal has come to.
  absl::Status mine = StopStatus();
  std::vector<Generation> generations;
  if (reporter_ != nullptr || collective) {
    StopPoll poll(collective ? group_.get() : nullptr);
    absl::StatusOr<std::vector<Generation>> made = Sample(title, &poll);
    mine = made.status();
    if (made.ok()) generations = *std::move(made);
  }
  // They wait here rather than in the next step's collectives: a signal
  // meanwhile must not cost that step.
  CAPSTAN_RETURN_IF_ERROR(
      StopIfCancelled(AgreeOnStop(*group_, mine, "sample")));
  if (reporter_ != nullptr && !stopping_) {
    reporter_->Generations(state_.step, title, generations);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Generation>> TrainLoop::Sample(
    const std::string& title, StopPoll* poll) {
  const DatasetReader& data = *parts_.train_data;
  const Tokenizer& tokenizer = *data.tokenizer();
  SampleOptions options;
  options.seed = config_.train().seed();
  options.max_new_tokens = config_.train().sample_max_new_tokens();
  options.stop = [poll] { return poll->Ask(); };
  const int64_t eos = tokenizer.special_ids().eos;
  if (eos >= 0) options.stop_tokens = {eos};
  std::vector<Generation> generations;
  for (const SamplePrompt& prompt : prompts_) {
    const bool user = prompt.kind_case() == SamplePrompt::kUser;
    const std::string& shown = user ? prompt.user() : prompt.prompt();
    const std::vector<int64_t> ids =
        user ? data.PromptIds(shown) : tokenizer.Encode(shown);
    absl::StatusOr<std::vector<int64_t>> text =
        parts_.objective->Sample(*parts_.model, ids, options, runner_);
    parts_.strategy->FinishForward();
    if (absl::IsCancelled(text.status())) return text.status();
    if (reporter_ == nullptr) continue;
    if (!text.ok()) {
      // A sample is for looking at: it stops no run.
      reporter_->Note(
          absl::StrCat("no sample ", title, ": ", text.status().message()));
      continue;
    }
    absl::Span<const int64_t> made =
        absl::MakeConstSpan(*text).subspan(ids.size());
    if (!made.empty() && made.back() == eos) made.remove_suffix(1);
    // An answer is a text of its own, a continuation isn't.
    generations.push_back({shown, tokenizer.Decode(made), user});
  }
  return generations;
}

}  // namespace capstan
