// SPDX-License-Identifier: Apache-2.0
#include "desk/forget/run_without.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/link_tree.h"
#include "desk/run_folder/run_record.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/metrics/console.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kMetrics[] = "metrics.jsonl";

// The lines up to the newest one of `step`: those behind it, if the run went
// back, are of a process that has done the steps again.
std::string ReceiptsUpTo(int64_t step, const std::string& run) {
  std::string text;
  size_t end = 0;
  ForEachLine(absl::StrCat(run, "/", kReceiptsFile),
              [&](absl::string_view line) {
                absl::StrAppend(&text, line, "\n");
                if (StepOfReceipt(ParseJson<Json>(line)) == step)
                  end = text.size();
              });
  text.resize(end);
  return text;
}

}  // namespace

absl::StatusOr<std::vector<RunSnapshot>> SnapshotsOf(const std::string& run) {
  std::vector<RunSnapshot> snapshots;
  for (const StoredCheckpoint& stored : WholeCheckpoints(run)) {
    absl::StatusOr<Manifest> manifest = ReadManifest(stored.path);
    // As a resumed run does, goes by the others.
    if (!manifest.ok()) {
      std::cerr << "WARNING: " << PrintableText(stored.path)
                << " is passed over: "
                << PrintableText(std::string(manifest.status().message()))
                << "\n";
      continue;
    }
    snapshots.push_back({stored.path, *std::move(manifest)});
  }
  if (snapshots.empty()) {
    return absl::NotFoundError(absl::StrCat(
        run,
        " has no checkpoint, which would say what it has trained on, and how "
        "far: train anew with --set train.forgotten_rows=[..]"));
  }
  std::reverse(snapshots.begin(), snapshots.end());
  return snapshots;
}

int64_t StepAt(int64_t position, const std::vector<RunSnapshot>& snapshots) {
  int64_t step = 0, samples = 0, batch = 1;
  for (const RunSnapshot& snapshot : snapshots) {
    const TrainState& state = snapshot.manifest.train_state;
    if (state.step == step) continue;
    batch =
        std::max<int64_t>(1, (state.samples - samples) / (state.step - step));
    if (position < state.samples) break;
    step = state.step;
    samples = state.samples;
  }
  return step + (position - samples) / batch + 1;
}

const RunSnapshot* AtStep(int64_t step,
                          const std::vector<RunSnapshot>& snapshots) {
  for (const RunSnapshot& snapshot : snapshots) {
    if (snapshot.manifest.train_state.step == step) return &snapshot;
  }
  return nullptr;
}

const RunSnapshot* LastBefore(int64_t position, bool keeps_best,
                              const std::vector<RunSnapshot>& snapshots) {
  const RunSnapshot* last = nullptr;
  for (const RunSnapshot& snapshot : snapshots) {
    const TrainState& state = snapshot.manifest.train_state;
    if (state.samples > position) continue;
    if (keeps_best && state.best_step >= 0 &&
        AtStep(state.best_step, snapshots) == nullptr) {
      continue;
    }
    last = &snapshot;
  }
  return last;
}

double SecondsOfAStep(const std::string& run) {
  std::vector<double> seconds;
  ForEachLine(absl::StrCat(run, "/", kMetrics), [&](absl::string_view line) {
    const Json json = ParseJson<Json>(line);
    if (!json.is_object()) return;
    const auto one = NumberOf(json, "step_seconds");
    if (one.has_value()) seconds.push_back(*one);
  });
  if (seconds.empty()) return 0.0;
  const auto middle =
      seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

namespace {

absl::Status Fill(const std::vector<const RunSnapshot*>& snapshots,
                  const std::string& config_text, const std::string& from,
                  const std::string& begun) {
  for (const RunSnapshot* snapshot : snapshots) {
    const std::string name = fs::path(snapshot->path).filename().string();
    CAPSTAN_RETURN_IF_ERROR(
        LinkTree(snapshot->path, absl::StrCat(begun, "/checkpoints/", name)));
  }
  const int64_t step = snapshots.back()->manifest.train_state.step;
  // Not a link: the run adds to it.
  const auto metrics = ReadWholeFile(absl::StrCat(from, "/", kMetrics));
  for (const auto& [file, text] :
       {std::pair<const char*, std::string>{kMetrics, metrics.value_or("")},
        {kReceiptsFile, ReceiptsUpTo(step, from)},
        {"config.pbtxt", config_text}}) {
    if (text.empty()) continue;
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(absl::StrCat(begun, "/", file), text));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BeginFrom(const std::vector<const RunSnapshot*>& snapshots,
                       const std::string& config_text, const std::string& from,
                       const std::string& to) {
  const std::string begun = HiddenSibling(to, "begun");
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(begun));
  absl::Status status = Fill(snapshots, config_text, from, begun);
  if (status.ok()) {
    std::error_code error;
    fs::rename(begun, to, error);
    if (error) status = WriteError(to, error.value());
  }
  if (!status.ok()) RemoveTree(begun).IgnoreError();
  return status;
}

}  // namespace capstan
