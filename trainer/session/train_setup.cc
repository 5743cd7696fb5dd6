// SPDX-License-Identifier: Apache-2.0
//
// From joining the other ranks to the first step.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/machine.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/data/batch_slot.h"
#include "trainer/launcher/launcher.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/summary.h"
#include "trainer/process_group/create.h"
#include "trainer/profile/profiled_group.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/resume_batch.h"
#include "trainer/session/schedule.h"
#include "trainer/session/train_loop.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultLogEvery = 10;

double BootSeconds() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

std::string DeviceText(const ProcessGroup& group, int threads) {
  if (group.device().is_cuda()) {
    return absl::StrCat(group.size(), " x GPU (", group.backend(), ")");
  }
  return absl::StrCat(group.size(), " x CPU (", threads,
                      threads == 1 ? " thread" : " threads", " each)");
}

std::vector<SamplePrompt> SamplePrompts(const Train& train) {
  std::vector<SamplePrompt> prompts;
  if (!train.sample_prompt().empty()) {
    prompts.emplace_back().set_prompt(train.sample_prompt());
  }
  prompts.insert(prompts.end(), train.sample_prompts().begin(),
                 train.sample_prompts().end());
  return prompts;
}

// Whether a final folder is whole: its weights were not taken away.
bool HoldsWeights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return true;
  }
  return false;
}

int64_t ParameterCount(const Model& model) {
  int64_t count = 0;
  for (const ParameterSpec& spec : model.parameters()) count += spec.numel();
  return count;
}

}  // namespace

absl::Status TrainLoop::SetUp() {
  memory_before_ = ReadProcessMemory().resident;
  InstallTrackingAllocator();
  at::set_num_threads(rank_.threads);
  // What the cache of large blocks leaves to the heap (below 256 KiB, and what
  // isn't a tensor): a step frees and takes the same again and again, so it is
  // kept rather than mapped anew by the kernel.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (config_.train().deterministic()) {
    // cuBLAS reads it when its first handle is made (CUDA's documentation,
    // "cuBLAS, results reproducibility").
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  CAPSTAN_ASSIGN_OR_RETURN(group_, CreateProcessGroup(rank_, job_->gpus));
  RanksHaveMet();
  const auto& profiled = config_.profile().steps();
  if (!profiled.empty()) {
    group_ = ProfileWaits(std::move(group_));
    profiler_ = std::make_unique<Profiler>(
        std::set<int64_t>(profiled.begin(), profiled.end()));
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnDevice());
  const bool late = verdicts_ == Verdicts::kAuto
                        ? group_->device().is_cuda() && !scaler_.enabled()
                        : verdicts_ == Verdicts::kLate;
  if (late) late_ = std::make_unique<LateVerdict>(group_->device());
  CAPSTAN_RETURN_IF_ERROR(SettleOutputDir());
  CAPSTAN_RETURN_IF_ERROR(CompareBatches());
  config_text_ = PrintConfig(config_);

  order_ =
      OrderOf(*parts_.train_data, config_.train().seed(),
              config_.batch().group_by_length(), job_->batch.global_batch_size);
  max_steps_ = StepsOfRun(config_.train(), parts_.train_data->size(),
                          job_->batch.global_batch_size);
  prompts_ = SamplePrompts(config_.train());
  CAPSTAN_RETURN_IF_ERROR(SetUpStrategy());
  CAPSTAN_RETURN_IF_ERROR(CheckFinished());
  if (finished_before_) return absl::OkStatus();
  if (job_->batch.automatic) CAPSTAN_RETURN_IF_ERROR(SettleMicroBatch());

  DataLoaderOptions options;
  options.order = order_;
  options.micro_batch_size = job_->batch.micro_batch_size;
  options.global_batch_size = job_->batch.global_batch_size;
  options.rank = group_->rank();
  options.world_size = group_->size();
  options.start_position = state_.samples;
  options.device = group_->device();
  loader_ = DataLoader::Create(options, *parts_.train_data);
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(StartReporter(), "open its output"));
  const std::vector<double> ready =
      FromAllRanks(BootSeconds() - job_->start_seconds);
  ready_seconds_ = *std::max_element(ready.begin(), ready.end());
  return absl::OkStatus();
}

absl::Status TrainLoop::SetUpStrategy() {
  absl::Status status;
  try {
    StrategyContext context;
    context.model = parts_.model.get();
    context.group = group_.get();
    context.precision = parts_.policy();
    context.seed = config_.train().seed();
    status = parts_.strategy->Setup(context);
    if (status.ok()) AllocateOptimizerState();
    if (status.ok()) status = NominalTargets();
    if (status.ok()) status = ResumeIfAsked();
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "set up"));
  CAPSTAN_RETURN_IF_ERROR(CheckStart());
  // Only now: all ranks have masters.
  return AgreeOnError(Publish(), "publish parameters");
}

absl::Status TrainLoop::AgreeOnDevice() {
  if (!parts_.precision->depends_on_device()) return absl::OkStatus();
  const int mine = parts_.device.compute_capability;
  const std::vector<double> all = FromAllRanks(mine);
  const int least = static_cast<int>(*std::min_element(all.begin(), all.end()));
  if (least == mine) return absl::OkStatus();
  parts_.device.compute_capability = least;
  parts_.precision_name = PrecisionName(config_, parts_);
  scaler_ = LossScaler(parts_.policy().loss_scaling);
  const MemoryRequest memory = MemoryRequestOf(*job_, group_->size());
  job_->memory = PlanMemory(*parts_.strategy, memory);
  return job_->loaded.Locate(parts_.strategy->Check(memory.strategy),
                             "strategy");
}

absl::Status TrainLoop::SettleOutputDir() {
  output_dir_ = job_->output_dir;
  if (!output_dir_.empty()) return absl::OkStatus();
  // Under torchrun: rank 0 chooses, and tells the others.
  absl::Status status;
  if (group_->rank() == 0) {
    absl::StatusOr<std::string> folder =
        PrepareOutputFolder(config_, job_->workspace_folder);
    status = folder.status();
    if (folder.ok()) output_dir_ = *folder;
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "make the output folder"));
  constexpr int64_t kMaxPath = 4096;
  at::Tensor path = at::zeros({kMaxPath}, at::kByte);
  std::strncpy(static_cast<char*>(path.data_ptr()), output_dir_.c_str(),
               kMaxPath - 1);
  try {
    path = path.to(group_->device());
    group_->Broadcast(path, 0)->Wait();
    path = path.cpu();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
  output_dir_ = static_cast<const char*>(path.data_ptr());
  return absl::OkStatus();
}

absl::Status TrainLoop::CompareBatches() {
  const std::vector<double> all =
      FromAllRanks(static_cast<double>(job_->batch.global_batch_size));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " has a global batch of ", all[rank], ", rank 0 one of ",
        all[0],
        ": all ranks must have the same config and see the same files "
        "in output_dir"));
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::Publish() {
  try {
    const size_t shards = parts_.strategy->OptimizerShards().size();
    for (size_t i = 0; i < shards; ++i) {
      parts_.strategy->PublishShard(static_cast<int>(i));
    }
    parts_.strategy->PublishParameters();
    return absl::OkStatus();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

void TrainLoop::AllocateOptimizerState() {
  const size_t count = parts_.optimizer->state_names().size();
  for (const OptimizerShard& shard : parts_.strategy->OptimizerShards()) {
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    std::vector<at::Tensor> state;
    for (size_t i = 0; i < count; ++i) {
      at::Tensor zeros = at::empty_like(shard.master);
      if (zeros.is_cpu()) {
        ZeroFill(zeros.mutable_data_ptr(), zeros.nbytes());
      } else {
        zeros.zero_();
      }
      state.push_back(std::move(zeros));
    }
    optimizer_state_.push_back(std::move(state));
  }
}

absl::Status TrainLoop::NominalTargets() {
  // Of a few samples, since one alone may have no target at all.
  const int64_t samples = std::min<int64_t>(8, parts_.train_data->size());
  int64_t targets = 0;
  for (int64_t i = 0; i < samples; ++i) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(
        parts_.train_data->Read(absl::MakeConstSpan(&i, 1), &batch));
    SetSamplePositions({i}, &batch);
    targets += parts_.objective->CountTargets(batch, info_);
  }
  nominal_targets_ =
      std::max(static_cast<double>(targets) / static_cast<double>(samples),
               1.0) *
      static_cast<double>(job_->batch.global_batch_size);
  return absl::OkStatus();
}

int64_t TrainLoop::LogEvery() const {
  const int64_t every = config_.train().log_every();
  return every > 0 ? every : kDefaultLogEvery;
}

CheckpointParts TrainLoop::Checkpointed() {
  CheckpointParts parts;
  parts.specs = &parts_.model->parameters();
  parts.shards = parts_.strategy->OptimizerShards();
  parts.state = &optimizer_state_;
  parts.state_names = parts_.optimizer->state_names();
  parts.owned = parts_.strategy->OwnedSlices();
  parts.group = group_.get();
  parts.config_text = config_text_;
  return parts;
}

absl::Status TrainLoop::ResumeIfAsked() {
  state_.seed = config_.train().seed();
  state_.data_size = order_.size;
  state_.data_shuffle = order_.shuffle;
  state_.data_group = order_.group;
  state_.global_batch_size = job_->batch.global_batch_size;
  CAPSTAN_ASSIGN_OR_RETURN(state_.frozen_crc32c,
                           FrozenChecksum(*parts_.model, state_.seed));
  if (config_.train().resume() != Train::AUTO) return absl::OkStatus();
  const std::string newest = NewestCheckpoint(output_dir_);
  if (newest.empty()) return absl::OkStatus();
  const TrainState mine = state_;
  CAPSTAN_ASSIGN_OR_RETURN(state_, LoadCheckpoint(newest, Checkpointed()));
  CAPSTAN_RETURN_IF_ERROR(CheckResumed(mine, newest));
  state_.global_batch_size = mine.global_batch_size;
  scaler_.Restore(state_.loss_scale, state_.loss_scale_good_steps);
  first_step_ = last_saved_step_ = state_.step;
  return absl::OkStatus();
}

absl::Status TrainLoop::CheckFinished() {
  if (first_step_ == 0 || (first_step_ < max_steps_ && !OutOfPatience())) {
    return absl::OkStatus();
  }
  double completed[] = {0.0};
  if (group_->rank() == 0 && CompletedSteps(output_dir_) == first_step_ &&
      HoldsWeights(output_dir_ + "/final")) {
    completed[0] = 1.0;
  }
  try {
    group_->AllReduceHost(absl::MakeSpan(completed));
  } catch (...) {
    return CurrentExceptionToStatus();
  }
  finished_before_ = completed[0] > 0;
  if (finished_before_ && group_->rank() == 0) {
    const std::string more =
        OutOfPatience() ? "Raise train.early_stopping_patience, which ended it,"
                        : "Raise train.max_steps (or max_epochs)";
    Console(STDOUT_FILENO)
        .Write(absl::StrCat(output_dir_, " is finished after ", first_step_,
                            " steps, and nothing in it is changed. ", more,
                            " to train on; `trainer eval --model=", output_dir_,
                            "` evaluates it\n"));
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::CheckResumed(const TrainState& mine,
                                     const std::string& checkpoint) const {
  if (state_.seed != mine.seed) {
    return job_->loaded.Locate(
        FieldError("seed",
                   absl::StrCat("is ", mine.seed, ", but the run in ",
                                checkpoint, " was started with ", state_.seed)),
        "train");
  }
  CAPSTAN_RETURN_IF_ERROR(
      job_->loaded.Locate(CheckGroups(checkpoint, state_, mine), "batch"));
  if (state_.data_size != mine.data_size ||
      state_.data_shuffle != mine.data_shuffle ||
      state_.data_group != mine.data_group) {
    const auto text = [](const TrainState& state) {
      return absl::StrCat(
          state.data_size, " samples",
          state.data_shuffle ? ", shuffled" : ", in order",
          state.data_group > 0
              ? absl::StrCat(", by length in groups of ", state.data_group)
              : "");
    };
    return job_->loaded.Locate(
        absl::FailedPreconditionError(absl::StrCat(
            "has ", text(mine), ", but the run in ", checkpoint, " was on ",
            text(state_), ": its data position would mean other samples")),
        "train_data");
  }
  if (state_.frozen_crc32c != 0 && state_.frozen_crc32c != mine.frozen_crc32c) {
    return job_->loaded.Locate(
        absl::FailedPreconditionError(absl::StrCat(
            "its frozen weights aren't those that the run in ", checkpoint,
            " was started with, and a checkpoint has only what is trained: "
            "name the same pretrained model as then")),
        "model");
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::StartReporter() {
  if (group_->rank() != 0) return absl::OkStatus();
  {
    std::ofstream config_file(absl::StrCat(output_dir_, "/config.pbtxt"));
    config_file << config_text_;
    config_file.flush();
    if (!config_file) {
      return absl::ResourceExhaustedError(absl::StrCat(
          output_dir_,
          "/config.pbtxt can't be written: ", std::strerror(errno)));
    }
  }
  RunFacts facts;
  facts.name = config_.name();
  facts.output_dir = output_dir_;
  facts.world_size = group_->size();
  facts.device = DeviceText(*group_, rank_.threads);
  facts.strategy = parts_.strategy_name;
  facts.precision = parts_.precision_name;
  facts.parameters = ParameterCount(*parts_.model);
  facts.micro_batch_size = job_->batch.micro_batch_size;
  facts.global_batch_size = job_->batch.global_batch_size;
  facts.accumulation = job_->batch.accumulation;
  facts.first_step = first_step_;
  facts.max_steps = max_steps_;
  facts.log_every = LogEvery();
  facts.unit = parts_.objective->unit();
  facts.eval_every =
      parts_.eval_data != nullptr ? config_.train().eval_every() : 0;
  facts.save_every = config_.train().save_every();
  CAPSTAN_ASSIGN_OR_RETURN(reporter_, Reporter::Create(facts));
  reporter_->Banner();
  for (const std::string& note : job_->loaded.notes) reporter_->Note(note);
  for (const DatasetReader* data :
       {parts_.train_data.get(), parts_.eval_data.get()}) {
    if (data == nullptr) continue;
    for (const std::string& note : data->notes()) reporter_->Note(note);
  }
  for (const std::string& note : job_->notes) reporter_->Note(note);
  if (!micro_batch_note_.empty()) reporter_->Note(micro_batch_note_);
  return absl::OkStatus();
}

absl::Status TrainLoop::AgreeOnError(const absl::Status& mine,
                                     const char* what) {
  return capstan::AgreeOnError(*group_, mine, what);
}

std::vector<double> TrainLoop::FromAllRanks(double mine) {
  std::vector<double> values(group_->size(), 0.0);
  values[group_->rank()] = mine;
  group_->AllReduceHost(absl::MakeSpan(values));
  return values;
}

}  // namespace capstan
