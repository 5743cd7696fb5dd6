// SPDX-License-Identifier: Apache-2.0
//
// A run: set-up, the loop over steps, the end. A step is in step.cc.
#include "trainer/session/train.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/output_file.h"
#include "base/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/process_group/agree.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/hub_upload.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/resume.h"
#include "trainer/session/set_up.h"

namespace capstan {
namespace {

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

  absl::Status Run();

 private:
  // Sets finished_before_.
  absl::Status SetUp();
  // The last evaluation, checkpoint and samples, and the final folder; a signal
  // leaves only the checkpoint.
  absl::Status SaveAll();
  absl::Status Finish();
  // What the run says when a signal has stopped it.
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
  std::unique_ptr<Profiler> profiler_;  // null: no step is profiled
  bool finished_before_ = false;
};

absl::Status Training::Run() {
  const absl::Status set_up = SetUp();
  if (absl::IsCancelled(set_up)) return Stopped();
  CAPSTAN_RETURN_IF_ERROR(set_up);
  if (finished_before_) return absl::OkStatus();
  // A signal may have come meanwhile.
  CAPSTAN_RETURN_IF_ERROR(session_.StopIfCancelled(
      AgreeOrStop(*session_.group, StopStatus(), "start")));
  if (!session_.stopping) CAPSTAN_RETURN_IF_ERROR(evaluator_.CatchUp());

  const Train& train = session_.config.train();
  const bool& stopping = session_.stopping;
  while (session_.GoesOn()) {
    CAPSTAN_RETURN_IF_ERROR(step_.Run(*loader_));
    const int64_t step = session_.state.step;
    const bool evaluate = Due(train.eval_every(), step);
    const bool save = Due(train.save_every(), step);
    if (evaluate || save || stopping || step == session_.max_steps) {
      CAPSTAN_RETURN_IF_ERROR(step_.CatchUp());
    }
    if (evaluate && !stopping) {
      CAPSTAN_RETURN_IF_ERROR(evaluator_.Evaluate());
    }
    if (evaluate && session_.GoesOn()) {
      CAPSTAN_RETURN_IF_ERROR(
          evaluator_.Sample(absl::StrCat("after step ", step)));
    }
    if (save || stopping) CAPSTAN_RETURN_IF_ERROR(checkpoints_.Save());
  }
  return Finish();
}

absl::Status Training::SetUp() {
  PrepareProcess(session_);
  CAPSTAN_RETURN_IF_ERROR(JoinRanks(&session_));
  const RunConfig& config = session_.config;
  const BatchPlan& batch = session_.job.batch;
  ProcessGroup& group = *session_.group;
  if (const auto& steps = config.profile().steps(); !steps.empty()) {
    profiler_ = std::make_unique<Profiler>(
        std::set<int64_t>(steps.begin(), steps.end()));
  }
  DataLoaderOptions options;
  options.order =
      OrderOf(*session_.parts.train_data, config.train().seed(),
              config.batch().group_by_length(), batch.global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(SetUpStrategy(&session_, [&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(step_.SetUp(read_, profiler_.get()));
    return checkpoints_.Restore(options.order);
  }));
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckStart());
  // Only now: all ranks have masters.
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, session_.Publish(), "publish parameters"));
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
  loader_ = DataLoader::Create(options, *session_.parts.train_data);
  CAPSTAN_RETURN_IF_ERROR(StartReporter(&session_, note));
  records_.set_ready_seconds(SecondsSinceStart(session_));
  return absl::OkStatus();
}

absl::Status Training::SaveAll() {
  const bool& stopping = session_.stopping;
  if (!stopping) CAPSTAN_RETURN_IF_ERROR(evaluator_.Evaluate());
  if (!stopping) CAPSTAN_RETURN_IF_ERROR(divergence_.CheckEnd());
  if (session_.state.step > 0) CAPSTAN_RETURN_IF_ERROR(checkpoints_.Save());
  if (stopping) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(checkpoints_.RestoreBest());
  CAPSTAN_RETURN_IF_ERROR(evaluator_.Sample("after training"));
  return stopping ? absl::OkStatus() : checkpoints_.SaveFinal();
}

absl::Status Training::Finish() {
  loader_.reset();
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
  // Last, since it takes its time: no other rank waits for it.
  if (reporter == nullptr || !session_.config.has_hub_upload()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> told =
      UploadToHub(session_.config.hub_upload(), session_.output_dir + "/final");
  if (told.ok()) reporter->Note(*told);
  return told.status();
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
  return Training(job, rank, read).Run();
}

}  // namespace capstan
