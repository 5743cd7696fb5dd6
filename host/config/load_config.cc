// SPDX-License-Identifier: Apache-2.0
#include "host/config/load_config.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/defaults.h"
#include "host/config/schedule_fit.h"
#include "host/config/text_source.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The run's folder is runs/NAME: it must be in runs/.
absl::Status CheckName(const LoadedConfig& loaded) {
  const fs::path name = loaded.config.name();
  const bool inside =
      name.is_relative() &&
      std::none_of(name.begin(), name.end(),
                   [](const fs::path& part) { return part == ".."; });
  if (inside) return absl::OkStatus();
  return loaded.Locate(
      FieldError("name", absl::StrCat("is \"", name.string(),
                                      "\", and runs/NAME must be a folder in "
                                      "runs/: give a name without ..")),
      "");
}

// What follows the files.
absl::Status Finish(const std::vector<std::string>& overrides,
                    const ConfigContext& context, ScheduleFit* schedule,
                    LoadedConfig* loaded) {
  for (const std::string& text : overrides) {
    CAPSTAN_RETURN_IF_ERROR(ApplyOverride(text, context, loaded));
  }
  schedule->Update(*loaded);
  schedule->Apply(loaded);
  return CheckName(*loaded);
}

// Reads into an empty `loaded`, which keeps what it has got after an error.
absl::Status LoadOver(const std::vector<DefaultText>& defaults,
                      const std::vector<std::string>& files,
                      const std::vector<std::string>& overrides,
                      const ConfigContext& context, LoadedConfig* loaded) {
  ScheduleFit schedule;
  for (const DefaultText& text : defaults) {
    CAPSTAN_RETURN_IF_ERROR(
        MergeText(text.text, TextOrigin{text.origin, /*has_lines=*/false},
                  context, &loaded->config, loaded));
  }
  schedule.Update(*loaded);
  for (const std::string& file : files) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string path,
        LoadMessage(file, context, &loaded->config, loaded));
    if (loaded->config.name().empty()) {
      loaded->config.set_name(fs::path(path).stem().string());
    }
    schedule.Update(*loaded);
  }
  return Finish(overrides, context, &schedule, loaded);
}

// Whether `field` has exactly one string.
bool IsString(const FieldDescriptor* field) {
  return field != nullptr && !field->is_repeated() &&
         field->type() == FieldDescriptor::TYPE_STRING;
}

std::string StringOf(const Message& message, const FieldDescriptor* field) {
  return message.GetReflection()->GetString(message, field);
}

// The string at "SLOT.FIELD", or "".
absl::StatusOr<std::string> StringAt(const RunConfig& config,
                                     const std::string& path) {
  const std::pair<std::string, std::string> names =
      absl::StrSplit(path, absl::MaxSplits('.', 1));
  const FieldDescriptor* slot =
      config.GetDescriptor()->FindFieldByName(names.first);
  if (slot == nullptr || !config.GetReflection()->HasField(config, slot)) {
    return "";
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Message> other,
      Unpack(static_cast<const Any&>(
          config.GetReflection()->GetMessage(config, slot))));
  const FieldDescriptor* field =
      other->GetDescriptor()->FindFieldByName(names.second);
  return IsString(field) ? StringOf(*other, field) : "";
}

constexpr int64_t kMostConfigBytes = 64 << 20;

// ChangePaths of the field `name` ("": all of a config).
absl::Status ChangePathsIn(const std::string& name, const PathChange& change,
                           Message* message) {
  if (message->GetDescriptor() == Any::descriptor()) {
    Any* const slot = static_cast<Any*>(message);
    const absl::StatusOr<std::unique_ptr<Message>> plugin = Unpack(*slot);
    if (!plugin.ok()) return absl::OkStatus();  // not loaded
    CAPSTAN_RETURN_IF_ERROR(ChangePathsIn(name, change, plugin->get()));
    slot->set_value((*plugin)->SerializeAsString());
    return absl::OkStatus();
  }
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path =
        absl::StrCat(name, name.empty() ? "" : ".", field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        CAPSTAN_RETURN_IF_ERROR(ChangePathsIn(
            path, change, reflection.MutableMessage(message, field)));
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
        CAPSTAN_RETURN_IF_ERROR(ChangePathsIn(
            absl::StrCat(path, "[", i, "]"), change,
            reflection.MutableRepeatedMessage(message, field, i)));
      }
    } else if (field->options().GetExtension(capstan::path)) {
      CAPSTAN_RETURN_IF_ERROR(
          ChangeStrings(field, path, /*first=*/0, change, message));
    }
  }
  return absl::OkStatus();
}

// The code of an error about a field that has none of its own.
const char* CodeOfField(const std::string& path) {
  constexpr const char* kCodes[][2] = {
      {"batch", "batch/size"},        {"eval_data", "data/settings"},
      {"launch", "launch/ranks"},     {"model", "model/settings"},
      {"strategy", "strategy/unfit"}, {"train_data", "data/settings"},
  };
  const std::string slot = path.substr(0, path.find('.'));
  for (const auto& [name, code] : kCodes) {
    if (slot == name) return code;
  }
  return path.empty() ? "" : "config/value";
}

// What to do with a file that isn't a config, by its ending; "" if it may be
// one.
std::string OtherCommandFor(const std::string& file) {
  const std::string end = fs::path(file).extension().string();
  for (const char* settings : {".yml", ".yaml", ".json", ".sh"}) {
    if (end != settings) continue;
    return absl::StrCat("`trainer import ", file,
                        " --output=run.pbtxt` takes other programs' settings");
  }
  for (const char* data : {".jsonl", ".csv", ".tsv", ".parquet", ".hdf5"}) {
    if (end != data) continue;
    return absl::StrCat("`trainer init --data=", file,
                        "` writes a config for data");
  }
  return "";
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
  // Find the nearest enclosing field that the config sets.
  std::string at = path;
  while (!at.empty() && locations.find(at) == locations.end()) {
    const size_t dot = at.rfind('.');
    at = dot == std::string::npos ? "" : at.substr(0, dot);
  }
  const std::string where =
      at.empty() ? "" : absl::StrCat(locations.at(at), ": ");
  const absl::Status located(
      status.code(),
      absl::StrCat(where, path, path.empty() ? "" : ": ", status.message()));
  const auto named = paths.find(path);
  const bool missing =
      absl::IsNotFound(status) ||
      (named != paths.end() && !PathExists(named->second.absolute));
  return WithCode(WithCode(located, CodeOf(status)),
                  missing ? "path/missing" : CodeOfField(path));
}

void FieldPlaces::Forget(const std::string& path) {
  const auto erase = [&path](auto* places) {
    for (auto it = places->begin(); it != places->end();) {
      const bool below = absl::StartsWith(it->first, path + ".") ||
                         absl::StartsWith(it->first, path + "[");
      it = below ? places->erase(it) : std::next(it);
    }
  };
  erase(&locations);
  erase(&paths);
  paths.erase(path);
}

ConfigContext DefaultConfigContext(PluginHost* host) {
  ConfigContext context;
  context.host = host;
  const char* caller = std::getenv("BUILD_WORKING_DIRECTORY");
  std::error_code error;  // the folder may have been removed meanwhile
  context.caller_folder =
      caller != nullptr ? caller : fs::current_path(error).string();
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace != nullptr) {
    context.workspace_folder = workspace;
  } else {
    for (fs::path folder = context.caller_folder;
         !folder.empty() && folder != folder.root_path();
         folder = folder.parent_path()) {
      if (PathExists((folder / "WORKSPACE").string())) {
        context.workspace_folder = folder.string();
        break;
      }
    }
  }
  // The core is in BUILD_FOLDER/trainer/; in BUILD_FOLDER/lib/ in a folder that
  // //:dist made.
  const fs::path core =
      LibraryFolder(reinterpret_cast<const void*>(&DefaultConfigContext));
  context.build_folder = core.parent_path().string();
  return context;
}

absl::StatusOr<std::string> FindConfig(const std::string& name,
                                       const ConfigContext& context) {
  std::vector<fs::path> tried = {
      FollowLatestRun((fs::path(context.caller_folder) / name).string())};
  if (!context.workspace_folder.empty()) {
    tried.push_back(fs::path(context.workspace_folder) / "configs" / name);
  }
  std::error_code error;
  for (const char* folder :
       {"configs", "trainer/trainer.runfiles/capstan/configs"}) {
    const fs::path own = fs::path(context.build_folder) / folder;
    if (fs::is_directory(own, error)) tried.push_back(own / name);
  }
  for (const fs::path& path : tried) {
    if (fs::is_regular_file(path, error)) {
      return path.lexically_normal().string();
    }
  }
  if (fs::is_directory(tried[0], error)) {
    const bool run = fs::exists(tried[0] / "config.pbtxt", error);
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        "--config=", name, " is a folder: ",
                        run ? "its run's config is config.pbtxt in it"
                            : "a config is a file; a model's folder is given "
                              "by --model, or by pretrained in a config")),
                    "config/file");
  }
  return WithCode(absl::NotFoundError(absl::StrCat(
                      "--config=", name, ": no such file; looked for ",
                      absl::StrJoin(tried, " and ",
                                    [](std::string* out, const fs::path& p) {
                                      absl::StrAppend(
                                          out, p.lexically_normal().string());
                                    }))),
                  "config/file");
}

absl::StatusOr<std::string> LoadMessage(const std::string& file,
                                        const ConfigContext& context,
                                        Message* config, FieldPlaces* places) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path, FindConfig(file, context));
  absl::StatusOr<std::string> text = ReadWholeFile(path, kMostConfigBytes);
  if (!text.ok()) {
    return Annotate(text.status(),
                    absl::StrCat("--config=", file, ": it can't be read"));
  }
  // A byte order mark, as some editors write it.
  if (absl::StartsWith(*text, "\xef\xbb\xbf")) text->erase(0, 3);
  for (const char* mark : {"\xff\xfe", "\xfe\xff"}) {
    if (!absl::StartsWith(*text, mark)) continue;
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        "--config=", file, " is UTF-16: save it as UTF-8")),
                    "config/syntax");
  }
  const absl::Status added =
      MergeText(*text,
                TextOrigin{file, /*has_lines=*/true,
                           fs::path(path).parent_path().string(), path},
                context, config, places);
  if (added.ok()) return path;
  const std::string other = OtherCommandFor(file);
  if (other.empty()) return added;
  return WithMessage(added, absl::StrCat(added.message(), "; ", other));
}

absl::StatusOr<LoadedConfig> LoadConfig(
    const std::vector<std::string>& files,
    const std::vector<std::string>& overrides, const ConfigContext& context) {
  // What the defaults are follows from the plugins, of which some are defaults.
  constexpr int kMostPasses = 5;
  std::vector<DefaultText> defaults;
  for (int pass = 1;; ++pass) {
    LoadedConfig loaded;
    const absl::Status status =
        LoadOver(defaults, files, overrides, context, &loaded);
    std::vector<DefaultText> next = DefaultsOf(loaded.config, overrides);
    if (next != defaults && pass < kMostPasses) {
      defaults = std::move(next);
      continue;
    }
    CAPSTAN_RETURN_IF_ERROR(status);
    if (defaults.empty()) return loaded;
    InheritTrainData(&loaded);
    const std::vector<std::string> notes = DefaultNotes(defaults, loaded);
    loaded.notes.insert(loaded.notes.begin(), notes.begin(), notes.end());
    loaded.config.set_complete(true);
    return loaded;
  }
}

absl::StatusOr<LoadedConfig> ParseConfig(
    const std::string& text, const std::string& name,
    const ConfigContext& context, const std::vector<std::string>& overrides) {
  LoadedConfig loaded;
  ScheduleFit schedule;
  CAPSTAN_RETURN_IF_ERROR(MergeText(
      text, TextOrigin{name, /*has_lines=*/false, context.caller_folder},
      context, &loaded.config, &loaded));
  schedule.Update(loaded);
  CAPSTAN_RETURN_IF_ERROR(Finish(overrides, context, &schedule, &loaded));
  return loaded;
}

std::string PrintConfig(const Message& config) {
  // Expanding an Any needs its type, which is loaded by now.
  class Loaded : public google::protobuf::TextFormat::Finder {
   public:
    const google::protobuf::Descriptor* FindAnyType(
        const Message&, const std::string&,
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

absl::StatusOr<Any> WithDefaults(const Any& slot, const RunConfig& config) {
  if (slot.type_url().empty()) return slot;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Message> message,
                           Unpack(slot));
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    if (!IsString(field) || !StringOf(*message, field).empty()) continue;
    const std::string from = field->options().GetExtension(default_from);
    if (from.empty()) continue;
    CAPSTAN_ASSIGN_OR_RETURN(std::string text, StringAt(config, from));
    message->GetReflection()->SetString(message.get(), field, std::move(text));
  }
  Any filled = slot;
  filled.set_value(message->SerializeAsString());
  return filled;
}

absl::Status ChangePaths(const PathChange& change, Message* config) {
  return ChangePathsIn("", change, config);
}

std::string HubDownloadHint(absl::string_view name, absl::string_view setting) {
  const size_t slash = name.find('/');
  if (slash == absl::string_view::npos || slash == 0 ||
      slash + 1 == name.size() || name[0] == '.' || name[0] == '~' ||
      std::count(name.begin(), name.end(), '/') != 1) {
    return "";
  }
  // A local folder with a typo in its last component.
  std::error_code error;
  if (std::filesystem::exists(std::string(name.substr(0, slash)), error)) {
    return "";
  }
  const absl::string_view local = name.substr(slash + 1);
  return absl::StrCat(
      "; if it is a model on the Hub, download it first: hf download ", name,
      " --local-dir ", local, ", and say ", setting, "=", local);
}

absl::Status WithHubHint(const absl::Status& status, const LoadedConfig& loaded,
                         const std::string& slot) {
  const absl::optional<std::string> field = FieldOf(status);
  if (!field.has_value()) return status;
  const std::string path = absl::StrCat(slot, ".", *field);
  const auto found = loaded.paths.find(path);
  std::error_code error;
  if (found == loaded.paths.end() ||
      std::filesystem::exists(found->second.absolute, error)) {
    return status;
  }
  const std::string hint =
      HubDownloadHint(found->second.written, absl::StrCat("--set ", path));
  return FieldError(*field, absl::StrCat(status.message(), hint));
}

const FieldDescriptor* SingleField(const Message& message,
                                   absl::string_view name,
                                   FieldDescriptor::Type type) {
  const FieldDescriptor* const field =
      message.GetDescriptor()->FindFieldByName(std::string(name));
  return field != nullptr && field->type() == type && !field->is_repeated()
             ? field
             : nullptr;
}

BaseModel BaseModelOf(const RunConfig& config) {
  BaseModel base;
  const absl::StatusOr<std::unique_ptr<Message>> model = Unpack(config.model());
  if (!model.ok()) return base;
  const google::protobuf::Descriptor& type = *(*model)->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (!IsString(field) || !field->options().GetExtension(base_model)) {
      continue;
    }
    base.field = field->name();
    base.folder = StringOf(**model, field);
  }
  return base;
}

}  // namespace capstan
