// SPDX-License-Identifier: Apache-2.0
//
// A run: the loop over steps, and the end. Set-up is in set_up.cc, the step in
// step.cc, what is done between steps in due_actions.cc.
#include "trainer/session/train.h"

#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "cluster/launch/cores.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/progress.h"
#include "cluster/watch/watchdog.h"
#include "trainer/metrics/event_log.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/check_final.h"
#include "trainer/session/due_actions.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/obey.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/rank_run.h"
#include "trainer/session/session.h"
#include "trainer/session/set_up.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// How long rank 0 waits for the others' parts of a checkpoint when a run ends
// with an error; the launcher waits longer for the ranks.
constexpr std::chrono::milliseconds kSaveGrace{500};

class Training {
 public:
  Training(TrainJob* job, const RankInfo& rank) : run_(job, rank) {}

  // Runs all of it. An error ends the others' collectives, too.
  absl::Status Run();

 private:
  absl::Status RunPhases();
  absl::Status Step();
  absl::Status AfterStep();
  // The last actions and the summary.
  absl::Status End();
  // Of ranks that leave since the run goes on with other hosts: makes sure that
  // what it goes on from outlives them.
  absl::Status Leave();
  absl::Status Upload();
  RunEvent LastEvent(const absl::Status& status) const;
  // The status of a run stopped by a signal.
  absl::Status Stopped() const;

  RankRun run_;
  Session& session_ = run_.session;
  bool set_up_ = false;
};

absl::Status Training::Run() {
  const absl::Status ended =
      WhoseCode::Explain(CatchAll([this] { return RunPhases(); }));
  const absl::Status status = ExplainLostGpu(ended, session_, set_up_);
  run_.log.End();
  session_.Event(LastEvent(status));
  run_.checkpoints.RanksMayLeave();
  PhaseGroup* const phases =
      session_.group == nullptr ? nullptr : PhaseGroupOf(*session_.group);
  if (phases != nullptr && !status.ok() && !absl::IsCancelled(status) &&
      !IsLostPeer(status) && !IsRankHasLeft(status)) {
    phases->FailPhase(absl::StrCat("rank ", session_.group->rank(),
                                   " failed: ", status.message()));
  }
  // What the others have done is worth keeping.
  if (!status.ok()) session_.background_save.CompleteAlone(kSaveGrace);
  // Its destructor waits for copies behind what a GPU may be stuck in, while
  // the launcher waits for the error. The process ends soon.
  if (!status.ok() && session_.mirror != nullptr &&
      session_.group->device().is_cuda()) {
    session_.mirror.release();
  }
  return status;
}

RunEvent Training::LastEvent(const absl::Status& status) const {
  const int64_t step = session_.state.step;
  if (absl::IsCancelled(status)) {
    return {kStopEvent, step, std::string(status.message())};
  }
  if (IsRankHasLeft(status)) {
    return {kNoteEvent, step,
            absl::StrCat("after step ", step, " ", status.message())};
  }
  return {kEndEvent, step,
          status.ok() ? absl::StrCat("completed after step ", step)
                      : absl::StrCat("failed: ", status.message())};
}

absl::Status Training::RunPhases() {
  const absl::StatusOr<bool> begins = SetUp(&run_);
  if (absl::IsCancelled(begins.status())) return Stopped();
  CAPSTAN_RETURN_IF_ERROR(begins.status());
  set_up_ = *begins;
  if (!set_up_) return Upload();
  // A signal may have arrived meanwhile.
  CAPSTAN_RETURN_IF_ERROR(session_.StopIfCancelled(
      AgreeOrStop(*session_.group, StopStatus(), "start")));
  CAPSTAN_RETURN_IF_ERROR(ActAtStart(&run_));

  const double began = MonotonicSeconds();
  while (session_.GoesOn()) {
    CAPSTAN_RETURN_IF_ERROR(Step());
    if (run_.step.left()) {
      // Which answers who has asked for it.
      if (session_.control_requested) CAPSTAN_RETURN_IF_ERROR(Obey(&run_));
      continue;
    }
    CAPSTAN_RETURN_IF_ERROR(AfterStep());
    session_.saving_cost.train_seconds = MonotonicSeconds() - began;
  }
  if (session_.leaving && !session_.stopping &&
      session_.state.step < session_.max_steps) {
    return Leave();
  }
  run_.checkpoints.RanksMayLeave();
  CAPSTAN_RETURN_IF_ERROR(End());
  return session_.stopping ? Stopped() : Upload();
}

absl::Status Training::Step() {
  const Watchdog::Activity activity(run_.watchdog.get(), "step",
                                    session_.state.step + 1);
  run_.log.StepBegins();
  run_.slow_hosts.StepBegins();
  const absl::Status done = run_.step.Run(*run_.loader);
  if (run_.step.rollout_failed() && run_.step.concluded() &&
      session_.state.step > session_.first_step) {
    return run_.checkpoints.SaveBefore(done);
  }
  CAPSTAN_RETURN_IF_ERROR(done);
  if (!run_.step.left()) {
    run_.log.StepEnds();
    run_.slow_hosts.StepEnds();
  }
  return absl::OkStatus();
}

absl::Status Training::AfterStep() {
  const int64_t step = session_.state.step;
  StepFinished(step);
  if (ActionScheduled(run_) || session_.stopping || session_.leaving ||
      step == session_.max_steps) {
    const auto phase = run_.Doing("step's end");
    CAPSTAN_RETURN_IF_ERROR(run_.step.CatchUp());
  }
  return ActAfterStep(&run_);
}

absl::Status Training::Leave() {
  run_.loader.reset();
  const auto phase = run_.Doing("leaving");
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  CAPSTAN_RETURN_IF_ERROR(run_.checkpoints.SaveToLeave());
  run_.checkpoints.RanksMayLeave();
  // None leaves before all may.
  CAPSTAN_RETURN_IF_ERROR(Agree(*session_.group, absl::OkStatus(), "leave"));
  return RankHasLeft();
}

absl::Status Training::End() {
  run_.loader.reset();
  const Watchdog::Activity activity(run_.watchdog.get(), "finishing",
                                    session_.state.step);
  CAPSTAN_RETURN_IF_ERROR(ActAtEnd(&run_));
  absl::Status status = WriteOutput(&run_);
  status.Update(run_.step.receipts_status());
  if (StepWitness* const witness = run_.step.witness(); witness != nullptr) {
    status.Update(witness->End());
  }
  RunSummary summary = run_.records.Summary();
  // After the summary, whose peak of memory it isn't to raise.
  if (!session_.stopping) {
    const absl::Status same =
        CheckFinal(session_.output_dir + "/final", &session_);
    if (!same.ok()) summary.status = "failed";
    status.Update(same);
  }
  const absl::Status diverged =
      session_.stopping ? absl::OkStatus() : run_.divergence.CheckLosses();
  if (!diverged.ok()) summary.status = "failed";
  if (Reporter* const reporter = session_.reporter.get(); reporter != nullptr) {
    reporter->Finish(summary);
    status.Update(reporter->status());
  }
  // Once the ranks have met here, all have written theirs, which the report
  // that is made after the last event shows.
  run_.log.End();
  CAPSTAN_RETURN_IF_ERROR(Agree(*session_.group, status, "write its output"));
  return diverged;
}

// Last, as it may take long: no other rank waits for it.
absl::Status Training::Upload() {
  if (session_.group->rank() != 0 || !run_.checkpoints.AwaitsUpload()) {
    return absl::OkStatus();
  }
  return run_.checkpoints.UploadFinal();
}

absl::Status Training::Stopped() const {
  const TrainJob& job = session_.job;
  std::vector<std::string> words = job.command;
  if (session_.end_was_told && !words.empty()) {
    words.insert(words.end(), {"--set", absl::StrCat("train.max_steps=",
                                                     session_.max_steps)});
  }
  const std::string command =
      ResumeCommand(words, session_.config, session_.output_dir);
  const std::string how =
      job.folder.path.empty()
          ? absl::StrCat("go on with the same launcher, and: ", command)
          : absl::StrCat("go on with: ", command);
  const std::string why =
      StopRequested() == SIGXCPU
          ? absl::StrCat(CpuLimitText(), " are nearly used up: ")
          : "";
  if (session_.state.step == 0 && session_.Restarted()) {
    return absl::CancelledError(absl::StrCat(
        why,
        "stopped before the run went on: what it has done since its last "
        "checkpoint is lost; ",
        how));
  }
  if (session_.state.step == 0) {
    return absl::CancelledError(absl::StrCat(
        why, "stopped before the first step: there is nothing to save; ", how));
  }
  return absl::CancelledError(absl::StrCat(why, "stopped after step ",
                                           session_.state.step, "; saved in ",
                                           session_.output_dir, "; ", how));
}

}  // namespace

absl::Status RunTraining(TrainJob* job, const RankInfo& rank) {
  const Launch& launch = job->loaded.config.launch();
  auto training = std::make_unique<Training>(
      job, launch.binding() == Launch::UNBOUND ? rank
                                               : BindToCores(rank, job->gpus));
  absl::Status status = training->Run();
  // Freeing memory that two streams have used asks the GPU for an event, and
  // throws from destructors if it is lost: the process would end before it has
  // told the error. It ends soon anyway.
  if (!status.ok() && GpuIsLost()) training.release();
  return status;
}

}  // namespace capstan
