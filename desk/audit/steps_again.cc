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
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/compare/comparison.h"
#include "desk/compare/trainer_child.h"
#include "desk/run_folder/link_tree.h"
#include "desk/run_folder/overrides.h"
#include "desk/who/step_of_run.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Line = ReceiptChain::Line;

constexpr char kWeights[] = "weights";
constexpr char kTrainData[] = "train_data";

// In the order in which one follows from those before it.
constexpr const char* kCompared[] = {"samples", "forgotten", "rows",
                                     "lr",      "loss",      "grad_norm",
                                     "weights", "state"};

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

// What identifies the run: what the user has set, if that differs, as others
// may follow from it; else the first that does, its data last.
absl::optional<ReceiptDifference> RunDifference(
    const Receipts& recorded, const Receipts& again,
    const std::vector<std::string>& overrides) {
  const int64_t from = StepOfReceipt(again.lines.front());
  const Line* const mine = NewestBefore(again, from + 1, "run");
  const Line* const theirs = NewestBefore(recorded, from + 1, "run");
  if (mine == nullptr || theirs == nullptr) return absl::nullopt;
  std::vector<std::string> keys;
  for (const std::string& text : overrides) {
    keys.emplace_back(FieldOfOverride(text));
  }
  for (const Line* one : {theirs, mine}) {
    for (const auto& [key, value] : one->items()) {
      if (key != kTrainData) keys.push_back(key);
    }
  }
  keys.emplace_back(kTrainData);
  for (const std::string& key : keys) {
    const std::string was = ReceiptText(*theirs, key);
    const std::string is = ReceiptText(*mine, key);
    if (was != is) return ReceiptDifference{from, kOfRun + key, was, is};
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

// What a resume refuses: "the run in CHECKPOINT isn't this one: NAME: THEN ->
// NOW; ..: restore the old value, or, ..". The first of them.
absl::optional<ReceiptDifference> RefusedChange(int64_t from,
                                                absl::string_view error) {
  constexpr absl::string_view kIsnt = "isn't this one: ";
  const size_t at = error.find(kIsnt);
  if (at == error.npos || !absl::StrContains(error, "[run/changed]")) {
    return absl::nullopt;
  }
  error.remove_prefix(at + kIsnt.size());
  const size_t name = error.find(": ");
  const size_t arrow = error.find(" -> ");
  if (name == error.npos || arrow == error.npos || arrow < name + 2) {
    return absl::nullopt;
  }
  const absl::string_view rest = error.substr(arrow + 4);
  const size_t end = std::min(rest.find("; "), rest.find(": restore "));
  return ReceiptDifference{
      from, absl::StrCat(kOfRun, error.substr(0, name)),
      std::string(error.substr(name + 2, arrow - name - 2)),
      std::string(rest.substr(0, end))};
}

// The first --set that makes another model, by the receipts.
absl::optional<ReceiptDifference> ChangedSetting(
    int64_t from, const std::vector<std::string>& overrides, const Line* run) {
  if (run == nullptr) return absl::nullopt;
  for (const std::string& text : overrides) {
    const std::string field(FieldOfOverride(text));
    const std::string was = ReceiptText(*run, field);
    const std::string is =
        text.substr(std::min(text.size(), text.find('=') + 1));
    const bool of_model = absl::StartsWith(field, "model.") ||
                          absl::StartsWith(field, "adapter.");
    if (of_model && !was.empty() && was != is) {
      return ReceiptDifference{from, kOfRun + field, was, is};
    }
  }
  return absl::nullopt;
}

// Without what a resume would do about it.
absl::Status NotAgainError(int64_t step, absl::string_view why) {
  const size_t damaged = why.find(kWhatToDo);
  why = why.substr(
      0, std::min(damaged, why.find("; resume with the model that it was")));
  const absl::Status error = absl::FailedPreconditionError(
      absl::StrCat("running step ", step, " again failed: ", why));
  if (damaged == why.npos) return error;
  return WithCode(absl::DataLossError(absl::StrCat(
                      error.message(), kWhatToDo,
                      ", or name a step that another checkpoint is before")),
                  "checkpoint/damaged");
}

// Says what a folder in a text about the steps run again was.
std::string WithTemporary(const std::string& text, const std::string& scratch) {
  if (!absl::StrContains(text, scratch)) return text;
  // Before the error's code, if there is one.
  const size_t end = absl::EndsWith(text, "]") ? text.rfind(" [") : text.npos;
  return absl::StrCat(text.substr(0, end), " (", scratch,
                      " was the temporary folder of the steps run again: let "
                      "TMPDIR name one with room for a run)",
                      end == text.npos ? "" : text.substr(end));
}

absl::Status InTemporary(const absl::Status& status,
                         const std::string& scratch) {
  if (status.ok()) return status;
  return WithMessage(status,
                     WithTemporary(std::string(status.message()), scratch));
}

// Sets again->refused, or returns why the steps can't be run.
absl::Status ExplainFailure(const StepsAgainRequest& request,
                            const Receipts& recorded, const std::string& why,
                            StepsAgain* again) {
  again->refused = RefusedChange(again->from, why);
  if (!again->refused.has_value() &&
      absl::StrContains(why, "was made by another model")) {
    again->refused =
        ChangedSetting(again->from, request.overrides,
                       NewestBefore(recorded, again->from + 1, "run"));
  }
  return again->refused.has_value() ? absl::OkStatus()
                                    : NotAgainError(request.step, why);
}

}  // namespace

absl::optional<ReceiptDifference> FindReceiptDifference(
    const Receipts& recorded, const Receipts& again,
    const std::vector<std::string>& overrides) {
  if (again.lines.empty()) return absl::nullopt;
  const absl::optional<ReceiptDifference> run =
      RunDifference(recorded, again, overrides);
  if (run.has_value() && run->key != absl::StrCat(kOfRun, kTrainData)) {
    return run;
  }
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
    for (const char* key : kCompared) {
      ReceiptDifference difference = {
          step, key, ReceiptText(*found->second, key), ReceiptText(*line, key)};
      if (difference.recorded != difference.again) return difference;
    }
  }
  return run;
}

std::vector<std::string> OtherLibraries(
    const Receipts& recorded, const Receipts& again,
    const std::vector<std::string>& overrides) {
  std::vector<std::string> others;
  if (again.lines.empty()) return others;
  const int64_t step = StepOfReceipt(again.lines.front()) + 1;
  const auto libraries = [&](const Receipts& receipts) -> Line {
    const Line* const how = NewestBefore(receipts, step, "how");
    return how == nullptr ? Line() : how->value("libraries", Line());
  };
  const Line theirs = libraries(recorded);
  const Line mine = libraries(again);
  if (!theirs.is_object() || !mine.is_object()) return others;
  const auto chosen = [&](const std::string& slot) {
    return std::any_of(
        overrides.begin(), overrides.end(),
        [&](const std::string& text) { return FieldOfOverride(text) == slot; });
  };
  for (const auto& [slot, library] : theirs.items()) {
    const auto found = mine.find(slot);
    if (found != mine.end() && !chosen(slot) &&
        ReceiptText(*found, "sha256") != ReceiptText(library, "sha256")) {
      others.push_back(slot);
    }
  }
  return others;
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
  std::string checkpoint;
  StepsAgain again;
  if (!record.checkpoint.empty()) {
    again.from = record.before.step;
    const std::string name = fs::path(record.checkpoint).filename().string();
    checkpoint = absl::StrCat(folder, "/checkpoints/", name);
    CAPSTAN_RETURN_IF_ERROR(
        InTemporary(LinkTree(record.checkpoint, checkpoint), scratch.path()));
  }
  const std::string config = scratch.path() + "/run.pbtxt";
  const std::string log = scratch.path() + "/output.txt";
  CAPSTAN_RETURN_IF_ERROR(
      InTemporary(WriteWholeFile(config, record.config_text), scratch.path()));
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
    std::string why = WhyItFailed(ended.end, output);
    if (!checkpoint.empty()) {
      why = absl::StrReplaceAll(why, {{checkpoint, record.checkpoint}});
    }
    why = WithTemporary(absl::StrReplaceAll(why, {{config, "its config"}}),
                        scratch.path());
    CAPSTAN_RETURN_IF_ERROR(ExplainFailure(request, recorded, why, &again));
    return again;
  }
  absl::StatusOr<Receipts> receipts = ReadReceipts(folder);
  if (!receipts.ok() && !absl::IsNotFound(receipts.status())) {
    return InTemporary(receipts.status(), scratch.path());
  }
  if (!receipts.ok() || Sorted(*receipts).steps.count(request.step) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "running step ", request.step, " again from ",
        record.checkpoint.empty() ? "the beginning" : record.checkpoint,
        " ended without a receipt of that step: name one that another "
        "checkpoint is before"));
  }
  again.receipts = *std::move(receipts);
  return again;
}

}  // namespace capstan
