// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/micro_batch.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/gpus.h"
#include "base/lost_peer.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/rank_info.h"
#include "host/config/load_config.h"
#include "inference/evaluate/task_suite.h"
#include "kernels/context/row_division.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/options.pb.h"
#include "plugins/sdk/token_model.h"
#include "trainer/data/data_loader.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/micro_steps.h"
#include "trainer/session/run_mirror.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

// Fraction of free memory; the rest is for fragmentation, code and library
// buffers.
constexpr double kPlannedPart = 0.8;
// A rank's host memory besides its tensors.
constexpr int64_t kProcessBytes = int64_t{300} << 20;

// Samples searched for the longest.
constexpr int64_t kSearched = 100000;

// Whether a step with that micro-batch fits on all ranks.
absl::StatusOr<bool> Fits(int64_t size, int64_t sample, Session* session,
                          MicroSteps* micro_steps) {
  TrainJob& job = session->job;
  ProcessGroup& group = *session->group;
  job.batch = WithMicroBatch(job.batch, size, session->mesh().data);
  job.memory =
      PlanMemory(*job.parts.strategy, MemoryRequestOf(job, group.size()));
  bool completed = false;
  absl::Status mine =
      micro_steps->Try(std::vector<int64_t>(size, sample), &completed);
  CAPSTAN_ASSIGN_OR_RETURN(
      const bool broke_off,
      BrokeOff(group, completed ? absl::OkStatus() : mine, "try a step",
               [&job] { job.parts.strategy->FinishBackward(); }));
  // Another rank was out of memory, or what it tells below.
  if (broke_off && IsLostPeer(mine)) mine = absl::OkStatus();
  const bool full = absl::IsResourceExhausted(mine);
  double ranks[] = {full ? 1.0 : 0.0, !full && !mine.ok() ? 1.0 : 0.0};
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    group.AllReduceHost(absl::MakeSpan(ranks));
    return absl::OkStatus();
  }));
  if (ranks[1] > 0) {
    CAPSTAN_RETURN_IF_ERROR(
        Agree(group, full ? absl::OkStatus() : mine, "try a step"));
  }
  return ranks[0] == 0;
}

// Whether the samples of `data` differ in length.
bool HasLengths(const DatasetReader& data) {
  return data.size() > 0 && data.sample_length(0) > 0;
}

// The most tokens that answers add to what is read, where the objective's rows
// are answers: what its config calls max_new_tokens, as causal objectives do.
int64_t NewTokensOf(const TrainJob& job) {
  const Objective& objective = *job.parts.objective;
  if (!objective.has_rollouts() ||
      objective.rollout_plan().rows_per_sample <= 1) {
    return 0;
  }
  const auto config = Unpack(job.loaded.config.objective());
  if (!config.ok()) return 0;
  const auto* const field =
      SingleField(**config, "max_new_tokens",
                  google::protobuf::FieldDescriptor::TYPE_INT64);
  if (field == nullptr) return 0;
  int64_t tokens = (*config)->GetReflection()->GetInt64(**config, field);
  if (tokens > 0) return tokens;
  return absl::SimpleAtoi(field->options().GetExtension(default_value), &tokens)
             ? tokens
             : 0;
}

}  // namespace

int64_t LongestRow(const TrainJob& job) {
  const int64_t length = job.parts.train_data->max_sequence_length();
  return length > 0 ? length + NewTokensOf(job) : 0;
}

MemoryRequest MemoryRequestOf(const TrainJob& job, int world_size) {
  MemoryRequest request;
  request.strategy.model = job.parts.model.get();
  request.strategy.precision = job.parts.policy();
  request.strategy.world_size = world_size;
  request.strategy.accumulation = job.batch.accumulation;
  request.local_steps = job.parts.strategy->local_steps();
  request.optimizer = request.strategy.optimizer = job.parts.optimizer.get();
  request.strategy.deterministic =
      SumsExactly(job.loaded.config.train(), job.parts);
  request.samples = job.batch.micro_batch_size;
  request.length = LongestRow(job);
  request.lengths_differ = HasLengths(*job.parts.train_data);
  for (const DatasetReader* data : job.parts.evaluated()) {
    request.evaluation_samples = job.evaluation_batch;
    request.evaluation_length =
        std::max(request.evaluation_length, data->max_sequence_length());
    request.lengths_differ = request.lengths_differ || HasLengths(*data);
  }
  if (job.parts.eval_tasks != nullptr) {
    request.evaluation_samples = job.evaluation_batch;
    request.lengths_differ = true;
    for (const evaluate::SuiteTask& task : job.parts.eval_tasks->tasks()) {
      // Tasks' rows are whole on each rank.
      request.evaluation_length = std::max(request.evaluation_length,
                                           task.longest * CurrentRowDivision());
    }
  }
  request.checkpointing =
      CheckpointingOf(job.loaded.config.train(), *job.parts.model);
  request.on_gpu = job.gpus > 0;
  const TokenModel* const tokens = job.parts.model->token_model();
  if (request.on_gpu && tokens != nullptr && request.length > 0) {
    request.length = LengthOnGpu(request.length, tokens->max_positions());
    if (request.evaluation_length > 0) {
      request.evaluation_length =
          LengthOnGpu(request.evaluation_length, tokens->max_positions());
    }
  }
  const Train& train = job.loaded.config.train();
  request.paged_state = train.offload().optimizer_state();
  request.cuda_graphs = request.on_gpu && train.cuda_graphs();
  request.snapshot =
      train.saving() == Train::BACKGROUND && train.save_every() > 0;
  const Launch& launch = job.loaded.config.launch();
  if (launch.max_restarts() > 0 &&
      MirrorEvery(job.loaded.config, request.on_gpu) > 0) {
    request.mirror_images =
        launch.nodes() > 1
            ? RankInfo::kOwnMirrorFilesOfHosts + RankInfo::kHeldMirrorFiles
            : RankInfo::kOwnMirrorFiles;
  }
  // What is forked doesn't inherit that pages of files, as of libraries, are
  // resident. What isn't has some of those already that steps touch.
  constexpr int64_t kTouched = int64_t{18} << 20;
  const ProcessMemory memory = ReadProcessMemory();
  request.resident = job.forks ? memory.anonymous : memory.resident - kTouched;
  return request;
}

std::vector<int64_t> MicroBatchSizes(int64_t global_batch_size, int at_once) {
  const int64_t least = (global_batch_size + at_once - 1) / at_once;
  std::vector<int64_t> sizes;
  for (int64_t size = least; size > 0; --size) {
    const BatchShares shares = {size, global_batch_size, at_once};
    if (global_batch_size % size == 0 && shares.micro_steps() * size == least) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

int64_t PlanMicroBatch(const Strategy& strategy, MemoryRequest request,
                       const std::vector<int64_t>& sizes, int64_t budget) {
  const int64_t samples = request.strategy.accumulation * request.samples;
  for (const int64_t size : sizes) {
    request.samples = size;
    request.strategy.accumulation = (samples + size - 1) / size;
    const MemoryPlan plan = PlanMemory(strategy, request);
    if (plan.activations_known && Total(plan.at_peak) <= budget) return size;
  }
  return 1;
}

int64_t MemoryBudget(bool on_gpu, int ranks_here) {
  if (on_gpu) {
    return static_cast<int64_t>(kPlannedPart *
                                static_cast<double>(FreeGpuMemory()));
  }
  return static_cast<int64_t>(kPlannedPart *
                              static_cast<double>(AvailableHostMemory()) /
                              ranks_here) -
         kProcessBytes;
}

absl::StatusOr<std::string> SettleMicroBatch(Session* session,
                                             MicroSteps* micro_steps) {
  TrainJob& job = session->job;
  ProcessGroup& group = *session->group;
  const std::vector<int64_t> sizes =
      MicroBatchSizes(job.batch.global_batch_size, session->mesh().data);
  // Plans may differ between machines.
  const std::vector<double> planned =
      FromAllRanks(group, static_cast<double>(job.batch.micro_batch_size));
  const auto first =
      static_cast<int64_t>(*std::min_element(planned.begin(), planned.end()));
  int64_t longest = 0;
  const absl::Status looked = CatchAll([&] {
    longest = LongestSample(*job.parts.train_data, kSearched);
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(Agree(group, looked, "try a step"));
  for (int64_t size = first;;) {
    CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(group, StopStatus(), "try a step"));
    CAPSTAN_ASSIGN_OR_RETURN(const bool fits,
                             Fits(size, longest, session, micro_steps));
    if (fits) {
      const std::string idle = IdleRanksNote(job.batch, session->mesh());
      return absl::StrCat(
          "micro_batch_size: AUTO is ", size, " x ",
          RanksText(group.size(), session->mesh().sequence), " x accumulation ",
          job.batch.accumulation,
          size == first ? ", as planned; a trial step fits"
                        : absl::StrCat(": ", first,
                                       " was planned, but was out of memory"),
          idle.empty() ? "" : "; ", idle);
    }
    const auto next =
        std::find_if(sizes.begin(), sizes.end(),
                     [size](int64_t smaller) { return smaller <= size / 2; });
    if (next == sizes.end()) {
      return job.loaded.Locate(
          absl::ResourceExhaustedError(
              "AUTO: there isn't memory for one sample: see `trainer plan` for "
              "strategies that need less, or set "
              "train.activation_checkpointing"),
          "batch.micro_batch_size");
    }
    size = *next;
  }
}

}  // namespace capstan
