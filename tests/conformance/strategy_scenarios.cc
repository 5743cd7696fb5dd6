// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_scenarios.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/conformance/strategy_checks.h"

namespace capstan {
namespace conformance {
namespace {

// One scenario on one rank.
class ScenarioRun {
 public:
  ScenarioRun(const LoadedPluginUnderTest& plugin, const Scenario& scenario,
              ProcessGroup* group, RankReport* report)
      : plugin_(plugin), scenario_(scenario), group_(group), report_(report) {}

  absl::Status Run() {
    report_->Begin(scenario_.name);
    CAPSTAN_ASSIGN_OR_RETURN(
        trainer_, ToyTrainer::Create(plugin_, scenario_.run, group_));
    CAPSTAN_RETURN_IF_ERROR(Body());
    report_->Add(scenario_.name + "/end", {});
    return absl::OkStatus();
  }

 private:
  absl::Status Body() {
    switch (scenario_.kind) {
      case Scenario::kTrain:
        return Train();
      case Scenario::kEvaluate:
        return TrainAndEvaluate();
      case Scenario::kBroken:
        return TrainThroughABrokenStep();
      case Scenario::kResume:
        return Resume();
      case Scenario::kFault:
        return Fail();
      case Scenario::kExport:
        return TrainAndExport();
    }
    return absl::InternalError("no such scenario");
  }

  absl::Status Step(const std::vector<StepFault>& faults = {}) {
    CAPSTAN_ASSIGN_OR_RETURN(const StepOutcome outcome, trainer_->Step(faults));
    report_->Add(scenario_.name + "/step",
                 {outcome.loss, outcome.norm, outcome.applied ? 1.0 : 0.0});
    CheckShared(*trainer_, group_, report_);
    return absl::OkStatus();
  }

  absl::Status ReportEnd() {
    CheckShards(*trainer_, /*gradients=*/true, report_);
    ReportOwned(scenario_.name, *trainer_, report_);
    return ReportFull(scenario_.name, *trainer_, group_->rank(), report_);
  }

  absl::Status Train() {
    CheckBinding(*trainer_, report_);
    CheckShards(*trainer_, /*gradients=*/false, report_);
    CAPSTAN_RETURN_IF_ERROR(ReportFull(scenario_.name + "/start", *trainer_,
                                       group_->rank(), report_));
    double elements = 0.0;
    for (const OptimizerShard& s : trainer_->strategy().OptimizerShards()) {
      elements += static_cast<double>(s.master.numel());
    }
    report_->Add(scenario_.name + "/elements", {elements});
    const ShardSnapshot start(*trainer_);
    const std::vector<at::Tensor> shared = SharedMasters(*trainer_);
    for (int step = 0; step < scenario_.steps; ++step) {
      if (step == kSavedStep && !scenario_.folder.empty()) {
        CAPSTAN_RETURN_IF_ERROR(trainer_->Save(scenario_.folder));
      }
      CAPSTAN_RETURN_IF_ERROR(Step());
      if (step == 0) CheckOwnGradients(*trainer_, group_, report_);
    }
    if (trainer_->strategy().local_steps() && scenario_.steps >= kSavedRun &&
        AllSame(shared, SharedMasters(*trainer_))) {
      report_->Problem(
          kSharedTopic,
          absl::StrCat("EndStep has not synchronised in ", scenario_.steps,
                       " steps: SharedMaster is what it was at first (give "
                       "the suite a config that synchronises more often)"));
    }
    const std::string moved = start.Moved(*trainer_);
    if (!moved.empty()) {
      report_->Problem(kShardsTopic,
                       absl::StrCat("not the tensors of Setup: ", moved));
    }
    return ReportEnd();
  }

  void Evaluate() {
    const ShardSnapshot before(*trainer_);
    report_->Add(scenario_.name + "/eval", {trainer_->Evaluate()});
    if (!trainer_->strategy().local_steps()) return;
    const double loss = trainer_->Evaluate(ToyFault::kNone, /*batch_of=*/0);
    if (!SameOnAllRanks(loss, group_)) {
      report_->Problem(kSharedTopic,
                       "after UseSharedModel(true) the ranks compute with "
                       "different models");
    }
    const std::string difference = before.Difference(*trainer_);
    if (!difference.empty()) {
      report_->Problem(
          kSharedTopic,
          absl::StrCat("UseSharedModel(false) has not brought back this "
                       "rank's ",
                       difference));
    }
  }

  // Evaluates before the first step and after the second and third; after the
  // second, some ranks can't take part.
  absl::Status TrainAndEvaluate() {
    Evaluate();
    for (int step = 0; step < scenario_.steps; ++step) {
      CAPSTAN_RETURN_IF_ERROR(Step());
      if (step == 1) {
        EvaluateUnevenly();
        Evaluate();
      }
      if (step == 2) Evaluate();
    }
    return ReportEnd();
  }

  void EvaluateUnevenly() {
    const int last = group_->size() - 1;
    if (group_->rank() == last) {
      trainer_->EvaluateNothing();
    } else {
      trainer_->Evaluate();
    }
    try {
      trainer_->Evaluate(group_->rank() == 0 ? ToyFault::kThrowInForward
                                             : ToyFault::kNone);
      if (group_->rank() == 0) {
        report_->Problem(kEvaluationTopic, "the fault in forward was lost");
      }
    } catch (const CommunicationError&) {
      throw;
    } catch (const std::exception&) {
      // Completed by FinishForward.
    }
    // Samples are rank 0's alone.
    if (!trainer_->strategy().collective_forward() && group_->rank() == 0) {
      trainer_->Evaluate();
    }
  }

  absl::Status TrainThroughABrokenStep() {
    for (int step = 0; step < scenario_.steps; ++step) {
      if (step != kBrokenStep) {
        CAPSTAN_RETURN_IF_ERROR(Step());
        continue;
      }
      const ShardSnapshot before(*trainer_);
      CAPSTAN_RETURN_IF_ERROR(
          Step({{group_->size() - 1, /*micro_step=*/0,
                 /*out_of_data=*/false, ToyFault::kInfiniteGradient}}));
      // One with local steps may have synchronised.
      const std::string difference = trainer_->strategy().local_steps()
                                         ? ""
                                         : before.Difference(*trainer_);
      if (!difference.empty()) {
        report_->Problem(
            kNonFiniteTopic,
            absl::StrCat("a step that was skipped has changed ", difference));
      }
      CAPSTAN_RETURN_IF_ERROR(SaveAndLookAtIt(ShardSnapshot(*trainer_)));
    }
    return ReportEnd();
  }

  absl::Status SaveAndLookAtIt(const ShardSnapshot& want) {
    CAPSTAN_RETURN_IF_ERROR(trainer_->Save(scenario_.folder));
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::unique_ptr<ToyTrainer> other,
        ToyTrainer::Create(plugin_, scenario_.run, group_));
    CAPSTAN_RETURN_IF_ERROR(other->Load(scenario_.folder));
    if (!ShardSnapshot(*other).finite()) {
      report_->Problem(kNonFiniteTopic, "the checkpoint is not finite");
    }
    const std::string difference = want.Difference(*other);
    if (!difference.empty()) {
      report_->Problem(kNonFiniteTopic,
                       absl::StrCat("the checkpoint has other ", difference));
    }
    return absl::OkStatus();
  }

  absl::Status Resume() {
    CAPSTAN_RETURN_IF_ERROR(trainer_->Load(scenario_.folder));
    CheckShards(*trainer_, /*gradients=*/false, report_);
    for (int step = kSavedStep; step < scenario_.steps; ++step) {
      CAPSTAN_RETURN_IF_ERROR(Step());
    }
    return ReportEnd();
  }

  // As the core after a run's last step, which may be within a round.
  absl::Status TrainAndExport() {
    for (int step = 0; step < scenario_.steps; ++step) {
      CAPSTAN_RETURN_IF_ERROR(Step());
    }
    Strategy& strategy = trainer_->strategy();
    const std::vector<at::Tensor> before = SharedMasters(*trainer_);
    std::vector<at::Tensor> own;
    for (const OptimizerShard& shard : strategy.OptimizerShards()) {
      own.push_back(shard.master);
    }
    double apart[] = {AllSame(own, before) ? 0.0 : 1.0};
    group_->AllReduceHost(absl::MakeSpan(apart));
    if (strategy.local_steps() && !FullParametersAreShared(*trainer_)) {
      report_->Problem(kExportTopic,
                       "ForEachFullParameter has other values than the shared "
                       "model");
    }
    strategy.BeforeExport();
    if (strategy.local_steps()) {
      CheckShared(*trainer_, group_, report_);
      if (apart[0] > 0.0 && AllSame(before, SharedMasters(*trainer_))) {
        report_->Problem(kExportTopic,
                         "BeforeExport has left the ranks' last steps out of "
                         "the shared model");
      }
    }
    CAPSTAN_RETURN_IF_ERROR(ExportAgain(trainer_.get(), "called once more"));
    CAPSTAN_RETURN_IF_ERROR(trainer_->Save(scenario_.folder));
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::unique_ptr<ToyTrainer> other,
        ToyTrainer::Create(plugin_, scenario_.run, group_));
    CAPSTAN_RETURN_IF_ERROR(other->Load(scenario_.folder));
    return ExportAgain(other.get(), "called by a run that is resumed there");
  }

  // BeforeExport then has nothing left to do.
  absl::Status ExportAgain(ToyTrainer* trainer, const char* when) {
    const ShardSnapshot before(*trainer);
    const std::vector<at::Tensor> shared = SharedMasters(*trainer);
    trainer->strategy().BeforeExport();
    if (!before.Difference(*trainer).empty() ||
        !AllSame(shared, SharedMasters(*trainer))) {
      report_->Problem(kExportTopic,
                       absl::StrCat("BeforeExport, ", when,
                                    ", has changed the model again"));
    }
    return absl::OkStatus();
  }

  absl::Status Fail() {
    CAPSTAN_RETURN_IF_ERROR(Step());
    CAPSTAN_ASSIGN_OR_RETURN(const StepOutcome outcome,
                             trainer_->Step(scenario_.faults));
    if (outcome.failed_ranks != scenario_.faults.size()) {
      report_->Problem(
          kFaultTopic,
          absl::StrCat(scenario_.name, ": ", outcome.failed_ranks,
                       " ranks failed, not ", scenario_.faults.size()));
    }
    // All ranks have got here: none has an extra collective.
    double sums[] = {1.0, static_cast<double>(group_->rank())};
    group_->AllReduceHost(absl::MakeSpan(sums));
    const int size = group_->size();
    if (sums[0] != size || sums[1] != size * (size - 1) / 2) {
      report_->Problem(kFaultTopic, absl::StrCat(scenario_.name,
                                                 ": the ranks are in "
                                                 "different collectives"));
    }
    return absl::OkStatus();
  }

  const LoadedPluginUnderTest& plugin_;
  const Scenario& scenario_;
  ProcessGroup* const group_;
  RankReport* const report_;
  std::unique_ptr<ToyTrainer> trainer_;
};

Scenario Make(const std::string& name, Scenario::Kind kind, int accumulation) {
  Scenario scenario;
  scenario.name = name;
  scenario.kind = kind;
  scenario.run.accumulation = accumulation;
  return scenario;
}

}  // namespace

int AccumulationOf(int world) {
  constexpr int kAccumulation[] = {4, 2, 2, 3};
  return kAccumulation[world - 1];
}

std::vector<Scenario> TrainingScenarios(int world, const std::string& folder) {
  const int accumulation = AccumulationOf(world);
  std::vector<Scenario> all;
  const auto add = [&](const std::string& name, Scenario::Kind kind,
                       int micro_steps) -> Scenario& {
    all.push_back(Make(name, kind, micro_steps));
    return all.back();
  };
  add("whole", Scenario::kTrain, 1).steps = world <= 2 ? kLongRun : kSavedRun;
  Scenario& accumulated = add("accumulated", Scenario::kTrain, accumulation);
  accumulated.steps = kSavedRun;
  accumulated.folder = folder;
  Scenario& matrices = add("matrices", Scenario::kTrain, accumulation);
  matrices.run.matrices = true;
  matrices.steps = kSavedRun;
  matrices.folder = folder + "/matrices";
  Scenario& deterministic =
      add("deterministic", Scenario::kTrain, accumulation);
  deterministic.run.deterministic = true;
  deterministic.folder = folder + "/deterministic";
  if (world == 4) return all;
  add("evaluated", Scenario::kEvaluate, accumulation);
  Scenario& exported = add("exported", Scenario::kExport, accumulation);
  exported.steps = kExportedRun;
  exported.folder = folder + "/exported";
  Scenario& narrow = add("bf16", Scenario::kTrain, accumulation);
  narrow.run.precision = ToyBf16();
  narrow.folder = folder + "/bf16";
  add("broken_fp32", Scenario::kBroken, accumulation).folder =
      folder + "/broken_fp32";
  if (world == 3) return all;
  Scenario& fp16 = add("broken_fp16", Scenario::kBroken, accumulation);
  fp16.run.precision = ToyFp16();
  fp16.folder = folder + "/broken_fp16";
  add("recomputed", Scenario::kEvaluate, accumulation).run.recompute_every = 1;
  Scenario& bf16 = add("bf16_recomputed", Scenario::kTrain, accumulation);
  bf16.run.precision = ToyBf16();
  bf16.run.recompute_every = 2;
  return all;
}

std::vector<Scenario> ResumeScenarios(int ranks,
                                      const std::vector<std::string>& folders) {
  std::vector<Scenario> all;
  for (size_t i = 1; i < folders.size(); ++i) {
    if (folders[i].empty()) continue;
    const int from = static_cast<int>(i);
    const int micro_batches = from * AccumulationOf(from);
    const bool dealt = micro_batches % ranks == 0;
    const auto add = [&](const std::string& which) {
      const std::string folder =
          folders[i] + (which.empty() ? "" : "/" + which);
      if (NewestCheckpoint(folder).empty()) return;
      all.push_back(
          Make(absl::StrCat(which, which.empty() ? "" : "_", "from_", from),
               Scenario::kResume, dealt ? micro_batches / ranks : 1));
      all.back().folder = folder;
      const bool is_short = which == "bf16" || which == "deterministic";
      all.back().steps = is_short ? kShortRun : kSavedRun;
      all.back().run.matrices = which == "matrices";
      all.back().run.deterministic = which == "deterministic";
      if (which == "bf16") all.back().run.precision = ToyBf16();
    };
    add("");
    add("matrices");
    if (from != ranks && from != ranks % kMaxWorld + 1) continue;
    add("deterministic");
    // Other micro-batches would round otherwise.
    if (dealt) add("bf16");
  }
  return all;
}

std::vector<Scenario> FaultScenarios(int world) {
  std::vector<Scenario> all;
  const auto add = [&](const std::string& name, std::vector<StepFault> faults) {
    all.push_back(Make(name, Scenario::kFault, 2));
    all.back().faults = std::move(faults);
  };
  if (world > 2) {  // One between others.
    add("end_of_data", {{1, 0, true, ToyFault::kNone}});
    add("forward", {{1, 1, false, ToyFault::kThrowInForward}});
    add("backward", {{1, 0, false, ToyFault::kThrowInBackward}});
    return all;
  }
  for (int rank : {0, 1}) {
    for (int micro : {0, 1}) {
      const std::string where =
          absl::StrCat("_of_rank_", rank, "_in_micro_step_", micro);
      add("end_of_data" + where, {{rank, micro, true, ToyFault::kNone}});
      add("forward" + where, {{rank, micro, false, ToyFault::kThrowInForward}});
      add("backward" + where,
          {{rank, micro, false, ToyFault::kThrowInBackward}});
    }
  }
  add("recomputed_forward", {{0, 0, false, ToyFault::kThrowInForward}});
  all.back().run.recompute_every = 1;
  add("recomputed_backward", {{0, 1, false, ToyFault::kThrowInBackward}});
  all.back().run.recompute_every = 1;
  add("forward_and_backward_of_two_ranks",
      {{0, 1, false, ToyFault::kThrowInBackward},
       {world - 1, 0, false, ToyFault::kThrowInForward}});
  return all;
}

absl::Status RunScenarios(const LoadedPluginUnderTest& plugin,
                          const std::vector<Scenario>& scenarios,
                          ProcessGroup* group, RankReport* report) {
  for (const Scenario& scenario : scenarios) {
    CAPSTAN_RETURN_IF_ERROR(ScenarioRun(plugin, scenario, group, report).Run());
  }
  return absl::OkStatus();
}

}  // namespace conformance
}  // namespace capstan
