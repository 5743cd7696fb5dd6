// SPDX-License-Identifier: Apache-2.0
//
// What a run does between and after its steps: evaluation, samples,
// checkpoints, the final folder and the summary.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/memory/process_memory.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/output_file.h"
#include "trainer/train/train_loop.h"

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

absl::Status TrainLoop::Evaluate() {
  if (parts_.eval_data == nullptr || evaluated_step_ == state_.step) {
    return absl::OkStatus();
  }
  evaluated_step_ = state_.step;
  at::NoGradGuard no_grad;
  const int64_t size = parts_.eval_data->size();
  const int64_t micro = job_->batch.micro_batch_size;
  int64_t batches = (size + micro - 1) / micro;
  if (config_.train().eval_batches() > 0) {
    batches = std::min(batches, config_.train().eval_batches());
  }
  // All ranks take part in as many forwards, since they may hold collectives;
  // what a rank computes beyond the last batch doesn't count.
  const int64_t world = group_->size();
  double sums[2] = {0.0, 0.0};
  absl::Status status;
  for (int64_t round = 0; round < (batches + world - 1) / world; ++round) {
    const int64_t index = round * world + group_->rank();
    const int64_t begin = std::min(index, batches - 1) * micro;
    std::vector<int64_t> samples(std::min(micro, size - begin));
    std::iota(samples.begin(), samples.end(), begin);
    Batch batch;
    try {
      // After an error, too, this rank owes the others its collectives.
      if (status.ok()) {
        status = parts_.eval_data->Read(samples, &batch);
      }
      if (status.ok()) {
        for (auto& [name, tensor] : batch) tensor = tensor.to(group_->device());
        const LossSum loss =
            parts_.objective->Compute(*parts_.model, batch, runner_);
        if (index < batches) {
          sums[0] += loss.sum.item<double>();
          sums[1] += static_cast<double>(loss.count);
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
  if (!status.ok()) status = Annotate(status, "evaluation");
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "evaluate"));
  group_->AllReduceHost(absl::MakeSpan(sums));
  eval_loss_ = sums[1] > 0 ? sums[0] / sums[1] : 0.0;
  if (reporter_ != nullptr) reporter_->Eval(state_.step, *eval_loss_);
  return absl::OkStatus();
}

absl::Status TrainLoop::SampleText(const std::string& title) {
  const std::string& prompt = config_.train().sample_prompt();
  const bool all_ranks = parts_.strategy->collective_forward();
  if (prompt.empty() || (reporter_ == nullptr && !all_ranks)) {
    return absl::OkStatus();
  }
  const Tokenizer& tokenizer = *parts_.train_data->tokenizer();
  const std::vector<int64_t> ids = tokenizer.Encode(prompt);
  SampleOptions options;
  options.seed = config_.train().seed();
  absl::StatusOr<std::vector<int64_t>> text =
      parts_.objective->Sample(*parts_.model, ids, options, runner_);
  parts_.strategy->FinishForward();
  if (reporter_ == nullptr) return absl::OkStatus();
  if (!text.ok()) {
    // A sample is for looking at: it stops no run.
    reporter_->Note(
        absl::StrCat("no sample ", title, ": ", text.status().message()));
    return absl::OkStatus();
  }
  reporter_->Sample(
      state_.step, title, prompt,
      tokenizer.Decode(absl::MakeConstSpan(*text).subspan(ids.size())));
  return absl::OkStatus();
}

absl::Status TrainLoop::Save() {
  if (last_saved_step_ == state_.step) return absl::OkStatus();
  state_.loss_scale = scaler_.scale();
  state_.loss_scale_good_steps = scaler_.good_steps();
  const int64_t keep = config_.train().keep_checkpoints() > 0
                           ? config_.train().keep_checkpoints()
                           : kDefaultKeepCheckpoints;
  CAPSTAN_RETURN_IF_ERROR(SaveCheckpoint(output_dir_, static_cast<int>(keep),
                                         state_, Checkpointed()));
  last_saved_step_ = state_.step;
  return absl::OkStatus();
}

absl::Status TrainLoop::Finish() {
  loader_.reset();
  if (!stopping_) {
    CAPSTAN_RETURN_IF_ERROR(Evaluate());
    CAPSTAN_RETURN_IF_ERROR(SampleText("after training"));
    CAPSTAN_RETURN_IF_ERROR(Save());
    CAPSTAN_RETURN_IF_ERROR(SaveHuggingFaceFolder(
        output_dir_ + "/final", parts_.precision->policy().compute,
        kMaxShardBytes, *parts_.model, *parts_.strategy, *group_,
        parts_.train_data->tokenizer(), config_text_));
  }
  absl::Status status = WriteProfile();
  const RunSummary summary = Summary();
  if (reporter_ != nullptr) {
    reporter_->Finish(summary);
    status.Update(reporter_->status());
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "write its output"));
  if (stopping_) {
    return absl::CancelledError(absl::StrCat("stopped after step ", state_.step,
                                             "; saved in ", output_dir_));
  }
  return absl::OkStatus();
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
  summary.tokens = state_.tokens;
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
