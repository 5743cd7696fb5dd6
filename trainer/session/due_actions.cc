// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/due_actions.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/metrics/reporter.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/obey.h"
#include "trainer/session/step_witness.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// All ranks do the same actions: `due` and `scheduled` depend only on what is
// the same on all of them, such as config, step and session.stopping.
struct DueAction {
  // Its name in the watchdog and profiling tools, a literal; null: it has none.
  const char* name;
  // Whether to do it now; called once the previous actions are done.
  bool (*due)(const RankRun& run);
  // An error ends the run.
  absl::Status (*act)(RankRun* run);
  // Whether it is scheduled for the step just done, whose sums are then read
  // before any action; for what reads the step's numbers or the weights. Null:
  // never.
  bool (*scheduled)(const RankRun& run) = nullptr;
};

bool NotStopped(const RankRun& run) { return !run.session.stopping; }

bool EvaluationScheduled(const RankRun& run) {
  const Session& session = run.session;
  return Due(session.config.train().eval_every(), session.state.step);
}

bool EvaluationDue(const RankRun& run) {
  return EvaluationScheduled(run) && NotStopped(run);
}

absl::Status EvaluateNow(RankRun* run) { return run->evaluator.Evaluate(); }

// An evaluation may have ended the run.
bool SampleDue(const RankRun& run) {
  return EvaluationScheduled(run) &&
         (run.session.GoesOn() || run.session.leaving);
}

absl::Status SampleAfterStep(RankRun* run) {
  return run->evaluator.Sample(
      absl::StrCat("after step ", run->session.state.step));
}

bool SaveScheduled(const RankRun& run) {
  const Session& session = run.session;
  return Due(session.config.train().save_every(), session.state.step);
}

// A mirrored run may have died while saving the step that it goes on from.
bool FirstSaveDue(const RankRun& run) {
  return run.session.GoesOn() && run.session.first_step > 0 &&
         SaveScheduled(run);
}

bool SaveDue(const RankRun& run) {
  return SaveScheduled(run) && NotStopped(run);
}

absl::Status SaveNow(RankRun* run) { return run->checkpoints.Save(); }

bool MirrorDue(const RankRun& run) {
  return run.checkpoints.MirrorDue() ||
         (run.session.leaving && run.session.mirror != nullptr);
}

// Where an evaluation follows, or nothing, the host waits for it: the state is
// to be mirrored again, or there is no step to hold up.
absl::Status MirrorNow(RankRun* run) {
  const bool wait = EvaluationDue(*run) || !run->session.GoesOn();
  return run->checkpoints.Mirror(
      {/*again=*/false, wait, /*concluded=*/run->step.concluded()});
}

bool MirrorAgainDue(const RankRun& run) {
  return MirrorDue(run) && EvaluationDue(run);
}

// Mirrors again after an evaluation, which a restart would repeat otherwise.
// First completes the best checkpoint that the evaluation may have begun.
absl::Status MirrorAgain(RankRun* run) {
  Session& session = run->session;
  if (KeepsBest(session.config.train())) {
    CAPSTAN_RETURN_IF_ERROR(session.background_save.Settle(*session.group));
  }
  return run->checkpoints.Mirror(
      {/*again=*/true, /*wait=*/!session.GoesOn(), /*concluded=*/true});
}

bool LastStepDone(const RankRun& run) {
  return run.session.state.step == run.session.max_steps && NotStopped(run);
}

// The strategy completes what is pending.
absl::Status CompleteModel(RankRun* run) {
  Session& session = run->session;
  session.BeforeChange();
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(*session.group, CatchAll([&] {
    const WhoseCode code(session.plugins.strategy, "BeforeExport");
    session.parts.strategy->BeforeExport();
    return absl::OkStatus();
  }),
                                                "complete the model"));
  return run->step.NoteReplaced("the strategy completed the model");
}

bool ControlRequested(const RankRun& run) {
  return run.session.control_requested && NotStopped(run);
}

// What was asked of the ranks before they were restarted, and mayn't have been
// done.
bool ControlAgain(const RankRun& run) {
  return run.session.config.train().control() && run.session.Restarted() &&
         NotStopped(run);
}

bool GoingBack(const RankRun& run) { return run.session.going_back; }

// Returns to the last checkpoint after a loss spike (LossSpikes::GO_BACK). With
// deferred sums the step after the spike is concluded first, which may withdraw
// the request.
absl::Status GoBackNow(RankRun* run) {
  CAPSTAN_RETURN_IF_ERROR(run->step.CatchUp());
  if (!std::exchange(run->session.going_back, false)) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(run->checkpoints.GoBack());
  return run->step.NoteReplaced("a spike of the loss: back to a checkpoint");
}

// The order is the run's: what an action does may stop those after it, and all
// ranks make its collectives in this order.

constexpr DueAction kAtStart[] = {
    {"control", ControlAgain, Obey},
    // It has a name of its own because it is usually a no-op, which must not
    // train the hang limit of evaluations.
    {"catching up", NotStopped,
     [](RankRun* run) { return run->evaluator.CatchUp(); }},
    {"saving", FirstSaveDue, SaveNow},
};

constexpr DueAction kAfterStep[] = {
    // First, as it may make this step the last.
    {"control", ControlRequested, Obey},
    {"going back", GoingBack, GoBackNow},
    {"completing the model", LastStepDone, CompleteModel},
    {nullptr, [](const RankRun& run) { return run.session.mirror != nullptr; },
     [](RankRun* run) {
       run->checkpoints.CompleteMirror();
       return absl::OkStatus();
     }},
    // Even after a signal.
    {nullptr, MirrorDue, MirrorNow},
    {"evaluation", EvaluationDue, EvaluateNow, EvaluationScheduled},
    {"sampling", SampleDue, SampleAfterStep},
    {"saving the best", MirrorAgainDue, MirrorAgain},
    {"saving", SaveDue, SaveNow, SaveScheduled},
    {"judging hosts", [](const RankRun& run) { return run.slow_hosts.Due(); },
     [](RankRun* run) { return run->slow_hosts.Judge(); }},
};

constexpr DueAction kAtEnd[] = {
    // Of a run that was stopped after its last step; else there is nothing
    // left.
    {"completing the model", LastStepDone, CompleteModel},
    {"evaluation", NotStopped, EvaluateNow},
    {nullptr, NotStopped,
     [](RankRun* run) { return run->divergence.CheckEnd(); }},
    // In the foreground, even after a signal.
    {"the last save",
     [](const RankRun& run) { return run.session.state.step > 0; },
     [](RankRun* run) { return run->checkpoints.SaveLast(); }},
    // final/ may get other weights than the last checkpoint.
    {nullptr, NotStopped,
     [](RankRun* run) {
       CAPSTAN_RETURN_IF_ERROR(run->checkpoints.RestoreBest());
       if (run->step.witness() != nullptr) run->step.witness()->Replaced();
       return absl::OkStatus();
     }},
    {"sampling", NotStopped,
     [](RankRun* run) { return run->evaluator.Sample("after training"); }},
    {nullptr, NotStopped,
     [](RankRun* run) { return run->checkpoints.SaveFinal(); }},
};

absl::Status ActOn(absl::Span<const DueAction> actions, RankRun* run) {
  for (const DueAction& action : actions) {
    if (!action.due(*run)) continue;
    if (action.name == nullptr) {
      CAPSTAN_RETURN_IF_ERROR(action.act(run));
      continue;
    }
    const auto phase = run->Doing(action.name);
    const double start = MonotonicSeconds();
    CAPSTAN_RETURN_IF_ERROR(action.act(run));
    run->log.Did(action.name, MonotonicSeconds() - start);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ActAtStart(RankRun* run) { return ActOn(kAtStart, run); }

absl::Status ActAfterStep(RankRun* run) { return ActOn(kAfterStep, run); }

absl::Status ActAtEnd(RankRun* run) { return ActOn(kAtEnd, run); }

bool ActionScheduled(const RankRun& run) {
  for (const DueAction& action : kAfterStep) {
    if (action.scheduled != nullptr && action.scheduled(run)) return true;
  }
  return false;
}

// What the config's profile asks for: each rank's trace, and rank 0's table.
absl::Status WriteOutput(RankRun* run) {
  if (run->profiler == nullptr) return absl::OkStatus();
  const Session& session = run->session;
  const std::vector<ProfiledStep>& steps = run->profiler->steps();
  if (steps.empty()) {
    session.Note("profile: this run has done none of its steps");
    return absl::OkStatus();
  }
  const int rank = session.group->rank();
  const std::string trace =
      rank == 0 ? "trace.json" : absl::StrCat("trace.rank", rank, ".json");
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(
      absl::StrCat(session.output_dir, "/", trace), TraceJson(steps, rank)));
  Reporter* const reporter = session.reporter.get();
  if (reporter == nullptr) return absl::OkStatus();
  const StepProfile profile = Summarize(steps);
  reporter->Table(ProfileTable(profile));
  return ReplaceFile(session.output_dir + "/profile.json",
                     ProfileJson(profile));
}

}  // namespace capstan
