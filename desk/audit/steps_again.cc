// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/steps_again.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/compare/comparison.h"
#include "desk/compare/trainer_child.h"
#include "desk/run_folder/link_tree.h"
#include "desk/run_folder/overrides.h"
#include "desk/who/step_of_run.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Line = ReceiptChain::Line;

constexpr char kWeights[] = "weights";

// In the order in which one follows from those before it.
constexpr const char* kCompared[][2] = {
    {"samples", "which rows the step reads (the order of the data)"},
    {"forgotten", "which rows have weight zero (train.forgotten_rows)"},
    {"rows",
     "what is in the rows (train_data, how they are read, or the answers that "
     "were sampled)"},
    {"lr", "the learning rate (optimizer, schedule)"},
    {"loss", "the loss: what forward computes from the same rows"},
    {"grad_norm", "the gradients' norm: what backward computes"},
    {"weights", "the weights after the update"},
    {"state", "the state of optimizer and strategy after the update"},
};

// What the newest lines say: of each step, and which weights were there after
// it, which something else than an update may have replaced.
struct BySteps {
  std::map<int64_t, const Line*> steps;
  std::map<int64_t, std::string> weights;
};

BySteps Sorted(const Receipts& receipts) {
  BySteps sorted;
  for (const Line& line : receipts.lines) {
    const int64_t step = StepOfReceipt(line);
    if (IsStepReceipt(line)) sorted.steps[step] = &line;
    sorted.weights[step] = ReceiptText(line, kWeights);
  }
  return sorted;
}

// The newest object `key` of the lines before step `step`; null: there is none.
const Line* NewestBefore(const Receipts& receipts, int64_t step,
                         const char* key) {
  const Line* newest = nullptr;
  for (const Line& line : receipts.lines) {
    const auto found = line.find(key);
    if (found != line.end() && found->is_object() &&
        StepOfReceipt(line) < step) {
      newest = &*found;
    }
  }
  return newest;
}

// What identifies the run; the first that differs.
absl::optional<ReceiptDifference> RunDifference(const Receipts& recorded,
                                                const Receipts& again) {
  const int64_t from = StepOfReceipt(again.lines.front());
  const Line* const mine = NewestBefore(again, from + 1, "run");
  const Line* const theirs = NewestBefore(recorded, from + 1, "run");
  if (mine == nullptr || theirs == nullptr) return absl::nullopt;
  for (const Line* one : {theirs, mine}) {
    for (const auto& [key, value] : one->items()) {
      const std::string was = ReceiptText(*theirs, key);
      const std::string is = ReceiptText(*mine, key);
      if (was != is) return ReceiptDifference{from, "run " + key, was, is};
    }
  }
  return absl::nullopt;
}

// Only the steps themselves, divided and scheduled as they were.
std::vector<std::string> Settings(const std::string& folder, int64_t step,
                                  const std::string& config, const Line* how) {
  std::vector<std::string> settings = {absl::StrCat("output_dir=", folder),
                                       "hub_upload=",
                                       absl::StrCat("train.max_steps=", step),
                                       "train.resume=AUTO",
                                       "train.receipts=true",
                                       "train.eval_every=0",
                                       "train.eval_batches=1",
                                       "train.keep_best=false",
                                       "train.early_stopping_patience=0",
                                       "train.mirror_every=0",
                                       "train.sample_prompts=",
                                       "train.control=false",
                                       "train.log_every=1",
                                       "train.digests=",
                                       "profile=",
                                       "launch.max_restarts=0"};
  for (const char* name : {"eval_sets", "eval_tasks"}) {
    if (!absl::StrContains(config, absl::StrCat(name, " {"))) continue;
    settings.push_back(absl::StrCat(name, "="));
    settings.push_back(absl::StrCat("train.resume_with_changes+=", name));
  }
  if (how == nullptr) return settings;
  for (const auto& [setting, key] :
       {std::pair<const char*, const char*>{"schedule.total_steps",
                                            "schedule_steps"},
        {"batch.global_batch_size", "global_batch_size"},
        {"batch.micro_batch_size", "micro_batch_size"}}) {
    const auto found = how->find(key);
    const int64_t value =
        found == how->end() ? 0 : JsonInteger(*found).value_or(0);
    if (value > 0) settings.push_back(absl::StrCat(setting, "=", value));
  }
  return settings;
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
  if (again.lines.empty()) return absl::nullopt;
  const BySteps theirs = Sorted(recorded);
  const Line& first = again.lines.front();
  const int64_t from = StepOfReceipt(first);
  const auto before = theirs.weights.find(from);
  const std::string weights = ReceiptText(first, kWeights);
  if (before != theirs.weights.end() && before->second != weights) {
    return ReceiptDifference{from, kBeginning, before->second, weights};
  }
  for (const auto& [step, line] : Sorted(again).steps) {
    const auto found = theirs.steps.find(step);
    if (found == theirs.steps.end()) continue;
    for (const auto& [key, meaning] : kCompared) {
      ReceiptDifference difference = {
          step, key, ReceiptText(*found->second, key), ReceiptText(*line, key)};
      if (difference.recorded != difference.again) return difference;
    }
  }
  // Last, as a step names the cause more closely.
  return RunDifference(recorded, again);
}

absl::StatusOr<StepsAgain> RunStepsAgain(const StepsAgainRequest& request,
                                         const Receipts& recorded) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckOverrides(request.overrides, "audit",
                     {"output_dir", "train.max_steps", "train.max_epochs",
                      "train.receipts", "train.resume"}));
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
      Settings(folder, request.step, record.config_text,
               NewestBefore(recorded, request.step, "how"));
  settings.insert(settings.end(), request.overrides.begin(),
                  request.overrides.end());
  for (const std::string& setting : settings) {
    args.push_back("--set");
    args.push_back(setting);
  }
  for (const std::string& path : request.plugin_path) {
    args.push_back("--plugin_path=" + path);
  }
  MetricsFollower metrics(folder + "/metrics.jsonl");
  CAPSTAN_ASSIGN_OR_RETURN(
      const TrainerChildResult ended, RunTrainerChild(args, log, [&] {
        request.progress(std::max<int64_t>(metrics.Poll() - again.from, 0),
                         request.step - again.from);
      }));
  again.signal = ended.stop_signal;
  if (again.signal != 0) return again;
  if (!ended.end.ok()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string output, ReadWholeFile(log));
    // What lay there is gone; what it was made of is the run's.
    return absl::FailedPreconditionError(absl::StrCat(
        "running step ", request.step, " again failed: ",
        absl::StrReplaceAll(WhyItFailed(ended.end, output),
                            {{folder, request.run}, {config, "its config"}})));
  }
  CAPSTAN_ASSIGN_OR_RETURN(again.receipts, ReadReceipts(folder));
  if (Sorted(again.receipts).steps.count(request.step) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "running step ", request.step, " again ended before that step"));
  }
  return again;
}

}  // namespace capstan
