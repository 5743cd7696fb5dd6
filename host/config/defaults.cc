// SPDX-License-Identifier: Apache-2.0
#include "host/config/defaults.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The origin of what eval_data takes from train_data.
constexpr char kLikeTrainData[] = "train_data";

bool HasPlugin(const RunConfig& config, const std::string& package) {
  std::vector<const FieldDescriptor*> set;
  config.GetReflection()->ListFields(config, &set);
  return std::any_of(set.begin(), set.end(), [&](const FieldDescriptor* field) {
    return field->message_type() == Any::descriptor() &&
           PackageOf(TypeOf(static_cast<const Any&>(
               config.GetReflection()->GetMessage(config, field)))) == package;
  });
}

bool Applies(const RunDefaults& defaults, const RunConfig& config) {
  if (!defaults.beside().empty() && !HasPlugin(config, defaults.beside())) {
    return false;
  }
  const bool pretrained = !BaseModelOf(config).folder.empty();
  switch (defaults.start()) {
    case RunDefaults::SCRATCH:
      return !pretrained;
    case RunDefaults::PRETRAINED:
      return pretrained;
    case RunDefaults::ADAPTER:
      return config.has_adapter();
    default:
      return true;
  }
}

void AddOptions(const Descriptor* type, const std::string& whose,
                const RunConfig& config, std::vector<DefaultText>* texts) {
  const google::protobuf::MessageOptions& options = type->options();
  for (int i = 0; i < options.ExtensionSize(run_defaults); ++i) {
    const RunDefaults& defaults = options.GetExtension(run_defaults, i);
    if (!Applies(defaults, config)) continue;
    texts->push_back({absl::StrCat("defaults of ", whose), defaults.config()});
  }
}

// train_data's settings that don't say which data it is; null: its plugin isn't
// known.
std::unique_ptr<Message> HowToRead(const RunConfig& config) {
  absl::StatusOr<std::unique_ptr<Message>> reader = Unpack(config.train_data());
  if (!reader.ok()) return nullptr;
  std::vector<const FieldDescriptor*> set;
  (*reader)->GetReflection()->ListFields(**reader, &set);
  for (const FieldDescriptor* field : set) {
    const DataRole::Value role = field->options().GetExtension(data_role);
    if (role == DataRole::NONE || role == DataRole::TOKENIZER) continue;
    (*reader)->GetReflection()->ClearField(reader->get(), field);
  }
  return *std::move(reader);
}

// Removes from `message` what a config's field at `path` sets itself.
void ClearSet(const Message& own, const std::string& path,
              const FieldPlaces& places, Message* message) {
  std::vector<const FieldDescriptor*> set;
  message->GetReflection()->ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string below = absl::StrCat(path, ".", field->name());
    const auto* const oneof = field->real_containing_oneof();
    const bool said =
        places.locations.count(below) != 0 ||
        (oneof != nullptr && own.GetReflection()->HasOneof(own, oneof));
    if (!said) continue;
    if (field->message_type() == nullptr || field->is_repeated() ||
        places.locations.count(below) == 0) {
      message->GetReflection()->ClearField(message, field);
      continue;
    }
    ClearSet(own.GetReflection()->GetMessage(own, field), below, places,
             message->GetReflection()->MutableMessage(message, field));
  }
}

// eval_data's plugin, read as train_data is.
void AddEvalData(const RunConfig& config,
                 const std::vector<std::string>& overrides,
                 std::vector<DefaultText>* texts) {
  const bool same =
      config.eval_data().type_url() == config.train_data().type_url();
  // Sets a field of a slot that nothing fills.
  const bool part =
      !config.has_eval_data() &&
      std::any_of(overrides.begin(), overrides.end(),
                  [](const std::string& override) {
                    return absl::StartsWith(override, "eval_data.");
                  });
  if (!same && !part) return;
  const std::unique_ptr<Message> reader = HowToRead(config);
  if (reader == nullptr) return;
  RunConfig only;
  only.mutable_eval_data()->set_type_url(config.train_data().type_url());
  only.mutable_eval_data()->set_value(reader->SerializeAsString());
  texts->push_back({kLikeTrainData, PrintConfig(only)});
}

// What is taken from `origin` in a field, the value at `path`: "optimizer
// capstan.adamw (learning_rate 2e-05)"; "" if nothing is.
std::string TakenIn(const Message& message, const FieldDescriptor* field,
                    const std::string& path, const std::string& origin,
                    const FieldPlaces& places) {
  if (field->is_repeated()) return "";
  const auto place = places.locations.find(path);
  const bool taken = place != places.locations.end() && place->second == origin;
  std::string text = field->name();
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(message, field, -1,
                                                          &value);
    return taken ? absl::StrCat(text, " ", value) : "";
  }
  const Message* nested = &message.GetReflection()->GetMessage(message, field);
  std::unique_ptr<Message> plugin;
  if (nested->GetDescriptor() == Any::descriptor()) {
    absl::StatusOr<std::unique_ptr<Message>> unpacked =
        Unpack(static_cast<const Any&>(*nested));
    if (!unpacked.ok()) return "";
    plugin = *std::move(unpacked);
    nested = plugin.get();
    if (taken) {
      absl::StrAppend(&text, " ",
                      PackageOf(plugin->GetDescriptor()->full_name()));
    }
  }
  std::vector<const FieldDescriptor*> set;
  nested->GetReflection()->ListFields(*nested, &set);
  std::vector<std::string> parts;
  for (const FieldDescriptor* below : set) {
    std::string part = TakenIn(
        *nested, below, absl::StrCat(path, ".", below->name()), origin, places);
    if (!part.empty()) parts.push_back(std::move(part));
  }
  if (parts.empty()) return plugin != nullptr && taken ? text : "";
  return absl::StrCat(text, " (", absl::StrJoin(parts, ", "), ")");
}

// What to write for `slots`, a line each if there are several.
std::string Lines(const std::vector<const FieldDescriptor*>& slots) {
  std::string lines;
  for (const FieldDescriptor* slot : slots) {
    absl::StrAppend(&lines, slots.size() == 1 ? " " : "\n  ", slot->name(), " ",
                    slot->options().GetExtension(slot_example));
  }
  return lines;
}

}  // namespace

std::vector<DefaultText> DefaultsOf(const RunConfig& config,
                                    const std::vector<std::string>& overrides) {
  std::vector<DefaultText> texts;
  if (!config.has_train_data() || config.complete()) return texts;
  AddOptions(RunConfig::descriptor(), "every run", config, &texts);
  for (const Any* slot :
       {&config.train_data(), &config.model(), &config.objective()}) {
    const absl::StatusOr<std::unique_ptr<Message>> plugin = Unpack(*slot);
    if (!plugin.ok()) continue;
    AddOptions((*plugin)->GetDescriptor(), PackageOf(TypeOf(*slot)), config,
               &texts);
  }
  AddEvalData(config, overrides, &texts);
  return texts;
}

void InheritTrainData(LoadedConfig* loaded) {
  const std::unique_ptr<Message> reader = HowToRead(loaded->config);
  for (int i = 0; reader != nullptr && i < loaded->config.eval_sets_size();
       ++i) {
    Any* const data = loaded->config.mutable_eval_sets(i)->mutable_data();
    const absl::StatusOr<std::unique_ptr<Message>> own = Unpack(*data);
    if (data->type_url() != loaded->config.train_data().type_url() ||
        !own.ok()) {
      continue;
    }
    std::unique_ptr<Message> read(reader->New());
    read->CopyFrom(*reader);
    ClearSet(**own, absl::StrCat("eval_sets[", i, "].data"), *loaded,
             read.get());
    read->MergeFrom(**own);
    data->set_value(read->SerializeAsString());
  }
}

std::vector<std::string> DefaultNotes(const std::vector<DefaultText>& defaults,
                                      const LoadedConfig& loaded) {
  std::vector<std::string> notes;
  std::vector<std::string> done;
  for (const DefaultText& text : defaults) {
    if (text.origin == kLikeTrainData ||
        std::find(done.begin(), done.end(), text.origin) != done.end()) {
      continue;
    }
    done.push_back(text.origin);
    std::vector<std::string> shown;
    std::vector<const FieldDescriptor*> set;
    loaded.config.GetReflection()->ListFields(loaded.config, &set);
    for (const FieldDescriptor* field : set) {
      std::string part =
          TakenIn(loaded.config, field, field->name(), text.origin, loaded);
      if (!part.empty()) shown.push_back(std::move(part));
    }
    if (shown.empty()) continue;
    notes.push_back(
        absl::StrCat(text.origin, ": ", absl::StrJoin(shown, ", ")));
  }
  return notes;
}

absl::Status CheckWhole(const RunConfig& config) {
  std::vector<const FieldDescriptor*> missing;
  const Descriptor* const type = RunConfig::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (!field->options().HasExtension(slot_example)) continue;
    // Once there is data, the others have defaults.
    if (!config.complete() && !config.has_train_data() &&
        field->number() != RunConfig::kModelFieldNumber &&
        field->number() != RunConfig::kTrainDataFieldNumber) {
      continue;
    }
    if (!config.GetReflection()->HasField(config, field)) {
      missing.push_back(field);
    }
  }
  if (missing.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const FieldDescriptor* field : missing) names.push_back(field->name());
  return WithCode(
      absl::InvalidArgumentError(absl::StrCat(
          "the config ", config.name(), " lacks ", absl::StrJoin(names, ", "),
          ": add, with a plugin of your choice (`trainer plugins` lists them),",
          Lines(missing))),
      "config/missing");
}

}  // namespace capstan
