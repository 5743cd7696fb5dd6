// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/compare_config.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/plan.h"
#include "trainer/plugin_host/plugin_host.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Losses sum the same float32 numbers in another order: a hundred roundings of
// 6e-8. Norms sum squares of gradients with more roundings.
constexpr CompareBounds kBounds32 = {1e-5, 1e-4};
// A difference in a sum's last bit may round a 16-bit parameter or gradient to
// the adjacent number (2^-8 away in bfloat16), and later steps amplify it.
constexpr CompareBounds kBounds16 = {1e-3, 1e-2};

constexpr int64_t kMaxProcesses = 1 << 16;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 31;

absl::Status ReadShared(const std::string& compare_path,
                        const std::vector<std::string>& overrides,
                        const ConfigContext& context, LoadedCompare* loaded) {
  if (loaded->config.config().empty()) {
    return FieldError("config",
                      "is not set: name the run that all share, config: "
                      "\"run_distributed.pbtxt\"");
  }
  std::vector<std::string> files;
  for (const std::string& name : loaded->config.config()) {
    const fs::path beside = fs::path(compare_path).parent_path() / name;
    files.push_back(IsRegularFile(beside.string()) ? beside.string() : name);
  }
  std::vector<std::string> all(loaded->config.set().begin(),
                               loaded->config.set().end());
  all.insert(all.end(), overrides.begin(), overrides.end());
  CAPSTAN_ASSIGN_OR_RETURN(loaded->shared, LoadConfig(files, all, context));
  return absl::OkStatus();
}

// Fills empty axes from the shared run.
absl::Status FillAxes(LoadedCompare* loaded) {
  CompareConfig& config = loaded->config;
  const RunConfig& run = loaded->shared.config;
  if (config.strategy().empty()) {
    if (!run.has_strategy()) {
      return FieldError("strategy", "none is listed");
    }
    *config.add_strategy() = run.strategy();
  }
  if (config.precision().empty()) {
    if (!run.has_precision()) {
      return FieldError("precision", "none is listed");
    }
    *config.add_precision() = run.precision();
  }
  if (config.processes().empty()) {
    if (run.launch().processes() == Launch::AUTO) {
      return FieldError(
          "processes",
          "list the numbers of ranks to compare, processes: [1, 2]");
    }
    config.add_processes(run.launch().processes());
  }
  return absl::OkStatus();
}

absl::Status CheckProcesses(const CompareConfig& config) {
  const auto& processes = config.processes();
  for (int i = 0; i < processes.size(); ++i) {
    if (processes[i] < 1 || processes[i] > kMaxProcesses) {
      return FieldError("processes",
                        absl::StrCat("must be between 1 and ", kMaxProcesses,
                                     ", is ", processes[i]));
    }
    if (std::find(processes.begin(), processes.begin() + i, processes[i]) !=
        processes.begin() + i) {
      return FieldError("processes",
                        absl::StrCat(processes[i], " is listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBounds(const CompareConfig& config) {
  std::vector<std::string> listed;
  for (const google::protobuf::Any& any : config.precision()) {
    listed.push_back(PackageOf(TypeOf(any)));
  }
  for (const CompareConfig::Bound& bound : config.bound()) {
    if (std::find(listed.begin(), listed.end(), bound.precision()) ==
        listed.end()) {
      return FieldError("bound.precision",
                        absl::StrCat("\"", bound.precision(),
                                     "\" is not among the precisions that are "
                                     "compared: ",
                                     absl::StrJoin(listed, ", ")));
    }
    for (const auto& [field, value] :
         {std::pair<const char*, double>{"bound.loss", bound.loss()},
          {"bound.grad_norm", bound.grad_norm()}}) {
      if (value >= 0.0) continue;
      return FieldError(field,
                        absl::StrCat("must not be negative, is ", value));
    }
  }
  return absl::OkStatus();
}

// What concurrent runs can't each determine for themselves must be fixed.
absl::Status CheckFixed(const RunConfig& run) {
  if (run.train().max_epochs() > 0 && run.train().max_steps() == 0) {
    return FieldError("train.max_epochs",
                      "compare counts steps: set max_steps in its place");
  }
  if (run.batch().micro_batch_size() == Batching::AUTO) {
    return FieldError(
        "batch.micro_batch_size",
        "runs that are compared must have the same: set a number");
  }
  return absl::OkStatus();
}

// Fixes the global batch, so that steps have the same samples on any number of
// ranks.
absl::Status SettleGlobalBatch(LoadedCompare* loaded) {
  Batching* batch = loaded->shared.config.mutable_batch();
  if (batch->global_batch_size() != 0) return absl::OkStatus();
  const int64_t micro = std::max<int64_t>(batch->micro_batch_size(), 1);
  if (micro > kMaxGlobalBatch) return absl::OkStatus();  // PlanBatch rejects it
  int64_t size = micro;
  for (const int64_t processes : loaded->config.processes()) {
    size = std::lcm(size, micro * processes);
    if (size > kMaxGlobalBatch) {
      return FieldError("batch.global_batch_size",
                        "is not set, and the least that every number of ranks "
                        "divides is too great: set it");
    }
  }
  batch->set_global_batch_size(size);
  return absl::OkStatus();
}

using google::protobuf::Any;
using Slots = google::protobuf::RepeatedPtrField<Any>;

std::string LastPart(const std::string& package) {
  return package.substr(package.rfind('.') + 1);
}

// The fields within a slot's braces, on one line.
std::string FieldsOf(const Any& any) {
  const std::string text = PrintConfig(any);  // [plugin/TYPE] {\n FIELDS }\n
  const size_t begin = text.find("] {");
  const size_t end = text.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string line;
  for (const char c : text.substr(begin + 3, end - begin - 3)) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (line.empty() || line.back() == ' ')) continue;
    line += space ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// Creates a plugin of an axis; errors give its location in the config.
template <typename Base>
absl::StatusOr<std::vector<std::unique_ptr<Base>>> CreateAxis(
    const LoadedCompare& loaded, const char* axis, const Slots& slots,
    PluginCategory category, PluginHost& host) {
  std::vector<std::unique_ptr<Base>> made;
  for (int i = 0; i < slots.size(); ++i) {
    absl::StatusOr<std::unique_ptr<Base>> plugin =
        host.Create<Base>(TypeOf(slots[i]), category, slots[i].value());
    if (!plugin.ok()) {
      return loaded.Locate(plugin.status(), absl::StrCat(axis, "[", i, "]"));
    }
    made.push_back(*std::move(plugin));
  }
  return made;
}

// Lower-case letters, digits and '_' of a label.
std::string FileName(const std::string& label) {
  std::string name;
  for (const char c : label) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '_') {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  return name.substr(0, 60);
}

// Why `request` can't run, or OK.
absl::Status Refusal(const Strategy& strategy, const Batching& batch, int gpus,
                     StrategyRequest request, int64_t* accumulation) {
  if (gpus > 0 && request.world_size > gpus) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine has ", gpus, gpus == 1 ? " GPU" : " GPUs",
                     ": at most one rank a GPU"));
  }
  const absl::StatusOr<BatchPlan> plan = PlanBatch(batch, request.world_size);
  if (!plan.ok()) return Annotate(plan.status(), *FieldOf(plan.status()));
  *accumulation = request.accumulation = plan->accumulation;
  const absl::Status checked = strategy.Check(request);
  const absl::optional<std::string> field = FieldOf(checked);
  return field.has_value() ? Annotate(checked, *field) : checked;
}

RunConfig ConfigOf(const LoadedCompare& loaded, const ComparedRun& run,
                   const Any& strategy, const Any& precision) {
  RunConfig config = loaded.shared.config;
  config.set_name(run.id);
  *config.mutable_strategy() = strategy;
  *config.mutable_precision() = precision;
  config.mutable_launch()->set_processes(
      static_cast<Launch::Processes>(run.processes));
  config.mutable_train()->set_resume(Train::NEVER);
  return config;
}

// Finds errors that no axis causes before the first run, by creating all parts
// of one run.
absl::Status CheckOne(const LoadedCompare& loaded,
                      const std::vector<Combination>& combinations, int gpus,
                      PluginHost& host) {
  const Combination* first_skipped = nullptr;
  for (const Combination& combination : combinations) {
    if (combination.run.status == ComparedRun::Status::kSkipped) {
      if (first_skipped == nullptr) first_skipped = &combination;
      continue;
    }
    LoadedConfig whole = loaded.shared;
    whole.config = combination.config;
    CAPSTAN_ASSIGN_OR_RETURN(const RunParts parts,
                             CreateRunParts(whole, gpus, host));
    return CheckRun(whole, combination.run.processes, parts).status();
  }
  return FieldError(
      "strategy", absl::StrCat("there is nothing to compare: every combination "
                               "is refused; ",
                               first_skipped->run.Label(), ": ",
                               first_skipped->run.reason));
}

}  // namespace

absl::StatusOr<LoadedCompare> LoadCompareConfig(
    const std::string& file, const std::vector<std::string>& overrides,
    const ConfigContext& context) {
  LoadedCompare loaded;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path,
                           LoadMessage(file, context, &loaded.config, &loaded));
  if (loaded.config.name().empty()) {
    loaded.config.set_name(fs::path(path).stem().string());
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(ReadShared(path, overrides, context, &loaded), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(FillAxes(&loaded), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckProcesses(loaded.config), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckBounds(loaded.config), ""));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.shared.Locate(CheckFixed(loaded.shared.config), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.shared.Locate(SettleGlobalBatch(&loaded), ""));
  return loaded;
}

CompareBounds BoundsOf(const CompareConfig& config, const std::string& package,
                       const PrecisionPolicy& policy) {
  CompareBounds bounds =
      c10::elementSize(policy.compute) >= 4 ? kBounds32 : kBounds16;
  for (const CompareConfig::Bound& bound : config.bound()) {
    if (bound.precision() != package) continue;
    if (bound.loss() > 0.0) bounds.loss = bound.loss();
    if (bound.grad_norm() > 0.0) bounds.grad_norm = bound.grad_norm();
  }
  return bounds;
}

std::vector<std::string> SlotLabels(const Slots& slots) {
  std::map<std::string, std::set<std::string>> packages;  // by last part
  std::map<std::string, int> uses;                        // by package
  for (const Any& any : slots) {
    const std::string package = PackageOf(TypeOf(any));
    packages[LastPart(package)].insert(package);
    ++uses[package];
  }
  std::vector<std::string> labels;
  std::map<std::string, int> given;
  for (const Any& any : slots) {
    const std::string package = PackageOf(TypeOf(any));
    const std::string last = LastPart(package);
    std::string label = packages[last].size() == 1 ? last : package;
    const std::string fields = uses[package] > 1 ? FieldsOf(any) : "";
    if (!fields.empty()) absl::StrAppend(&label, " { ", fields, " }");
    const int times = ++given[label];
    if (times > 1) absl::StrAppend(&label, " #", times);
    labels.push_back(label);
  }
  return labels;
}

absl::StatusOr<std::vector<ComparedPrecision>> ListPrecisions(
    const LoadedCompare& loaded, int gpus, PluginHost& host) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::unique_ptr<Precision>> plugins,
      CreateAxis<Precision>(loaded, "precision", loaded.config.precision(),
                            PluginCategory::kPrecision, host));
  const std::vector<std::string> labels = SlotLabels(loaded.config.precision());
  std::vector<ComparedPrecision> precisions;
  for (size_t i = 0; i < plugins.size(); ++i) {
    ComparedPrecision precision;
    precision.name = labels[i];
    precision.bounds = BoundsOf(
        loaded.config,
        PackageOf(TypeOf(loaded.config.precision(static_cast<int>(i)))),
        plugins[i]->PolicyOn(DeviceOf(*plugins[i], gpus)));
    precisions.push_back(std::move(precision));
  }
  return precisions;
}

absl::StatusOr<std::vector<Combination>> CrossAxes(const LoadedCompare& loaded,
                                                   int gpus, PluginHost& host) {
  const CompareConfig& axes = loaded.config;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::unique_ptr<Strategy>> strategies,
      CreateAxis<Strategy>(loaded, "strategy", axes.strategy(),
                           PluginCategory::kStrategy, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::unique_ptr<Precision>> precisions,
      CreateAxis<Precision>(loaded, "precision", axes.precision(),
                            PluginCategory::kPrecision, host));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           CreateModel(loaded.shared, host));
  const std::vector<std::string> strategy_labels = SlotLabels(axes.strategy());
  const std::vector<std::string> precision_labels =
      SlotLabels(axes.precision());

  std::vector<Combination> combinations;
  for (size_t p = 0; p < precisions.size(); ++p) {
    for (size_t s = 0; s < strategies.size(); ++s) {
      for (const int64_t processes : axes.processes()) {
        Combination combination;
        ComparedRun& run = combination.run;
        run.strategy = strategy_labels[s];
        run.precision = precision_labels[p];
        run.processes = static_cast<int>(processes);
        run.id = absl::StrFormat("%02d-%s-%s-%d", combinations.size() + 1,
                                 FileName(run.strategy),
                                 FileName(run.precision), run.processes);
        StrategyRequest request;
        request.model = model.get();
        request.precision =
            precisions[p]->PolicyOn(DeviceOf(*precisions[p], gpus));
        request.world_size = run.processes;
        const absl::Status refusal =
            Refusal(*strategies[s], loaded.shared.config.batch(), gpus, request,
                    &run.accumulation);
        if (refusal.ok()) {
          combination.config =
              ConfigOf(loaded, run, axes.strategy(static_cast<int>(s)),
                       axes.precision(static_cast<int>(p)));
        } else {
          run.status = ComparedRun::Status::kSkipped;
          run.reason = std::string(refusal.message());
        }
        combinations.push_back(std::move(combination));
      }
    }
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckOne(loaded, combinations, gpus, host), ""));
  return combinations;
}

}  // namespace capstan
