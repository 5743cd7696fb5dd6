// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/plugin_under_test.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// A command's, which its library's name says: libacme_command_greet.so has
// acme.command_greet.Config.
std::string TypeOfCommand(const fs::path& library) {
  std::string package = library.stem().string();
  package.erase(0, std::string("lib").size());
  const size_t vendor = package.find('_');
  if (vendor != std::string::npos) package[vendor] = '.';
  return absl::StrCat(package, ".Config");
}

const google::protobuf::Descriptor* DescriptorOf(const std::string& type) {
  return google::protobuf::DescriptorPool::generated_pool()
      ->FindMessageTypeByName(type);
}

// Sets a number to what can hardly be meant; returns that as text, "" if the
// field has no such value.
std::string SetDoubtful(const google::protobuf::FieldDescriptor& field,
                        google::protobuf::Message* config) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& set = *config->GetReflection();
  if (field.is_repeated()) return "";
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      set.SetInt32(config, &field, -1);
      return "-1";
    case Field::CPPTYPE_INT64:
      set.SetInt64(config, &field, -1);
      return "-1";
    case Field::CPPTYPE_FLOAT:
      set.SetFloat(config, &field, std::nanf(""));
      return "nan";
    case Field::CPPTYPE_DOUBLE:
      set.SetDouble(config, &field, std::nan(""));
      return "nan";
    default:
      return "";
  }
}

}  // namespace

PluginUnderTest WithOutput(PluginUnderTest plugin, const std::string& output) {
  plugin.config = absl::StrReplaceAll(plugin.config, {{"$OUTPUT", output}});
  return plugin;
}

std::map<std::string, std::string> LoadedPluginUnderTest::DoubtfulConfigs()
    const {
  std::map<std::string, std::string> configs;
  const google::protobuf::Descriptor* const type = DescriptorOf(type_);
  for (int i = 0; type != nullptr && i < type->field_count(); ++i) {
    const std::unique_ptr<google::protobuf::Message> config(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(type)
            ->New());
    config->ParseFromString(config_);
    const std::string value = SetDoubtful(*type->field(i), config.get());
    if (value.empty()) continue;
    configs[absl::StrCat(type->field(i)->name(), ": ", value)] =
        config->SerializeAsString();
  }
  return configs;
}

void LoadedPluginUnderTest::ExpectAField(const absl::Status& error,
                                         const std::string& set) const {
  const absl::optional<std::string> field = FieldOf(error);
  const google::protobuf::Descriptor* const type = DescriptorOf(type_);
  EXPECT_TRUE(field.has_value() && type != nullptr &&
              type->FindFieldByName(
                  field->substr(0, field->find_first_of(".["))) != nullptr)
      << "with " << set << " Create's error is about "
      << (field.has_value() ? absl::StrCat("\"", *field, "\", which is ") : "")
      << "no field of its config: " << error.message();
}

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
  if (category == PluginCategory::kCommand) {
    loaded.type_ = TypeOfCommand(library);
    CAPSTAN_RETURN_IF_ERROR(loaded.host_->Load(loaded.type_).status());
    return loaded;
  }
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
