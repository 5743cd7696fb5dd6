// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/task.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

constexpr int kMostIncludes = 8;
constexpr int64_t kMostBytes = 1 << 20;

// Keys that say something about the data's origin, the task's name or other
// programs.
const std::set<std::string>& IgnoredKeys() {
  static const auto* const keys = new std::set<std::string>(
      {"tag", "group", "group_alias", "task_alias", "dataset_name", "metadata",
       "should_decontaminate", "doc_to_decontamination_query", "version",
       "dataset_path", "dataset_kwargs", "training_split", "validation_split",
       "test_split", "fewshot_split", "fewshot_config", "unsafe_code",
       "custom_dataset", "weight_by_size"});
  return *keys;
}

// Keys that change what is asked, and aren't implemented unless empty.
constexpr const char* kRefusedKeys[] = {
    "process_docs", "process_results", "use_prompt",    "doc_to_image",
    "doc_to_audio", "gen_prefix",      "fewshot_style", "system_instruction"};

// The documents of a task's file and those that it includes.
class TaskReader {
 public:
  explicit TaskReader(const std::string& path) : path_(path) {
    task_.path = path;
  }

  absl::StatusOr<Task> Read() {
    CAPSTAN_RETURN_IF_ERROR(Include(path_, 0));
    for (const char* key : kRefusedKeys) {
      if (Has(key)) {
        Fail(key, "isn't implemented: write what it does into the data's rows");
      }
    }
    Names();
    Metrics();
    Filters();
    Files();
    for (const auto& [key, node] : keys_) {
      if (used_.count(key) == 0 && IgnoredKeys().count(key) == 0 &&
          !node.IsNull()) {
        Fail(key, "is no key of a task that is known here");
      }
    }
    CAPSTAN_RETURN_IF_ERROR(status_);
    return std::move(task_);
  }

 private:
  // The file's own keys go before those that it includes.
  absl::Status Include(const std::string& path, int depth) {
    if (depth > kMostIncludes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": includes itself, or ", depth, " others"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
    if (static_cast<int64_t>(text.size()) > kMostBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is too large for a task"));
    }
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ":", error.mark.line + 1, ": isn't YAML: ", error.msg));
    }
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is no task"));
    }
    for (const auto& pair : root) {
      keys_.emplace(pair.first.as<std::string>(), pair.second);
    }
    if (!root["include"]) return absl::OkStatus();
    used_.insert("include");
    const std::string other = root["include"].as<std::string>();
    return Include((std::filesystem::path(path).parent_path() / other).string(),
                   depth + 1);
  }

  void Fail(absl::string_view key, absl::string_view problem) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, " ", problem)));
  }

  bool Has(const std::string& key) {
    used_.insert(key);
    const auto found = keys_.find(key);
    return found != keys_.end() && !found->second.IsNull();
  }

  // The key's value, or `otherwise`.
  template <typename T>
  T Get(const std::string& key, T otherwise) {
    return Has(key) ? As<T>(key, keys_.at(key), std::move(otherwise))
                    : std::move(otherwise);
  }
  template <typename T>
  T As(const std::string& key, const YAML::Node& node, T otherwise) {
    if (node.Tag() == "!function") {
      Fail(key, "is a function in Python, which isn't run here");
      return otherwise;
    }
    try {
      return node.as<T>();
    } catch (const YAML::Exception&) {
      Fail(key,
           absl::StrCat("in line ", node.Mark().line + 1, " has a wrong type"));
      return otherwise;
    }
  }

  // A text, a number or a list of texts.
  Json Field(const std::string& key) {
    if (!Has(key)) return nullptr;
    const YAML::Node& node = keys_.at(key);
    if (node.IsSequence()) {
      return As<std::vector<std::string>>(key, node, {});
    }
    if (node.IsMap()) {
      Json list = Json::array();
      for (const auto& pair : node) {
        list.push_back(As<std::string>(key, pair.second, ""));
      }
      return list;
    }
    const std::string text = As<std::string>(key, node, "");
    int64_t number = 0;
    // Quoted scalars have the tag "!".
    if (node.Tag() == "?" && YAML::convert<int64_t>::decode(node, number)) {
      return number;
    }
    return text;
  }

  void Names() {
    task_.name =
        Get<std::string>("task", std::filesystem::path(path_).stem().string());
    const std::string output = Get<std::string>("output_type", "");
    if (output == "multiple_choice") {
      task_.output = TaskOutput::kMultipleChoice;
    } else if (output == "loglikelihood") {
      task_.output = TaskOutput::kLogLikelihood;
    } else if (output == "generate_until") {
      task_.output = TaskOutput::kGenerateUntil;
    } else {
      Fail("output_type",
           absl::StrCat("is \"", output,
                        "\", must be multiple_choice, loglikelihood or "
                        "generate_until"));
    }
    task_.doc_to_text = Get<std::string>("doc_to_text", "");
    task_.doc_to_target = Field("doc_to_target");
    task_.doc_to_choice = Field("doc_to_choice");
    if (task_.doc_to_target.is_null()) Fail("doc_to_target", "is missing");
    if (task_.output == TaskOutput::kMultipleChoice &&
        task_.doc_to_choice.is_null()) {
      Fail("doc_to_choice", "is missing");
    }
    task_.description = Get<std::string>("description", "");
    task_.target_delimiter = Get("target_delimiter", task_.target_delimiter);
    task_.fewshot_delimiter = Get("fewshot_delimiter", task_.fewshot_delimiter);
    task_.num_fewshot = Get<int64_t>("num_fewshot", 0);
    if (task_.num_fewshot < 0) Fail("num_fewshot", "is negative");
    if (Get<int64_t>("repeats", 1) != 1) {
      Fail("repeats", "isn't implemented: a text is generated once");
    }
    Generation();
  }

  void Generation() {
    if (!Has("generation_kwargs")) {
      task_.until = {task_.fewshot_delimiter};
      return;
    }
    for (const auto& pair : keys_.at("generation_kwargs")) {
      const std::string key = pair.first.as<std::string>();
      const std::string name = absl::StrCat("generation_kwargs.", key);
      if (key == "until") {
        task_.until = pair.second.IsScalar()
                          ? std::vector<std::string>{As<std::string>(
                                name, pair.second, "")}
                          : As<std::vector<std::string>>(name, pair.second, {});
      } else if (key == "max_gen_toks" || key == "max_new_tokens") {
        task_.max_tokens = As<int64_t>(name, pair.second, 1);
        if (task_.max_tokens < 1) Fail(name, "must be greater than 0");
      } else if (key == "do_sample") {
        task_.sample = As<bool>(name, pair.second, false);
      } else if (key == "temperature") {
        task_.temperature = As<double>(name, pair.second, 1.0);
      } else {
        Fail(name, "isn't implemented");
      }
    }
    if (task_.temperature == 0.0) task_.sample = false;
  }

  void Metrics() {
    std::vector<std::string> known = {"acc", "acc_norm"};
    if (task_.output == TaskOutput::kLogLikelihood) {
      known = {"perplexity", "acc"};
    } else if (task_.output == TaskOutput::kGenerateUntil) {
      known = {"exact_match", "rouge_l"};
    }
    if (!Has("metric_list")) {
      for (const std::string& name : known) task_.metrics.push_back({name, {}});
      return;
    }
    for (const YAML::Node& node : keys_.at("metric_list")) {
      TaskMetric metric;
      if (!node.IsMap() || !node["metric"]) {
        Fail("metric_list", "has an entry without `metric`");
        return;
      }
      metric.name = As<std::string>("metric_list", node["metric"], "");
      if (std::find(known.begin(), known.end(), metric.name) == known.end()) {
        Fail("metric_list", absl::StrCat("names \"", metric.name,
                                         "\"; known for this output "
                                         "are ",
                                         absl::StrJoin(known, ", ")));
      }
      ReadExactMatch(node, &metric.exact);
      task_.metrics.push_back(std::move(metric));
    }
  }

  void ReadExactMatch(const YAML::Node& node, ExactMatchOptions* exact) {
    const auto flag = [&](const char* key) {
      return node[key] &&
             As<bool>(absl::StrCat("metric_list.", key), node[key], false);
    };
    exact->ignore_case = flag("ignore_case");
    exact->ignore_punctuation = flag("ignore_punctuation");
    exact->ignore_numbers = flag("ignore_numbers");
    if (!node["regexes_to_ignore"]) return;
    for (const std::string& pattern : As<std::vector<std::string>>(
             "metric_list.regexes_to_ignore", node["regexes_to_ignore"], {})) {
      exact->ignore.push_back(Compile("metric_list", pattern));
    }
  }

  std::shared_ptr<const Pattern> Compile(const char* key,
                                         const std::string& pattern) {
    absl::StatusOr<std::unique_ptr<Pattern>> compiled =
        Pattern::Compile(pattern);
    if (compiled.ok()) return *std::move(compiled);
    Fail(key, compiled.status().message());
    return nullptr;
  }

  void Filters() {
    if (Has("filter_list")) {
      for (const YAML::Node& node : keys_.at("filter_list")) {
        TaskFilter filter;
        filter.name = As<std::string>("filter_list.name", node["name"], "");
        for (const YAML::Node& step : node["filter"]) {
          ReadStep(step, &filter);
        }
        task_.filters.push_back(std::move(filter));
      }
    }
    if (task_.filters.empty()) task_.filters.push_back({});
  }

  void ReadStep(const YAML::Node& node, TaskFilter* filter) {
    const std::string function =
        As<std::string>("filter_list.function", node["function"], "");
    TaskFilter::Step step;
    if (function == "regex") {
      step.kind = TaskFilter::Step::kRegex;
      step.pattern = Compile("filter_list",
                             node["regex_pattern"]
                                 ? As<std::string>("filter_list.regex_pattern",
                                                   node["regex_pattern"], "")
                                 : "#### (\\-?[0-9\\.\\,]+)");
      if (node["group_select"]) {
        step.group_select =
            As<int64_t>("filter_list.group_select", node["group_select"], 0);
      }
      step.fallback = node["fallback"] ? As<std::string>("filter_list.fallback",
                                                         node["fallback"], "")
                                       : "[invalid]";
    } else if (function == "remove_whitespace") {
      step.kind = TaskFilter::Step::kRemoveWhitespace;
    } else if (function == "lowercase") {
      step.kind = TaskFilter::Step::kLowercase;
    } else if (function == "uppercase") {
      step.kind = TaskFilter::Step::kUppercase;
    } else if (function != "take_first") {
      Fail("filter_list",
           absl::StrCat("has the function \"", function,
                        "\"; known are regex, take_first, remove_whitespace, "
                        "lowercase, uppercase"));
    }
    filter->steps.push_back(std::move(step));
  }

  // Of dataset_kwargs.data_files: one file, or one for each split.
  void Files() {
    if (!Has("dataset_kwargs")) return;
    const YAML::Node files = keys_.at("dataset_kwargs")["data_files"];
    if (!files) return;
    const auto file = [&](const YAML::Node& node) {
      const std::string name =
          As<std::string>("dataset_kwargs.data_files", node, "");
      if (absl::StartsWith(name, "hf:")) return name;
      return (std::filesystem::absolute(path_).parent_path() / name).string();
    };
    if (!files.IsMap()) {
      task_.docs_file = file(files);
      return;
    }
    const auto split = [&](std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        const std::string name = Get<std::string>(key, "");
        if (!name.empty() && files[name]) return file(files[name]);
      }
      return std::string();
    };
    task_.docs_file = split({"test_split", "validation_split"});
    task_.fewshot_file = split({"fewshot_split", "training_split"});
  }

  const std::string path_;
  std::map<std::string, YAML::Node> keys_;
  std::set<std::string> used_;
  absl::Status status_;
  Task task_;
};

}  // namespace

std::string TaskFilter::Apply(std::string text) const {
  for (const Step& step : steps) {
    switch (step.kind) {
      case Step::kTakeFirst:
        break;
      case Step::kLowercase:
        absl::AsciiStrToLower(&text);
        break;
      case Step::kUppercase:
        absl::AsciiStrToUpper(&text);
        break;
      case Step::kRemoveWhitespace:
        text = std::string(absl::StripAsciiWhitespace(text));
        break;
      case Step::kRegex: {
        const std::vector<std::string> found = step.pattern->FindAll(text);
        const int64_t count = static_cast<int64_t>(found.size());
        const int64_t at = step.group_select < 0 ? count + step.group_select
                                                 : step.group_select;
        text = at >= 0 && at < count && !found[at].empty()
                   ? std::string(absl::StripAsciiWhitespace(found[at]))
                   : step.fallback;
        break;
      }
    }
  }
  return text;
}

absl::StatusOr<Task> LoadTask(const std::string& path) {
  try {
    return TaskReader(path).Read();
  } catch (const YAML::Exception& error) {
    // Of what isn't where the format has it: a scalar in place of a list.
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
}

}  // namespace capstan::evaluate
