// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_checkpoints.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/checkpoint/background_save.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/metrics/console.h"
#include "trainer/process_group/agree.h"
#include "trainer/session/model_card.h"
#include "trainer/session/output_folder.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultKeepCheckpoints = 2;
constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

ModelCardFacts CardFacts(const Session& session, const BaseModel& base) {
  const RunParts& parts = session.parts;
  ModelCardFacts facts;
  facts.config = &session.config;
  facts.base_model = base.folder;
  facts.base_model_field = base.field;
  facts.adapter = parts.lora.has_value();
  const TokenModel* const tokens = parts.model->token_model();
  facts.texts = tokens != nullptr;
  facts.causal = tokens != nullptr && tokens->causal();
  facts.tokenizer = parts.train_data->tokenizer() != nullptr;
  facts.auto_class = AutoClass(facts.base_model);
  facts.output_dir = session.output_dir;
  if (session.reporter != nullptr)
    facts.pictures = session.reporter->pictures();
  facts.run = session.Progress();
  facts.global_batch_size = session.job.batch.global_batch_size;
  facts.training_samples = parts.train_data->size();
  for (const ParameterSpec& spec : parts.model->parameters()) {
    (spec.trainable ? facts.trained_parameters : facts.frozen_parameters) +=
        spec.numel();
  }
  facts.learning_rate = parts.optimizer->learning_rate();
  return facts;
}

// Runs the program that uploads `folder`, without a shell, with this process's
// environment and output; it manages its own token. Returns a line for the
// user: what was done (then sets *uploaded) or, without such a program, would
// have been.
absl::StatusOr<std::string> UploadToHub(const HubUpload& upload,
                                        const std::string& folder,
                                        bool* uploaded) {
  // hf upload REPO FOLDER . [--private]
  std::vector<std::string> command = {"hf", "upload", upload.repo(), folder,
                                      "."};
  if (upload.private_()) command.push_back("--private");
  const std::string shown = ShellText(command);
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command[0].c_str(), nullptr, nullptr,
                                 arguments.data(), environ);
  if (error == ENOENT || error == EACCES) {
    return absl::StrCat(
        "hub_upload: there is no program `hf` on PATH, so that "
        "nothing was uploaded; with it: ",
        shown);
  }
  if (error != 0) {
    return absl::UnknownError(absl::StrCat(
        "hub_upload: ", shown, " can't be run: ", std::strerror(error)));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    *uploaded = true;
    return absl::StrCat("uploaded ", folder, " to ", upload.repo());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "hub_upload: ", folder, " is written, but its upload failed (",
      WIFEXITED(status) ? absl::StrCat("exit code ", WEXITSTATUS(status))
                        : absl::StrCat("signal ", WTERMSIG(status)),
      "): see above for hf's own words, then: ", shown));
}

// Holds the name of the repository that final/ has been uploaded to.
std::string UploadMark(const Session& session) {
  return session.output_dir + "/.uploaded";
}

}  // namespace

absl::Status RunCheckpoints::Restore(const DataOrder& order) {
  const Train& train = session_.config.train();
  ProcessGroup& group = *session_.group;
  TrainState& state = session_.state;
  state.seed = train.seed();
  state.data_size = order.size;
  state.data_shuffle = order.shuffle;
  state.data_group = order.group;
  state.global_batch_size = session_.job.batch.global_batch_size;
  const absl::StatusOr<uint32_t> frozen =
      FrozenChecksum(*session_.parts.model, state.seed);
  CAPSTAN_RETURN_IF_ERROR(Agree(group, frozen.status(), "set up"));
  state.frozen_crc32c = *frozen;
  // A host's launcher counts its own restarts.
  CAPSTAN_ASSIGN_OR_RETURN(const bool restarted,
                           AnyRank(group, session_.rank.restart > 0));
  CAPSTAN_RETURN_IF_ERROR(mirror_.Begin());
  if (train.resume() == Train::AUTO || restarted) {
    const TrainState mine = state;
    CAPSTAN_ASSIGN_OR_RETURN(const TrainState earlier, LoadNewest());
    if (!session_.resumed_from.empty()) {
      CAPSTAN_RETURN_IF_ERROR(
          Agree(group,
                CheckResumed(session_.job.loaded, session_.resumed_from,
                             earlier, mine),
                "set up"));
      state = earlier;
      state.global_batch_size = mine.global_batch_size;
      session_.scaler.Restore(state.loss_scale, state.loss_scale_good_steps);
      session_.first_step = state.step;
    }
    if (group.rank() == 0) RemoveLeftovers(session_.output_dir);
  }
  CAPSTAN_RETURN_IF_ERROR(WarnOfRoom());
  CAPSTAN_RETURN_IF_ERROR(mirror_.SetUp(source_));
  // After the mirror, which has taken its memory.
  if (train.save_every() == 0 && !train.keep_best()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const bool background, InBackground());
  if (background) session_.background_save.Prepare(session_.Checkpointed());
  return absl::OkStatus();
}

absl::StatusOr<TrainState> RunCheckpoints::LoadNewest() {
  const auto note = [this](const std::string& line) {
    session_.resume_notes.push_back(line);
  };
  const CheckpointParts parts = session_.Checkpointed();
  CAPSTAN_ASSIGN_OR_RETURN(source_, FindMirrored());
  CAPSTAN_ASSIGN_OR_RETURN(
      LoadedNewest loaded,
      LoadMirrorOrCheckpoint(source_, session_.output_dir, parts));
  Resumed& resumed = loaded.resumed;
  if (loaded.from_mirror) {
    const TrainState& state = resumed.state;
    session_.resumed_from = absl::StrCat("the mirror of step ", state.step);
    session_.evaluate_again = state.eval_step != state.step;
    // They have connections to other hosts; what follows needs only the key.
    source_->images.clear();
    return state;
  }
  source_.reset();
  if (!loaded.mirror.ok()) {
    note(
        absl::StrCat("can't go on from the mirror: ", loaded.mirror.message()));
  }
  session_.resumed_from = resumed.folder;
  if (!resumed.folder.empty()) saved_step_ = resumed.state.step;
  for (const auto& [step, how] : resumed.damaged) {
    damaged_.insert(step);
    note(absl::StrCat(how, "; goes on from ", resumed.folder));
  }
  return resumed.state;
}

absl::StatusOr<absl::optional<MirroredStep>> RunCheckpoints::FindMirrored() {
  ProcessGroup& group = *session_.group;
  CAPSTAN_ASSIGN_OR_RETURN(absl::optional<MirroredStep> found, mirror_.Find());
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    int64_t on_disk = -1;
    if (group.rank() == 0) {
      const auto whole = WholeCheckpoints(session_.output_dir);
      if (!whole.empty()) on_disk = whole.front().step;
    }
    on_disk = static_cast<int64_t>(
        FromAllRanks(group, static_cast<double>(on_disk))[0]);
    for (const double number :
         {found.has_value() ? static_cast<double>(found->key.restart) : -1.0,
          found.has_value() ? static_cast<double>(found->key.sequence)
                            : -1.0}) {
      const std::vector<double> all = FromAllRanks(group, number);
      for (const double other : all) {
        if (other != all[0] || other < 0) found.reset();
      }
    }
    if (found.has_value() && found->state.step < on_disk) found.reset();
    if (found.has_value()) saved_step_ = on_disk;
    return absl::OkStatus();
  }));
  return found;
}

absl::Status RunCheckpoints::WarnOfRoom() {
  double bytes[] = {
      static_cast<double>(BytesOf(OwnedPieces(session_.Checkpointed())))};
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    session_.group->AllReduceHost(absl::MakeSpan(bytes));
    return absl::OkStatus();
  }));
  if (session_.group->rank() != 0) return absl::OkStatus();
  const absl::Status room =
      CheckRoom(session_.output_dir, static_cast<int64_t>(bytes[0]));
  if (!room.ok()) {
    session_.resume_notes.push_back(
        absl::StrCat("WARNING: output_dir: ", room.message()));
  }
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Mirror(bool again) {
  RememberScale();
  return mirror_.Copy(again);
}

void RunCheckpoints::RememberScale() {
  const LossScaler& scaler = session_.scaler;
  session_.state.loss_scale = scaler.enabled() ? scaler.scale() : 0.0;
  session_.state.loss_scale_good_steps = scaler.good_steps();
}

absl::StatusOr<bool> RunCheckpoints::InBackground() {
  if (in_background_.has_value()) return *in_background_;
  in_background_ = session_.config.train().saving() == Train::BACKGROUND;
  if (!*in_background_) return false;
  const absl::Status room =
      RoomInMemory(BytesOf(OwnedPieces(session_.Checkpointed())), session_);
  CAPSTAN_ASSIGN_OR_RETURN(const bool none,
                           AnyRank(*session_.group, !room.ok()));
  if (none) {
    in_background_ = false;
    session_.resume_notes.push_back(
        "training waits while checkpoints are written: there is no memory "
        "for a copy of the state");
  }
  return *in_background_;
}

absl::Status RunCheckpoints::Save() {
  bool background = session_.GoesOn();
  if (background) {
    CAPSTAN_ASSIGN_OR_RETURN(background, InBackground());
  }
  return SaveStep(background);
}

absl::Status RunCheckpoints::SaveLast() {
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  return SaveStep(/*background=*/false);
}

absl::Status RunCheckpoints::SaveStep(bool background) {
  const TrainState& state = session_.state;
  if (saved_step_ == state.step) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckFinite());
  if (divergence_.AwaitsGoodStep()) return absl::OkStatus();
  ProcessGroup& group = *session_.group;
  // Or the run would go on from a step whose line is lost.
  CAPSTAN_RETURN_IF_ERROR(Agree(group,
                                session_.reporter == nullptr
                                    ? absl::OkStatus()
                                    : session_.reporter->status(),
                                "write its output"));
  SavingCost& cost = session_.saving_cost;
  const double start = MonotonicSeconds();
  RememberScale();
  const Train& train = session_.config.train();
  SaveRequest request;
  request.output_dir = session_.output_dir;
  request.train_state = state;
  request.keep =
      static_cast<int>(train.keep_checkpoints() > 0 ? train.keep_checkpoints()
                                                    : kDefaultKeepCheckpoints);
  request.best_step = train.keep_best() ? state.best_step : -1;
  damaged_.erase(state.step);
  request.damaged = damaged_;
  BackgroundSave& before = session_.background_save;
  if (session_.GoesOn() && before.busy()) ++cost.waits;
  CAPSTAN_RETURN_IF_ERROR(before.Settle(group));
  CAPSTAN_RETURN_IF_ERROR(
      background ? before.Start(request, session_.Checkpointed())
                 : SaveCheckpoint(request, session_.Checkpointed()));
  saved_step_ = state.step;
  if (session_.GoesOn()) {
    ++cost.saves;
    cost.save_seconds += MonotonicSeconds() - start;
  }
  return absl::OkStatus();
}

absl::Status RunCheckpoints::GoBack() {
  constexpr int kMostTimes = 3;
  TrainState& state = session_.state;
  if (saved_step_ < 0) {
    session_.Note(
        "there is no checkpoint yet to go back to: only the step with the "
        "spike is skipped");
    return absl::OkStatus();
  }
  const std::string folder = CheckpointFolder(session_.output_dir, saved_step_);
  state.times_back = state.back_to == saved_step_ ? state.times_back + 1 : 1;
  state.back_to = saved_step_;
  if (state.times_back > kMostTimes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", state.step,
        ": the loss has spiked again after the run went "
        "back to ",
        folder, " ", kMostTimes,
        " times: lower optimizer.learning_rate, or look at the data"));
  }
  // It may still be under way.
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  CAPSTAN_ASSIGN_OR_RETURN(const TrainState earlier,
                           LoadCheckpoint(folder, session_.Checkpointed()));
  state.optimizer_steps = earlier.optimizer_steps;
  session_.scaler.Restore(earlier.loss_scale, earlier.loss_scale_good_steps);
  CAPSTAN_RETURN_IF_ERROR(
      Agree(*session_.group, session_.Publish(), "publish parameters"));
  divergence_.WeightsReplaced();
  session_.Note(absl::StrCat(
      "step ", state.step, ": back to the weights of step ", saved_step_,
      "; the batches of the steps since are passed over"));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::RestoreBest() {
  const TrainState& state = session_.state;
  if (!session_.config.train().keep_best() || state.best_step < 0 ||
      state.best_step == state.step) {
    return absl::OkStatus();
  }
  const std::string folder =
      CheckpointFolder(session_.output_dir, state.best_step);
  CAPSTAN_ASSIGN_OR_RETURN(const bool missing,
                           AnyRank(*session_.group, !IsCheckpoint(folder)));
  if (missing) {
    session_.Note(absl::StrCat(
        "the best checkpoint, ", folder,
        ", isn't there any more: final/ gets the last step's weights"));
    return absl::OkStatus();
  }
  CAPSTAN_RETURN_IF_ERROR(
      LoadCheckpointWeights(folder, session_.Checkpointed()));
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(
      *session_.group, session_.Publish(), "publish parameters"));
  session_.Note(
      absl::StrFormat("final/ gets the weights of step %d, whose eval loss "
                      "%.4f is the lowest",
                      state.best_step, state.best_eval_loss));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::SaveFinal() {
  const RunParts& parts = session_.parts;
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckFits(parts.policy().compute));
  const BaseModel base = BaseModelOf(session_.config, parts.model_minor);
  FinalFolder final;
  final.path = session_.output_dir + "/final";
  final.dtype = parts.policy().compute;
  final.max_shard_bytes = kMaxShardBytes;
  final.tokenizer = parts.train_data->tokenizer();
  final.config_text = session_.config_text;
  final.lora = parts.lora;
  final.base_model = base.folder;
  final.seed = session_.config.train().seed();
  if (session_.reporter != nullptr) {
    final.note = [this](const std::string& line) { session_.Note(line); };
    CAPSTAN_ASSIGN_OR_RETURN(final.files, ModelCard(CardFacts(session_, base)));
  }
  return SaveHuggingFaceFolder(final, *parts.model, *parts.strategy,
                               *session_.group);
}

bool RunCheckpoints::AwaitsUpload() const {
  if (!session_.config.has_hub_upload()) return false;
  const auto repo = ReadWholeFile(UploadMark(session_));
  return !repo.ok() || *repo != session_.config.hub_upload().repo();
}

absl::Status RunCheckpoints::UploadFinal() {
  const HubUpload& upload = session_.config.hub_upload();
  bool uploaded = false;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string told,
      UploadToHub(upload, session_.output_dir + "/final", &uploaded));
  if (session_.reporter != nullptr) {
    session_.Note(told);
  } else {
    Console(STDOUT_FILENO).Write(told + "\n");
  }
  if (!uploaded) return absl::OkStatus();
  return ReplaceFile(UploadMark(session_), upload.repo());
}

}  // namespace capstan
