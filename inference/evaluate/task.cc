// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "inference/evaluate/aggregate.h"
#include "inference/evaluate/row_values.h"
#include "inference/evaluate/task_keys.h"

namespace capstan::evaluate {
namespace {

// Keys that say something about the data's origin, or to other programs.
const std::set<std::string>& IgnoredKeys() {
  static const auto* const keys = new std::set<std::string>(
      {"group", "group_alias", "dataset_name", "metadata",
       "should_decontaminate", "doc_to_decontamination_query", "version",
       "dataset_path", "dataset_kwargs", "training_split", "validation_split",
       "test_split", "unsafe_code", "weight_by_size", "task_list", "recipe"});
  return *keys;
}

// Keys of what isn't here at all, and why.
constexpr struct {
  const char* key;
  const char* problem;
} kRefusedKeys[] = {
    {"class",
     "names a task that is written in Python, which isn't run here: write what "
     "it asks and expects into rows, and a task of templates for them"},
    {"custom_dataset",
     "names rows that Python makes: write them into a file, name it with "
     "dataset_kwargs or --data, and leave the key out"},
    {"use_prompt",
     "names a prompt of promptsource, which isn't here: write it as "
     "doc_to_text "
     "and doc_to_target"},
    {"doc_to_image", "wants a model that reads images"},
    {"doc_to_audio", "wants a model that hears"},
    {"fewshot_style", "isn't implemented"},
    {"system_instruction", "isn't implemented: write it into description"},
};

const std::map<std::string, TaskOutput>& OutputTypes() {
  static const auto* const types = new std::map<std::string, TaskOutput>(
      {{"multiple_choice", TaskOutput::kMultipleChoice},
       {"loglikelihood", TaskOutput::kLogLikelihood},
       {"loglikelihood_rolling", TaskOutput::kRolling},
       {"generate_until", TaskOutput::kGenerateUntil}});
  return *types;
}

class TaskReader {
 public:
  explicit TaskReader(TaskKeys keys) : keys_(std::move(keys)) {
    task_.path = keys_.path();
    task_.keys = keys_.AsText();
  }

  absl::StatusOr<Task> Read() {
    for (const auto& [key, problem] : kRefusedKeys) {
      if (keys_.Has(key)) keys_.Fail(key, problem);
    }
    Names();
    Format();
    Examples();
    Generation();
    if (keys_.Has("process_results")) Results();
    Metrics();
    task_.filters = ReadFilters(&keys_);
    if (task_.filters.empty()) task_.filters.push_back({});
    Files();
    keys_.FailUnknown(IgnoredKeys());
    CAPSTAN_RETURN_IF_ERROR(keys_.status());
    return std::move(task_);
  }

 private:
  static FunctionName NameOf(const TaskKey& key) {
    return {TaskKeys::FunctionName(key.node), key.folder};
  }

  RowFunction Function(absl::string_view key, const TaskKey& value) {
    absl::StatusOr<RowFunction> function = FindRowFunction(NameOf(value));
    if (function.ok()) return *std::move(function);
    keys_.Fail(key, function.status().message());
    return nullptr;
  }

  RowField Field(absl::string_view key, const TaskKey& value) {
    if (!TaskKeys::IsFunction(value.node)) {
      return RowField(keys_.Value(key, value.node));
    }
    RowField field;
    field.function = Function(key, value);
    return field;
  }
  RowField Field(const std::string& key) {
    return keys_.Has(key) ? Field(key, keys_.At(key)) : RowField();
  }

  void Names() {
    task_.name = keys_.GetName(
        "task", std::filesystem::path(task_.path).stem().string());
    task_.alias = keys_.Get<std::string>("task_alias", "");
    if (keys_.Has("tag")) {
      task_.tags = keys_.Texts("tag", keys_.At("tag").node);
    }
    const std::string output =
        keys_.Get<std::string>("output_type", "generate_until");
    const auto found = OutputTypes().find(output);
    if (found != OutputTypes().end()) {
      task_.output = found->second;
    } else {
      keys_.Fail("output_type",
                 absl::StrCat("is \"", output,
                              "\", must be multiple_choice, loglikelihood, "
                              "loglikelihood_rolling or generate_until"));
    }
    task_.num_fewshot = keys_.Get<int64_t>("num_fewshot", 0);
    if (task_.num_fewshot < 0) keys_.Fail("num_fewshot", "is negative");
    task_.repeats = keys_.Get<int64_t>("repeats", 1);
    if (task_.repeats < 1) keys_.Fail("repeats", "must be greater than 0");
  }

  void Format() {
    RowFormat& format = task_.format;
    format.text = Field("doc_to_text");
    format.target = Field("doc_to_target");
    format.choice = Field("doc_to_choice");
    format.prefix = Field("gen_prefix");
    format.target_delimiter =
        keys_.Get("target_delimiter", format.target_delimiter);
    format.fewshot_delimiter =
        keys_.Get("fewshot_delimiter", format.fewshot_delimiter);
    task_.description = keys_.Get<std::string>("description", "");
    if (format.target.empty()) keys_.Fail("doc_to_target", "is missing");
    if (task_.output == TaskOutput::kMultipleChoice && format.choice.empty()) {
      keys_.Fail("doc_to_choice", "is missing");
    }
    if (keys_.Has("process_docs")) {
      task_.process_docs =
          ProcessDocs("process_docs", keys_.At("process_docs"));
    }
  }

  RowFunction ProcessDocs(absl::string_view key, const TaskKey& value) {
    if (TaskKeys::IsFunction(value.node)) return Function(key, value);
    keys_.Fail(key, "is no function");
    return nullptr;
  }

  void Examples() {
    Fewshot& fewshot = task_.fewshot;
    fewshot.format = task_.format;
    fewshot.process_docs = task_.process_docs;
    const std::string asked = keys_.Get<std::string>("test_split", "");
    std::string split = keys_.Get<std::string>("fewshot_split", "");
    if (keys_.Has("fewshot_config")) {
      const TaskKey config = keys_.At("fewshot_config");
      for (const auto& pair : config.node) {
        const std::string key = pair.first.as<std::string>();
        const std::string name = absl::StrCat("fewshot_config.", key);
        if (!pair.second.IsNull()) {
          FewshotKey(key, name, {pair.second, config.folder}, &split);
        }
      }
    }
    // The harness, too, takes a split before samples.
    if (!split.empty()) fewshot.samples.clear();
    fewshot.from_asked = split == asked;
    fewshot_split_ = split;
  }

  void FewshotKey(const std::string& key, const std::string& name,
                  const TaskKey& value, std::string* split) {
    Fewshot& fewshot = task_.fewshot;
    if (key == "sampler") {
      const std::string sampler =
          keys_.As<std::string>(name, value.node, "default");
      fewshot.first = sampler == "first_n";
      if (sampler != "first_n" && sampler != "default") {
        keys_.Fail(name, absl::StrCat("is \"", sampler,
                                      "\", must be default or first_n"));
      }
    } else if (key == "split") {
      *split = keys_.As<std::string>(name, value.node, "");
    } else if (key == "samples") {
      const Json samples = keys_.Value(name, value.node);
      if (!samples.is_array() || samples.empty()) {
        if (!samples.is_string() || !TaskKeys::IsFunction(value.node)) {
          keys_.Fail(name, "must be a list of rows");
        }
        return;
      }
      for (const Json& row : samples) {
        if (!row.is_object()) keys_.Fail(name, "has an entry that is no row");
        fewshot.samples.push_back(row);
      }
    } else if (key == "process_docs") {
      fewshot.process_docs = ProcessDocs(name, value);
    } else if (key == "doc_to_text") {
      fewshot.format.text = Field(name, value);
    } else if (key == "doc_to_target") {
      fewshot.format.target = Field(name, value);
    } else if (key == "doc_to_choice") {
      fewshot.format.choice = Field(name, value);
    } else if (key == "gen_prefix") {
      fewshot.format.prefix = Field(name, value);
    } else if (key == "target_delimiter") {
      fewshot.format.target_delimiter =
          keys_.As<std::string>(name, value.node, " ");
    } else if (key == "fewshot_delimiter") {
      fewshot.format.fewshot_delimiter =
          keys_.As<std::string>(name, value.node, "\n\n");
    } else {
      // fewshot_indices, too, which the harness itself doesn't hand on.
      keys_.Fail(name, "isn't implemented");
    }
  }

  void Generation() {
    task_.until = {task_.format.fewshot_delimiter};
    if (!keys_.Has("generation_kwargs")) return;
    for (const auto& pair : keys_.At("generation_kwargs").node) {
      const std::string key = pair.first.as<std::string>();
      const std::string name = absl::StrCat("generation_kwargs.", key);
      const YAML::Node& node = pair.second;
      if (key == "until") {
        task_.until = keys_.Texts(name, node);
      } else if (key == "max_gen_toks" || key == "max_new_tokens" ||
                 key == "max_tokens" || key == "max_completion_tokens") {
        task_.max_tokens = keys_.As<int64_t>(name, node, 1);
        if (task_.max_tokens < 1) keys_.Fail(name, "must be greater than 0");
      } else if (key == "do_sample") {
        task_.sample = keys_.As<bool>(name, node, false);
      } else if (key == "temperature") {
        task_.temperature = keys_.As<double>(name, node, 1.0);
      } else if (key == "top_p") {
        task_.top_p = keys_.As<double>(name, node, 1.0);
      } else if (key == "num_beams") {
        if (keys_.As<int64_t>(name, node, 1) != 1) {
          keys_.Fail(name, "isn't implemented: texts aren't searched by beams");
        }
      } else {
        keys_.Fail(name, "isn't implemented");
      }
    }
    if (task_.temperature == 0.0) task_.sample = false;
  }

  void Results() {
    const TaskKey& value = keys_.At("process_results");
    if (!TaskKeys::IsFunction(value.node)) {
      keys_.Fail("process_results", "is no function");
      return;
    }
    const absl::StatusOr<ResultFunction> function =
        FindResultFunction(NameOf(value));
    if (function.ok()) {
      task_.results = *function;
    } else {
      keys_.Fail("process_results", function.status().message());
    }
  }

  void Metrics() {
    if (!keys_.Has("metric_list")) {
      AddDefaultMetrics();
      return;
    }
    const TaskKey list = keys_.At("metric_list");
    for (const YAML::Node& node : list.node) {
      if (!node.IsMap() || !node["metric"]) {
        keys_.Fail("metric_list", "has an entry without `metric`");
        return;
      }
      AddMetric(node, list.folder);
    }
  }

  void AddDefaultMetrics() {
    static constexpr size_t kOfOutput[] = {2, 2, 3, 1};
    const std::vector<std::string>& known = MetricsOf(task_.output);
    for (size_t i = 0; i < kOfOutput[static_cast<int>(task_.output)]; ++i) {
      task_.metrics.push_back(
          {known[i], {}, AggregationOf(known[i]), absl::nullopt});
    }
  }

  void AddMetric(const YAML::Node& node, const std::string& folder) {
    TaskMetric metric;
    if (TaskKeys::IsFunction(node["metric"])) {
      keys_.Fail("metric_list",
                 absl::StrCat("counts by the Python function ",
                              TaskKeys::FunctionName(node["metric"]),
                              ", which isn't run here: name a metric (",
                              absl::StrJoin(MetricsOf(task_.output), ", "),
                              "), or count in the samples of --output"));
      return;
    }
    metric.name = keys_.As<std::string>("metric_list", node["metric"], "");
    metric.aggregation = AggregationOf(metric.name);
    const std::vector<std::string>& known = MetricsOf(task_.output);
    // What process_results gives has names of its own.
    const bool own = keys_.Has("process_results");
    if (!own &&
        std::find(known.begin(), known.end(), metric.name) == known.end()) {
      keys_.Fail("metric_list", absl::StrCat("names \"", metric.name,
                                             "\"; known for this output are ",
                                             absl::StrJoin(known, ", ")));
    }
    if (node["higher_is_better"] && !node["higher_is_better"].IsNull()) {
      metric.higher_is_better =
          keys_.As<bool>("metric_list", node["higher_is_better"], true);
    }
    metric.exact = ReadExactMatch("metric_list", node, &keys_);
    if (node["aggregation"]) Aggregation(node["aggregation"], folder, &metric);
    if (!own) CheckShape(metric);
    task_.metrics.push_back(std::move(metric));
  }

  void CheckShape(const TaskMetric& metric) {
    const ValueShape given = ShapeOf(metric.name);
    const ValueShape wanted = ShapeFor(metric.aggregation);
    if (given == wanted || wanted == ValueShape::kAny) return;
    keys_.Fail("metric_list",
               absl::StrCat("sums up ", metric.name, ", which gives ",
                            ShapeName(given), ", by ", metric.aggregation,
                            ", which is for ", ShapeName(wanted)));
  }

  void Aggregation(const YAML::Node& node, const std::string& folder,
                   TaskMetric* metric) {
    if (TaskKeys::IsFunction(node)) {
      const absl::StatusOr<std::string> known =
          FindAggregation({TaskKeys::FunctionName(node), folder});
      if (known.ok()) {
        metric->aggregation = *known;
      } else {
        keys_.Fail(absl::StrCat("metric_list: aggregation of ", metric->name),
                   known.status().message());
      }
      return;
    }
    metric->aggregation =
        keys_.As<std::string>("metric_list.aggregation", node, "mean");
    if (!IsAggregation(metric->aggregation)) {
      keys_.Fail("metric_list", absl::StrCat("sums up ", metric->name, " by \"",
                                             metric->aggregation,
                                             "\", which isn't implemented"));
    }
  }

  void Files() {
    if (!keys_.Has("dataset_kwargs")) return;
    const TaskKey& kwargs = keys_.At("dataset_kwargs");
    if (!kwargs.node.IsMap()) return;
    const YAML::Node files = kwargs.node["data_files"];
    if (!files) return;
    const auto file = [&](const YAML::Node& node) {
      const std::string name =
          keys_.As<std::string>("dataset_kwargs.data_files", node, "");
      if (absl::StartsWith(name, "hf:")) return name;
      // What the harness would fetch isn't here.
      if (absl::StrContains(name, "://")) return std::string();
      return (std::filesystem::absolute(task_.path).parent_path() / name)
          .string();
    };
    if (!files.IsMap()) {
      task_.docs_file = file(files);
      return;
    }
    const auto split = [&](std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        const std::string name = keys_.Get<std::string>(key, "");
        if (!name.empty() && files[name]) return file(files[name]);
      }
      return std::string();
    };
    task_.docs_file = split({"test_split", "validation_split"});
    if (!fewshot_split_.empty() && files[fewshot_split_]) {
      task_.fewshot_file = file(files[fewshot_split_]);
    } else {
      task_.fewshot_file = split({"training_split", "validation_split"});
    }
  }

  TaskKeys keys_;
  std::string fewshot_split_;
  Task task_;
};

}  // namespace

bool Task::HasMetric(absl::string_view name) const {
  return std::any_of(
      metrics.begin(), metrics.end(),
      [name](const TaskMetric& metric) { return metric.name == name; });
}

absl::StatusOr<Task> MakeTask(TaskKeys keys) {
  const std::string path = keys.path();
  try {
    return TaskReader(std::move(keys)).Read();
  } catch (const YAML::Exception& error) {
    // Of what isn't where the format has it: a scalar in place of a list.
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
}

}  // namespace capstan::evaluate
