// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/steps_again.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/compare/trainer_child.h"
#include "desk/run_folder/run_record.h"
#include "desk/who/step_of_run.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Line = ReceiptChain::Line;

// In the order in which one follows from those before it.
constexpr const char* kCompared[][2] = {
    {"samples", "which rows the step reads (the order of the data)"},
    {"rows", "what is in the rows (train_data, or how they are read)"},
    {"lr", "the learning rate (optimizer, schedule)"},
    {"loss", "the loss: what forward computes from the same rows"},
    {"grad_norm", "the gradients' norm: what backward computes"},
    {"weights", "the weights after the update"},
    {"state", "the state of optimizer and strategy after the update"},
};

std::string TextAt(const Line& line, const char* key) {
  return line.value(key, std::string());
}

// The last of each step, of either kind.
std::map<int64_t, const Line*> ByStep(const Receipts& receipts) {
  std::map<int64_t, const Line*> lines;
  for (const Line& line : receipts.lines) {
    const bool begin = line.contains("begin");
    const auto step = line.value(begin ? "begin" : "step", int64_t{-1});
    // A resume from a step says less of it than the step did.
    if (!begin || lines.count(step) == 0) lines[step] = &line;
  }
  return lines;
}

// So that nothing can happen to the files that are there.
absl::Status LinkTree(const std::string& from, const std::string& to) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(fs::path(to).parent_path().string()));
  std::error_code error;
  fs::copy(from, to,
           fs::copy_options::recursive | fs::copy_options::create_hard_links,
           error);
  if (!error) return absl::OkStatus();
  // On another file system.
  fs::remove_all(to, error);
  fs::copy(from, to, fs::copy_options::recursive, error);
  return error ? WriteError(to, error.value()) : absl::OkStatus();
}

// How long the run was to be, by its newest process up to `step`.
int64_t EndOf(const Receipts& recorded, int64_t step) {
  int64_t end = 0;
  for (const Line& line : recorded.lines) {
    if (line.value("begin", int64_t{-1}) >= step) break;
    if (!line.contains("how")) continue;
    end = line["how"].value("max_steps", end);
  }
  return end;
}

// Only the steps themselves.
std::vector<std::string> Settings(const std::string& folder, int64_t step,
                                  int64_t end) {
  return {absl::StrCat("output_dir=", folder),
          absl::StrCat("schedule.total_steps=", end),
          absl::StrCat("train.max_steps=", step),
          "train.resume=AUTO",
          "train.resume_with_changes=[\"eval_data\", \"eval_sets\", "
          "\"eval_tasks\", \"schedule\"]",
          "train.receipts=true",
          "train.eval_every=0",
          "train.eval_batches=1",
          "eval_sets=",
          "eval_tasks=",
          "train.keep_best=false",
          "train.early_stopping_patience=0",
          "train.save_every=0",
          "train.mirror_every=0",
          "train.sample_prompts=",
          "train.control=false",
          "train.log_every=1",
          "train.digests=",
          "profile=",
          "launch.max_restarts=0"};
}

int64_t StepsDone(const std::string& metrics, int64_t from) {
  int64_t lines = 0;
  ForEachLine(metrics, [&lines](absl::string_view) { ++lines; });
  return from + lines;
}

}  // namespace

std::string MeaningOf(const std::string& key) {
  for (const auto& [name, meaning] : kCompared) {
    if (key == name) return meaning;
  }
  return key;
}

absl::optional<ReceiptDifference> FindReceiptDifference(
    const Receipts& recorded, const Receipts& again) {
  const std::map<int64_t, const Line*> theirs = ByStep(recorded);
  for (const auto& [step, line] : ByStep(again)) {
    const auto found = theirs.find(step);
    if (found == theirs.end()) continue;
    for (const auto& [key, meaning] : kCompared) {
      // A line of a beginning has neither rows nor a loss.
      if (!line->contains(key) || !found->second->contains(key)) continue;
      ReceiptDifference difference = {step, key, TextAt(*found->second, key),
                                      TextAt(*line, key)};
      if (difference.recorded != difference.again) return difference;
    }
  }
  return absl::nullopt;
}

absl::StatusOr<StepsAgain> RunStepsAgain(const StepsAgainRequest& request,
                                         const Receipts& recorded) {
  CAPSTAN_ASSIGN_OR_RETURN(const StepRecord record,
                           ReadStepRecord(request.run, request.step));
  const ScratchFolder scratch;
  CAPSTAN_RETURN_IF_ERROR(scratch.status());
  const std::string folder = scratch.path() + "/run";
  StepsAgain again;
  if (!record.checkpoint.empty()) {
    again.from = record.before.step;
    const std::string name = fs::path(record.checkpoint).filename().string();
    CAPSTAN_RETURN_IF_ERROR(LinkTree(
        record.checkpoint, absl::StrCat(folder, "/checkpoints/", name)));
  }
  const std::string config = scratch.path() + "/run.pbtxt";
  const std::string log = scratch.path() + "/output.txt";
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(config, record.config_text));
  std::vector<std::string> args = {"train", "--config=" + config};
  std::vector<std::string> settings =
      Settings(folder, request.step, EndOf(recorded, request.step));
  settings.insert(settings.end(), request.overrides.begin(),
                  request.overrides.end());
  for (const std::string& setting : settings) {
    args.push_back("--set");
    args.push_back(setting);
  }
  for (const std::string& path : request.plugin_path) {
    args.push_back("--plugin_path=" + path);
  }
  const std::string metrics = folder + "/metrics.jsonl";
  CAPSTAN_ASSIGN_OR_RETURN(
      const TrainerChildResult ended, RunTrainerChild(args, log, [&] {
        request.progress(StepsDone(metrics, again.from) - again.from,
                         request.step - again.from);
      }));
  again.signal = ended.stop_signal;
  if (again.signal != 0) return again;
  if (!ended.end.ok()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string output, ReadWholeFile(log));
    return absl::FailedPreconditionError(
        absl::StrCat("running step ", request.step,
                     " again failed: ", WhyItFailed(ended.end, output)));
  }
  CAPSTAN_ASSIGN_OR_RETURN(again.receipts, ReadReceipts(folder));
  return again;
}

}  // namespace capstan
