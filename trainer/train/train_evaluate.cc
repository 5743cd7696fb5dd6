// SPDX-License-Identifier: Apache-2.0
//
// What a run does between its steps: evaluation, and texts by the model.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/data/batch_slot.h"
#include "trainer/train/train_loop.h"

namespace capstan {
namespace {

// Into sum, count, and a sum and a count of each of the objective's numbers.
void AddLoss(const LossSum& loss, absl::Span<double> sums) {
  sums[0] += loss.sum.item<double>();
  sums[1] += static_cast<double>(loss.count);
  if (!loss.metrics.defined()) return;
  const at::Tensor metrics =
      loss.metrics.to(at::kCPU, at::kDouble).contiguous();
  const double* values = metrics.const_data_ptr<double>();
  for (size_t i = 2; i < sums.size(); ++i) sums[i] += values[i - 2];
}

}  // namespace

absl::Status TrainLoop::Evaluate() {
  if (parts_.eval_data == nullptr || evaluated_step_ == state_.step) {
    return absl::OkStatus();
  }
  evaluated_step_ = state_.step;
  const std::vector<MetricTags> tags = parts_.objective->metrics();
  std::vector<double> sums(2 + 2 * tags.size(), 0.0);
  StepInfo info;
  info.seed = config_.train().seed();
  absl::Status status = EvaluationTotals(&info);
  if (status.ok()) status = SumEvaluation(info, absl::MakeSpan(sums));
  if (absl::IsUnavailable(status)) return status;
  if (!status.ok()) status = Annotate(status, "evaluation");
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "evaluate"));
  group_->AllReduceHost(absl::MakeSpan(sums));
  CAPSTAN_RETURN_IF_ERROR(Measure());
  if (sums[1] == 0) {
    if (reporter_ != nullptr && !told_empty_evaluation_) {
      told_empty_evaluation_ = true;
      reporter_->Note(absl::StrCat(
          "step ", state_.step,
          ": the evaluation's data has no targets, so that there is no loss; "
          "this is said once"));
    }
    return absl::OkStatus();
  }
  eval_loss_ = sums[0] / sums[1];
  if (reporter_ != nullptr) {
    TaggedNumbers tagged;
    for (size_t i = 0; i < tags.size(); ++i) {
      const double* pair = &sums[2 + 2 * i];
      if (pair[1] != 0) tagged.emplace_back(tags[i].eval, pair[0] / pair[1]);
    }
    reporter_->Eval(state_.step, *eval_loss_, tagged);
  }
  return Remember(*eval_loss_);
}

int64_t TrainLoop::EvaluationBatches() const {
  const int64_t micro = job_->batch.micro_batch_size;
  const int64_t batches = (parts_.eval_data->size() + micro - 1) / micro;
  const int64_t most = config_.train().eval_batches();
  return most > 0 ? std::min(batches, most) : batches;
}

absl::StatusOr<Batch> TrainLoop::EvaluationBatch(int64_t index) const {
  const int64_t micro = job_->batch.micro_batch_size;
  const int64_t begin = index * micro;
  std::vector<int64_t> samples(
      std::min(micro, parts_.eval_data->size() - begin));
  std::iota(samples.begin(), samples.end(), begin);
  Batch batch;
  CAPSTAN_RETURN_IF_ERROR(parts_.eval_data->Read(samples, &batch));
  SetSamplePositions(samples, &batch);
  for (auto& [name, tensor] : batch) tensor = tensor.to(group_->device());
  return batch;
}

absl::Status TrainLoop::EvaluationTotals(StepInfo* info) {
  if (parts_.objective->step_totals() == 0) return absl::OkStatus();
  std::vector<double> sums(parts_.objective->step_totals(), 0.0);
  const auto read = [&]() -> absl::Status {
    const int64_t batches = EvaluationBatches();
    for (int64_t i = group_->rank(); i < batches; i += group_->size()) {
      CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, EvaluationBatch(i));
      AddTotals(batch, *info, &sums);
    }
    return absl::OkStatus();
  };
  absl::Status status;
  try {
    status = read();
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(
      status.ok() ? status : Annotate(status, "evaluation"), "evaluate"));
  group_->AllReduceHost(absl::MakeSpan(sums));
  info->totals = std::move(sums);
  return absl::OkStatus();
}

absl::Status TrainLoop::SumEvaluation(const StepInfo& info,
                                      absl::Span<double> sums) {
  at::NoGradGuard no_grad;
  const int64_t batches = EvaluationBatches();
  // All ranks take part in as many forwards, since they may hold collectives;
  // what a rank computes beyond the last batch doesn't count.
  const int64_t world = group_->size();
  absl::Status status;
  for (int64_t round = 0; round < (batches + world - 1) / world; ++round) {
    const int64_t index = round * world + group_->rank();
    try {
      // After an error, too, this rank owes the others its collectives.
      if (status.ok()) {
        const absl::StatusOr<Batch> batch =
            EvaluationBatch(std::min(index, batches - 1));
        status = batch.status();
        if (status.ok()) {
          const LossSum loss =
              parts_.objective->Compute(*parts_.model, *batch, info, runner_);
          if (index < batches) AddLoss(loss, sums);
        }
      }
    } catch (...) {
      status.Update(CurrentExceptionToStatus());
    }
    // A broken connection ends it.
    if (absl::IsUnavailable(status)) return status;
    try {
      parts_.strategy->FinishForward();
    } catch (...) {
      return status.ok() ? CurrentExceptionToStatus() : status;
    }
  }
  return status;
}

absl::Status TrainLoop::Measure() {
  MeasureInfo info;
  info.seed = config_.train().seed();
  info.rank = group_->rank();
  info.world_size = group_->size();
  info.last = state_.step >= max_steps_;
  if (reporter_ != nullptr) {
    info.progress = [this](double done) { reporter_->Evaluating(done); };
  }
  absl::StatusOr<std::vector<double>> sums;
  try {
    at::NoGradGuard no_grad;
    sums = parts_.objective->Measure(*parts_.model, *parts_.eval_data, info,
                                     runner_);
    parts_.strategy->FinishForward();
  } catch (...) {
    sums = CurrentExceptionToStatus();
  }
  if (absl::IsUnavailable(sums.status())) return sums.status();
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(sums.status(), "measure"));
  if (sums->empty()) return absl::OkStatus();
  group_->AllReduceHost(absl::MakeSpan(*sums));
  if (reporter_ != nullptr) {
    reporter_->Measured(state_.step, parts_.objective->Summarize(*sums, info));
  }
  return absl::OkStatus();
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
  if (prompts_.empty() ||
      (reporter_ == nullptr && !parts_.strategy->collective_forward())) {
    return absl::OkStatus();
  }
  const DatasetReader& data = *parts_.train_data;
  const Tokenizer& tokenizer = *data.tokenizer();
  SampleOptions options;
  options.seed = config_.train().seed();
  options.max_new_tokens = config_.train().sample_max_new_tokens();
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
  if (reporter_ != nullptr) {
    reporter_->Generations(state_.step, title, generations);
  }
  return absl::OkStatus();
}

}  // namespace capstan
