// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/compare_config.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "host/config/text_source.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/create_model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/options.pb.h"
#include "plugins/sdk/plan.h"
#include "trainer/session/check_run.h"
#include "trainer/session/new_tokens.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Losses sum the same float32 numbers in another order: a hundred roundings of
// 6e-8. Norms sum squares of gradients with more roundings.
constexpr double kLoss32 = 1e-5, kNorm32 = 1e-4;
// A difference in a sum's last bit may round a 16-bit parameter or gradient to
// the adjacent number (2^-8 away in bfloat16), and later steps amplify it.
constexpr double kLoss16 = 1e-3, kNorm16 = 1e-2;

// The most steps if a run's own config is compared.
constexpr int64_t kStepsOfRuns = 50;

constexpr int64_t kMaxProcesses = 1 << 16;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 31;

// An override that a comparison's own setting would replace in silence.
absl::Status CheckOverrides(const CompareConfig& config,
                            const std::vector<std::string>& overrides) {
  const struct {
    const char* field;
    bool replaced;
    const char* instead;
  } rules[] = {
      {"output_dir", true, "name the comparison's folder with --output_dir"},
      {"name", true, "the runs are named after what they vary"},
      {"train.resume", true,
       "each run begins anew; --resume goes on with the "
       "comparison"},
      {"strategy", !config.strategy().empty(), "the comparison lists some"},
      {"precision", !config.precision().empty(), "the comparison lists some"},
      {"launch.processes", !config.processes().empty(),
       "the comparison lists some"}};
  for (const std::string& text : overrides) {
    for (const auto& [field, replaced, instead] : rules) {
      if (!replaced || !Sets(text, field)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", text, ": no run would get this: ", instead));
    }
  }
  return absl::OkStatus();
}

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
  CAPSTAN_RETURN_IF_ERROR(CheckOverrides(loaded->config, all));
  CAPSTAN_ASSIGN_OR_RETURN(loaded->shared, LoadConfig(files, all, context));
  loaded->files = std::move(files);
  loaded->overrides = std::move(all);
  return absl::OkStatus();
}

// Whether the error is about a field of another command's config.
bool IsOtherKind(const absl::Status& status) {
  return CodeOf(status) == "config/other-command";
}

// Reads a comparison, or makes one of a run's config. Returns the file's path.
absl::StatusOr<std::string> LoadAxes(const std::string& file,
                                     const ConfigContext& context,
                                     LoadedCompare* loaded) {
  const absl::StatusOr<std::string> path =
      LoadMessage(file, context, &loaded->config, loaded);
  if (!IsOtherKind(path.status())) return path;
  RunConfig run;
  FieldPlaces places;
  const absl::StatusOr<std::string> of_run =
      LoadMessage(file, context, &run, &places);
  if (!of_run.ok()) {
    return IsOtherKind(of_run.status()) ? path : of_run;
  }
  *loaded = LoadedCompare();
  // Apart from the run's own folders, whose `latest` is to be a run.
  loaded->config.set_name(absl::StrCat(
      run.name().empty() ? fs::path(*of_run).stem().string() : run.name(),
      "_compare"));
  TextOrigin origin;
  origin.name = "defaults of compare";
  origin.has_lines = false;
  CAPSTAN_RETURN_IF_ERROR(MergeText(CompareConfig::descriptor()
                                        ->options()
                                        .GetExtension(run_defaults, 0)
                                        .config(),
                                    origin, context, &loaded->config, loaded));
  loaded->config.add_config(*of_run);
  const auto set = [loaded](const char* field, int64_t value) {
    loaded->config.add_set(absl::StrCat(field, "=", value));
  };
  if (run.train().max_steps() == 0 || run.train().max_steps() > kStepsOfRuns) {
    set("train.max_steps", kStepsOfRuns);
  }
  const Batching& batch = run.batch();
  if (batch.micro_batch_size() > 0 &&
      batch.micro_batch_size() != Batching::AUTO) {
    return of_run;
  }
  set("batch.micro_batch_size", 1);
  if (batch.global_batch_size() == 0) {
    set("batch.global_batch_size", kAutoSamples);
  }
  return of_run;
}

// A sweep's settings are all that differs.
absl::Status CheckNoAxes(const CompareConfig& config) {
  const std::pair<const char*, bool> axes[] = {
      {"strategy", !config.strategy().empty()},
      {"precision", !config.precision().empty()},
      {"processes", !config.processes().empty()},
      {"bound", !config.bound().empty()}};
  for (const auto& [field, given] : axes) {
    if (!given) continue;
    return FieldError(
        field,
        "doesn't go with a sweep: what varies there is a setting, setting { "
        "field: \"strategy\" value: \"capstan.ddp\" value: \"capstan.fsdp\" }");
  }
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

using google::protobuf::Any;
using Slots = google::protobuf::RepeatedPtrField<Any>;

std::vector<SlotName> NamesOf(const Slots& slots) {
  const std::vector<std::string> labels = SlotLabels(slots);
  std::vector<SlotName> names;
  for (const Any& any : slots) {
    names.push_back({PackageOf(TypeOf(any)), labels[names.size()]});
  }
  return names;
}

// Whether a bound's `name` is `slot`'s.
bool IsFor(const std::string& name, const SlotName& slot) {
  return name.empty() || name == slot.package || name == slot.label;
}

// `axis`: "strategy".
absl::Status CheckBoundName(const std::string& field, const std::string& name,
                            const char* axis, const Slots& slots) {
  const std::vector<SlotName> names = NamesOf(slots);
  std::vector<std::string> listed;
  for (const SlotName& slot : names) {
    if (IsFor(name, slot)) return absl::OkStatus();
    for (const std::string& one : {slot.package, slot.label}) {
      if (std::find(listed.begin(), listed.end(), one) == listed.end()) {
        listed.push_back(one);
      }
    }
  }
  return FieldError(absl::StrCat(field, ".", axis),
                    absl::StrCat("\"", name, "\" is no ", axis,
                                 " that is compared; name one of: ",
                                 absl::StrJoin(listed, ", ")));
}

absl::Status CheckBounds(const CompareConfig& config) {
  for (int i = 0; i < config.bound_size(); ++i) {
    const CompareConfig::Bound& bound = config.bound(i);
    const std::string field = absl::StrCat("bound[", i, "]");
    CAPSTAN_RETURN_IF_ERROR(CheckBoundName(field, bound.precision(),
                                           "precision", config.precision()));
    CAPSTAN_RETURN_IF_ERROR(
        CheckBoundName(field, bound.strategy(), "strategy", config.strategy()));
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
    size = std::lcm(size, micro * MeshOf(loaded->shared.config.train(),
                                         static_cast<int>(processes))
                                      .data);
    if (size > kMaxGlobalBatch) {
      return FieldError("batch.global_batch_size",
                        "is not set, and the least that every number of ranks "
                        "divides is too great: set it");
    }
  }
  batch->set_global_batch_size(size);
  return absl::OkStatus();
}

std::string LastPart(const std::string& package) {
  return package.substr(package.rfind('.') + 1);
}

// The fields within a slot's braces, on one line.
std::string FieldsOf(const Any& any) {
  const std::string text = PrintConfig(any);  // [plugin/TYPE] {\n FIELDS }\n
  const size_t begin = text.find("] {");
  const size_t end = text.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string fields = text.substr(begin + 3, end - begin - 3);
  absl::RemoveExtraAsciiWhitespace(&fields);
  return fields;
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

// Why `request` can't run, or OK.
absl::Status Refusal(const Strategy& strategy, const RunConfig& config,
                     int gpus, StrategyRequest request, int64_t* accumulation) {
  if (gpus > 0 && request.world_size > gpus) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine has ", gpus, gpus == 1 ? " GPU" : " GPUs",
                     ": at most one rank a GPU"));
  }
  const absl::Status grid = CheckMesh(config.train(), request.world_size);
  if (!grid.ok()) return Annotate(grid, "train.sequence_parallel");
  if (config.train().sequence_parallel() > 1 && strategy.local_steps()) {
    return absl::InvalidArgumentError(
        "train.sequence_parallel: its ranks train replicas of their own");
  }
  const Mesh mesh = MeshOf(config.train(), request.world_size);
  const absl::StatusOr<BatchPlan> plan = PlanBatch(config.batch(), mesh);
  if (!plan.ok()) return Annotate(plan.status(), *FieldOf(plan.status()));
  if (strategy.local_steps()) {
    const absl::Status equal =
        CheckEqualShares(*plan, mesh, "a strategy with local steps");
    if (!equal.ok()) return Annotate(equal, *FieldOf(equal));
  }
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
  const Combination* first = nullptr;
  const Combination* first_skipped = nullptr;
  int runs = 0;
  for (const Combination& combination : combinations) {
    const bool skipped =
        combination.run.status == ComparedRun::Status::kSkipped;
    const Combination*& one = skipped ? first_skipped : first;
    if (one == nullptr) one = &combination;
    if (!skipped) ++runs;
  }
  const std::string refused =
      first_skipped == nullptr
          ? std::string()
          : absl::StrCat("; ", first_skipped->run.Label(),
                         " is refused: ", first_skipped->run.reason);
  if (runs == 0) {
    return FieldError("strategy",
                      absl::StrCat("there is nothing to compare: every "
                                   "combination is refused",
                                   refused));
  }
  LoadedConfig whole = loaded.shared;
  whole.config = first->config;
  CAPSTAN_ASSIGN_OR_RETURN(const RunParts parts,
                           CreateRunParts(whole, gpus, host));
  CAPSTAN_RETURN_IF_ERROR(
      CheckRun(whole, first->run.processes, parts).status());
  if (runs > 1) return absl::OkStatus();
  return FieldError(
      "strategy",
      absl::StrCat("there is nothing to compare: ", first->run.Label(),
                   " is the only run; list several strategies, precisions or "
                   "numbers of ranks",
                   refused));
}

}  // namespace

bool Sets(absl::string_view text, absl::string_view field) {
  const size_t end = text.find('=');
  const absl::string_view path = absl::StripSuffix(text.substr(0, end), "+");
  if (path == field || absl::StartsWith(path, absl::StrCat(field, "."))) {
    return true;
  }
  // "launch={processes: 2}"
  return end != text.npos && absl::StartsWith(field, absl::StrCat(path, ".")) &&
         absl::StrContains(text.substr(end), field.substr(path.size() + 1));
}

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

absl::StatusOr<LoadedCompare> LoadCompareConfig(
    const std::string& file, const std::vector<std::string>& overrides,
    const ConfigContext& context) {
  LoadedCompare loaded;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path,
                           LoadAxes(file, context, &loaded));
  if (loaded.config.name().empty()) {
    loaded.config.set_name(fs::path(path).stem().string());
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(ReadShared(path, overrides, context, &loaded), ""));
  if (loaded.config.has_sweep()) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckNoAxes(loaded.config), ""));
    return loaded;
  }
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(FillAxes(&loaded), ""));
  CAPSTAN_RETURN_IF_ERROR(SettleNewTokens(&loaded.shared, *context.host));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckProcesses(loaded.config), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckBounds(loaded.config), ""));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.shared.Locate(CheckFixed(loaded.shared.config), ""));
  CAPSTAN_RETURN_IF_ERROR(loaded.shared.Locate(SettleGlobalBatch(&loaded), ""));
  return loaded;
}

CompareBounds BoundsOf(const CompareConfig& config, const SlotName& strategy,
                       const SlotName& precision, const PrecisionPolicy& policy,
                       const absl::optional<OwnCurve>& own_curve) {
  const bool wide = c10::elementSize(policy.compute) >= 4;
  CompareBounds bounds;
  bounds.loss = wide ? kLoss32 : kLoss16;
  bounds.grad_norm = wide ? kNorm32 : kNorm16;
  if (own_curve.has_value()) {
    bounds.loss = own_curve->loss;
    bounds.grad_norm = std::numeric_limits<double>::infinity();
    bounds.own_curve = own_curve->why;
  }
  for (const CompareConfig::Bound& bound : config.bound()) {
    if (!IsFor(bound.strategy(), strategy) ||
        !IsFor(bound.precision(), precision)) {
      continue;
    }
    if (bound.has_loss()) bounds.loss = bound.loss();
    if (bound.has_grad_norm()) bounds.grad_norm = bound.grad_norm();
    if (bound.has_bit_identical()) bounds.bit_identical = bound.bit_identical();
    if (bound.has_step_time()) bounds.step_time = bound.step_time();
    if (bound.has_peak_memory()) bounds.peak_memory = bound.peak_memory();
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

std::vector<ComparedPrecision> ListPrecisions(const CompareConfig& config) {
  std::vector<ComparedPrecision> precisions;
  for (const std::string& label : SlotLabels(config.precision())) {
    precisions.emplace_back();
    precisions.back().name = label;
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
  std::unique_ptr<Objective> objective;
  if (loaded.shared.config.has_objective()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        objective,
        CreateSlot<Objective>(loaded.shared, "objective",
                              loaded.shared.config.objective(), host));
  }
  const std::vector<SlotName> strategy_names = NamesOf(axes.strategy());
  const std::vector<SlotName> precision_names = NamesOf(axes.precision());

  std::vector<Combination> combinations;
  for (size_t p = 0; p < precisions.size(); ++p) {
    for (size_t s = 0; s < strategies.size(); ++s) {
      for (const int64_t processes : axes.processes()) {
        Combination combination;
        ComparedRun& run = combination.run;
        run.strategy = strategy_names[s].label;
        run.precision = precision_names[p].label;
        run.processes = static_cast<int>(processes);
        run.id = absl::StrFormat("%02d-%s-%s-%d", combinations.size() + 1,
                                 FileName(run.strategy),
                                 FileName(run.precision), run.processes);
        StrategyRequest request;
        request.model = model.get();
        request.precision =
            precisions[p]->PolicyOn(DeviceOf(*precisions[p], gpus));
        request.world_size = run.processes;
        run.bounds = BoundsOf(axes, strategy_names[s], precision_names[p],
                              request.precision,
                              OwnCurveOf(*strategies[s], objective.get()));
        const absl::Status refusal =
            Refusal(*strategies[s], loaded.shared.config, gpus, request,
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
