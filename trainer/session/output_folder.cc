// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/output_folder.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/run_identity.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Flushes the entry of a folder that is `run` or holds it: without that a loss
// of power could take the run. Returns OK where that can't be done, and an
// error if the run's own disk has failed.
absl::Status SyncEntry(const fs::path& folder, const fs::path& run) {
  fs::path parent = folder.parent_path();
  if (parent.empty()) parent = ".";
  const absl::Status synced = SyncPath(parent.string());
  const int error = ErrnoOf(synced);
  if (error != EIO && error != ENOSPC && error != EDQUOT) {
    return absl::OkStatus();
  }
  struct stat own, others;
  if (stat(run.c_str(), &own) == 0 && stat(parent.c_str(), &others) == 0 &&
      own.st_dev != others.st_dev) {
    return absl::OkStatus();
  }
  return Annotate(synced, absl::StrCat("output_dir: ", folder.string(),
                                       " can't be flushed to its disk"));
}

absl::Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(
        "output_dir: ", folder.string(), " can't be made: ", error.message()));
  }
  // Also of what exists: who made it, a run that was killed or the ranks'
  // meeting, may not have flushed it.
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    CAPSTAN_RETURN_IF_ERROR(SyncEntry(at, folder));
  }
  return absl::OkStatus();
}

// Whether a run has written to the folder.
bool HoldsRun(const fs::path& folder) {
  for (const char* name :
       {"metrics.jsonl", "checkpoints", "final", "summary.json"}) {
    std::error_code error;
    if (fs::exists(folder / name, error)) return true;
  }
  return false;
}

// Creates runs/NAME/TIME, with a numeric suffix if two runs start in one
// second.
absl::StatusOr<std::string> NewRunFolder(const fs::path& runs) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(runs));
  const std::string time =
      absl::FormatTime("%Y-%m-%d_%H-%M-%S", absl::Now(), absl::LocalTimeZone());
  for (int i = 1;; ++i) {
    const fs::path folder = runs / (i == 1 ? time : absl::StrCat(time, "_", i));
    std::error_code error;
    // false without an error: it belongs to another run.
    if (fs::create_directory(folder, error)) {
      CAPSTAN_RETURN_IF_ERROR(SyncEntry(folder, folder));
      // Not essential to the run.
      const absl::Status latest =
          SetLatestRun(runs.string(), folder.filename().string());
      if (!latest.ok()) std::cerr << latest.message() << "\n";
      return folder.string();
    }
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(folder.string(), " can't be made: ", error.message()));
    }
  }
}

// Parent of the run folders for configs without output_dir.
fs::path RunsFolder(const RunConfig& config,
                    const std::string& workspace_folder) {
  std::error_code error;  // without a current folder: relative to it
  const fs::path base = workspace_folder.empty() ? fs::current_path(error)
                                                 : fs::path(workspace_folder);
  return base / "runs" / config.name();
}

// The largest divisor of `whole` not above `most`.
int64_t DivisorUpTo(int64_t most, int64_t whole) {
  int64_t divisor = std::clamp<int64_t>(most, 1, whole);
  while (whole % divisor != 0) --divisor;
  return divisor;
}

// The newest checkpoint whose manifest can be read; if there is none, the
// newest: loading it will report the damage.
std::string NewestReadable(const std::string& output_dir) {
  for (const StoredCheckpoint& checkpoint : WholeCheckpoints(output_dir)) {
    if (CheckpointState(checkpoint.path).ok()) return checkpoint.path;
  }
  return NewestCheckpoint(output_dir);
}

std::string Quoted(const std::string& word) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("-_=./:,@%+").find(c) != absl::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) {
    return word;
  }
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace

std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder) {
  if (config.train().resume() != Train::AUTO) return "";
  if (!config.output_dir().empty()) {
    return NewestReadable(config.output_dir());
  }
  const fs::path latest = FollowLatestRun(
      (RunsFolder(config, workspace_folder) / "latest").string());
  // Completed runs aren't resumed.
  return PathExists((latest / "final").string())
             ? ""
             : NewestReadable(latest.string());
}

std::string MeetingFolder(const RunConfig& config,
                          const std::string& workspace_folder) {
  if (!config.output_dir().empty()) return config.output_dir();
  return RunsFolder(config, workspace_folder).string();
}

absl::StatusOr<HeldFolder> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder,
    const std::string& placed_by, std::chrono::milliseconds patience) {
  const bool resume = config.train().resume() == Train::AUTO;
  if (config.output_dir().empty()) {
    const fs::path runs = RunsFolder(config, workspace_folder);
    const std::string latest = FollowLatestRun((runs / "latest").string());
    if (!CheckpointToResume(config, workspace_folder).empty()) {
      std::error_code error;
      const fs::path folder = fs::canonical(latest, error);
      if (error) {
        return absl::ErrnoToStatus(
            error.value(), absl::StrCat((runs / "latest").string(),
                                        " can't be followed to its run"));
      }
      return HoldFolder(folder.string(), placed_by, patience);
    }
    if (resume && PathExists(latest + "/final")) {
      std::cerr << "train.resume: the run in " << latest
                << " is finished, so that this is a new one; to train it on, "
                   "set output_dir to its folder\n";
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, NewRunFolder(runs));
    return HoldFolder(folder, placed_by, patience);
  }
  const fs::path folder = config.output_dir();
  std::error_code error;
  const fs::file_type type = fs::status(folder, error).type();
  if (type == fs::file_type::none) {
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        "output_dir: ", folder.string(), " can't be a folder (",
                        error.message(), "): name another")),
                    "run/folder");
  }
  if (type != fs::file_type::not_found && type != fs::file_type::directory) {
    return WithCode(absl::AlreadyExistsError(absl::StrCat(
                        "output_dir: ", folder.string(), " is not a folder")),
                    "run/folder");
  }
  if (HoldsRun(folder) && !resume) {
    return WithCode(
        absl::AlreadyExistsError(absl::StrCat(
            "output_dir: ", folder.string(),
            " already holds a run; continue it with train { resume: AUTO } "
            "(--set train.resume=AUTO), or name another folder")),
        "run/folder-used");
  }
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  return HoldFolder(folder.string(), placed_by, patience);
}

std::string KeepGlobalBatch(const std::string& checkpoint,
                            const TrainState& earlier, const Mesh& mesh,
                            bool deterministic, Batching* batch) {
  const int64_t global = earlier.global_batch_size;
  const int at_once = mesh.data;
  const int64_t asked = batch->global_batch_size();
  // Invalid values are rejected later.
  if (global <= 0 || batch->micro_batch_size() < 0) return "";
  if (asked != 0 && asked != global) {
    return absl::StrCat("goes on with batch.global_batch_size ", asked,
                        "; the run in ", checkpoint, " had ", global);
  }
  const bool automatic = batch->micro_batch_size() == Batching::AUTO;
  const int64_t micro =
      automatic ? 1 : std::max<int64_t>(1, batch->micro_batch_size());
  if (asked == 0 && !automatic && micro * at_once == global) return "";
  // Smaller ones may have fewer ranks idle; but a deterministic run's bits
  // depend on the micro-batch.
  int64_t fitting = DivisorUpTo(micro, global);
  if (!deterministic) {
    const std::vector<int64_t> sizes = MicroBatchSizes(global, at_once);
    fitting = *std::find_if(sizes.begin(), sizes.end(),
                            [&](int64_t size) { return size <= micro; });
  }
  if (asked == global && fitting == micro) return "";
  batch->set_global_batch_size(global);
  std::string note = "goes on with the run's global batch of ";
  if (automatic) return absl::StrCat(note, global);
  batch->set_micro_batch_size(static_cast<Batching::MicroBatchSize>(fitting));
  absl::StrAppend(
      &note, BatchText(global, fitting, mesh.size(), mesh.sequence,
                       BatchShares{fitting, global, at_once}.micro_steps()));
  if (fitting != micro) {
    absl::StrAppend(&note, " (micro_batch_size ", micro,
                    " doesn't cut it evenly)");
  }
  return note;
}

absl::Status CheckGroups(const std::string& checkpoint,
                         const TrainState& earlier, const TrainState& mine) {
  if (earlier.data_group == mine.data_group ||
      earlier.data_size != mine.data_size) {
    return absl::OkStatus();
  }
  if ((earlier.data_group > 0) != (mine.data_group > 0)) {
    const char* const theirs = earlier.data_group > 0 ? "true" : "false";
    return FieldError("group_by_length",
                      absl::StrCat("the run in ", checkpoint, " has ", theirs,
                                   ", and its data position would mean other "
                                   "samples: set it to ",
                                   theirs));
  }
  const std::string global = absl::StrCat(earlier.global_batch_size);
  return FieldError(
      "global_batch_size",
      absl::StrCat("is ", mine.global_batch_size, ", but the run in ",
                   checkpoint, " has ", global,
                   ", by which group_by_length sorts its samples: set it to ",
                   global, ", or leave it out"));
}

absl::Status CheckResumed(const LoadedConfig& loaded,
                          const std::string& checkpoint,
                          const TrainState& earlier, const TrainState& mine) {
  const Train& train = loaded.config.train();
  if (earlier.seed != mine.seed && !MayHaveChanged(train, "train.seed")) {
    return loaded.Locate(
        FieldError("seed",
                   absl::StrCat("is ", mine.seed, ", but the run in ",
                                checkpoint, " was started with ", earlier.seed,
                                ": ", HowToResume({"train.seed"}))),
        "train");
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckGroups(checkpoint, earlier, mine), "batch"));
  const bool other_samples = earlier.data_size != mine.data_size ||
                             earlier.data_shuffle != mine.data_shuffle ||
                             earlier.data_group != mine.data_group;
  if (other_samples && !MayHaveChanged(train, "train_data")) {
    const auto text = [](const TrainState& state) {
      return absl::StrCat(
          state.data_size, " samples",
          state.data_shuffle ? ", shuffled" : ", in order",
          state.data_group > 0
              ? absl::StrCat(", by length in groups of ", state.data_group)
              : "");
    };
    return loaded.Locate(
        absl::FailedPreconditionError(absl::StrCat(
            "has ", text(mine), ", but the run in ", checkpoint, " was on ",
            text(earlier), ", and its data position would mean other samples: ",
            HowToResume({"train_data"}))),
        "train_data");
  }
  if (earlier.frozen_crc32c != 0 &&
      earlier.frozen_crc32c != mine.frozen_crc32c &&
      !MayHaveChanged(train, "model.base")) {
    return loaded.Locate(
        absl::FailedPreconditionError(absl::StrCat(
            "its frozen weights aren't those that the run in ", checkpoint,
            " was started with, and a checkpoint has only what is trained: "
            "name the same pretrained model, and the same "
            "adapter.lora.quantize, as then")),
        "model");
  }
  return absl::OkStatus();
}

std::string ResumeCommand(const std::vector<std::string>& words,
                          const RunConfig& config,
                          const std::string& output_dir) {
  if (words.empty()) return "";
  std::vector<std::string> all = words;
  if (config.train().resume() != Train::AUTO) {
    all.insert(all.end(), {"--set", "train.resume=AUTO"});
  }
  if (config.output_dir().empty()) {
    all.insert(all.end(), {"--set", absl::StrCat("output_dir=", output_dir)});
  }
  return ShellText(all);
}

std::string ShellText(const std::vector<std::string>& words) {
  return absl::StrJoin(words, " ",
                       [](std::string* out, const std::string& word) {
                         absl::StrAppend(out, Quoted(word));
                       });
}

std::vector<std::string> CommandWords(int argc, const char* const* argv) {
  std::vector<std::string> words(argv, argv + argc);
  if (words.empty() || getenv("BUILD_WORKSPACE_DIRECTORY") == nullptr) {
    return words;
  }
  words.erase(words.begin());
  words.insert(words.begin(), {"bazel", "run", "//trainer", "--"});
  return words;
}

}  // namespace capstan
