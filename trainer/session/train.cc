// SPDX-License-Identifier: Apache-2.0
//
// A run: set-up, the loop over steps, the end. The step itself is in step.cc.
#include "trainer/session/train.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/launcher/cores.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/progress.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/process_group/agree.h"
#include "trainer/process_group/create.h"
#include "trainer/process_group/gpu_tools.h"
#include "trainer/process_group/phase_group.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/compare_ranks.h"
#include "trainer/session/deterministic.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/exit_guard.h"
#include "trainer/session/lost_gpu.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/out_of_memory.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/settle_run.h"
#include "trainer/session/start_reporter.h"
#include "trainer/session/step.h"
#include "trainer/session/watch.h"
#include "trainer/watch/ledger.h"
#include "trainer/watch/watchdog.h"

namespace capstan {
namespace {

// ---- Set-up. All but PrepareProcess is collective.

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
  // Steps free and allocate the same sizes again and again: keep what the block
  // cache leaves to the heap (below 256 KiB, and non-tensors) instead of having
  // the kernel map it anew.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
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
    CAPSTAN_RETURN_IF_ERROR(parts.strategy->Setup(context));
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

// ---- The run.

// How long rank 0 waits for the others' parts of a checkpoint when a run ends
// with an error; the launcher waits longer for the ranks.
constexpr std::chrono::milliseconds kSaveGrace{500};

class Training {
 public:
  Training(TrainJob* job, const RankInfo& rank, ReadSums read)
      : read_(read),
        session_(job, rank),
        records_(&session_),
        divergence_(&session_, &records_),
        checkpoints_(&session_, &divergence_),
        evaluator_(&session_, &checkpoints_),
        step_(&session_, &divergence_, &records_) {}

  // All of it. An error ends the others' collectives, too.
  absl::Status Run();
  absl::Status RunFirst(int64_t steps);

 private:
  // As the watchdog and profiling tools know it, while it lives.
  struct Phase {
    const Watchdog::Activity activity;
    const Range range;
  };
  Phase Doing(const char* name) const {
    return {{watchdog_.get(), name, session_.state.step}, Range(name)};
  }
  absl::Status RunPhases();
  // Sets finished_before_.
  absl::Status SetUp();
  absl::Status Step();
  // The last evaluation, checkpoint and samples, and the final folder; after a
  // signal only the checkpoint.
  absl::Status SaveAll();
  absl::Status Finish();
  absl::Status Upload();
  absl::Status GoBack();
  // The status of a run stopped by a signal.
  absl::Status Stopped() const;
  absl::Status WriteProfile();

  const ReadSums read_;
  Session session_;
  StepRecords records_;
  Divergence divergence_;
  RunCheckpoints checkpoints_;
  Evaluator evaluator_;
  TrainStep step_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<Profiler> profiler_;  // null: profiling is off
  bool set_up_ = false;
  bool finished_before_ = false;
  const ExitGuard exit_guard_{&session_};
  std::unique_ptr<Watchdog> watchdog_;
};

absl::Status Training::Run() {
  const absl::Status ended = CatchAll([this] { return RunPhases(); });
  const absl::Status status = ExplainLostGpu(ended, session_, set_up_);
  checkpoints_.RanksMayLeave();
  PhaseGroup* const phases =
      session_.group == nullptr ? nullptr : PhaseGroupOf(*session_.group);
  if (phases != nullptr && !status.ok() && !absl::IsCancelled(status) &&
      !IsLostPeer(status)) {
    phases->FailPhase(absl::StrCat("rank ", session_.group->rank(),
                                   " failed: ", status.message()));
  }
  // What the others have done is worth keeping.
  if (!status.ok()) session_.background_save.CompleteAlone(kSaveGrace);
  return status;
}

absl::Status Training::RunFirst(int64_t steps) {
  return CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(SetUp());
    for (int64_t i = 0; i < steps && session_.GoesOn(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(Step());
    }
    return step_.CatchUp();
  });
}

absl::Status Training::RunPhases() {
  const absl::Status set_up = SetUp();
  if (absl::IsCancelled(set_up)) return Stopped();
  CAPSTAN_RETURN_IF_ERROR(set_up);
  if (finished_before_) return Upload();
  // A signal may have arrived meanwhile.
  CAPSTAN_RETURN_IF_ERROR(session_.StopIfCancelled(
      AgreeOrStop(*session_.group, StopStatus(), "start")));
  if (!session_.stopping) {
    // Often nothing, which teaches nothing about evaluations.
    const auto activity = Doing("catching up");
    CAPSTAN_RETURN_IF_ERROR(evaluator_.CatchUp());
  }
  // From a mirror the run may go on in the midst of a save.
  if (session_.GoesOn() && session_.first_step > 0 &&
      Due(session_.config.train().save_every(), session_.first_step)) {
    const auto activity = Doing("saving");
    CAPSTAN_RETURN_IF_ERROR(checkpoints_.Save());
  }

  const Train& train = session_.config.train();
  const bool& stopping = session_.stopping;
  const double began = MonotonicSeconds();
  while (session_.GoesOn()) {
    CAPSTAN_RETURN_IF_ERROR(Step());
    const int64_t step = session_.state.step;
    StepFinished(step);
    const bool evaluate = Due(train.eval_every(), step);
    const bool save = Due(train.save_every(), step);
    const bool mirror = checkpoints_.MirrorDue();
    if (evaluate || save || mirror || stopping || step == session_.max_steps) {
      const auto activity = Doing("step's end");
      CAPSTAN_RETURN_IF_ERROR(step_.CatchUp());
    }
    if (step_.go_back()) {
      const auto activity = Doing("going back");
      CAPSTAN_RETURN_IF_ERROR(GoBack());
    }
    if (mirror) CAPSTAN_RETURN_IF_ERROR(checkpoints_.Mirror());
    if (evaluate && !stopping) {
      const auto activity = Doing("evaluation");
      CAPSTAN_RETURN_IF_ERROR(evaluator_.Evaluate());
    }
    if (evaluate && session_.GoesOn()) {
      const auto activity = Doing("sampling");
      CAPSTAN_RETURN_IF_ERROR(
          evaluator_.Sample(absl::StrCat("after step ", step)));
    }
    // Again, or a restart would repeat the evaluation; once a best checkpoint
    // that it has begun is there to go on with.
    if (mirror && evaluate && !stopping) {
      const auto activity = Doing("saving the best");
      if (train.keep_best()) {
        CAPSTAN_RETURN_IF_ERROR(
            session_.background_save.Settle(*session_.group));
      }
      CAPSTAN_RETURN_IF_ERROR(checkpoints_.Mirror(/*again=*/true));
    }
    if (save && !stopping) {
      const auto activity = Doing("saving");
      CAPSTAN_RETURN_IF_ERROR(checkpoints_.Save());
    }
    session_.saving_cost.train_seconds = MonotonicSeconds() - began;
  }
  checkpoints_.RanksMayLeave();
  return Finish();
}

absl::Status Training::Step() {
  const Watchdog::Activity activity(watchdog_.get(), "step",
                                    session_.state.step + 1);
  return step_.Run(*loader_);
}

absl::Status Training::SetUp() {
  PrepareProcess(session_);
  CAPSTAN_RETURN_IF_ERROR(JoinRanks(&session_));
  CAPSTAN_ASSIGN_OR_RETURN(watchdog_,
                           Watch(session_.config.train(), *session_.group));
  const auto activity = Doing("set-up");
  CAPSTAN_RETURN_IF_ERROR(SettleRun(&session_));
  const RunConfig& config = session_.config;
  const BatchPlan& batch = session_.job.batch;
  ProcessGroup& group = *session_.group;
  if (const auto& steps = config.profile().steps(); !steps.empty()) {
    profiler_ = std::make_unique<Profiler>(
        std::set<int64_t>(steps.begin(), steps.end()));
  }
  ForgiveSamples(&session_);
  DataLoaderOptions options;
  options.order =
      OrderOf(*session_.parts.train_data, config.train().seed(),
              config.batch().group_by_length(), batch.global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(SetUpStrategy(&session_));
  const absl::Status step = CatchAll(
      [&] { return step_.SetUp(read_, profiler_.get(), options.order); });
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, ExplainMemoryOfSetUp(step, session_), "set up"));
  CAPSTAN_RETURN_IF_ERROR(checkpoints_.Restore(options.order));
  CAPSTAN_RETURN_IF_ERROR(CompareStart(session_));
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckStart());
  // Only now do all ranks have masters.
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(
      group, ExplainMemoryOfSetUp(session_.Publish(), session_),
      "publish parameters"));
  CAPSTAN_ASSIGN_OR_RETURN(finished_before_, FinishedBefore(session_));
  if (finished_before_) return absl::OkStatus();
  std::string note;
  if (batch.automatic) {
    CAPSTAN_ASSIGN_OR_RETURN(note, SettleMicroBatch(&session_, &step_));
  }
  options.micro_batches = batch.order;
  options.micro_batch_size = batch.micro_batch_size;
  options.global_batch_size = batch.global_batch_size;
  options.rank = group.rank();
  options.world_size = group.size();
  options.start_position = session_.state.samples;
  options.device = group.device();
  loader_ = DataLoader::Create(options, session_.train_reader());
  CAPSTAN_RETURN_IF_ERROR(StartReporter(&session_, note));
  for (const std::string& line : session_.resume_notes) session_.Note(line);
  if (session_.first_step > session_.max_steps) {
    session_.Note(
        absl::StrCat("the run has done ", session_.first_step,
                     " steps, more than train.max_steps, ", session_.max_steps,
                     ": none is added; it is evaluated and saved as it is"));
  }
  records_.Begin(SecondsSinceStart(session_));
  set_up_ = true;
  return absl::OkStatus();
}

// After a loss spike.
absl::Status Training::GoBack() {
  CAPSTAN_RETURN_IF_ERROR(step_.CatchUp());
  return step_.TakeGoBack() ? checkpoints_.GoBack() : absl::OkStatus();
}

absl::Status Training::SaveAll() {
  const bool& stopping = session_.stopping;
  if (!stopping) {
    const auto activity = Doing("evaluation");
    CAPSTAN_RETURN_IF_ERROR(evaluator_.Evaluate());
  }
  if (!stopping) CAPSTAN_RETURN_IF_ERROR(divergence_.CheckEnd());
  if (session_.state.step > 0) {
    // In the foreground, unlike those before.
    const auto activity = Doing("the last save");
    CAPSTAN_RETURN_IF_ERROR(checkpoints_.SaveLast());
  }
  if (stopping) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(checkpoints_.RestoreBest());
  {
    const auto activity = Doing("sampling");
    CAPSTAN_RETURN_IF_ERROR(evaluator_.Sample("after training"));
  }
  return stopping ? absl::OkStatus() : checkpoints_.SaveFinal();
}

absl::Status Training::Finish() {
  loader_.reset();
  absl::optional<Watchdog::Activity> activity;
  activity.emplace(watchdog_.get(), "finishing", session_.state.step);
  CAPSTAN_RETURN_IF_ERROR(SaveAll());
  Reporter* const reporter = session_.reporter.get();
  absl::Status status = WriteProfile();
  const RunSummary summary = records_.Summary();
  if (reporter != nullptr) {
    reporter->Finish(summary);
    status.Update(reporter->status());
  }
  CAPSTAN_RETURN_IF_ERROR(Agree(*session_.group, status, "write its output"));
  if (session_.stopping) return Stopped();
  activity.reset();
  return Upload();
}

// Last, as it may take long: no other rank waits for it.
absl::Status Training::Upload() {
  if (session_.group->rank() != 0 || !checkpoints_.AwaitsUpload()) {
    return absl::OkStatus();
  }
  return checkpoints_.UploadFinal();
}

absl::Status Training::Stopped() const {
  const TrainJob& job = session_.job;
  const std::string command =
      ResumeCommand(job.command, session_.config, session_.output_dir);
  const std::string how =
      job.output_dir.empty()
          ? absl::StrCat("go on with the same launcher, and: ", command)
          : absl::StrCat("go on with: ", command);
  if (session_.state.step == 0) {
    return absl::CancelledError(absl::StrCat(
        "stopped before the first step: there is nothing to save; ", how));
  }
  return absl::CancelledError(absl::StrCat("stopped after step ",
                                           session_.state.step, "; saved in ",
                                           session_.output_dir, "; ", how));
}

absl::Status Training::WriteProfile() {
  if (profiler_ == nullptr) return absl::OkStatus();
  Reporter* const reporter = session_.reporter.get();
  const std::vector<ProfiledStep>& steps = profiler_->steps();
  if (steps.empty()) {
    session_.Note("profile: this run has done none of its steps");
    return absl::OkStatus();
  }
  const int rank = session_.group->rank();
  const std::string trace =
      rank == 0 ? "trace.json" : absl::StrCat("trace.rank", rank, ".json");
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(
      absl::StrCat(session_.output_dir, "/", trace), TraceJson(steps, rank)));
  if (reporter == nullptr) return absl::OkStatus();
  const StepProfile profile = Summarize(steps);
  reporter->Table(ProfileTable(profile));
  return ReplaceFile(session_.output_dir + "/profile.json",
                     ProfileJson(profile));
}

}  // namespace

absl::Status RunTraining(TrainJob* job, const RankInfo& rank, ReadSums read) {
  const FaultPoint::Counts counts = FaultPoint::Arm(rank.rank);
  const Launch& launch = job->loaded.config.launch();
  auto training = std::make_unique<Training>(
      job,
      launch.binding() == Launch::UNBOUND ? rank : BindToCores(rank, job->gpus),
      read);
  absl::Status status = training->Run();
  // Freeing memory that two streams have used asks the GPU for an event, and
  // throws from destructors if it is lost: the process would end before it has
  // told the error. It ends soon anyway.
  if (!status.ok() && GpuIsLost()) training.release();
  return status;
}

absl::Status RunFirstSteps(TrainJob* job, const RankInfo& rank, int64_t steps) {
  return Training(job, rank, ReadSums::kAuto).RunFirst(steps);
}

}  // namespace capstan
