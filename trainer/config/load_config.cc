// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/load_config.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trainer/config/latest_run.h"
#include "trainer/config/text_source.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// The file that `name` means: as given from the caller's folder, else in the
// workspace's configs/.
absl::StatusOr<std::string> FindConfig(const std::string& name,
                                       const ConfigContext& context) {
  std::vector<fs::path> tried = {
      FollowLatestRun((fs::path(context.caller_folder) / name).string())};
  if (!context.workspace_folder.empty()) {
    tried.push_back(fs::path(context.workspace_folder) / "configs" / name);
  }
  for (const fs::path& path : tried) {
    if (fs::is_regular_file(path)) return path.lexically_normal().string();
  }
  return absl::NotFoundError(absl::StrCat(
      "--config=", name, ": no such file; looked for ",
      absl::StrJoin(tried, " and ", [](std::string* out, const fs::path& p) {
        absl::StrAppend(out, p.lexically_normal().string());
      })));
}

absl::Status AddText(const std::string& text, const std::string& name,
                     bool has_lines, const std::string& folder,
                     const ConfigContext& context,
                     google::protobuf::Message* config, FieldPlaces* places) {
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<TextSource> source,
      ParseText(text, name, has_lines, *config, *context.host));
  return MergeSource(*source, name, has_lines, folder, context, config, places);
}

absl::Status AddOverride(const std::string& text, const ConfigContext& context,
                         LoadedConfig* loaded) {
  const std::string name = absl::StrCat("--set ", text);
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": write it path=value"));
  }
  const absl::StatusOr<std::string> proto_text = OverrideText(
      text.substr(0, equals), text.substr(equals + 1), loaded->config);
  if (!proto_text.ok()) return Annotate(proto_text.status(), name);
  return AddText(*proto_text, name, /*has_lines=*/false, context.caller_folder,
                 context, &loaded->config, loaded);
}

}  // namespace

absl::Status FieldPlaces::Locate(const absl::Status& status,
                                 const std::string& slot) const {
  if (status.ok()) return status;
  const absl::optional<std::string> field = FieldOf(status);
  std::string path = slot;
  if (field.has_value()) {
    path = slot.empty() ? *field : absl::StrCat(slot, ".", *field);
  }
  // The nearest enclosing field that the config sets.
  std::string at = path;
  while (!at.empty() && locations.find(at) == locations.end()) {
    const size_t dot = at.rfind('.');
    at = dot == std::string::npos ? "" : at.substr(0, dot);
  }
  const std::string where =
      at.empty() ? "" : absl::StrCat(locations.at(at), ": ");
  return absl::Status(
      status.code(),
      absl::StrCat(where, path, path.empty() ? "" : ": ", status.message()));
}

ConfigContext DefaultConfigContext(PluginHost* host) {
  ConfigContext context;
  context.host = host;
  const char* caller = std::getenv("BUILD_WORKING_DIRECTORY");
  context.caller_folder =
      caller != nullptr ? caller : fs::current_path().string();
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace != nullptr) {
    context.workspace_folder = workspace;
  } else {
    for (fs::path folder = context.caller_folder;
         !folder.empty() && folder != folder.root_path();
         folder = folder.parent_path()) {
      if (fs::exists(folder / "WORKSPACE")) {
        context.workspace_folder = folder.string();
        break;
      }
    }
  }
  // The trainer is BUILD_FOLDER/trainer/trainer.
  context.build_folder = fs::path(ExecutableFolder()).parent_path().string();
  return context;
}

absl::StatusOr<std::string> LoadMessage(const std::string& file,
                                        const ConfigContext& context,
                                        google::protobuf::Message* config,
                                        FieldPlaces* places) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path, FindConfig(file, context));
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    return absl::PermissionDeniedError(
        absl::StrCat("--config=", file, ": ", path, " can't be read"));
  }
  CAPSTAN_RETURN_IF_ERROR(AddText(text.str(), file, /*has_lines=*/true,
                                  fs::path(path).parent_path().string(),
                                  context, config, places));
  return path;
}

absl::StatusOr<LoadedConfig> LoadConfig(
    const std::vector<std::string>& files,
    const std::vector<std::string>& overrides, const ConfigContext& context) {
  LoadedConfig loaded;
  for (const std::string& file : files) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string path,
        LoadMessage(file, context, &loaded.config, &loaded));
    if (loaded.config.name().empty()) {
      loaded.config.set_name(fs::path(path).stem().string());
    }
  }
  for (const std::string& text : overrides) {
    CAPSTAN_RETURN_IF_ERROR(AddOverride(text, context, &loaded));
  }
  return loaded;
}

absl::StatusOr<LoadedConfig> ParseConfig(
    const std::string& text, const std::string& name,
    const ConfigContext& context, const std::vector<std::string>& overrides) {
  LoadedConfig loaded;
  CAPSTAN_RETURN_IF_ERROR(AddText(text, name, /*has_lines=*/true,
                                  context.caller_folder, context,
                                  &loaded.config, &loaded));
  for (const std::string& change : overrides) {
    CAPSTAN_RETURN_IF_ERROR(AddOverride(change, context, &loaded));
  }
  return loaded;
}

std::string PrintConfig(const google::protobuf::Message& config) {
  // Expanding an Any needs its type, which is loaded by now.
  class Loaded : public google::protobuf::TextFormat::Finder {
   public:
    const google::protobuf::Descriptor* FindAnyType(
        const google::protobuf::Message&, const std::string&,
        const std::string& name) const override {
      return google::protobuf::DescriptorPool::generated_pool()
          ->FindMessageTypeByName(name);
    }
  };
  Loaded finder;
  google::protobuf::TextFormat::Printer printer;
  printer.SetExpandAny(true);
  printer.SetFinder(&finder);
  std::string text;
  printer.PrintToString(config, &text);
  return text;
}

bool HasSlot(const RunConfig& config, const std::string& slot) {
  const google::protobuf::FieldDescriptor* field =
      config.GetDescriptor()->FindFieldByName(slot);
  return field != nullptr && config.GetReflection()->HasField(config, field);
}

}  // namespace capstan
