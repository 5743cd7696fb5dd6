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
#include "base/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
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
// user: what was done or, without such a program, would have been.
absl::StatusOr<std::string> UploadToHub(const HubUpload& upload,
                                        const std::string& folder) {
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
    return absl::StrCat("uploaded ", folder, " to ", upload.repo());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "hub_upload: ", folder, " is written, but its upload failed (",
      WIFEXITED(status) ? absl::StrCat("exit code ", WEXITSTATUS(status))
                        : absl::StrCat("signal ", WTERMSIG(status)),
      "): see above for hf's own words, then: ", shown));
}

}  // namespace

absl::Status RunCheckpoints::Restore(const DataOrder& order) {
  const Train& train = session_.config.train();
  TrainState& state = session_.state;
  state.seed = train.seed();
  state.data_size = order.size;
  state.data_shuffle = order.shuffle;
  state.data_group = order.group;
  state.global_batch_size = session_.job.batch.global_batch_size;
  CAPSTAN_ASSIGN_OR_RETURN(state.frozen_crc32c,
                           FrozenChecksum(*session_.parts.model, state.seed));
  if (train.resume() != Train::AUTO) return absl::OkStatus();
  const std::string newest = NewestCheckpoint(session_.output_dir);
  if (newest.empty()) return absl::OkStatus();
  const TrainState mine = state;
  CAPSTAN_ASSIGN_OR_RETURN(state,
                           LoadCheckpoint(newest, session_.Checkpointed()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckResumed(session_.job.loaded, newest, state, mine));
  state.global_batch_size = mine.global_batch_size;
  session_.scaler.Restore(state.loss_scale, state.loss_scale_good_steps);
  session_.first_step = saved_step_ = state.step;
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Save() {
  TrainState& state = session_.state;
  if (saved_step_ == state.step) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(divergence_.CheckFinite());
  if (divergence_.AwaitsGoodStep()) return absl::OkStatus();
  const LossScaler& scaler = session_.scaler;
  state.loss_scale = scaler.enabled() ? scaler.scale() : 0.0;
  state.loss_scale_good_steps = scaler.good_steps();
  const Train& train = session_.config.train();
  const int64_t keep = train.keep_checkpoints() > 0 ? train.keep_checkpoints()
                                                    : kDefaultKeepCheckpoints;
  CAPSTAN_RETURN_IF_ERROR(SaveCheckpoint(
      session_.output_dir, static_cast<int>(keep), state,
      session_.Checkpointed(), train.keep_best() ? state.best_step : -1));
  saved_step_ = state.step;
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

absl::Status RunCheckpoints::UploadFinal() {
  const absl::StatusOr<std::string> told =
      UploadToHub(session_.config.hub_upload(), session_.output_dir + "/final");
  if (told.ok()) session_.Note(*told);
  return told.status();
}

}  // namespace capstan
