// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/set_up.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/heap.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/create.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/launch/launcher.h"
#include "cluster/watch/ledger.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/compare_ranks.h"
#include "trainer/session/deterministic.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/out_of_memory.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/session.h"
#include "trainer/session/settle_run.h"
#include "trainer/session/start_reporter.h"
#include "trainer/session/watch.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// All but PrepareProcess is collective.

double BootSeconds() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// Whether a final folder is complete: its weights may have been removed.
bool HoldsWeights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return true;
  }
  return false;
}

// Sets up this process's allocators, threads and, if requested, determinism.
void PrepareProcess(const Session& session) {
  InstallTrackingAllocator();
  if (session.config.train().deterministic()) ComputeDeterministically();
  at::set_num_threads(session.rank.threads);
  KeepFreedMemory();
  if (session.job.gpus > 0) {
    at::globalContext().setAllowTF32CuBLAS(session.config.train().tf32());
    at::globalContext().setAllowTF32CuDNN(session.config.train().tf32());
  }
}

absl::Status JoinRanks(Session* session) {
  WantLedgers();
  CAPSTAN_ASSIGN_OR_RETURN(
      session->group, CreateProcessGroup(session->rank, session->job.gpus));
  RanksHaveMet();
  if (session->group->device().is_cuda()) {
    StartRanges();
    if (session->config.train().memory_snapshot_at_oom()) {
      TheGpuTools()->record_memory_history();
    }
  }
  if (session->rank.nodes > 1) {
    // Each host's launcher counts its own; any means that there is a state.
    const std::vector<double> restarts =
        FromAllRanks(*session->group, session->rank.restart);
    session->rank.restart =
        static_cast<int>(*std::max_element(restarts.begin(), restarts.end()));
  }
  if (session->config.profile().steps_size() > 0) {
    session->group = ProfileWaits(std::move(session->group));
  }
  return absl::OkStatus();
}

// A strategy's own state must be what its names say, or checkpoints would read
// beyond it.
absl::Status CheckState(const std::string& name, Strategy& strategy) {
  const std::vector<std::string> names = strategy.state_names();
  const std::set<std::string> unique(names.begin(), names.end());
  if (unique.size() != names.size()) {
    return absl::InternalError(
        absl::StrCat(name, ": two of its states have one name"));
  }
  const absl::Span<OptimizerShard> shards = strategy.OptimizerShards();
  for (size_t s = 0; s < shards.size() && !names.empty(); ++s) {
    const std::vector<at::Tensor> state =
        strategy.ShardState(static_cast<int>(s));
    if (state.size() != names.size()) {
      return absl::InternalError(absl::StrCat(name, ": has ", names.size(),
                                              " states, but gives ",
                                              state.size(), " for shard ", s));
    }
    for (size_t k = 0; k < names.size(); ++k) {
      if (state[k].numel() == shards[s].master.numel()) continue;
      return absl::InternalError(absl::StrCat(
          name, ": its state \"", names[k], "\" has ", state[k].numel(),
          " elements for shard ", s, ", of ", shards[s].master.numel()));
    }
  }
  return absl::OkStatus();
}

// Sets up the strategy and the optimizer's state. The ranks agree before
// anything collective follows: a cut that the optimizer refuses may be on one
// rank only.
absl::Status SetUpStrategy(Session* session) {
  RunParts& parts = session->parts;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    StrategyContext context;
    context.model = parts.model.get();
    context.group = session->group.get();
    context.precision = parts.policy();
    context.seed = session->config.train().seed();
    context.optimizer = parts.optimizer.get();
    context.deterministic = SumsAlongTree(session->config.train(), parts);
    {
      const WhoseCode code(session->plugins.strategy, "Setup");
      CAPSTAN_RETURN_IF_ERROR(parts.strategy->Setup(context));
    }
    CAPSTAN_RETURN_IF_ERROR(CheckState(parts.strategy_name, *parts.strategy));
    return SetUpOptimizer(*parts.optimizer, *parts.model,
                          parts.strategy->OptimizerShards(),
                          &session->optimizer_state,
                          {session->config.train().offload().optimizer_state(),
                           session->output_dir});
  });
  return AgreeAfterCollectives(
      *session->group, ExplainMemoryOfSetUp(status, *session), "set up");
}

void ForgiveSamples(Session* session) {
  const RunParts& parts = session->parts;
  const int64_t most = session->config.train().skip_bad_samples();
  if (most == 0) return;
  session->forgiving_train =
      std::make_unique<ForgivingReader>(parts.train_data.get(), most);
  if (parts.eval_data == nullptr) return;
  session->forgiving_eval =
      std::make_unique<ForgivingReader>(parts.eval_data.get(), most);
}

// Whether a resumed run had completed all steps and its final folder exists;
// rank 0 then says so.
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
        .Write(absl::StrCat(
            folder, " is finished after ", done, " steps",
            done > session.max_steps
                ? absl::StrCat(" (train.max_steps is ", session.max_steps, ")")
                : "",
            ", and nothing in it is changed. ", more,
            " to train on; `trainer eval --model=", folder,
            "` evaluates it\n"));
  }
  return finished;
}

// On the slowest rank, since the run's first process was executed.
double SecondsSinceStart(const Session& session) {
  const std::vector<double> all =
      FromAllRanks(*session.group, BootSeconds() - session.job.start_seconds);
  return *std::max_element(all.begin(), all.end());
}

// The strategy, the optimizer's state and the step; then the weights, which are
// restored or the model's own, as all ranks have them.
absl::Status SetUpState(const DataOrder& order, RankRun* run) {
  Session& session = run->session;
  ProcessGroup& group = *session.group;
  CAPSTAN_RETURN_IF_ERROR(SetUpStrategy(&session));
  const absl::Status step =
      CatchAll([&] { return run->step.SetUp(run->profiler.get(), order); });
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, ExplainMemoryOfSetUp(step, session), "set up"));
  CAPSTAN_RETURN_IF_ERROR(run->checkpoints.Restore(order));
  CAPSTAN_RETURN_IF_ERROR(CompareStart(session));
  CAPSTAN_RETURN_IF_ERROR(run->divergence.CheckStart());
  // Only now do all ranks have masters.
  return AgreeAfterCollectives(group,
                               ExplainMemoryOfSetUp(session.Publish(), session),
                               "publish parameters");
}

void StartLoader(DataOrder order, RankRun* run) {
  const Session& session = run->session;
  const BatchPlan& batch = session.job.batch;
  DataLoaderOptions options;
  options.order = std::move(order);
  options.micro_batches = batch.order;
  options.micro_batch_size = batch.micro_batch_size;
  options.global_batch_size = batch.global_batch_size;
  options.rank = session.group->rank();
  options.world_size = session.group->size();
  options.start_position = session.state.samples;
  options.device = session.group->device();
  run->loader = DataLoader::Create(options, session.train_reader());
}

}  // namespace

absl::StatusOr<bool> SetUp(RankRun* run) {
  Session& session = run->session;
  const RunConfig& config = session.config;
  PrepareProcess(session);
  CAPSTAN_RETURN_IF_ERROR(JoinRanks(&session));
  CAPSTAN_ASSIGN_OR_RETURN(run->watchdog,
                           Watch(config.train(), *session.group));
  const auto phase = run->Doing("set-up");
  CAPSTAN_RETURN_IF_ERROR(SettleRun(&session));
  if (const auto& steps = config.profile().steps(); !steps.empty()) {
    run->profiler = std::make_unique<Profiler>(
        std::set<int64_t>(steps.begin(), steps.end()));
  }
  ForgiveSamples(&session);
  const DataOrder order = OrderOf(
      *session.parts.train_data, config.train().seed(),
      config.batch().group_by_length(), session.job.batch.global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(SetUpState(order, run));
  CAPSTAN_ASSIGN_OR_RETURN(const bool finished_before, FinishedBefore(session));
  if (finished_before) return false;
  std::string note;
  if (session.job.batch.automatic) {
    CAPSTAN_ASSIGN_OR_RETURN(
        note, SettleMicroBatch(&session, &run->step.micro_steps()));
  }
  StartLoader(order, run);
  CAPSTAN_RETURN_IF_ERROR(StartReporter(&session, note));
  for (const std::string& line : session.resume_notes) session.Note(line);
  if (session.first_step > session.max_steps) {
    session.Note(
        absl::StrCat("the run has done ", session.first_step,
                     " steps, more than train.max_steps, ", session.max_steps,
                     ": none is added; it is evaluated and saved as it is"));
  }
  run->records.Begin(SecondsSinceStart(session));
  return true;
}

}  // namespace capstan
