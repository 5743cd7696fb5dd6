// SPDX-License-Identifier: Apache-2.0
//
// runs: the runs below a folder; which of them are meant, tags, what differs
// between two, and which may go.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/run_record.h"
#include "desk/runs/clear_away.h"
#include "desk/runs/conditions.h"
#include "host/config/load_config.h"
#include "host/storage/storage.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

struct RunsOptions {
  std::vector<std::string> words;
  std::vector<std::string> where;
  bool json = false;
  // Of gc.
  absl::optional<int64_t> keep;
  absl::optional<std::string> keep_best;
  absl::optional<double> older_than;
  bool checkpoints = false;
  bool remove = false;
};

// Where runs are if nobody says: runs/ here, or in the workspace.
std::string DefaultFolder() {
  const std::string here = FromCaller("runs");
  const std::string workspace = DefaultConfigContext(nullptr).workspace_folder;
  return IsFolder(here) || workspace.empty() ? here : workspace + "/runs";
}

absl::StatusOr<std::string> FolderOf(const std::vector<std::string>& words,
                                     size_t at) {
  if (words.size() > at + 1) {
    return absl::InvalidArgumentError(
        at == 0 ? absl::StrCat("\"", words[0],
                               "\" is none of list, tag, untag, diff and gc; "
                               "runs are found by `runs FOLDER "
                               "--where='loss<3'`")
                : absl::StrCat("\"", words[at + 1], "\": name one folder"));
  }
  if (words.size() > at && IsAddress(words[at])) {
    if (words[0] == "gc") {
      return absl::InvalidArgumentError(
          absl::StrCat(words[at],
                       " is read from a copy, of which gc would free nothing: "
                       "remove its objects with the store's own tool"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> copies,
                             FoldersOfRuns({words[at]}));
    return copies[0];
  }
  const std::string folder =
      words.size() > at ? FromCaller(words[at]) : DefaultFolder();
  std::error_code error;
  if (std::filesystem::equivalent(folder, "/", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     " is the whole machine: name the folder that the runs are "
                     "below"));
  }
  if (IsFolder(folder)) return folder;
  return absl::NotFoundError(
      absl::StrCat(folder, " isn't a folder: name one that has runs below it"));
}

absl::StatusOr<std::vector<Condition>> ConditionsOf(
    const std::vector<std::string>& where) {
  std::vector<Condition> conditions;
  for (const std::string& text : where) {
    CAPSTAN_ASSIGN_OR_RETURN(Condition condition, ParseCondition(text));
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

// The runs that meet all conditions, the newest first. A name that no run has
// is an error.
absl::StatusOr<std::vector<ListedRun>> Matching(
    const std::string& folder, const std::vector<std::string>& where) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Condition> conditions,
                           ConditionsOf(where));
  std::vector<ListedRun> runs;
  for (const std::string& path : RunsBelow(folder)) {
    runs.push_back(ReadListedRun(path));
  }
  for (const Condition& condition : conditions) {
    const bool known =
        condition.name == "tag" ||
        std::any_of(runs.begin(), runs.end(), [&](const ListedRun& run) {
          return !ValuesOf(run, condition.name).empty();
        });
    if (known || runs.empty()) continue;
    return absl::NotFoundError(
        absl::StrCat("--where: no run below ", folder, " has \"",
                     condition.name, "\" in its config or its metrics.jsonl"));
  }
  const auto misses = [&](const ListedRun& run) {
    return !std::all_of(
        conditions.begin(), conditions.end(),
        [&](const Condition& condition) { return Meets(run, condition); });
  };
  runs.erase(std::remove_if(runs.begin(), runs.end(), misses), runs.end());
  std::stable_sort(
      runs.begin(), runs.end(),
      [](const ListedRun& a, const ListedRun& b) { return a.begun > b.begun; });
  return runs;
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M", time, absl::LocalTimeZone());
}

Json RunJson(const ListedRun& run) {
  Json json = {{"folder", run.folder},
               {"name", run.name},
               {"begun", absl::ToDoubleSeconds(run.begun - absl::UnixEpoch())},
               {"status", StatusName(run.status)},
               {"steps", run.steps},
               {"max_steps", nullptr},
               {"seconds", run.seconds},
               {"bytes", run.bytes},
               {"tags", run.tags},
               {"metrics", run.metrics}};
  if (run.max_steps > 0) json["max_steps"] = run.max_steps;
  return json;
}

// Cells in columns, as a terminal may be given them; the first row is the head.
std::string Columns(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths(rows[0].size());
  for (auto& row : rows) {
    for (std::string& cell : row) cell = PrintableText(cell);
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, "%-*s  ", widths[i], row[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string NumberText(const absl::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%.4f", *value) : "";
}

absl::StatusOr<int> List(const RunsOptions& options,
                         const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<ListedRun> runs,
                           Matching(folder, options.where));
  if (options.json) {
    Json json = Json::array();
    for (const ListedRun& run : runs) json.push_back(RunJson(run));
    std::cout << JsonText(json, 1) << "\n";
    return 0;
  }
  if (runs.empty()) {
    std::cout << (options.where.empty() ? "there is no run below "
                                        : "no run meets --where below ")
              << PrintableText(folder) << "\n";
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"name", "begun", "status", "steps", "loss", "best eval_loss", "took",
       "size", "tags", "folder"}};
  for (const ListedRun& run : runs) {
    std::string steps = absl::StrCat(run.steps);
    if (run.max_steps > 0) absl::StrAppend(&steps, "/", run.max_steps);
    rows.push_back({run.name, TimeText(run.begun), StatusName(run.status),
                    steps, NumberText(run.Metric("loss")),
                    NumberText(run.Metric("best_eval_loss")),
                    ClockTime(run.seconds), ShortBytes(run.bytes),
                    absl::StrJoin(run.tags, ", "), run.folder});
  }
  std::cout << Columns(rows);
  return 0;
}

// Adds the words after the run's folder to its tags, or takes them away.
absl::StatusOr<int> Tag(const RunsOptions& options, bool add) {
  const std::vector<std::string>& words = options.words;
  if (words.size() < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "runs ", words[0], " RUN NAME..: name a run and its tags"));
  }
  if (IsAddress(words[1])) {
    return absl::InvalidArgumentError(absl::StrCat(
        words[1],
        " is read from a copy, which a tag would change alone: tag "
        "the folder in which the run works"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, FindRun(words[1]));
  const std::vector<std::string> had = ReadTags(folder);
  std::set<std::string> tags(had.begin(), had.end());
  for (size_t i = 2; i < words.size(); ++i) {
    if (add) {
      tags.insert(words[i]);
    } else if (tags.erase(words[i]) == 0) {
      return absl::NotFoundError(
          absl::StrCat(folder, " has no tag \"", words[i], "\""));
    }
  }
  const std::vector<std::string> now(tags.begin(), tags.end());
  CAPSTAN_RETURN_IF_ERROR(SetTags(folder, now));
  std::cout << PrintableText(absl::StrCat(
                   folder, ": ",
                   now.empty() ? "no tags" : absl::StrJoin(now, ", ")))
            << "\n";
  return 0;
}

// The values of two runs where they differ, by name.
using Differences = std::vector<std::vector<std::string>>;

Differences DifferentFields(const ListedRun& a, const ListedRun& b) {
  std::set<std::string> names;
  for (const ListedRun* run : {&a, &b}) {
    for (const auto& [name, values] : run->fields) names.insert(name);
  }
  Differences differences;
  for (const std::string& name : names) {
    const auto text = [&](const ListedRun& run) {
      const auto found = run.fields.find(name);
      return found == run.fields.end() ? std::string()
                                       : absl::StrJoin(found->second, ", ");
    };
    if (text(a) != text(b)) differences.push_back({name, text(a), text(b)});
  }
  return differences;
}

Differences DifferentMetrics(const ListedRun& a, const ListedRun& b) {
  std::set<std::string> names;
  for (const ListedRun* run : {&a, &b}) {
    for (const auto& [name, value] : run->metrics) names.insert(name);
  }
  Differences differences;
  for (const std::string& name : names) {
    const auto text = [&](const ListedRun& run) {
      const absl::optional<double> value = run.Metric(name);
      return value.has_value() ? absl::StrFormat("%.6g", *value)
                               : std::string();
    };
    if (a.Metric(name) == b.Metric(name)) continue;
    differences.push_back({name, text(a), text(b)});
  }
  return differences;
}

// A table of those with short values; below it the others, line by line.
std::string DifferencesText(const std::string& part,
                            const Differences& differences) {
  constexpr size_t kMostInTable = 40;  // bytes
  Differences table = {{part, "first", "second"}};
  std::string below;
  for (const std::vector<std::string>& row : differences) {
    const bool fits =
        std::all_of(row.begin() + 1, row.end(), [](const std::string& cell) {
          return cell.size() <= kMostInTable && !absl::StrContains(cell, '\n');
        });
    if (fits) {
      table.push_back(row);
      for (std::string& cell : table.back()) {
        if (cell.empty()) cell = "-";
      }
      continue;
    }
    absl::StrAppend(&below, PrintableText(row[0]), "\n");
    for (size_t i = 1; i < row.size(); ++i) {
      absl::StrAppend(
          &below, "  ", table[0][i], "\n    ",
          absl::StrReplaceAll(PrintableText(row[i]), {{"\n", "\n    "}}), "\n");
    }
  }
  return absl::StrCat(table.size() > 1 ? Columns(table) : "", below);
}

absl::StatusOr<int> Diff(const RunsOptions& options) {
  if (options.words.size() != 3) {
    return absl::InvalidArgumentError("runs diff RUN RUN: name two runs");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string first, FindRun(options.words[1]));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string second, FindRun(options.words[2]));
  const ListedRun a = ReadListedRun(first), b = ReadListedRun(second);
  const std::pair<const char*, Differences> parts[] = {
      {"config", DifferentFields(a, b)}, {"metrics", DifferentMetrics(a, b)}};
  Json json = {{"runs", {first, second}}};
  if (!options.json) {
    std::cout << PrintableText(
        absl::StrCat("first:  ", first, "\nsecond: ", second, "\n"));
  }
  for (const auto& [part, differences] : parts) {
    if (!options.json) std::cout << "\n";
    json[part] = Json::object();
    for (const std::vector<std::string>& row : differences) {
      json[part][row[0]] = {row[1], row[2]};
    }
    if (options.json) continue;
    if (differences.empty()) {
      std::cout << part << ": the same\n";
      continue;
    }
    std::cout << DifferencesText(part, differences);
  }
  if (options.json) std::cout << JsonText(json, 1) << "\n";
  return 0;
}

// All runs that may use some of those below `folder`: the default folder's, and
// those of the nearest folder around it that is called runs.
std::vector<ListedRun> RunsAround(const std::string& folder) {
  std::set<std::string> roots = {folder, DefaultFolder()};
  const size_t around = absl::StrCat(folder, "/").rfind("/runs/");
  if (around != std::string::npos) roots.insert(folder.substr(0, around + 5));
  std::set<std::string> paths;
  for (const std::string& root : roots) {
    for (std::string& path : RunsBelow(root)) paths.insert(std::move(path));
  }
  std::vector<ListedRun> runs;
  for (const std::string& path : paths) runs.push_back(ReadListedRun(path));
  return runs;
}

// Removes what goes, if --delete says so, and prints all verdicts. An error if
// one couldn't be removed, after the others.
absl::StatusOr<int> Carry(const RunsOptions& options,
                          const std::vector<Verdict>& verdicts) {
  int64_t bytes = 0;
  int failed = 0;
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows = {{"", "size", "why", "folder"}};
  for (const Verdict& verdict : verdicts) {
    bool goes = verdict.keeps.empty();
    std::string why = verdict.keeps;
    const absl::Status removed = goes && options.remove
                                     ? Remove(verdict, options.checkpoints)
                                     : absl::OkStatus();
    if (!removed.ok()) {
      goes = false;
      why = std::string(removed.message());
      ++failed;
    }
    if (goes) bytes += verdict.bytes;
    json.push_back({{"folder", verdict.run->folder},
                    {"goes", goes},
                    {"bytes", goes ? verdict.bytes : 0},
                    {"why", why}});
    rows.push_back({!removed.ok()    ? "failed"
                    : !goes          ? "stays"
                    : options.remove ? "removed"
                                     : "would go",
                    ShortBytes(goes ? verdict.bytes : verdict.run->bytes), why,
                    verdict.run->folder});
  }
  if (options.json) {
    std::cout << JsonText(json, 1) << "\n";
  } else {
    if (!verdicts.empty()) std::cout << Columns(rows);
    std::cout << ShortBytes(bytes)
              << (options.remove ? " removed\n"
                                 : " would be freed; nothing is removed "
                                   "without --delete\n");
  }
  std::cout << std::flush;
  if (failed == 0) return 0;
  return absl::FailedPreconditionError(
      absl::StrCat("runs gc: ", failed, failed == 1 ? " run" : " runs",
                   " could not be removed: the list says why"));
}

absl::StatusOr<int> ClearAway(const RunsOptions& options,
                              const std::string& folder) {
  ClearRule rule;
  rule.newest = options.keep;
  rule.best = options.keep_best;
  rule.younger_days = options.older_than;
  rule.only_checkpoints = options.checkpoints;
  if (!rule.newest.has_value() && !rule.best.has_value() &&
      !rule.younger_days.has_value()) {
    return absl::InvalidArgumentError(
        "runs gc: say what stays: --keep=N, --keep_best=METRIC or "
        "--older_than=DAYS");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<ListedRun> runs,
                           Matching(folder, options.where));
  const auto has_best = [&](const ListedRun& run) {
    return run.Metric(*rule.best).has_value();
  };
  if (rule.best.has_value() && !runs.empty() &&
      std::none_of(runs.begin(), runs.end(), has_best)) {
    return absl::NotFoundError(absl::StrCat("--keep_best: no run below ",
                                            folder, " has \"", *rule.best,
                                            "\" in its metrics.jsonl"));
  }
  const std::vector<Verdict> verdicts =
      Judge(runs, RunsAround(folder), rule, absl::Now());
  return Carry(options, verdicts);
}

// What only another form of the command takes is an error, rather than ignored.
absl::Status CheckFlags(const RunsOptions& options, const std::string& verb) {
  const std::pair<bool, const char*> of_gc[] = {
      {options.keep.has_value(), "--keep"},
      {options.keep_best.has_value(), "--keep_best"},
      {options.older_than.has_value(), "--older_than"},
      {options.checkpoints, "--checkpoints"},
      {options.remove, "--delete"}};
  for (const auto& [given, flag] : of_gc) {
    if (given && verb != "gc") {
      return FieldError(flag, "is for `runs gc`");
    }
  }
  if (options.keep.value_or(0) < 0 ||
      !(options.older_than.value_or(0.0) >= 0.0)) {
    return FieldError(options.keep.value_or(0) < 0 ? "--keep" : "--older_than",
                      "must be a number from 0 on");
  }
  if (!options.where.empty() && verb != "list" && verb != "gc") {
    return FieldError("--where", "is for lists and `runs gc`");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Runs(const RunsOptions& options) {
  const std::string first = options.words.empty() ? "" : options.words[0];
  const bool named = first == "list" || first == "tag" || first == "untag" ||
                     first == "diff" || first == "gc";
  const std::string verb = named ? first : "list";
  CAPSTAN_RETURN_IF_ERROR(CheckFlags(options, verb));
  if (verb == "tag" || verb == "untag") return Tag(options, verb == "tag");
  if (verb == "diff") return Diff(options);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string folder,
                           FolderOf(options.words, named ? 1 : 0));
  return verb == "gc" ? ClearAway(options, folder) : List(options, folder);
}

void AddFlags(Flags& flags, RunsOptions* options) {
  flags
      .Add("words", &options->words,
           "A folder or address to list the runs of (default: runs); or list "
           "FOLDER, tag RUN NAME.., untag RUN NAME.., diff RUN RUN, gc FOLDER")
      .Type("WORD");
  flags
      .Add("--where", &options->where,
           "Only runs that are so, by a field of their config, a metric, name, "
           "status, steps, seconds, bytes or tag: "
           "'optimizer.learning_rate<1e-4'; may be given several times")
      .Type("CONDITION")
      .OneEach();
  flags.Add("--json", &options->json, "Print JSON");
  flags.Add("--keep", &options->keep,
            "gc: so many of each name stay, the newest");
  flags
      .Add("--keep_best", &options->keep_best,
           "gc: the one of each name with the best such metric stays")
      .Type("METRIC");
  flags
      .Add("--older_than", &options->older_than,
           "gc: only what began so many days ago, or before, goes")
      .Type("DAYS");
  flags.Add(
      "--checkpoints", &options->checkpoints,
      "gc: only checkpoints go, of runs that have their weights in final/");
  flags.Add("--delete", &options->remove,
            "gc: remove them; without this it says what would go");
}

const RegisterFunction<RunsOptions> runs("runs", AddFlags, Runs);

}  // namespace
}  // namespace capstan
