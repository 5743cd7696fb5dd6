// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_checkpoints.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "host/config/load_config.h"
#include "kernels/context/on_paper.h"
#include "plugins/sdk/lib/lora.h"
#include "trainer/checkpoint/background_save.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/metrics/console.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/model_card.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/receipt_chain.h"
#include "trainer/session/run_identity.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultKeepCheckpoints = 2;
constexpr int kAllCheckpoints = std::numeric_limits<int>::max();

// The chain of receipts of the weights that final/ gets, for the model card; ""
// with a note if there is none.
std::string ChainFor(const Session& session) {
  const absl::StatusOr<ReceiptChain> chain =
      ReadReceipts(session.output_dir, nullptr);
  const bool best =
      KeepsBest(session.config.train()) && session.state.best_step >= 0;
  const int64_t step = best ? session.state.best_step : session.state.step;
  const auto* const known = chain.ok() ? chain->Find(step) : nullptr;
  if (known != nullptr) {
    return absl::StrCat("`", known->chain, "`, after step ", step);
  }
  session.Note(absl::StrCat("the model card has no chain of receipts: ",
                            chain.ok()
                                ? absl::StrCat("there is none of step ", step)
                                : std::string(chain.status().message())));
  return "";
}

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
    const bool tokens_too = facts.adapter && spec.trainable &&
                            !spec.shape.empty() &&
                            !IsAdapterParameter(spec.name);
    if (tokens_too && facts.texts && spec.shape[0] == tokens->vocab_size()) {
      facts.rows = spec.shape[0];
    }
    (spec.trainable ? facts.trained_parameters : facts.frozen_parameters) +=
        spec.numel();
  }
  facts.learning_rate = parts.optimizer->learning_rate();
  if (session.config.train().receipts()) facts.receipts = ChainFor(session);
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
  const absl::StatusOr<ChildEnd> end = RunProgram({command});
  if (absl::IsNotFound(end.status()) ||
      absl::IsPermissionDenied(end.status())) {
    return absl::StrCat(
        "hub_upload: there is no program `hf` on PATH, so that "
        "nothing was uploaded; with it: ",
        shown);
  }
  if (!end.ok()) {
    return absl::UnknownError(absl::StrCat(
        "hub_upload: ", shown, " can't be run: ", end.status().message()));
  }
  if (end->ok()) {
    *uploaded = true;
    return absl::StrCat("uploaded ", folder, " to ", upload.repo());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "hub_upload: ", folder, " is written, but its upload failed (",
      end->Text(), "): see above for hf's own words, then: ", shown));
}

// Holds the name of the repository that final/ has been uploaded to.
std::string UploadMark(const Session& session) {
  return session.output_dir + "/.uploaded";
}

}  // namespace

int KeptCheckpoints(const Train& train) {
  return static_cast<int>(train.keep_checkpoints() > 0
                              ? train.keep_checkpoints()
                              : kDefaultKeepCheckpoints);
}

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
  const bool resumes = train.resume() == Train::AUTO || restarted;
  TrainState earlier;
  if (resumes) {
    CAPSTAN_ASSIGN_OR_RETURN(earlier, LoadNewest());
  }
  CAPSTAN_RETURN_IF_ERROR(Identify());
  if (resumes) {
    const TrainState mine = state;
    if (!session_.resumed_from.empty()) {
      absl::Status same = CheckResumed(session_.job.loaded,
                                       session_.resumed_from, earlier, mine);
      if (same.ok()) same = CheckIdentity(earlier, order);
      CAPSTAN_RETURN_IF_ERROR(Agree(group, same, "set up"));
      CAPSTAN_RETURN_IF_ERROR(session_.RestorePlugins());
      state = earlier;
      session_.parts.strategy->Restored(state.step);
      // As far as they may differ.
      state.seed = mine.seed;
      state.data_size = mine.data_size;
      state.data_shuffle = mine.data_shuffle;
      state.data_group = mine.data_group;
      state.global_batch_size = mine.global_batch_size;
      state.frozen_crc32c = mine.frozen_crc32c;
      session_.scaler.Restore(state.loss_scale, state.loss_scale_good_steps);
      session_.first_step = state.step;
    }
    if (group.rank() == 0) RemoveLeftovers(session_.output_dir);
  }
  const std::string metric =
      BestMetric(train) == kEvalLoss ? "" : BestMetric(train);
  if (state.best_metric != metric) {  // a new run's, or another than before
    state.best_metric = metric;
    state.best_step = -1;
    state.evals_without_better = 0;
  }
  CAPSTAN_RETURN_IF_ERROR(WarnOfRoom());
  CAPSTAN_RETURN_IF_ERROR(mirror_.SetUp(source_));
  // After the mirror, which has taken its memory.
  if (train.save_every() == 0 && !KeepsBest(train)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const bool background, InBackground());
  if (background) session_.background_save.Prepare(session_.Checkpointed());
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Identify() {
  return Agree(*session_.group, CatchAll([&]() -> absl::Status {
    // A run on paper saves nothing, and a mirror knows it: a restart is to be
    // quick.
    if (session_.group->rank() != 0 || OnPaper() ||
        !session_.identity.empty()) {
      return absl::OkStatus();
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        IdentifiedRun run,
        IdentifyRun(session_.config, session_.parts, session_.max_steps));
    session_.identity = std::move(run.identity);
    for (const std::string& note : run.notes) {
      session_.resume_notes.push_back(note);
    }
    return absl::OkStatus();
  }),
               "read its data");
}

absl::Status RunCheckpoints::CheckIdentity(const TrainState& earlier,
                                           const DataOrder& order) {
  // A mirror is of this very run.
  if (session_.group->rank() != 0 || source_.has_value()) {
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(RunIdentity then,
                           CheckpointIdentity(session_.resumed_from));
  RunIdentity now = session_.identity;
  for (RunIdentity* identity : {&then, &now}) {
    CAPSTAN_RETURN_IF_ERROR(AddDefaults(session_.config, identity));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::string> notes,
      CompareIdentities(session_.resumed_from, then, now,
                        earlier.optimizer_steps, session_.config.train()));
  session_.resume_notes.insert(session_.resume_notes.end(), notes.begin(),
                               notes.end());
  return CompareForgotten(session_.resumed_from, then, now, order,
                          earlier.samples);
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
    if (session_.group->rank() == 0) session_.identity = IdentityOf(*source_);
    // Its ranks had this config.
    NoteOtherReplicas(static_cast<int>(source_->images.size()) /
                      RanksOfReplica(parts));
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
  NoteOtherReplicas(resumed.replicas);
  for (const auto& [step, how] : resumed.damaged) {
    damaged_.insert(step);
    note(absl::StrCat(how, "; goes on from ", resumed.folder));
  }
  return resumed.state;
}

void RunCheckpoints::NoteOtherReplicas(int then) {
  const CheckpointParts parts = session_.Checkpointed();
  const int now = ReplicasOf(parts);
  if (!LocalSteps(parts) || then == 0 || then == now) return;
  const char* const what = RanksOfReplica(parts) == 1 ? " rank" : " replica";
  session_.resume_notes.push_back(absl::StrCat(
      "WARNING: the run had ", then, what, then == 1 ? "" : "s",
      ", now it has ", now, ": under ", session_.parts.strategy_name,
      " each begins again with the model that they shared last, so that its "
      "local steps since then are lost"));
}

absl::StatusOr<absl::optional<MirroredStep>> RunCheckpoints::FindMirrored() {
  ProcessGroup& group = *session_.group;
  CAPSTAN_ASSIGN_OR_RETURN(absl::optional<MirroredStep> found, mirror_.Find());
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    struct Seen {
      int64_t on_disk = -1;  // rank 0's newest checkpoint
      MirrorKey key;
    } mine;
    if (group.rank() == 0) {
      const auto whole = WholeCheckpoints(session_.output_dir);
      if (!whole.empty()) mine.on_disk = whole.front().step;
    }
    if (found.has_value()) mine.key = found->key;
    const std::vector<Seen> all = AllGatherHost(group, std::vector<Seen>{mine});
    const int64_t on_disk = all[0].on_disk;
    for (const Seen& seen : all) {
      if (!(seen.key == mine.key)) found.reset();
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

absl::Status RunCheckpoints::SaveToLeave() {
  CAPSTAN_ASSIGN_OR_RETURN(const bool mirrored, mirror_.Settle());
  if (mirrored && !session_.leaving_saves) return absl::OkStatus();
  return SaveLast();
}

absl::Status RunCheckpoints::SaveBefore(const absl::Status& end) {
  ProcessGroup& group = *session_.group;
  // Else another rank may still be in a collective.
  if (group.size() == 1 || PhaseGroupOf(group) != nullptr) {
    CatchAll([this] { return SaveLast(); }).IgnoreError();
  }
  const std::string newest = NewestCheckpoint(session_.output_dir);
  if (newest.empty()) return end;
  const std::string command =
      ResumeCommand(session_.job.command, session_.config, session_.output_dir);
  return WithMessage(
      end, absl::StrCat(end.message(), "; the run ends, and ", newest,
                        " is its newest checkpoint: when that is mended, go "
                        "on with train.resume=AUTO",
                        command.empty() ? "" : ": ", command));
}

absl::Status RunCheckpoints::Mirror(const MirrorHow& how) {
  CAPSTAN_RETURN_IF_ERROR(before_copy_());
  return mirror_.Copy(how);
}

absl::Status RunCheckpoints::CheckFolder() {
  ProcessGroup& group = *session_.group;
  const TrainState& state = session_.state;
  FolderNow now;
  if (group.rank() == 0) now = LookAtFolder(&session_.folder);
  // Another run has been there.
  if (!now.where.empty()) {
    const auto whole = WholeCheckpoints(now.where);
    if (!whole.empty() && whole.front().step > saved_step_) now.where.clear();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string what,
                           FromRank0(group, std::string(now.status.message())));
  if (what.empty()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string where,
                           FromRank0(group, now.where));
  // What is under way goes where the folder went.
  session_.background_save.Settle(group).IgnoreError();
  absl::Status written;
  if (!where.empty() && state.step > 0 && saved_step_ != state.step) {
    written = WriteStep(/*background=*/false, where);
  }
  // No step is saved while losses aren't finite.
  const bool saved =
      !where.empty() && state.step > 0 && saved_step_ == state.step;
  return absl::FailedPreconditionError(absl::StrCat(
      what, "; the run ends: step ", state.step,
      saved ? absl::StrCat(" is saved in ", CheckpointFolder(where, state.step),
                           ", go on with output_dir=", where)
      : saved_step_ > 0
          ? absl::StrCat(" isn't saved, the last one that was is ", saved_step_)
          : " isn't saved",
      written.ok() ? "" : absl::StrCat(": ", written.message())));
}

absl::Status RunCheckpoints::SaveStep(bool background) {
  if (saved_step_ == session_.state.step) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(CheckFolder());
  return WriteStep(background, session_.output_dir);
}

// Rank 0's: metrics have been written, and receipts are on the disk, which a
// chain that is to be checked can't be without after a power failure.
absl::Status RunCheckpoints::CheckLines(const std::string& output_dir) const {
  if (session_.reporter == nullptr) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(session_.reporter->Check(output_dir));
  const std::string path = absl::StrCat(output_dir, "/", kReceiptsFile);
  return session_.config.train().receipts() && PathExists(path)
             ? SyncPath(path)
             : absl::OkStatus();
}

absl::Status RunCheckpoints::WriteStep(bool background,
                                       const std::string& output_dir) {
  const TrainState& state = session_.state;
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckFinite());
  if (divergence_.AwaitsGoodStep()) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(before_copy_());
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckReplicas());
  ProcessGroup& group = *session_.group;
  // Or the run would go on from a step whose line is lost.
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, CheckLines(output_dir), "write its output"));
  SavingCost& cost = session_.saving_cost;
  const double start = MonotonicSeconds();
  session_.RememberScale();
  const Train& train = session_.config.train();
  SaveRequest request;
  request.output_dir = output_dir;
  request.train_state = state;
  request.tokenizer = session_.parts.train_data->tokenizer();
  request.keep = output_dir == session_.output_dir ? KeptCheckpoints(train)
                                                   : kAllCheckpoints;
  request.best_step = KeepsBest(train) ? state.best_step : -1;
  damaged_.erase(state.step);
  request.damaged = damaged_;
  BackgroundSave& before = session_.background_save;
  if (session_.GoesOn() && before.busy()) ++cost.waits;
  CAPSTAN_RETURN_IF_ERROR(before.Settle(group));
  CAPSTAN_RETURN_IF_ERROR(
      background ? before.Start(request, session_.Checkpointed())
                 : SaveCheckpoint(request, session_.Checkpointed()));
  saved_step_ = state.step;
  const double seconds = MonotonicSeconds() - start;
  session_.Event({kSaveEvent, state.step,
                  absl::StrCat(CheckpointFolder(output_dir, state.step),
                               background ? " is written in the background"
                                          : " is written"),
                  seconds});
  if (session_.GoesOn()) {
    ++cost.saves;
    cost.save_seconds += seconds;
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
  CAPSTAN_RETURN_IF_ERROR(mirror_.BeforeGoingBack());
  session_.BeforeChange();
  CAPSTAN_ASSIGN_OR_RETURN(const TrainState earlier,
                           LoadCheckpoint(folder, session_.Checkpointed()));
  CAPSTAN_RETURN_IF_ERROR(session_.RestorePlugins());
  state.optimizer_steps = earlier.optimizer_steps;
  session_.scaler.Restore(earlier.loss_scale, earlier.loss_scale_good_steps);
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(
      *session_.group, session_.Publish(PublishCause::kRestored),
      "publish parameters"));
  divergence_.WeightsReplaced();
  session_.Note(absl::StrCat(
      "step ", state.step, ": back to the weights of step ", saved_step_,
      "; the batches of the steps since are passed over"));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::RestoreBest() {
  // What isn't restored is exported as it is.
  CAPSTAN_RETURN_IF_ERROR(before_copy_());
  const TrainState& state = session_.state;
  if (!KeepsBest(session_.config.train()) || state.best_step < 0 ||
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
  CAPSTAN_RETURN_IF_ERROR(session_.RestorePlugins());
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(
      *session_.group, session_.Publish(PublishCause::kRestored),
      "publish parameters"));
  session_.Note(
      absl::StrFormat("final/ gets the weights of step %d, whose %s %.4f is "
                      "the best",
                      state.best_step, BestMetric(session_.config.train()),
                      state.best_eval_loss));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::SaveFinal() {
  const RunParts& parts = session_.parts;
  CAPSTAN_RETURN_IF_ERROR(CheckFolder());
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckFits(parts.policy().compute));
  const BaseModel base = BaseModelOf(session_.config);
  FinalFolder final;
  final.path = session_.output_dir + "/final";
  final.dtype = parts.policy().compute;
  final.tokenizer = parts.train_data->tokenizer();
  final.config_text = PrintConfig(PortableConfig(session_.config));
  final.lora = parts.lora;
  final.base_model = base.folder;
  const auto weights = session_.identity.find(kBaseIdentity);
  if (weights != session_.identity.end()) final.base_weights = weights->second;
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
