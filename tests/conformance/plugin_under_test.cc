// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/plugin_under_test.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "host/config/load_config.h"

namespace capstan {
namespace conformance {
namespace {

namespace fs = std::filesystem;

// The slot of a run's config for `category`, and what is in it.
const char* SlotOf(PluginCategory category) {
  switch (category) {
    case PluginCategory::kStrategy:
      return "strategy";
    case PluginCategory::kPrecision:
      return "precision";
    case PluginCategory::kOptimizer:
      return "optimizer";
    case PluginCategory::kModel:
      return "model";
    case PluginCategory::kObjective:
      return "objective";
    case PluginCategory::kCollector:
      return "collect";
    default:
      return "train_data";
  }
}

const google::protobuf::Any& SlotIn(const RunConfig& config,
                                    PluginCategory category) {
  switch (category) {
    case PluginCategory::kStrategy:
      return config.strategy();
    case PluginCategory::kPrecision:
      return config.precision();
    case PluginCategory::kOptimizer:
      return config.optimizer();
    case PluginCategory::kModel:
      return config.model();
    case PluginCategory::kObjective:
      return config.objective();
    case PluginCategory::kCollector:
      return config.collect();
    default:
      return config.train_data();
  }
}

}  // namespace

void PrintTo(const PluginUnderTest& plugin, std::ostream* out) {
  *out << plugin.library << ", " << plugin.config;
}

absl::StatusOr<LoadedPluginUnderTest> LoadedPluginUnderTest::Load(
    const PluginUnderTest& plugin, PluginCategory category) {
  const fs::path library = fs::absolute(plugin.library);
  if (!fs::exists(library)) {
    return absl::NotFoundError(
        absl::StrCat("there is no ", library.string(),
                     ": is the plugin in the test's data?"));
  }
  LoadedPluginUnderTest loaded;
  loaded.category_ = category;
  loaded.host_ = std::make_shared<PluginHost>(
      std::vector<std::string>{library.parent_path().string()});
  ConfigContext context;
  context.host = loaded.host_.get();
  context.caller_folder = context.build_folder = fs::current_path().string();
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig config,
      ParseConfig(absl::StrCat(SlotOf(category), " { ", plugin.config, " }"),
                  "the plugin's config", context));
  const google::protobuf::Any& slot = SlotIn(config.config, category);
  loaded.type_ = TypeOf(slot);
  loaded.config_ = slot.value();
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedPlugin* found,
                           loaded.host_->Load(loaded.type_));
  if (fs::path(found->path).filename() != library.filename()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the config is of ", found->path, ", not of ", library.string()));
  }
  return loaded;
}

}  // namespace conformance
}  // namespace capstan
