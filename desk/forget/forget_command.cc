// SPDX-License-Identifier: Apache-2.0
//
// forget: trains a run again without some of its rows, from the newest
// checkpoint before it met the first of them.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/forget/run_without.h"
#include "desk/run_folder/run_record.h"
#include "desk/who/step_of_run.h"
#include "host/config/load_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

struct ForgetOptions {
  std::string run;
  std::vector<int64_t> rows;
  std::string output_dir;
  bool yes = false;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
};

// All that is known before anything is done.
struct Plan {
  std::string folder;  // the run's
  std::string output;  // the new run's
  std::vector<Snapshot> snapshots;
  RunOptions run;
  bool deterministic = false;
  int64_t end = 0;  // the last step, as the config says
  std::vector<RowUse> uses;
  std::vector<int64_t> steps;      // that used them, ascending
  std::vector<int64_t> unused;     // rows
  const Snapshot* from = nullptr;  // null: from the beginning

  const TrainState& newest() const {
    return snapshots.back().manifest.train_state;
  }
  int64_t first_step() const {
    return from == nullptr ? 0 : from->manifest.train_state.step;
  }
};

absl::Status CheckOverrides(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const absl::string_view field =
        absl::string_view(text).substr(0, text.find_first_of("+="));
    for (const char* own : {"output_dir", "train.forgotten_rows",
                            "train.resume", "train.resume_with_changes"}) {
      if (field != own) continue;
      return FieldError(
          "--set", absl::StrCat(own, " is forget's own to set: leave it out"));
    }
  }
  return absl::OkStatus();
}

// RUN-without-17; of several rows the first and how many more.
std::string OutputOf(const ForgetOptions& options, const std::string& folder) {
  if (!options.output_dir.empty()) return FromCaller(options.output_dir);
  const std::string real = std::filesystem::canonical(folder).string();
  std::string output = absl::StrCat(real, "-without-", options.rows.front());
  if (options.rows.size() > 1) {
    absl::StrAppend(&output, "-and-", options.rows.size() - 1);
  }
  return output;
}

// The run's own batch and ranks, whatever is here; and nothing is uploaded
// that nobody has looked at.
absl::StatusOr<std::vector<std::string>> Settings(const ForgetOptions& options,
                                                  const Plan& plan) {
  const Manifest& newest = plan.snapshots.back().manifest;
  CAPSTAN_ASSIGN_OR_RETURN(
      const StepRecord record,
      ReadStepRecord(plan.folder, std::max<int64_t>(1, plan.newest().step)));
  std::vector<std::string> settings = {
      absl::StrCat("output_dir=", plan.output),
      "hub_upload=", "train.resume=AUTO", "train.resume_with_changes=",
      absl::StrCat("batch.global_batch_size=",
                   newest.train_state.global_batch_size)};
  if (FieldsOfConfig(plan.run.config_text).count("launch.nodes") == 0) {
    settings.push_back(absl::StrCat("launch.processes=", newest.world_size));
  }
  if (record.micro_batch_size > 0) {
    settings.push_back(
        absl::StrCat("batch.micro_batch_size=", record.micro_batch_size));
  }
  for (const int64_t row : options.rows) {
    settings.push_back(absl::StrCat("train.forgotten_rows+=", row));
  }
  settings.insert(settings.end(), options.overrides.begin(),
                  options.overrides.end());
  return settings;
}

// Whether data and settings are those that the run had from there to its end.
absl::Status CheckSameRun(const Plan& plan, const Prepared& prepared) {
  const RunConfig& config = prepared.job.loaded.config;
  CAPSTAN_ASSIGN_OR_RETURN(const IdentifiedRun mine,
                           IdentifyRun(config, prepared.job.parts, plan.end));
  const Snapshot* const newest = &plan.snapshots.back();
  for (const Snapshot* snapshot : {newest, plan.from}) {
    if (snapshot == nullptr) continue;
    RunIdentity then = snapshot->manifest.identity;
    RunIdentity now = mine.identity;
    for (RunIdentity* identity : {&then, &now}) {
      CAPSTAN_RETURN_IF_ERROR(AddDefaults(config, identity));
    }
    const auto same = CompareIdentities(
        snapshot->path, then, now,
        snapshot->manifest.train_state.optimizer_steps, config.train());
    CAPSTAN_RETURN_IF_ERROR(Annotate(
        same.status(), "what the run would be without the rows can't be told"));
  }
  return absl::OkStatus();
}

void FindUses(const ForgetOptions& options, const DataOrder& order,
              Plan* plan) {
  const std::set<int64_t> rows(options.rows.begin(), options.rows.end());
  plan->uses = UsesOf(rows, order, plan->newest().samples);
  std::set<int64_t> used;
  for (const RowUse& use : plan->uses) {
    used.insert(use.row);
    const int64_t step = StepAt(use.position, plan->snapshots);
    if (plan->steps.empty() || plan->steps.back() != step) {
      plan->steps.push_back(step);
    }
  }
  for (const int64_t row : rows) {
    if (used.count(row) == 0) plan->unused.push_back(row);
  }
  if (plan->uses.empty()) return;
  plan->from = LastBefore(plan->uses.front().position, plan->snapshots);
}

absl::StatusOr<Plan> MakePlan(const ForgetOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOverrides(options.overrides));
  Plan plan;
  CAPSTAN_ASSIGN_OR_RETURN(plan.folder, FindRun(options.run));
  if (IsInUse(plan.folder)) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan.folder, " is still running: stop it first"));
  }
  plan.output = OutputOf(options, plan.folder);
  if (PathExists(plan.output)) {
    return absl::AlreadyExistsError(absl::StrCat(
        plan.output,
        " exists already: go on with it by `trainer --config=", plan.output,
        "/config.pbtxt`, remove it, or name another --output_dir"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(plan.snapshots, SnapshotsOf(plan.folder));
  CAPSTAN_ASSIGN_OR_RETURN(plan.run.config_text,
                           ReadWholeFile(plan.folder + "/config.pbtxt"));
  plan.run.plugin_path = options.plugin_path;
  CAPSTAN_ASSIGN_OR_RETURN(plan.run.overrides, Settings(options, plan));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(plan.run));
  const TrainJob& job = prepared->job;
  const Train& train = job.loaded.config.train();
  plan.deterministic = train.deterministic();
  plan.end =
      StepsOfRun(train, EpochRows(job.parts), job.batch.global_batch_size);
  FindUses(
      options,
      OrderOfRun(job.loaded.config, job.parts, job.batch.global_batch_size),
      &plan);
  CAPSTAN_RETURN_IF_ERROR(CheckSameRun(plan, *prepared));
  return plan;
}

// "3, 11, 19, .. (12 in all)"
std::string ListText(const std::vector<int64_t>& numbers) {
  constexpr size_t kMost = 8;
  if (numbers.size() <= kMost) return absl::StrJoin(numbers, ", ");
  return absl::StrCat(
      absl::StrJoin(absl::MakeConstSpan(numbers).first(kMost), ", "), ", .. (",
      numbers.size(), " in all)");
}

std::string CostText(const Plan& plan) {
  const int64_t done = plan.newest().step;
  const int64_t again = done - plan.first_step();
  std::string text = absl::StrFormat(
      "%d of %d steps (%.0f %%)", again, done,
      100.0 * static_cast<double>(again) / static_cast<double>(done));
  const double seconds = SecondsOfAStep(plan.folder);
  if (seconds > 0.0) {
    absl::StrAppend(&text, ", about ",
                    ShortDuration(seconds * static_cast<double>(again)));
  }
  return text;
}

void Print(const ForgetOptions& options, const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"run", plan.folder}, {"rows", ListText(options.rows)}};
  if (!plan.unused.empty()) {
    rows.emplace_back("never used", ListText(plan.unused));
  }
  if (!plan.uses.empty()) {
    rows.emplace_back("used in", absl::StrCat("steps ", ListText(plan.steps)));
    rows.emplace_back(
        "goes on from",
        plan.from != nullptr
            ? plan.from->path
            : absl::StrCat("the beginning, as no checkpoint is from before "
                           "step ",
                           plan.steps.front(), " (train.keep_checkpoints)"));
    rows.emplace_back("run again", CostText(plan));
    if (plan.end > plan.newest().step) {
      rows.emplace_back("then", absl::StrCat("on to step ", plan.end,
                                             ", as its config says"));
    }
    rows.emplace_back("into", plan.output);
  }
  std::string text = TableText(rows);
  if (!plan.uses.empty() && !plan.deterministic) {
    absl::StrAppend(&text,
                    "  note: the run wasn't deterministic "
                    "(train.deterministic): a run that had the rows at weight "
                    "zero from the start may be rounded otherwise\n");
  }
  Console(STDOUT_FILENO).Write(PrintableText(text));
}

// A run that is stopped goes on as any other.
void CallItTraining(const Plan& plan) {
  std::vector<std::string>& words = ThisCall().words;
  words.resize(std::find(words.begin(), words.end(), "forget") - words.begin());
  words.push_back(absl::StrCat("--config=", plan.output, "/config.pbtxt"));
  for (const std::string& path : plan.run.plugin_path) {
    words.push_back("--plugin_path=" + path);
  }
}

absl::StatusOr<int> Forget(const ForgetOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, MakePlan(options));
  Print(options, plan);
  if (plan.uses.empty()) {
    std::cout << "The run has never used them: there is nothing to run again\n";
    if (plan.end > plan.newest().step) {
      std::cout << "Resumed with --set train.forgotten_rows+=["
                << absl::StrJoin(options.rows, ", ") << "] it never will\n";
    }
    return 0;
  }
  if (!options.yes) {
    std::cout << "Nothing has been done yet: --yes begins\n";
    return 0;
  }
  std::cout << std::flush;
  if (plan.from != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(BeginFrom(*plan.from, plan.folder, plan.output));
  }
  CallItTraining(plan);
  return RunTraining(plan.run);
}

void AddFlags(Flags& flags, ForgetOptions* options) {
  flags.Add("run", &options->run, "A run's folder (runs/NAME/latest)")
      .Type("RUN")
      .Required();
  flags
      .Add("--row", &options->rows,
           "The rows to forget: samples of train_data, by the numbers that "
           "`trainer who` prints")
      .Delimiter(',')
      .Required();
  flags.Add("--yes", &options->yes,
            "Begin; default: only tell what it would cost");
  flags
      .Add("--output_dir", &options->output_dir,
           "The new run's folder; default: RUN-without-ROW")
      .Type("FOLDER");
  AddSet(flags, &options->overrides,
         "Changes the run's config: train_data.path=/moved/rows.jsonl");
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<ForgetOptions> forget(
    133, "forget", "Train a run again as if it had never met some of its rows",
    AddFlags, Forget);

}  // namespace
}  // namespace capstan
