// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints, and what a run does after its steps: the final folder and the
// summary.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine.h"
#include "base/output_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/session/hub_upload.h"
#include "trainer/session/resume_command.h"
#include "trainer/session/train_loop.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultKeepCheckpoints = 2;
constexpr int64_t kMaxShardBytes = int64_t{5} << 30;
// Steps at the start that the median leaves out: buffers are still cold.
constexpr size_t kWarmUpSteps = 2;

double Median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : 0.5 * (values[middle - 1] + values[middle]);
}

}  // namespace

absl::Status TrainLoop::Save() {
  if (last_saved_step_ == state_.step) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(CheckFinite());
  if (AwaitsGoodStep()) return absl::OkStatus();
  state_.loss_scale = scaler_.enabled() ? scaler_.scale() : 0.0;
  state_.loss_scale_good_steps = scaler_.good_steps();
  const int64_t keep = config_.train().keep_checkpoints() > 0
                           ? config_.train().keep_checkpoints()
                           : kDefaultKeepCheckpoints;
  CAPSTAN_RETURN_IF_ERROR(SaveCheckpoint(
      output_dir_, static_cast<int>(keep), state_, Checkpointed(),
      config_.train().keep_best() ? state_.best_step : -1));
  last_saved_step_ = state_.step;
  return absl::OkStatus();
}

absl::Status TrainLoop::RestoreBest() {
  if (!config_.train().keep_best() || state_.best_step < 0 ||
      state_.best_step == state_.step) {
    return absl::OkStatus();
  }
  const std::string folder = CheckpointFolder(output_dir_, state_.best_step);
  double missing[] = {IsCheckpoint(folder) ? 0.0 : 1.0};
  group_->AllReduceHost(absl::MakeSpan(missing));
  if (missing[0] > 0) {
    if (reporter_ != nullptr) {
      reporter_->Note(absl::StrCat(
          "the best checkpoint, ", folder,
          ", isn't there any more: final/ gets the last step's weights"));
    }
    return absl::OkStatus();
  }
  CAPSTAN_RETURN_IF_ERROR(LoadCheckpointWeights(folder, Checkpointed()));
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(Publish(), "publish parameters"));
  if (reporter_ != nullptr) {
    reporter_->Note(
        absl::StrFormat("final/ gets the weights of step %d, whose eval loss "
                        "%.4f is the lowest",
                        state_.best_step, state_.best_eval_loss));
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::SaveFinal() {
  FinalFolder final;
  final.path = output_dir_ + "/final";
  final.dtype = parts_.policy().compute;
  final.max_shard_bytes = kMaxShardBytes;
  final.tokenizer = parts_.train_data->tokenizer();
  final.config_text = config_text_;
  final.lora = parts_.lora;
  final.base_model = BaseModelOf(config_);
  final.seed = config_.train().seed();
  if (reporter_ != nullptr) {
    final.note = [this](const std::string& line) { reporter_->Note(line); };
    CAPSTAN_ASSIGN_OR_RETURN(final.files, ModelCard(CardFacts()));
  }
  return SaveHuggingFaceFolder(final, *parts_.model, *parts_.strategy, *group_);
}

ModelCardFacts TrainLoop::CardFacts() const {
  ModelCardFacts facts;
  facts.config = &config_;
  facts.base_model = BaseModelOf(config_);
  facts.adapter = parts_.lora.has_value();
  const TokenModel* const tokens = parts_.model->token_model();
  facts.texts = tokens != nullptr;
  facts.causal = tokens != nullptr && tokens->causal();
  facts.tokenizer = parts_.train_data->tokenizer() != nullptr;
  facts.auto_class = AutoClass(facts.base_model);
  facts.output_dir = output_dir_;
  if (reporter_ != nullptr) facts.pictures = reporter_->pictures();
  facts.world_size = group_->size();
  facts.global_batch_size = job_->batch.global_batch_size;
  facts.training_samples = parts_.train_data->size();
  facts.unit = parts_.objective->unit();
  facts.tokens = state_.tokens;
  facts.trained_tokens = state_.trained_tokens;
  facts.padding = PaddingShare(state_.tokens, state_.padding);
  facts.steps = state_.step;
  facts.final_loss = state_.last_loss;
  if (state_.best_step >= 0) {
    facts.best_eval_loss = state_.best_eval_loss;
    facts.best_step = state_.best_step;
  }
  facts.eval_loss = eval_loss_;
  for (const ParameterSpec& spec : parts_.model->parameters()) {
    (spec.trainable ? facts.trained_parameters : facts.frozen_parameters) +=
        spec.numel();
  }
  facts.learning_rate = parts_.optimizer->learning_rate();
  facts.strategy = parts_.strategy_name;
  facts.precision = parts_.precision_name;
  return facts;
}

absl::Status TrainLoop::SaveAll() {
  if (!stopping_) CAPSTAN_RETURN_IF_ERROR(Evaluate());
  if (!stopping_) CAPSTAN_RETURN_IF_ERROR(CheckEnd());
  if (state_.step > 0) CAPSTAN_RETURN_IF_ERROR(Save());
  if (stopping_) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(RestoreBest());
  CAPSTAN_RETURN_IF_ERROR(Generate("after training"));
  return stopping_ ? absl::OkStatus() : SaveFinal();
}

absl::Status TrainLoop::Finish() {
  loader_.reset();
  CAPSTAN_RETURN_IF_ERROR(SaveAll());
  absl::Status status = WriteProfile();
  const RunSummary summary = Summary();
  if (reporter_ != nullptr) {
    reporter_->Finish(summary);
    status.Update(reporter_->status());
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "write its output"));
  if (stopping_) return Stopped();
  // Last, since it takes its time: no other rank waits for it.
  if (reporter_ == nullptr || !config_.has_hub_upload()) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> told =
      UploadToHub(config_.hub_upload(), output_dir_ + "/final");
  if (told.ok()) reporter_->Note(*told);
  return told.status();
}

absl::Status TrainLoop::Stopped() const {
  const std::string command =
      ResumeCommand(job_->command, config_, output_dir_);
  const std::string how =
      job_->output_dir.empty()
          ? absl::StrCat("go on with the same launcher, and: ", command)
          : absl::StrCat("go on with: ", command);
  if (state_.step == 0) {
    return absl::CancelledError(absl::StrCat(
        "stopped before the first step: there is nothing to save; ", how));
  }
  return absl::CancelledError(absl::StrCat("stopped after step ", state_.step,
                                           "; saved in ", output_dir_, "; ",
                                           how));
}

absl::Status TrainLoop::WriteProfile() {
  if (profiler_ == nullptr) return absl::OkStatus();
  const std::vector<ProfiledStep>& steps = profiler_->steps();
  if (steps.empty()) {
    if (reporter_ != nullptr) {
      reporter_->Note("profile: this run has done none of its steps");
    }
    return absl::OkStatus();
  }
  const int rank = group_->rank();
  const std::string trace =
      rank == 0 ? "trace.json" : absl::StrCat("trace.rank", rank, ".json");
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(absl::StrCat(output_dir_, "/", trace),
                                      TraceJson(steps, rank)));
  if (reporter_ == nullptr) return absl::OkStatus();
  const StepProfile profile = Summarize(steps);
  reporter_->Table(ProfileTable(profile));
  return ReplaceFile(output_dir_ + "/profile.json", ProfileJson(profile));
}

RunSummary TrainLoop::Summary() {
  RunSummary summary;
  summary.status = stopping_ ? "stopped" : "completed";
  summary.steps = state_.step;
  summary.unit = parts_.objective->unit();
  summary.tokens = state_.tokens;
  summary.trained_tokens = state_.trained_tokens;
  summary.padding = PaddingShare(state_.tokens, state_.padding);
  for (const ParameterSpec& spec : parts_.model->parameters()) {
    summary.parameters += spec.numel();
  }
  summary.world_size = group_->size();
  summary.strategy = parts_.strategy_name;
  summary.precision = parts_.precision_name;
  summary.ready_seconds = ready_seconds_;
  AddSpeed(&summary);
  AddMemory(&summary);
  if (state_.step > 0) summary.final_loss = state_.last_loss;
  summary.eval_loss = eval_loss_;
  if (state_.best_step >= 0) {
    summary.best_eval_loss = state_.best_eval_loss;
    summary.best_step = state_.best_step;
  }
  return summary;
}

void TrainLoop::AddSpeed(RunSummary* summary) const {
  const size_t skip = std::min(
      kWarmUpSteps, step_seconds_.empty() ? 0 : step_seconds_.size() - 1);
  std::vector<double> rates, sent, busy, exposed;
  for (size_t i = skip; i < step_seconds_.size(); ++i) {
    rates.push_back(step_tokens_[i] / std::max(step_seconds_[i], 1e-9));
    sent.push_back(static_cast<double>(step_communication_[i].bytes_sent));
    busy.push_back(step_communication_[i].busy_seconds);
    exposed.push_back(step_communication_[i].exposed_seconds);
  }
  summary->step_seconds_median = Median(
      std::vector<double>(step_seconds_.begin() + skip, step_seconds_.end()));
  summary->tokens_per_second = Median(rates);
  summary->bytes_sent_per_step = static_cast<int64_t>(Median(sent));
  if (group_->device().is_cuda()) return;
  summary->communication_seconds = Median(busy);
  summary->exposed_communication_seconds = Median(exposed);
}

void TrainLoop::AddMemory(RunSummary* summary) {
  const bool gpu = group_->device().is_cuda();
  const int64_t host = ReadProcessMemory().peak;
  const MemoryByCategory mine = TrackedMemory().at_peak;
  const int64_t held = gpu ? PeakGpuMemory(group_->device()) : Total(mine);
  const auto gather = [this](int64_t bytes) {
    const std::vector<double> all = FromAllRanks(static_cast<double>(bytes));
    return std::vector<int64_t>(all.begin(), all.end());
  };
  summary->peak_memory_bytes = gather(gpu ? held : host);
  summary->memory_growth_bytes = gather(host - memory_before_);
  if (!gpu) summary->planned_process_bytes = job_->memory.process;

  const std::vector<int64_t> totals = gather(held);
  const size_t most =
      std::max_element(totals.begin(), totals.end()) - totals.begin();
  const MemoryPlan& plan = job_->memory;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    CategoryBytes bytes;
    bytes.category = MemoryCategoryName(category);
    if (plan.Knows(category)) bytes.predicted = plan.at_peak[i];
    // Categories are counted in host memory alone.
    const int64_t measured = gather(mine[i])[most];
    if (!gpu) bytes.measured = measured;
    summary->memory.push_back(std::move(bytes));
  }
  CategoryBytes total;
  total.category = "total";
  if (plan.activations_known) total.predicted = Total(plan.at_peak);
  total.measured = totals[most];
  summary->memory.push_back(std::move(total));
}

}  // namespace capstan
