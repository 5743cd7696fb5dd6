// SPDX-License-Identifier: Apache-2.0
#include "host/config/field_names.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Fields as deep as train.offload.activations.
constexpr int kDeepest = 4;

// What `field` is called by those who call it `name`; null if nobody does.
std::unique_ptr<PeerName> Called(const FieldDescriptor& field,
                                 const std::string& name) {
  for (const PeerName& peer : PeerNames(field)) {
    if (peer.name == name) return std::make_unique<PeerName>(peer);
  }
  return nullptr;
}

std::string InParentheses(const std::string& text) {
  return text.empty() ? "" : absl::StrCat(" (", text, ")");
}

void Find(const std::string& name, const std::string& prefix, int depth,
          const Message& message, std::vector<NamedField>* found) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path =
        absl::StrCat(prefix, prefix.empty() ? "" : ".", field.name());
    if (field.name() == name) found->push_back({path, ""});
    if (const auto peer = Called(field, name); peer != nullptr) {
      found->push_back({path, peer->instead});
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
        field.is_repeated() || depth == kDeepest) {
      continue;
    }
    const Message& inner = message.GetReflection()->GetMessage(message, &field);
    if (field.message_type() != Any::descriptor()) {
      Find(name, path, depth + 1, inner, found);
      continue;
    }
    Any plugin = static_cast<const Any&>(inner);
    if (plugin.type_url().empty()) {
      plugin.set_type_url("plugin/" + ExampleType(field));
    }
    const absl::StatusOr<std::unique_ptr<Message>> config = Unpack(plugin);
    if (config.ok()) Find(name, path, depth + 1, **config, found);
  }
}

}  // namespace

std::string CommandWithField(const std::string& name) {
  constexpr const char* kConfigs[][2] = {{"capstan.RunConfig", "train"},
                                         {"capstan.CompareConfig", "compare"}};
  for (const auto& [type_name, command] : kConfigs) {
    const Descriptor* const type =
        google::protobuf::DescriptorPool::generated_pool()
            ->FindMessageTypeByName(type_name);
    if (type != nullptr && type->FindFieldByName(name) != nullptr) {
      return command;
    }
  }
  return "";
}

std::vector<PeerName> PeerNames(const FieldDescriptor& field) {
  std::vector<PeerName> names;
  for (absl::string_view text :
       absl::StrSplit(field.options().GetExtension(peer_names), ',',
                      absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('(', 1));
    names.push_back(
        {std::string(absl::StripAsciiWhitespace(parts.first)),
         std::string(absl::StripSuffix(
             absl::StripTrailingAsciiWhitespace(parts.second), ")"))});
  }
  return names;
}

UnknownName UnknownField(const Descriptor* type, const std::string& name,
                         const Message& config) {
  const std::string unknown =
      absl::StrCat("unknown field \"", name, "\" in ", type->full_name(), "; ");
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    names.push_back(field.name());
    const auto peer = Called(field, name);
    if (peer == nullptr) continue;
    if (LeftOut({"", peer->instead})) return {unknown + peer->instead, ""};
    return {absl::StrCat(unknown, "here it is called \"", field.name(), "\"",
                         InParentheses(peer->instead)),
            field.name(), peer->instead};
  }
  const std::string nearest = NearestName(name, names);
  if (!nearest.empty()) {
    return {absl::StrCat(unknown, "did you mean \"", nearest, "\"?"), nearest};
  }
  std::vector<NamedField> elsewhere = FieldsCalled(name, config);
  constexpr size_t kMost = 3;
  elsewhere.resize(std::min(elsewhere.size(), kMost));
  const bool at_top = type == config.GetDescriptor();
  if (!elsewhere.empty()) {
    if (LeftOut(elsewhere[0])) return {unknown + elsewhere[0].instead, ""};
    const auto text = [at_top](std::string* out, const NamedField& field) {
      const bool top = field.path.find('.') == std::string::npos;
      absl::StrAppend(out, field.path,
                      top && !at_top ? " at the top level" : "",
                      InParentheses(field.instead));
    };
    return {absl::StrCat(unknown, "did you mean ",
                         absl::StrJoin(elsewhere, " or ", text), "?"),
            ""};
  }
  if (at_top) {
    const std::string command = CommandWithField(name);
    if (!command.empty()) {
      return {
          absl::StrCat(unknown, "this is a config for `trainer ", command, "`"),
          ""};
    }
  }
  return {absl::StrCat(unknown, "it has: ", absl::StrJoin(names, ", ")), ""};
}

bool LeftOut(const NamedField& field) {
  return absl::StartsWith(field.instead, "leave it out");
}

std::vector<NamedField> FieldsCalled(const std::string& name,
                                     const Message& config) {
  std::vector<NamedField> found;
  Find(name, "", 0, config, &found);
  return found;
}

absl::optional<PluginCategory> CategoryOfSlot(absl::string_view path) {
  struct Slot {
    absl::string_view field;
    PluginCategory category;
  };
  constexpr Slot kSlots[] = {
      {"model", PluginCategory::kModel},
      {"objective", PluginCategory::kObjective},
      {"train_data", PluginCategory::kDatasetReader},
      {"eval_data", PluginCategory::kDatasetReader},
      {"data", PluginCategory::kDatasetReader},
      {"strategy", PluginCategory::kStrategy},
      {"precision", PluginCategory::kPrecision},
      {"optimizer", PluginCategory::kOptimizer},
      {"collect", PluginCategory::kCollector},
  };
  const absl::string_view name = path.substr(path.rfind('.') + 1);
  for (const auto& [field, category] : kSlots) {
    if (name == field) return category;
  }
  return absl::nullopt;
}

absl::optional<PluginCategory> CategoryOf(const FieldDescriptor& slot) {
  // By name, as the pool may be another than this program's.
  const bool is_slot =
      slot.message_type() != nullptr &&
      slot.message_type()->full_name() == Any::descriptor()->full_name() &&
      slot.file()->package() == "capstan";
  return is_slot ? CategoryOfSlot(slot.name()) : absl::nullopt;
}

std::string ExampleType(const FieldDescriptor& slot) {
  const std::string& example = slot.options().GetExtension(slot_example);
  constexpr absl::string_view kPlugin = "[plugin/";
  const size_t begin = example.find(kPlugin.data());
  if (begin == std::string::npos) return "";
  const size_t end = begin + kPlugin.size();
  return example.substr(end, example.find(']', end) - end);
}

}  // namespace capstan
