// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/compare_config.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "trainer/plugin_host/plugin_host.h"

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
    return loaded->Locate(
        FieldError("config",
                   "is not set: name the run that all share, config: "
                   "\"run_distributed.pbtxt\""),
        "");
  }
  std::vector<std::string> files;
  for (const std::string& name : loaded->config.config()) {
    const fs::path beside = fs::path(compare_path).parent_path() / name;
    files.push_back(fs::is_regular_file(beside) ? beside.string() : name);
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
      return loaded->Locate(FieldError("strategy", "none is listed"), "");
    }
    *config.add_strategy() = run.strategy();
  }
  if (config.precision().empty()) {
    if (!run.has_precision()) {
      return loaded->Locate(FieldError("precision", "none is listed"), "");
    }
    *config.add_precision() = run.precision();
  }
  if (config.processes().empty()) {
    if (run.launch().processes() == Launch::AUTO) {
      return loaded->Locate(
          FieldError("processes",
                     "list the numbers of ranks to compare, processes: [1, 2]"),
          "");
    }
    config.add_processes(run.launch().processes());
  }
  return absl::OkStatus();
}

absl::Status CheckProcesses(const LoadedCompare& loaded) {
  const auto& processes = loaded.config.processes();
  for (int i = 0; i < processes.size(); ++i) {
    if (processes[i] < 1 || processes[i] > kMaxProcesses) {
      return loaded.Locate(
          FieldError("processes",
                     absl::StrCat("must be between 1 and ", kMaxProcesses,
                                  ", is ", processes[i])),
          "");
    }
    if (std::find(processes.begin(), processes.begin() + i, processes[i]) !=
        processes.begin() + i) {
      return loaded.Locate(
          FieldError("processes",
                     absl::StrCat(processes[i], " is listed twice")),
          "");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBounds(const LoadedCompare& loaded) {
  std::vector<std::string> listed;
  for (const google::protobuf::Any& any : loaded.config.precision()) {
    listed.push_back(PackageOf(TypeOf(any)));
  }
  for (const CompareConfig::Bound& bound : loaded.config.bound()) {
    if (std::find(listed.begin(), listed.end(), bound.precision()) ==
        listed.end()) {
      return loaded.Locate(
          FieldError("bound.precision",
                     absl::StrCat("\"", bound.precision(),
                                  "\" is not among the precisions that are "
                                  "compared: ",
                                  absl::StrJoin(listed, ", "))),
          "");
    }
    for (const auto& [field, value] :
         {std::pair<const char*, double>{"bound.loss", bound.loss()},
          {"bound.grad_norm", bound.grad_norm()}}) {
      if (value >= 0.0) continue;
      return loaded.Locate(
          FieldError(field, absl::StrCat("must not be negative, is ", value)),
          "");
    }
  }
  return absl::OkStatus();
}

// What concurrent runs can't each determine for themselves must be fixed.
absl::Status CheckFixed(const LoadedConfig& shared) {
  const RunConfig& run = shared.config;
  if (run.train().max_epochs() > 0 && run.train().max_steps() == 0) {
    return shared.Locate(
        FieldError("max_epochs",
                   "compare counts steps: set max_steps in its place"),
        "train");
  }
  if (run.batch().micro_batch_size() == Batching::AUTO) {
    return shared.Locate(
        FieldError("micro_batch_size",
                   "runs that are compared must have the same: set a number"),
        "batch");
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
      return loaded->shared.Locate(
          FieldError("global_batch_size",
                     "is not set, and the least that every number of ranks "
                     "divides is too great: set it"),
          "batch");
    }
  }
  batch->set_global_batch_size(size);
  return absl::OkStatus();
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
  CAPSTAN_RETURN_IF_ERROR(ReadShared(path, overrides, context, &loaded));
  CAPSTAN_RETURN_IF_ERROR(FillAxes(&loaded));
  CAPSTAN_RETURN_IF_ERROR(CheckProcesses(loaded));
  CAPSTAN_RETURN_IF_ERROR(CheckBounds(loaded));
  CAPSTAN_RETURN_IF_ERROR(CheckFixed(loaded.shared));
  CAPSTAN_RETURN_IF_ERROR(SettleGlobalBatch(&loaded));
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

}  // namespace capstan
