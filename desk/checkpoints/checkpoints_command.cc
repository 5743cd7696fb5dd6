// SPDX-License-Identifier: Apache-2.0
//
// ls and verify: what a run has saved, and whether it can be read.
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/run_record.h"
#include "host/storage/cache.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

struct FolderOptions {
  std::string folder;
  std::string output_dir;
  bool json = false;
};

// The checkpoints in a run's folder, or the one that it is. Sets `final`, if
// not null, to the run's final folder, with which there may be none; "": none.
absl::StatusOr<std::vector<StoredCheckpoint>> Find(
    const FolderOptions& options, std::string* final = nullptr) {
  const std::string& given =
      options.folder.empty() ? options.output_dir : options.folder;
  if (given.empty()) {
    return absl::InvalidArgumentError(
        "name a run's folder (runs/NAME), or one of its checkpoints");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string local, LocalCopy(given));
  const std::string folder = FromCaller(local);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(given, " isn't a folder"));
  }
  if (IsCheckpoint(folder)) {
    return std::vector<StoredCheckpoint>{{0, folder, true}};
  }
  std::vector<StoredCheckpoint> found = ListCheckpoints(folder);
  const std::string latest = FromCaller(given + "/latest");
  if (found.empty()) found = ListCheckpoints(latest);
  for (const std::string& run : {latest, folder}) {
    if (final != nullptr && IsFolder(run + "/final")) *final = run + "/final";
  }
  if (found.empty() && (final == nullptr || final->empty())) {
    const bool is_run = fs::exists(folder + "/config.pbtxt", error) ||
                        fs::exists(latest + "/config.pbtxt", error);
    return absl::NotFoundError(
        absl::StrCat(given, " has no checkpoints: ",
                     is_run ? "its run has saved none, or they were removed "
                              "(train.save_every says how often a run saves)"
                            : "name a run's folder (runs/NAME), or one of its "
                              "checkpoints"));
  }
  return found;
}

// "step-00000010": unique within a run's folder.
std::string NameOf(const StoredCheckpoint& checkpoint) {
  return fs::path(checkpoint.path).filename().string();
}

// Since its last change: "3:05".
std::string Age(const std::string& folder) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return "?";
  return ClockTime(absl::ToDoubleSeconds(absl::Now() -
                                         absl::TimeFromTimespec(info.st_mtim)));
}

// "is damaged: HOW", without what to do.
std::string How(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find(kWhatToDo));
}

// What the manifest and the files' headers tell: reads no data.
nlohmann::ordered_json AsJson(const StoredCheckpoint& checkpoint) {
  nlohmann::ordered_json row = {{"path", checkpoint.path},
                                {"bytes", BytesBelow(checkpoint.path)},
                                {"whole", false}};
  if (!checkpoint.whole) return row;
  const absl::StatusOr<Manifest> manifest = ReadManifest(checkpoint.path);
  if (!manifest.ok()) {
    row["damage"] = How(manifest.status());
    return row;
  }
  row["step"] = manifest->train_state.step;
  row["loss"] = manifest->train_state.last_loss;
  row["ranks"] = manifest->world_size;
  const absl::Status headers =
      CheckFiles(checkpoint.path, *manifest, /*checksums=*/false);
  row["whole"] = headers.ok();
  if (!headers.ok()) row["damage"] = How(headers);
  return row;
}

// The same as a line.
std::string Row(const StoredCheckpoint& checkpoint) {
  const nlohmann::ordered_json facts = AsJson(checkpoint);
  std::string row = absl::StrFormat("%-24s %10s %12s", NameOf(checkpoint),
                                    ShortBytes(facts["bytes"].get<int64_t>()),
                                    Age(checkpoint.path));
  if (facts.contains("step")) {
    const int ranks = facts["ranks"].get<int>();
    absl::StrAppendFormat(&row, "  loss %.4f  %d %s",
                          facts["loss"].get<double>(), ranks,
                          ranks == 1 ? "rank" : "ranks");
  }
  return absl::StrCat(row, "  ",
                      facts["whole"].get<bool>()
                          ? "whole"
                          : facts.value("damage", "incomplete"));
}

using Rows = std::vector<std::pair<std::string, std::string>>;

// What a checkpoint's run read and trained, with its digests; empty if the
// checkpoint doesn't tell.
Rows IdentityOf(const StoredCheckpoint& checkpoint) {
  Rows rows;
  if (!checkpoint.whole) return rows;
  const absl::StatusOr<Manifest> manifest = ReadManifest(checkpoint.path);
  if (!manifest.ok()) return rows;
  for (const char* name :
       {"train_data", "eval_data", "tokenizer", "model", "model.base"}) {
    const auto found = manifest->identity.find(name);
    if (found != manifest->identity.end()) rows.push_back(*found);
  }
  return rows;
}

absl::StatusOr<int> List(const FolderOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> found,
                           Find(options));
  if (options.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const StoredCheckpoint& checkpoint : found) {
      rows.push_back(AsJson(checkpoint));
    }
    std::cout << JsonText(rows, 2) << "\n";
    return 0;
  }
  std::cout << absl::StrFormat("%-24s %10s %12s\n", "checkpoint", "size",
                               "age");
  for (const StoredCheckpoint& checkpoint : found) {
    std::cout << PrintableText(Row(checkpoint)) << "\n";
  }
  // One for all, unless train.resume_with_changes let it change.
  Rows shown;
  for (const StoredCheckpoint& checkpoint : found) {
    Rows rows = IdentityOf(checkpoint);
    if (rows.empty() || rows == shown) continue;
    std::cout << PrintableText(absl::StrCat("\n", NameOf(checkpoint),
                                            shown.empty() ? "" : ", changed",
                                            ":\n", TableText(rows)));
    shown = std::move(rows);
  }
  return 0;
}

// What reading all of a folder has shown.
struct Verified {
  std::string what;  // for users
  bool whole = false;
  bool good = true;  // whole, or never read
};

Verified VerifiedAs(const absl::Status& status, const std::string& folder) {
  if (!status.ok()) return {How(status), false, false};
  return {absl::StrCat("whole, ", ShortBytes(BytesBelow(folder))), true, true};
}

Verified VerifyOne(const StoredCheckpoint& checkpoint) {
  // What a killed run has left, or a running one writes: never resumed.
  if (!checkpoint.whole) return {"incomplete", false, true};
  return VerifiedAs(VerifyCheckpoint(checkpoint.path), checkpoint.path);
}

Verified VerifyFinal(const std::string& folder) {
  const absl::StatusOr<bool> checked = CheckFinalFolder(folder);
  if (absl::IsNotFound(checked.status()) || (checked.ok() && !*checked)) {
    return {
        "can't be checked, as its capstan.json has no digest of the "
        "weights",
        false, true};
  }
  return VerifiedAs(checked.status(), folder);
}

absl::StatusOr<int> Verify(const FolderOptions& options) {
  std::string final;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> found,
                           Find(options, &final));
  bool good = true;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto verify = [&](const std::string& name, const auto& look) {
    if (!options.json) {
      std::cout << PrintableText(name) << ": " << std::flush;
    }
    const Verified verified = look();
    good = good && verified.good;
    if (!options.json) std::cout << PrintableText(verified.what) << std::endl;
    rows.push_back({{"checkpoint", name},
                    {"whole", verified.whole},
                    {"what", verified.what}});
  };
  for (const StoredCheckpoint& checkpoint : found) {
    verify(NameOf(checkpoint), [&] { return VerifyOne(checkpoint); });
  }
  if (!final.empty()) verify("final", [&] { return VerifyFinal(final); });
  if (options.json) std::cout << JsonText(rows, 2) << "\n";
  return good ? 0 : 1;
}

void AddFlags(Flags& flags, FolderOptions* options) {
  flags
      .Add("folder", &options->folder,
           "A run's folder (runs/NAME), or one of its checkpoints")
      .Type("FOLDER");
  flags.Add("--output_dir", &options->output_dir, "The same").Type("FOLDER");
  flags.Add("--json", &options->json, "Print JSON, for programs");
}

const RegisterFunction<FolderOptions> ls("ls", AddFlags, List);
const RegisterFunction<FolderOptions> verify("verify", AddFlags, Verify);

}  // namespace
}  // namespace capstan
