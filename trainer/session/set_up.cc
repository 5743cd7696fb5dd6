// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/set_up.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/launcher/launcher.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/summary.h"
#include "trainer/process_group/agree.h"
#include "trainer/process_group/create.h"
#include "trainer/profile/profiled_group.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

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

// Whether a final folder is whole: its weights were not taken away.
bool HoldsWeights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return true;
  }
  return false;
}

// Machines may have different devices: the least able one is the run's.
absl::Status SettleDevice(Session* session) {
  TrainJob& job = session->job;
  RunParts& parts = session->parts;
  if (!parts.precision->depends_on_device()) return absl::OkStatus();
  const int mine = parts.device.compute_capability;
  const std::vector<double> all = FromAllRanks(*session->group, mine);
  const int least = static_cast<int>(*std::min_element(all.begin(), all.end()));
  if (least == mine) return absl::OkStatus();
  parts.device.compute_capability = least;
  parts.precision_name = PrecisionName(session->config, parts);
  session->scaler = LossScaler(parts.policy().loss_scaling);
  const MemoryRequest memory = MemoryRequestOf(job, session->group->size());
  job.memory = PlanMemory(*parts.strategy, memory);
  return job.loaded.Locate(parts.strategy->Check(memory.strategy), "strategy");
}

// Under torchrun rank 0 chooses, and tells the others.
absl::Status SettleOutputDir(Session* session) {
  session->output_dir = session->job.output_dir;
  if (!session->output_dir.empty()) return absl::OkStatus();
  ProcessGroup& group = *session->group;
  absl::StatusOr<std::string> folder = std::string();
  if (group.rank() == 0) {
    folder =
        PrepareOutputFolder(session->config, session->job.workspace_folder);
  }
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, folder.status(), "make the output folder"));
  CAPSTAN_ASSIGN_OR_RETURN(session->output_dir, FromRank0(group, *folder));
  return absl::OkStatus();
}

// Each rank has planned its own; a resumed run's is in its folder.
absl::Status CompareBatches(const Session& session) {
  const std::vector<double> all = FromAllRanks(
      *session.group, static_cast<double>(session.job.batch.global_batch_size));
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

void AllocateOptimizerState(Session* session) {
  const size_t count = session->parts.optimizer->state_names().size();
  for (const OptimizerShard& shard :
       session->parts.strategy->OptimizerShards()) {
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
    session->optimizer_state.push_back(std::move(state));
  }
}

absl::Status OpenReporter(Session* session, const std::string& note) {
  const TrainJob& job = session->job;
  const RunParts& parts = session->parts;
  const RunConfig& config = session->config;
  {
    std::ofstream config_file(
        absl::StrCat(session->output_dir, "/config.pbtxt"));
    config_file << session->config_text;
    config_file.flush();
    if (!config_file) {
      return absl::ResourceExhaustedError(absl::StrCat(
          session->output_dir,
          "/config.pbtxt can't be written: ", std::strerror(errno)));
    }
  }
  RunFacts facts;
  facts.name = config.name();
  facts.output_dir = session->output_dir;
  facts.world_size = session->group->size();
  facts.device = DeviceText(*session->group, session->rank.threads);
  facts.strategy = parts.strategy_name;
  facts.precision = parts.precision_name;
  facts.parameters = ParameterCount(*parts.model);
  facts.micro_batch_size = job.batch.micro_batch_size;
  facts.global_batch_size = job.batch.global_batch_size;
  facts.accumulation = job.batch.accumulation;
  facts.first_step = session->first_step;
  facts.max_steps = session->max_steps;
  facts.log_every = LogEvery(config.train());
  facts.unit = parts.objective->unit();
  facts.eval_every =
      parts.eval_data != nullptr ? config.train().eval_every() : 0;
  facts.save_every = config.train().save_every();
  CAPSTAN_ASSIGN_OR_RETURN(session->reporter, Reporter::Create(facts));
  session->reporter->Banner();
  for (const std::string& line : job.loaded.notes) {
    session->reporter->Note(line);
  }
  for (const DatasetReader* data :
       {parts.train_data.get(), parts.eval_data.get()}) {
    if (data == nullptr) continue;
    for (const std::string& line : data->notes()) session->reporter->Note(line);
  }
  for (const std::string& line : job.notes) session->reporter->Note(line);
  if (!note.empty()) session->reporter->Note(note);
  return absl::OkStatus();
}

}  // namespace

void PrepareProcess(const Session& session) {
  InstallTrackingAllocator();
  at::set_num_threads(session.rank.threads);
  // What the cache of large blocks leaves to the heap (below 256 KiB, and what
  // isn't a tensor): a step frees and takes the same again and again, so it is
  // kept rather than mapped anew by the kernel.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (session.config.train().deterministic()) {
    // cuBLAS reads it when its first handle is made (CUDA's documentation,
    // "cuBLAS, results reproducibility").
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
}

absl::Status JoinRanks(Session* session) {
  CAPSTAN_ASSIGN_OR_RETURN(
      session->group, CreateProcessGroup(session->rank, session->job.gpus));
  RanksHaveMet();
  if (session->config.profile().steps_size() > 0) {
    session->group = ProfileWaits(std::move(session->group));
  }
  CAPSTAN_RETURN_IF_ERROR(SettleDevice(session));
  CAPSTAN_RETURN_IF_ERROR(SettleOutputDir(session));
  CAPSTAN_RETURN_IF_ERROR(CompareBatches(*session));
  session->config_text = PrintConfig(session->config);
  session->max_steps =
      StepsOfRun(session->config.train(), session->parts.train_data->size(),
                 session->job.batch.global_batch_size);
  return absl::OkStatus();
}

absl::Status SetUpStrategy(Session* session,
                           const std::function<absl::Status()>& rest) {
  RunParts& parts = session->parts;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    StrategyContext context;
    context.model = parts.model.get();
    context.group = session->group.get();
    context.precision = parts.policy();
    context.seed = session->config.train().seed();
    CAPSTAN_RETURN_IF_ERROR(parts.strategy->Setup(context));
    AllocateOptimizerState(session);
    return rest();
  });
  return Agree(*session->group, status, "set up");
}

absl::StatusOr<bool> FinishedBefore(const Session& session) {
  const int64_t done = session.first_step;
  const std::string& folder = session.output_dir;
  if (done == 0 || session.GoesOn()) return false;
  const bool first = session.group->rank() == 0;
  CAPSTAN_ASSIGN_OR_RETURN(
      const bool finished,
      AnyRank(*session.group, first && CompletedSteps(folder) == done &&
                                  HoldsWeights(folder + "/final")));
  if (finished && first) {
    const std::string more =
        session.OutOfPatience()
            ? "Raise train.early_stopping_patience, which ended it,"
            : "Raise train.max_steps (or max_epochs)";
    Console(STDOUT_FILENO)
        .Write(absl::StrCat(folder, " is finished after ", done,
                            " steps, and nothing in it is changed. ", more,
                            " to train on; `trainer eval --model=", folder,
                            "` evaluates it\n"));
  }
  return finished;
}

absl::Status StartReporter(Session* session, const std::string& note) {
  return Agree(*session->group,
               session->group->rank() == 0 ? OpenReporter(session, note)
                                           : absl::OkStatus(),
               "open its output");
}

double SecondsSinceStart(const Session& session) {
  const std::vector<double> all =
      FromAllRanks(*session.group, BootSeconds() - session.job.start_seconds);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace capstan
