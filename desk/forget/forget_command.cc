// SPDX-License-Identifier: Apache-2.0
//
// forget: trains a run again without some of its rows, from the newest
// checkpoint before it met the first of them.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/forget/run_without.h"
#include "desk/forget/same_run.h"
#include "desk/run_folder/alone.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/overrides.h"
#include "desk/run_folder/run_record.h"
#include "desk/who/step_of_run.h"
#include "host/config/flag_overrides.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/receipt_chain.h"
#include "trainer/session/schedule.h"
#include "trainer/session/session.h"

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
  std::vector<RunSnapshot> snapshots;
  RunOptions run;
  bool deterministic = false;
  int64_t end = 0;               // the last step, as the config says
  int64_t done = 0;              // the last step whose rows are known
  std::string config_text;       // the new run's
  std::vector<int64_t> already;  // rows that it has forgotten before
  std::vector<RowUse> uses;
  std::vector<int64_t> steps;         // that used them, ascending
  std::vector<int64_t> unused;        // rows
  const RunSnapshot* from = nullptr;  // null: from the beginning
  const RunSnapshot* best = nullptr;  // that `from` needs, too, or null
  bool best_is_gone = false;          // why it is from the beginning
  bool begins_chain = false;  // as the old one's receipts don't lead to `from`

  const TrainState& newest() const {
    return snapshots.back().manifest.train_state;
  }
  int64_t first_step() const {
    return from == nullptr ? 0 : from->manifest.train_state.step;
  }
};

// Leaves one of each.
absl::Status CheckRows(std::vector<int64_t>* rows) {
  std::vector<int64_t> merged;
  std::set<int64_t> seen;
  for (const int64_t row : *rows) {
    // The flag reads a number that is too large as the largest.
    if (row < 0 || row == std::numeric_limits<int64_t>::max()) {
      return FieldError("--row",
                        "a number is negative or too large for a row's: name "
                        "it as `trainer who` does, \"sample 17\"");
    }
    if (seen.insert(row).second) merged.push_back(row);
  }
  *rows = std::move(merged);
  return absl::OkStatus();
}

// Else the address would be a local folder's name.
absl::Status CheckLocal(const std::string& output_dir) {
  if (!absl::StrContains(output_dir, "://")) return absl::OkStatus();
  return FieldError(
      "--output_dir",
      absl::StrCat(output_dir,
                   " is an address, and forget writes to a local folder: name "
                   "one, and copy the new run from there"));
}

// Of a deterministic run, whose weights are to be exact.
absl::Status CheckBatchOverrides(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const absl::string_view field = FieldOfOverride(text);
    if (field != "batch" && !absl::StartsWith(field, "batch.")) continue;
    return FieldError(
        "--set", absl::StrCat(field,
                              " might round sums otherwise than the run did, "
                              "which has train.deterministic: leave it out"));
  }
  return absl::OkStatus();
}

// RUN-without-17; of several rows the first and how many more.
std::string OutputOf(const ForgetOptions& options, const std::string& folder) {
  if (!options.output_dir.empty()) {
    std::string output = FromCaller(options.output_dir);
    while (output.size() > 1 && output.back() == '/') output.pop_back();
    return output;
  }
  const std::string real = std::filesystem::canonical(folder).string();
  std::string output = absl::StrCat(real, "-without-", options.rows.front());
  if (options.rows.size() > 1) {
    absl::StrAppend(&output, "-and-", options.rows.size() - 1, "-more");
  }
  return output;
}

// The end that the run was told while it went on (train.control), which its
// config doesn't know; "": none.
std::string ToldEnd(const Plan& plan) {
  const Manifest& newest = plan.snapshots.back().manifest;
  const FieldLists now = FieldsOfConfig(plan.run.config_text);
  const FieldLists then = FieldsOfConfig(newest.config_text);
  for (const char* name : {"train.max_steps", "train.max_epochs"}) {
    const auto a = now.find(name);
    const auto b = then.find(name);
    if ((a == now.end()) != (b == then.end())) return "";
    // It has gone on with another end since.
    if (a != now.end() && a->second != b->second) return "";
  }
  const auto end = newest.identity.find("train.max_steps");
  return end == newest.identity.end() ? "" : end->second;
}

// The run's own batch, ranks and end, whatever is here; and nothing is uploaded
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
  const std::string end = ToldEnd(plan);
  if (!end.empty()) settings.push_back("train.max_steps=" + end);
  const std::set<int64_t> already(plan.already.begin(), plan.already.end());
  for (const int64_t row : options.rows) {
    if (already.count(row) > 0) continue;
    settings.push_back(absl::StrCat("train.forgotten_rows+=", row));
  }
  settings.insert(settings.end(), options.overrides.begin(),
                  options.overrides.end());
  return settings;
}

void FindUses(const ForgetOptions& options, const DataOrder& order,
              bool keeps_best, Plan* plan) {
  std::set<int64_t> rows(options.rows.begin(), options.rows.end());
  for (const int64_t row : plan->already) rows.erase(row);
  // final/ may be newer than all checkpoints that are left.
  const TrainState& newest = plan->newest();
  plan->done = std::max(newest.step, CompletedSteps(plan->folder).value_or(0));
  plan->uses = UsesOf(
      rows, order,
      newest.samples + (plan->done - newest.step) * newest.global_batch_size);
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
  plan->from =
      LastBefore(plan->uses.front().position, keeps_best, plan->snapshots);
  if (plan->from == nullptr) {
    plan->best_is_gone =
        LastBefore(plan->uses.front().position,
                   /*keeps_best=*/false, plan->snapshots) != nullptr;
  }
  if (plan->from == nullptr || !keeps_best) return;
  const TrainState& state = plan->from->manifest.train_state;
  if (state.best_step == state.step) return;
  plan->best = AtStep(state.best_step, plan->snapshots);
}

absl::Status CheckOutside(const std::string& folder,
                          const std::string& output) {
  namespace fs = std::filesystem;
  const fs::path run = fs::canonical(folder);
  // Nobody may search what can't be resolved, so nothing can be made there.
  std::error_code error;
  for (fs::path path = fs::weakly_canonical(fs::absolute(output), error);
       path.has_relative_path(); path = path.parent_path()) {
    if (path != run) continue;
    return FieldError(
        "--output_dir",
        absl::StrCat(output, " is the run's own folder, or in it (", folder,
                     "): name one outside of it"));
  }
  return absl::OkStatus();
}

// Of a folder that isn't empty. Only the run that was begun there without the
// same rows goes on, or may be removed.
absl::Status ExistsAlready(const ForgetOptions& options,
                           const std::string& output) {
  const std::string config = output + "/config.pbtxt";
  const absl::StatusOr<std::string> text = ReadWholeFile(config);
  if (!text.ok()) {
    return absl::AlreadyExistsError(absl::StrCat(
        output, " exists already: remove it, or name another --output_dir"));
  }
  FieldLists fields = FieldsOfConfig(*text);
  const std::vector<std::string>& forgotten = fields["train.forgotten_rows"];
  for (const int64_t row : options.rows) {
    if (absl::c_linear_search(forgotten, absl::StrCat(row))) continue;
    return absl::AlreadyExistsError(absl::StrCat(
        output, " holds another run already: name another --output_dir"));
  }
  return absl::AlreadyExistsError(
      absl::StrCat(output,
                   " exists already: go on with it by `trainer "
                   "--config=",
                   config, "`, remove it, or name another --output_dir"));
}

absl::Status FindFolders(const ForgetOptions& options, Plan* plan) {
  CAPSTAN_ASSIGN_OR_RETURN(plan->folder, FindRun(options.run));
  if (IsInUse(plan->folder)) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan->folder, " is still running: stop it first"));
  }
  plan->output = OutputOf(options, plan->folder);
  CAPSTAN_RETURN_IF_ERROR(CheckOutside(plan->folder, plan->output));
  std::error_code error;
  if (!PathExists(plan->output) ||
      (IsFolder(plan->output) &&
       std::filesystem::is_empty(plan->output, error))) {
    return absl::OkStatus();
  }
  return ExistsAlready(options, plan->output);
}

// Checks the old run's receipts, with which the new one, if it `has_receipts`,
// goes on.
absl::Status CheckReceipts(bool has_receipts, Plan* plan) {
  if (plan->from == nullptr) return absl::OkStatus();
  const absl::StatusOr<ReceiptChain> chain =
      ReadReceipts(plan->folder, /*use=*/nullptr);
  if (!chain.ok() && !absl::IsNotFound(chain.status())) {
    return Annotate(chain.status(),
                    "the new run can't go on with the old one's receipts (move "
                    "the file away to begin a chain of its own)");
  }
  plan->begins_chain =
      has_receipts &&
      (!chain.ok() || chain->Find(plan->first_step()) == nullptr);
  return absl::OkStatus();
}

// What Settings says of rows is of --row.
FlagOverrides RowFlags(const ForgetOptions& options) {
  const std::string typed =
      absl::StrCat("--row=", absl::StrJoin(options.rows, ","));
  FlagOverrides flags;
  for (const int64_t row : options.rows) {
    flags.emplace_back(absl::StrCat("train.forgotten_rows+=", row), typed);
  }
  return flags;
}

// Prepare takes an empty text for none.
absl::StatusOr<std::string> ConfigOf(const std::string& folder) {
  const std::string path = folder + "/config.pbtxt";
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  if (!text.empty()) return text;
  return WithCode(absl::InvalidArgumentError(absl::StrCat(
                      path,
                      " is empty: put back what the run wrote, which is "
                      "\"config\" in its checkpoints' manifest.json, too")),
                  "config/file");
}

absl::StatusOr<Plan> MakePlan(const ForgetOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckOverrides(options.overrides, "forget",
                     {"output_dir", "train.forgotten_rows", "train.resume",
                      "train.resume_with_changes"}));
  Plan plan;
  CAPSTAN_RETURN_IF_ERROR(FindFolders(options, &plan));
  CAPSTAN_ASSIGN_OR_RETURN(plan.snapshots, SnapshotsOf(plan.folder));
  const std::set<int64_t> forgotten =
      ForgottenRows(plan.snapshots.back().manifest.identity);
  for (const int64_t row :
       std::set<int64_t>(options.rows.begin(), options.rows.end())) {
    if (forgotten.count(row) > 0) plan.already.push_back(row);
  }
  CAPSTAN_ASSIGN_OR_RETURN(plan.run.config_text, ConfigOf(plan.folder));
  plan.run.plugin_path = options.plugin_path;
  CAPSTAN_ASSIGN_OR_RETURN(plan.run.overrides, Settings(options, plan));
  absl::StatusOr<std::unique_ptr<Prepared>> made = Prepare(plan.run);
  if (!made.ok()) return AsTyped(made.status(), RowFlags(options));
  const std::unique_ptr<Prepared> prepared = *std::move(made);
  CAPSTAN_RETURN_IF_ERROR(CheckAlone("forget", prepared->place));
  const TrainJob& job = prepared->job;
  const Train& train = job.loaded.config.train();
  plan.config_text = PrintConfig(job.loaded.config);
  plan.deterministic = train.deterministic();
  if (plan.deterministic) {
    CAPSTAN_RETURN_IF_ERROR(CheckBatchOverrides(options.overrides));
  }
  plan.end =
      StepsOfRun(train, EpochRows(job.parts), job.batch.global_batch_size);
  FindUses(
      options,
      OrderOfRun(job.loaded.config, job.parts, job.batch.global_batch_size),
      KeepsBest(train), &plan);
  CAPSTAN_RETURN_IF_ERROR(CheckSameRun(plan.folder, plan.snapshots, plan.from,
                                       *prepared, plan.end));
  CAPSTAN_RETURN_IF_ERROR(CheckReceipts(train.receipts(), &plan));
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

// ", about 2h" for so many steps; "" if the run doesn't say.
std::string TimeText(const Plan& plan, int64_t steps) {
  const double seconds = SecondsOfAStep(plan.folder);
  return seconds > 0.0
             ? absl::StrCat(", about ",
                            ShortDuration(seconds * static_cast<double>(steps)))
             : "";
}

std::string CostText(const Plan& plan) {
  const int64_t again = plan.done - plan.first_step();
  return absl::StrCat(
      absl::StrFormat(
          "%d of %d steps (%.0f %%)", again, plan.done,
          100.0 * static_cast<double>(again) / static_cast<double>(plan.done)),
      TimeText(plan, again));
}

void Print(const ForgetOptions& options, const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"run", plan.folder}, {"rows", ListText(options.rows)}};
  if (!plan.already.empty()) {
    rows.emplace_back("forgotten",
                      absl::StrCat(ListText(plan.already), " already, before"));
  }
  if (!plan.unused.empty()) {
    rows.emplace_back("never used", ListText(plan.unused));
  }
  if (!plan.uses.empty()) {
    rows.emplace_back("used in",
                      absl::StrCat(plan.steps.size() == 1 ? "step " : "steps ",
                                   ListText(plan.steps)));
    rows.emplace_back(
        "goes on from",
        plan.from != nullptr
            ? plan.from->path
            : absl::StrCat("the beginning, as no checkpoint is from before "
                           "step ",
                           plan.steps.front(), " (train.keep_checkpoints)"));
    if (plan.best_is_gone) {
      rows.emplace_back("", "and has the best evaluation's with it");
    }
    rows.emplace_back("run again", CostText(plan));
    if (plan.end > plan.done) {
      rows.emplace_back(
          "then", absl::StrCat("on to step ", plan.end, ", as its config says",
                               TimeText(plan, plan.end - plan.done)));
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
  if (plan.begins_chain) {
    absl::StrAppend(&text, "  note: the run's ", kReceiptsFile,
                    " has no line of step ", plan.first_step(),
                    ": the new run's chain begins there, and doesn't say how "
                    "its weights were trained until then\n");
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

// Once the new run is complete: has runs/NAME/latest name it in place of the
// old one, which is to be removed, if it is beside that. Returns a line for the
// user; "": `latest` doesn't name the old run.
std::string PassLatestOn(const Plan& plan) {
  namespace fs = std::filesystem;
  std::error_code old_error, new_error;
  const fs::path from = fs::canonical(plan.folder, old_error);
  const fs::path to = fs::canonical(plan.output, new_error);
  if (old_error || new_error) return "";
  const std::string runs = from.parent_path().string();
  const std::string latest = runs + "/latest";
  if (!IsRegularFile(latest) || FollowLatestRun(latest) != from) return "";
  if (to.parent_path() != from.parent_path()) {
    return absl::StrCat("note: ", latest,
                        " still names the old run: name the new one by its "
                        "own folder\n");
  }
  const absl::Status set = SetLatestRun(runs, to.filename().string());
  return set.ok()
             ? absl::StrCat(latest, " now names the new run\n")
             : absl::StrCat("WARNING: ", latest,
                            " still names the old run: ", set.message(), "\n");
}

absl::StatusOr<int> Forget(const ForgetOptions& given) {
  ForgetOptions options = given;
  CAPSTAN_RETURN_IF_ERROR(CheckRows(&options.rows));
  CAPSTAN_RETURN_IF_ERROR(CheckLocal(options.output_dir));
  CAPSTAN_ASSIGN_OR_RETURN(const Plan plan, MakePlan(options));
  Print(options, plan);
  if (plan.uses.empty()) {
    std::cout << "The run hasn't used them up to step " << plan.done
              << ": there is nothing to run again\n";
    if (plan.end > plan.done && !plan.unused.empty()) {
      std::cout << "Resumed with --set train.forgotten_rows+=["
                << absl::StrJoin(plan.unused, ", ") << "] it never will\n";
    }
    return 0;
  }
  if (!options.yes) {
    std::cout << "Nothing has been done yet: --yes begins"
              << (plan.from == nullptr
                      ? "\n"
                      : ", once the checkpoint's bytes are verified\n");
    return 0;
  }
  std::cout << std::flush;
  if (plan.from != nullptr) {
    std::vector<const RunSnapshot*> needed = {plan.from};
    if (plan.best != nullptr) needed.insert(needed.begin(), plan.best);
    for (const RunSnapshot* snapshot : needed) {
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(VerifyCheckpoint(snapshot->path),
                   "the run can't go on from its checkpoint (if it is damaged, "
                   "remove it, then from the one before)"));
    }
    CAPSTAN_RETURN_IF_ERROR(
        BeginFrom(needed, plan.config_text, plan.folder, plan.output));
  }
  CallItTraining(plan);
  CAPSTAN_ASSIGN_OR_RETURN(const int code, RunTraining(plan.run));
  if (code == 0 && CompletedSteps(plan.output).has_value()) {
    Console(STDOUT_FILENO).Write(PrintableText(PassLatestOn(plan)));
  }
  return code;
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

const RegisterFunction<ForgetOptions> forget("forget", AddFlags, Forget);

}  // namespace
}  // namespace capstan
