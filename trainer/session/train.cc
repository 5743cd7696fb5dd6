// SPDX-License-Identifier: Apache-2.0
//
// A run: set-up, the loop over steps, the end. The step itself is in step.cc.
#include "trainer/session/train.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <glog/logging.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/launcher/cores.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/place.h"
#include "trainer/launcher/progress.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/process_group/agree.h"
#include "trainer/process_group/create.h"
#include "trainer/process_group/phase_group.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/compare_ranks.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"
#include "trainer/session/step.h"
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

std::string DeviceText(const ProcessGroup& group, int threads) {
  if (group.device().is_cuda()) {
    return absl::StrCat(group.size(), " x GPU (", group.backend(), ")");
  }
  return absl::StrCat(group.size(), " x CPU (", threads,
                      threads == 1 ? " thread" : " threads", " each)");
}

// Whether a final folder is complete: its weights may have been removed.
bool HoldsWeights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return true;
  }
  return false;
}

// Settles the run's device: the least capable over all machines.
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

// Each host reads files and flags of its own: refuses a config that isn't rank
// 0's, but for where ranks and output are.
absl::Status CompareConfigs(const Session& session) {
  RunConfig config = session.config;
  config.clear_launch();
  config.clear_output_dir();
  const std::string mine = PrintConfig(config);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string rank0s,
                           FromRank0(*session.group, mine));
  absl::Status same;
  if (mine != rank0s) {
    const std::vector<std::string> here = absl::StrSplit(mine, '\n');
    const std::vector<std::string> there = absl::StrSplit(rank0s, '\n');
    size_t i = 0;
    while (i < here.size() && i < there.size() && here[i] == there[i]) ++i;
    const auto line = [i](const std::vector<std::string>& lines) {
      return i < lines.size() ? absl::StripAsciiWhitespace(lines[i])
                              : "nothing";
    };
    same = absl::FailedPreconditionError(absl::StrCat(
        "rank ", session.group->rank(), " has another config than rank 0: `",
        line(here), "` where rank 0 has `", line(there),
        "`; start all hosts with the same files and flags"));
  }
  return Agree(*session.group, same, "start with rank 0's config");
}

// Whether all hosts see rank 0's output folder, before anything is trained.
absl::Status CheckShared(const Session& session) {
  ProcessGroup& group = *session.group;
  if (session.rank.nodes == 1) return absl::OkStatus();
  const std::string path =
      absl::StrCat(session.output_dir, "/.shared-", session.rank.run_key);
  absl::Status mine;
  if (group.rank() == 0) mine = WriteWholeFile(path, "");
  CAPSTAN_RETURN_IF_ERROR(Agree(group, mine, "write into the output folder"));
  // Opening the folder has an NFS client look again.
  std::error_code error;
  const std::filesystem::directory_iterator look(session.output_dir, error);
  if (!PathExists(path)) {
    mine = absl::FailedPreconditionError(
        absl::StrCat("rank ", group.rank(), " doesn't see rank 0's files in ",
                     session.output_dir,
                     ": output_dir must be a folder that all hosts share"));
  }
  mine = Agree(group, mine, "see rank 0's files in the output folder");
  if (group.rank() == 0) std::filesystem::remove(path, error);
  return mine;
}

// Under a launcher rank 0 chooses, and broadcasts.
absl::Status SettleOutputDir(Session* session) {
  session->output_dir = session->job.output_dir;
  if (!session->output_dir.empty()) return absl::OkStatus();
  ProcessGroup& group = *session->group;
  absl::StatusOr<std::string> folder = std::string();
  if (group.rank() == 0) {
    RunConfig config = session->config;
    // After a death the run goes on where it was.
    if (session->Restarted()) {
      config.mutable_train()->set_resume(Train::AUTO);
      const std::string chosen = NotedOutputFolder();
      if (!chosen.empty()) config.set_output_dir(chosen);
    }
    folder = PrepareOutputFolder(config, session->job.workspace_folder,
                                 session->rank.placed_by);
    if (folder.ok()) NoteOutputFolder(*folder);
  }
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, folder.status(), "make the output folder"));
  CAPSTAN_ASSIGN_OR_RETURN(session->output_dir, FromRank0(group, *folder));
  return absl::OkStatus();
}

// Each rank planned its own; a resumed run's depends on its folder.
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
  facts.placed_by = PlaceText(session->rank);
  facts.cores = session->rank.cores;
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
  // A run that has all steps evaluates once more at its end.
  facts.evaluate_again = session->evaluate_again || !session->GoesOn();
  CAPSTAN_ASSIGN_OR_RETURN(session->reporter, Reporter::Create(facts));
  if (session->Restarted()) {
    // The user knows the rest.
    session->reporter->Note(
        session->first_step > 0
            ? absl::StrCat("restarted from step ", session->first_step)
            : "restarted from the beginning: there was no checkpoint yet");
    for (size_t i = job.known_notes; i < job.notes.size(); ++i) {
      session->reporter->Note(job.notes[i]);
    }
    return absl::OkStatus();
  }
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

// Sets up this process's allocators, threads and, if requested, determinism.
void PrepareProcess(const Session& session) {
  InstallTrackingAllocator();
  at::set_num_threads(session.rank.threads);
  // Steps free and allocate the same sizes again and again: keep what the block
  // cache leaves to the heap (below 256 KiB, and non-tensors) instead of having
  // the kernel map it anew.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (session.config.train().deterministic()) {
    // Read when cuBLAS creates its first handle (CUDA's documentation, "cuBLAS,
    // results reproducibility").
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
}

// For all that follows; without it the run is as good, but for its reports.
std::unique_ptr<Watchdog> Watch(const Session& session) {
  const Train& train = session.config.train();
  WatchOptions options;
  if (train.hang_floor_seconds() > 0) {
    options.floor_seconds = train.hang_floor_seconds();
  }
  options.ceiling_seconds =
      std::max(options.floor_seconds, train.hang_ceiling_seconds() > 0
                                          ? train.hang_ceiling_seconds()
                                          : options.ceiling_seconds);
  options.abort = train.on_hang() == Train::ABORT;
  // A slow disk or network is told of soon, but isn't the end of a run, unless
  // its owner knows better.
  constexpr double kPatience = 300.0;
  if (train.hang_floor_seconds() == 0) options.patience_seconds = kPatience;
  absl::StatusOr<std::unique_ptr<Watchdog>> watchdog = Watchdog::Start(options);
  if (watchdog.ok()) return *std::move(watchdog);
  LOG(WARNING) << "no rank watches for others that hang: "
               << watchdog.status().message();
  return nullptr;
}

absl::Status JoinRanks(Session* session) {
  WantLedgers();
  CAPSTAN_ASSIGN_OR_RETURN(
      session->group, CreateProcessGroup(session->rank, session->job.gpus));
  RanksHaveMet();
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

// Sets up the device, the output folder and max_steps.
absl::Status SettleRun(Session* session) {
  CAPSTAN_RETURN_IF_ERROR(CompareConfigs(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareParts(*session));
  CAPSTAN_RETURN_IF_ERROR(SettleDevice(session));
  CAPSTAN_RETURN_IF_ERROR(SettleOutputDir(session));
  CAPSTAN_RETURN_IF_ERROR(CheckShared(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareBatches(*session));
  session->config_text = PrintConfig(session->config);
  session->max_steps =
      StepsOfRun(session->config.train(), session->parts.train_data->size(),
                 session->job.batch.global_batch_size);
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
    CAPSTAN_RETURN_IF_ERROR(parts.strategy->Setup(context));
    CAPSTAN_RETURN_IF_ERROR(CheckState(parts.strategy_name, *parts.strategy));
    return SetUpOptimizer(*parts.optimizer, *parts.model,
                          parts.strategy->OptimizerShards(),
                          &session->optimizer_state,
                          {session->config.train().offload().optimizer_state(),
                           session->output_dir});
  });
  return AgreeAfterCollectives(*session->group, status, "set up");
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

// On the slowest rank, since the run's first process was executed.
double SecondsSinceStart(const Session& session) {
  const std::vector<double> all =
      FromAllRanks(*session.group, BootSeconds() - session.job.start_seconds);
  return *std::max_element(all.begin(), all.end());
}

// ---- An end from outside.

// Names the plugin whose code calls exit(), which would otherwise end the
// process without a word, perhaps as if all had gone well.
class ExitGuard {
 public:
  explicit ExitGuard(const Session* session)
      : session_(*session), pid_(getpid()), thread_(pthread_self()) {
    static const int installed = on_exit(&OnExit, nullptr);
    (void)installed;
    current_ = this;
  }
  ~ExitGuard() { current_ = nullptr; }
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

 private:
  static void OnExit(int code, void*) {
    const ExitGuard* const guard = current_;
    if (guard == nullptr || guard->pid_ != getpid()) return;
    const bool on_main = pthread_equal(guard->thread_, pthread_self()) != 0;
    // Our launcher prints an error of its own.
    const bool alone = guard->session_.job.output_dir.empty();
    std::cerr << (alone ? "ERROR: " : "")
              << ExitText(guard->session_, code, on_main) << std::endl;
    fflush(nullptr);
    // Static destructors would run beside threads that are still at work.
    _exit(code == 0 ? 1 : code);
  }

  static std::atomic<const ExitGuard*> current_;

  const Session& session_;
  const pid_t pid_;
  const pthread_t thread_;
};

std::atomic<const ExitGuard*> ExitGuard::current_{nullptr};

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

 private:
  // As the watchdog knows it, while it lives.
  Watchdog::Activity Doing(const char* name) const {
    return {watchdog_.get(), name, session_.state.step};
  }
  absl::Status RunPhases();
  // Sets finished_before_.
  absl::Status SetUp();
  absl::Status Step();
  // The last evaluation, checkpoint and samples, and the final folder; after a
  // signal only the checkpoint.
  absl::Status SaveAll();
  absl::Status Finish();
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
  bool finished_before_ = false;
  const ExitGuard exit_guard_{&session_};
  std::unique_ptr<Watchdog> watchdog_;
};

absl::Status Training::Run() {
  const absl::Status status = CatchAll([this] { return RunPhases(); });
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

absl::Status Training::RunPhases() {
  const absl::Status set_up = SetUp();
  if (absl::IsCancelled(set_up)) return Stopped();
  CAPSTAN_RETURN_IF_ERROR(set_up);
  if (finished_before_) return absl::OkStatus();
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
    if (mirror) checkpoints_.Mirror();
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
      checkpoints_.Mirror();
    }
    if (save && !stopping) {
      const auto activity = Doing("saving");
      CAPSTAN_RETURN_IF_ERROR(checkpoints_.Save());
    }
    session_.saving_cost.train_seconds = MonotonicSeconds() - began;
  }
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
  watchdog_ = Watch(session_);
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
  CAPSTAN_RETURN_IF_ERROR(Agree(group, CatchAll([&] {
                                  return step_.SetUp(read_, profiler_.get(),
                                                     options.order);
                                }),
                                "set up"));
  CAPSTAN_RETURN_IF_ERROR(checkpoints_.Restore(options.order));
  CAPSTAN_RETURN_IF_ERROR(CompareStart(session_));
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckStart());
  // Only now do all ranks have masters.
  CAPSTAN_RETURN_IF_ERROR(
      AgreeAfterCollectives(group, session_.Publish(), "publish parameters"));
  CAPSTAN_ASSIGN_OR_RETURN(finished_before_, FinishedBefore(session_));
  if (finished_before_) return absl::OkStatus();
  std::string note;
  if (batch.automatic) {
    CAPSTAN_ASSIGN_OR_RETURN(note, SettleMicroBatch(&session_, &step_));
  }
  options.micro_batch_size = batch.micro_batch_size;
  options.global_batch_size = batch.global_batch_size;
  options.rank = group.rank();
  options.world_size = group.size();
  options.start_position = session_.state.samples;
  options.device = group.device();
  loader_ = DataLoader::Create(options, session_.train_reader());
  CAPSTAN_RETURN_IF_ERROR(StartReporter(&session_, note));
  for (const std::string& line : session_.resume_notes) session_.Note(line);
  records_.set_ready_seconds(SecondsSinceStart(session_));
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
  // Last, as it may take long: no other rank waits for it.
  activity.reset();
  if (reporter == nullptr || !session_.config.has_hub_upload()) {
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
  return Training(job,
                  launch.binding() == Launch::UNBOUND
                      ? rank
                      : BindToCores(rank, job->gpus),
                  read)
      .Run();
}

}  // namespace capstan
