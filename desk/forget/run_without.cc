// SPDX-License-Identifier: Apache-2.0
#include "desk/forget/run_without.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
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

// The step of a line of metrics.jsonl; -1: it isn't one.
int64_t StepOf(absl::string_view line) {
  const Json json = ParseJson<Json>(line);
  return json.is_object()
             ? static_cast<int64_t>(NumberOf(json, "step").value_or(-1.0))
             : -1;
}

std::string MetricsUpTo(int64_t step, const std::string& run) {
  std::string text;
  ForEachLine(absl::StrCat(run, "/", kMetrics), [&](absl::string_view line) {
    const int64_t of = StepOf(line);
    if (of >= 0 && of <= step) absl::StrAppend(&text, line, "\n");
  });
  return text;
}

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

absl::StatusOr<std::vector<Snapshot>> SnapshotsOf(const std::string& run) {
  std::vector<Snapshot> snapshots;
  for (const StoredCheckpoint& stored : WholeCheckpoints(run)) {
    absl::StatusOr<Manifest> manifest = ReadManifest(stored.path);
    // As a resumed run does, goes by the others.
    if (!manifest.ok()) {
      std::cerr << "WARNING: " << PrintableText(stored.path)
                << " is passed over: it is damaged\n";
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

int64_t StepAt(int64_t position, const std::vector<Snapshot>& snapshots) {
  int64_t step = 0, samples = 0, batch = 1;
  for (const Snapshot& snapshot : snapshots) {
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

const Snapshot* LastBefore(int64_t position,
                           const std::vector<Snapshot>& snapshots) {
  const Snapshot* last = nullptr;
  for (const Snapshot& snapshot : snapshots) {
    if (snapshot.manifest.train_state.samples <= position) last = &snapshot;
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

absl::Status BeginFrom(const Snapshot& snapshot, const std::string& from,
                       const std::string& to) {
  const int64_t step = snapshot.manifest.train_state.step;
  const std::string name = fs::path(snapshot.path).filename().string();
  CAPSTAN_RETURN_IF_ERROR(
      LinkTree(snapshot.path, absl::StrCat(to, "/checkpoints/", name)));
  for (const auto& [file, text] :
       {std::pair<const char*, std::string>{kMetrics, MetricsUpTo(step, from)},
        {kReceiptsFile, ReceiptsUpTo(step, from)}}) {
    if (text.empty()) continue;
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(to, "/", file), text));
  }
  return absl::OkStatus();
}

}  // namespace capstan
