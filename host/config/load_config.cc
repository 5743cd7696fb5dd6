// SPDX-License-Identifier: Apache-2.0
#include "host/config/load_config.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/text_source.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status AddText(const std::string& text, const std::string& name,
                     const std::string& folder, const ConfigContext& context,
                     Message* config, FieldPlaces* places) {
  TextOrigin origin;
  origin.name = name;
  origin.folder = folder;
  return MergeText(text, origin, context, config, places);
}

// Scales schedule.warmup_steps and decay_steps with the length of the run that
// they were written for. Call Update after each file, and once after all --set.
class ScheduleFit {
 public:
  void Update(const LoadedConfig& loaded) {
    for (Part* part : {&warmup_, &decay_}) {
      const auto place = loaded.locations.find(part->path + "_steps");
      if (place == loaded.locations.end() || place->second == part->place) {
        continue;
      }
      part->place = place->second;
      part->written_for = loaded.config.train().max_steps();
    }
  }

  void Apply(LoadedConfig* loaded) const {
    if (!loaded->config.has_schedule()) return;
    Schedule& schedule = *loaded->config.mutable_schedule();
    if (schedule.total_steps() > 0) return;
    const int64_t warmup = schedule.warmup_steps();
    const int64_t decay = schedule.decay_steps();
    if (loaded->config.train().max_epochs() > 0) {
      // The number of steps in epochs is known once the data is.
      if (FitsItsRun(warmup_, warmup)) {
        schedule.set_warmup_ratio(Ratio(warmup_, warmup, loaded));
      }
      if (FitsItsRun(decay_, decay)) {
        schedule.set_decay_ratio(Ratio(decay_, decay, loaded));
      }
      return;
    }
    const int64_t steps = loaded->config.train().max_steps();
    const double fixed = static_cast<double>(warmup + decay);
    const bool default_decay = schedule.kind() == Schedule::WSD &&
                               !schedule.has_decay_steps() &&
                               !schedule.has_decay_ratio();
    const double decay_ratio =
        default_decay ? kDefaultDecayRatio : schedule.decay_ratio();
    const auto all = static_cast<double>(steps);
    if (steps <= 0 || fixed + std::ceil(schedule.warmup_ratio() * all) +
                              std::floor(decay_ratio * all) <=
                          all) {
      return;
    }
    // Rounded up, like warmup_ratio; down, so that there is room for that.
    if (IsShorter(warmup_, warmup, steps)) {
      schedule.set_warmup_steps(
          Note(warmup_, warmup,
               std::ceil(Scaled(warmup_, static_cast<double>(warmup), steps)),
               loaded));
    }
    if (IsShorter(decay_, decay, steps)) {
      schedule.set_decay_steps(
          Note(decay_, decay,
               std::floor(Scaled(decay_, static_cast<double>(decay), steps)),
               loaded));
    }
  }

 private:
  struct Part {
    std::string path;
    std::string place = {};
    int64_t written_for = 0;  // max_steps
  };

  static bool FitsItsRun(const Part& part, int64_t count) {
    return count > 0 && count <= part.written_for;
  }

  static bool IsShorter(const Part& part, int64_t count, int64_t steps) {
    return FitsItsRun(part, count) && steps < part.written_for;
  }

  static double Scaled(const Part& part, double count, int64_t steps) {
    return count * static_cast<double>(steps) /
           static_cast<double>(part.written_for);
  }

  static double Ratio(const Part& part, int64_t count, LoadedConfig* loaded) {
    const double ratio =
        static_cast<double>(count) / static_cast<double>(part.written_for);
    loaded->notes.push_back(
        absl::StrCat(part.path, "_ratio is ", ratio, ", as the ", count, " of ",
                     part.written_for, " steps at ", part.place));
    return ratio;
  }

  static int64_t Note(const Part& part, int64_t count, double fitted,
                      LoadedConfig* loaded) {
    const int64_t whole = static_cast<int64_t>(fitted);
    loaded->notes.push_back(absl::StrCat(
        part.path, "_steps is ", whole, " of ",
        loaded->config.train().max_steps(), " steps, in proportion to the ",
        count, " of ", part.written_for, " at ", part.place));
    return whole;
  }

  Part warmup_ = {"schedule.warmup"};
  Part decay_ = {"schedule.decay"};
};

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

// Null unless `field` has exactly one string.
const FieldDescriptor* StringField(const FieldDescriptor* field) {
  return field != nullptr && !field->is_repeated() &&
                 field->type() == FieldDescriptor::TYPE_STRING
             ? field
             : nullptr;
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
      StringField(other->GetDescriptor()->FindFieldByName(names.second));
  return field == nullptr ? "" : StringOf(*other, field);
}

constexpr char kLatest[] = "latest";

constexpr int64_t kMostConfigBytes = 64 << 20;

// The folder that `file` refers to; "" if it isn't such a file.
fs::path RunOf(const fs::path& file) {
  std::error_code error;
  if (file.filename() != kLatest || !fs::is_regular_file(file, error)) {
    return "";
  }
  std::ifstream text(file);
  std::string name;
  std::getline(text, name);
  // Only a plain name, next to the file.
  if (name.empty() || name == "." || name == ".." ||
      fs::path(name).filename() != name) {
    return "";
  }
  const fs::path run = file.parent_path() / name;
  return fs::is_directory(run, error) ? run : "";
}

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
    } else if (StringField(field) != nullptr &&
               field->options().GetExtension(capstan::path)) {
      CAPSTAN_ASSIGN_OR_RETURN(std::string changed,
                               change(path, StringOf(*message, field)));
      reflection.SetString(message, field, std::move(changed));
    }
  }
  return absl::OkStatus();
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
  return absl::Status(
      status.code(),
      absl::StrCat(where, path, path.empty() ? "" : ": ", status.message()));
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
  const fs::path packed = fs::path(context.build_folder) / "configs";
  std::error_code error;
  if (fs::is_directory(packed, error)) tried.push_back(packed / name);
  for (const fs::path& path : tried) {
    if (fs::is_regular_file(path, error)) {
      return path.lexically_normal().string();
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "--config=", name, ": no such file; looked for ",
      absl::StrJoin(tried, " and ", [](std::string* out, const fs::path& p) {
        absl::StrAppend(out, p.lexically_normal().string());
      })));
}

absl::StatusOr<std::string> LoadMessage(const std::string& file,
                                        const ConfigContext& context,
                                        Message* config, FieldPlaces* places) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path, FindConfig(file, context));
  const absl::StatusOr<std::string> text =
      ReadWholeFile(path, kMostConfigBytes);
  if (!text.ok()) {
    return Annotate(text.status(),
                    absl::StrCat("--config=", file, ": it can't be read"));
  }
  CAPSTAN_RETURN_IF_ERROR(AddText(*text, file,
                                  fs::path(path).parent_path().string(),
                                  context, config, places));
  return path;
}

absl::StatusOr<LoadedConfig> LoadConfig(
    const std::vector<std::string>& files,
    const std::vector<std::string>& overrides, const ConfigContext& context) {
  LoadedConfig loaded;
  ScheduleFit schedule;
  for (const std::string& file : files) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string path,
        LoadMessage(file, context, &loaded.config, &loaded));
    if (loaded.config.name().empty()) {
      loaded.config.set_name(fs::path(path).stem().string());
    }
    schedule.Update(loaded);
  }
  CAPSTAN_RETURN_IF_ERROR(Finish(overrides, context, &schedule, &loaded));
  return loaded;
}

absl::StatusOr<LoadedConfig> ParseConfig(
    const std::string& text, const std::string& name,
    const ConfigContext& context, const std::vector<std::string>& overrides) {
  LoadedConfig loaded;
  ScheduleFit schedule;
  CAPSTAN_RETURN_IF_ERROR(AddText(text, name, context.caller_folder, context,
                                  &loaded.config, &loaded));
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
    const FieldDescriptor* field =
        StringField(message->GetDescriptor()->field(i));
    if (field == nullptr || !StringOf(*message, field).empty()) continue;
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

BaseModel BaseModelOf(const RunConfig& config) {
  BaseModel base;
  const absl::StatusOr<std::unique_ptr<Message>> model = Unpack(config.model());
  if (!model.ok()) return base;
  const google::protobuf::Descriptor& type = *(*model)->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = StringField(type.field(i));
    if (field == nullptr || !field->options().GetExtension(base_model)) {
      continue;
    }
    base.field = field->name();
    base.folder = StringOf(**model, field);
  }
  return base;
}

absl::Status SetLatestRun(const std::string& runs, const std::string& name) {
  // A hidden name per run: others may start in the same second.
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<HiddenFile> file,
      HiddenFile::Create((fs::path(runs) / kLatest).string(), name));
  CAPSTAN_RETURN_IF_ERROR(file->Write(name + "\n"));
  return file->Close();
}

std::string FollowLatestRun(const std::string& path) {
  fs::path followed;
  bool any = false;
  for (const fs::path& part : fs::path(path)) {
    followed /= part;
    const fs::path run = RunOf(followed);
    if (run.empty()) continue;
    followed = run;
    any = true;
  }
  return any ? followed.string() : path;
}

}  // namespace capstan
