// SPDX-License-Identifier: Apache-2.0
//
// In the order in which it is done. All but PrepareProcess is collective.
#include "trainer/session/set_up.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/heap.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/create.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/comm/nccl_network.h"
#include "cluster/comm/phase_group.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "cluster/launch/progress.h"
#include "cluster/watch/ledger.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/compare_ranks.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/schedule.h"
#include "trainer/session/session.h"
#include "trainer/session/step_witness.h"
#include "trainer/session/stored_run.h"
#include "trainer/session/watch.h"
#include "trainer/session/whose_code.h"
#include "trainer/session/witness_group.h"

namespace capstan {
namespace {

// Sets up this process's allocators, threads and, if requested, determinism.
void PrepareProcess(const RunPlan& plan) {
  InstallTrackingAllocator();
  if (plan.config.train().deterministic()) ComputeDeterministically();
  at::set_num_threads(plan.rank.threads);
  KeepFreedMemory();
  if (plan.job.gpus > 0) {
    at::globalContext().setAllowTF32CuBLAS(plan.config.train().tf32());
    at::globalContext().setAllowTF32CuDNN(plan.config.train().tf32());
    // Partial sums of a split product could overflow in float16.
    at::globalContext().setAllowFP16ReductionCuBLAS(false);
  }
}

absl::Status JoinRanks(RunPlan* plan) {
  WantLedgers();
  CAPSTAN_ASSIGN_OR_RETURN(plan->group,
                           CreateProcessGroup(plan->rank, plan->job.gpus));
  RanksHaveMet();
  if (plan->group->device().is_cuda()) {
    StartRanges();
    if (plan->config.train().memory_snapshot_at_oom()) {
      TheGpuTools()->record_memory_history();
    }
  }
  if (plan->rank.nodes > 1) {
    // Each host's launcher counts its own; any means that there is a state.
    const std::vector<double> restarts =
        FromAllRanks(*plan->group, plan->rank.restart);
    plan->rank.restart =
        static_cast<int>(*std::max_element(restarts.begin(), restarts.end()));
  }
  if (StepWitness::Wanted(*plan) && plan->group->size() > 1) {
    MessageChecks checks;
    checks.on_wrong = &StepWitness::TakeWrongMessage;
    checks.phases = PhaseGroupOf(*plan->group);
    checks.twice = plan->config.train().witness().twice();
    checks.due = &StepWitness::ChecksMessages;
    plan->group = WitnessMessages(std::move(plan->group), std::move(checks));
  }
  if (plan->config.profile().steps_size() > 0) {
    plan->group = ProfileWaits(std::move(plan->group));
  }
  return absl::OkStatus();
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

// Whether all hosts see rank 0's output folder, before anything is trained.
absl::Status CheckShared(const RunPlan& plan) {
  ProcessGroup& group = *plan.group;
  if (plan.rank.nodes == 1) return absl::OkStatus();
  const std::string path =
      absl::StrCat(plan.output_dir, "/.shared-", plan.rank.run_key);
  absl::Status mine;
  if (group.rank() == 0) mine = WriteWholeFile(path, "");
  CAPSTAN_RETURN_IF_ERROR(Agree(group, mine, "write into the output folder"));
  // Opening the folder has an NFS client look again.
  std::error_code error;
  const std::filesystem::directory_iterator look(plan.output_dir, error);
  if (!PathExists(path)) {
    mine = absl::FailedPreconditionError(absl::StrCat(
        "rank ", group.rank(), " doesn't see rank 0's files in ",
        plan.output_dir, ": output_dir must be a folder that all hosts share"));
  } else if (access(plan.output_dir.c_str(), W_OK) != 0) {
    mine = absl::FailedPreconditionError(
        absl::StrCat("rank ", group.rank(), " can't write in ", plan.output_dir,
                     ": ", strerror(errno)));
  }
  mine = Agree(group, mine, "see rank 0's files in the output folder");
  if (group.rank() == 0) std::filesystem::remove(path, error);
  return mine;
}

// Under a launcher rank 0 chooses, and broadcasts.
absl::Status SettleOutputDir(Session* session) {
  HeldFolder& folder = session->folder;
  folder = session->job.folder;
  session->output_dir = folder.path;
  ProcessGroup& group = *session->group;
  if (!session->output_dir.empty()) {
    absl::Status here;
    // Ranks that are started again find it as it is now.
    if (group.rank() == 0) here = LookAtFolder(&folder).status;
    if (here.ok()) LetUploadsBegin();
    return Agree(group, here, "find its output folder");
  }
  absl::Status made;
  if (group.rank() == 0) {
    RunConfig config = session->config;
    // After a death the run goes on where it was.
    if (session->Restarted()) {
      config.mutable_train()->set_resume(Train::AUTO);
      const std::string chosen = NotedOutputFolder();
      if (!chosen.empty()) {
        config.set_output_dir(chosen);
        if (!PathExists(chosen)) made = WasDeleted(chosen);
      }
    }
    if (made.ok()) {
      absl::StatusOr<HeldFolder> held = PrepareOutputFolder(
          config, session->job.workspace_folder, session->rank.placed_by,
          session->Restarted() ? kLostHostPatience : kLockPatience);
      made = held.status();
      if (held.ok()) folder = *std::move(held);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(group, made, "make the output folder"));
  CAPSTAN_ASSIGN_OR_RETURN(session->output_dir, FromRank0(group, folder.path));
  // Any host's first rank may be rank 0 after a restart.
  NoteOutputFolder(session->output_dir);
  LetUploadsBegin();
  return absl::OkStatus();
}

// Each rank planned its own; a resumed run's depends on its folder.
absl::Status CompareBatches(const RunPlan& plan) {
  const std::vector<double> all = FromAllRanks(
      *plan.group, static_cast<double>(plan.job.batch.global_batch_size));
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

// Settles the run once all ranks have met: what it is, where it runs and
// writes, and how many steps it has.
absl::Status SettleRun(Session* session) {
  CAPSTAN_RETURN_IF_ERROR(CompareConfigs(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareParts(*session));
  CAPSTAN_RETURN_IF_ERROR(SettleDevice(session));
  CAPSTAN_RETURN_IF_ERROR(SettleOutputDir(session));
  CAPSTAN_RETURN_IF_ERROR(CheckShared(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareBatches(*session));
  session->config_text = PrintConfig(session->config);
  session->max_steps =
      StepsOfRun(session->config.train(), EpochRows(session->parts),
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
  for (size_t s = 0; s < shards.size() && strategy.local_steps(); ++s) {
    const at::Tensor shared = strategy.SharedMaster(static_cast<int>(s));
    const at::Tensor& master = shards[s].master;
    if (shared.sizes() == master.sizes() &&
        shared.scalar_type() == master.scalar_type() &&
        !shared.is_alias_of(master)) {
      continue;
    }
    return absl::InternalError(absl::StrCat(
        name, ": SharedMaster(", s,
        ") must be a tensor of its own, of the master's length and dtype"));
  }
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

// Has the model divide rows among the ranks that share them.
absl::Status JoinSequence(Session* session) {
  const Mesh mesh = session->mesh();
  if (mesh.sequence == 1) return absl::OkStatus();
  ProcessGroup& group = *session->group;
  const auto located = [session](absl::string_view error) {
    return session->job.loaded.Locate(
        FieldError("sequence_parallel", std::string(error)), "train");
  };
  // A rank that fails would leave those of its micro-batch waiting.
  if (!group.device().is_cuda() && PhaseGroupOf(group) == nullptr) {
    return located("doesn't go with CAPSTAN_CPU_COLLECTIVES=gloo: unset it");
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> part =
      group.Split(mesh.color(MeshAxis::kSequence, group.rank()));
  CAPSTAN_RETURN_IF_ERROR(part.status());
  session->sequence_group = *std::move(part);
  const WhoseCode code(session->plugins.model, "SetSequenceGroup");
  const absl::Status taken =
      session->parts.model->token_model()->SetSequenceGroup(
          session->sequence_group.get(),
          session->config.train().deterministic());
  return taken.ok() ? taken : located(taken.message());
}

// Sets up the strategy and the optimizer's state. The ranks agree before
// anything collective follows: a cut that the optimizer refuses may be on one
// rank only.
absl::Status SetUpStrategy(Session* session) {
  RunParts& parts = session->parts;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(JoinSequence(session));
    StrategyContext context;
    context.model = parts.model.get();
    context.group = session->group.get();
    context.precision = parts.policy();
    context.seed = session->config.train().seed();
    context.optimizer = parts.optimizer.get();
    context.deterministic = SumsExactly(session->config.train(), parts);
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

// What is read, and which of it may be passed over.
void SetUpReaders(Session* session) {
  const RunParts& parts = session->parts;
  if (parts.eval_data != nullptr) {
    session->evaluated.push_back({"",
                                  "eval_data",
                                  session->plugins.eval_data,
                                  parts.eval_data.get(),
                                  nullptr,
                                  {}});
  }
  for (const EvalSetData& set : parts.eval_sets) {
    const std::string slot = "eval_sets." + set.name;
    session->evaluated.push_back(
        {set.name, slot, slot, set.reader.get(), nullptr, {}});
  }
  const int64_t most = session->config.train().skip_bad_samples();
  if (most == 0) return;
  session->forgiving_train =
      std::make_unique<ForgivingReader>(parts.train_data.get(), most);
  for (EvaluatedData& data : session->evaluated) {
    data.forgiving = std::make_unique<ForgivingReader>(data.reader, most);
  }
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
  const PublishCause cause = session.resumed_from.empty()
                                 ? PublishCause::kInitial
                                 : PublishCause::kRestored;
  return AgreeAfterCollectives(
      group, ExplainMemoryOfSetUp(session.Publish(cause), session),
      "publish parameters");
}

void StartLoader(DataOrder order, RankRun* run) {
  const Session& session = run->session;
  DataLoaderOptions options;
  options.order = std::move(order);
  options.shares = session.job.batch.Shares(session.mesh());
  options.rank = session.data_rank();
  options.start_position = session.state.samples;
  options.forgotten = ForgottenRows(session.config.train());
  options.device = session.group->device();
  run->loader = DataLoader::Create(options, session.train_reader());
}

// Whether a final folder is complete: its weights may have been removed.
bool HoldsWeights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return true;
  }
  return false;
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

std::string DeviceText(const ProcessGroup& group, int threads) {
  if (group.device().is_cuda()) {
    return absl::StrCat(group.size(),
                        " x GPU: ", TheGpuTools()->name(group.device().index()),
                        group.size() > 1 ? ", " : "", GpuConnection());
  }
  return absl::StrCat(group.size(), " x CPU (", threads,
                      threads == 1 ? " thread" : " threads", " each)");
}

// What runs may be compared by: of what identifies this one, all but its data
// and what its model is made of.
std::map<std::string, std::string> SettingsOf(const Session& session) {
  std::map<std::string, std::string> settings = {
      {"strategy", session.parts.strategy_name},
      {"world_size", absl::StrCat(session.group->size())},
      {"parameters", absl::StrCat(ParameterCount(*session.parts.model))},
      {"batch.micro_batch_size",
       absl::StrCat(session.job.batch.micro_batch_size)},
      {"batch.global_batch_size",
       absl::StrCat(session.job.batch.global_batch_size)}};
  for (const auto& [name, value] : session.identity) {
    const std::string slot = name.substr(0, name.find('.'));
    if (slot == "model" ? name != slot
                        : slot == "train_data" || slot == "eval_data" ||
                              slot == "eval_sets" || slot == "tokenizer") {
      continue;
    }
    settings.emplace(name, value);
  }
  return settings;
}

double BootSeconds() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// What this process of the run begins with.
RunEvent FirstEvent(const Session& session, const RunFacts& facts) {
  RunEvent event;
  event.step = session.first_step;
  event.kind = session.Restarted()            ? kRestartEvent
               : session.resumed_from.empty() ? kStartEvent
                                              : kResumeEvent;
  event.text = session.resumed_from.empty()
                   ? absl::StrCat(facts.strategy, ", ", facts.precision, ", ",
                                  facts.device)
                   : absl::StrCat("from ", session.resumed_from);
  event.seconds = BootSeconds() - session.job.start_seconds;
  return event;
}

// Opens rank 0's reporter, and writes config.pbtxt, the banner and the notes of
// the job, of its data and, if not empty, `note`. After a restart by the
// launcher it prints only what is new to the user.
absl::Status OpenReporter(Session* session, const std::string& note) {
  const TrainJob& job = session->job;
  const RunParts& parts = session->parts;
  const RunConfig& config = session->config;
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(absl::StrCat(session->output_dir, "/config.pbtxt"),
                     session->config_text));
  RunFacts facts;
  facts.name = config.name();
  facts.output_dir = session->output_dir;
  facts.world_size = session->group->size();
  facts.sequence = session->mesh().sequence;
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
  facts.eval_every = parts.evaluates() ? config.train().eval_every() : 0;
  facts.settings = SettingsOf(*session);
  facts.save_every = config.train().save_every();
  // A run that has all steps evaluates once more at its end.
  facts.evaluate_again = session->evaluate_again || !session->GoesOn();
  CAPSTAN_ASSIGN_OR_RETURN(session->reporter, Reporter::Create(facts));
  session->Event(FirstEvent(*session, facts));
  if (config.train().control()) {
    CAPSTAN_RETURN_IF_ERROR(
        session->control.Begin(session->output_dir, session->Restarted()));
  }
  if (session->Restarted()) {
    // The user knows the rest.
    session->Note(
        session->first_step > 0
            ? absl::StrCat("restarted from step ", session->first_step)
            : "restarted from the beginning: there was no checkpoint yet");
    for (size_t i = job.known_notes; i < job.notes.size(); ++i) {
      session->Note(job.notes[i]);
    }
    return absl::OkStatus();
  }
  session->reporter->Banner();
  for (const std::string& line : job.loaded.notes) {
    session->Note(line);
  }
  std::vector<const DatasetReader*> readers = parts.evaluated();
  readers.insert(readers.begin(), parts.train_data.get());
  for (const DatasetReader* data : readers) {
    for (const std::string& line : data->notes()) session->Note(line);
  }
  for (const std::string& line : job.notes) session->Note(line);
  if (!note.empty()) session->Note(note);
  return absl::OkStatus();
}

absl::Status StartReporter(Session* session, const std::string& note) {
  return Agree(*session->group,
               session->group->rank() == 0 ? OpenReporter(session, note)
                                           : absl::OkStatus(),
               "open its output");
}

// On the slowest rank, since the run's first process was executed.
double SecondsSinceStart(const RunPlan& plan) {
  const std::vector<double> all =
      FromAllRanks(*plan.group, BootSeconds() - plan.job.start_seconds);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

void ComputeDeterministically() {
  // Read when cuBLAS creates its first handle (CUDA's documentation, "cuBLAS,
  // results reproducibility").
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // Has MKL's products round the same way on any number of threads and at any
  // address (oneMKL Developer Guide, "Reproducibility Conditions"); read at
  // MKL's first call.
  setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  // Only told to warn, flash and memory-efficient attention still add up
  // gradients by atomic operations.
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // The gradients of cuDNN's attention always are.
  context.setSDPUseCuDNN(false);
  context.setDeterministicCuDNN(true);
  // It chooses algorithms by their speed in this run.
  context.setBenchmarkCuDNN(false);
  // Otherwise all new memory would be filled with NaN, which costs a pass over
  // it; nothing of ours reads what it hasn't written.
  context.setDeterministicFillUninitializedMemory(false);
}

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
  SetUpReaders(&session);
  const DataOrder order =
      OrderOfRun(config, session.parts, session.job.batch.global_batch_size);
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
  CAPSTAN_RETURN_IF_ERROR(run->step.BeginWitness());
  const double ready_seconds = SecondsSinceStart(session);
  run->records.Begin(ready_seconds);
  run->log.Begin(ready_seconds);
  return true;
}

}  // namespace capstan
