// SPDX-License-Identifier: Apache-2.0
//
// --set: one field of a config, by its path.
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/error_code.h"
#include "base/status.h"
#include "host/config/field_names.h"
#include "host/config/text_source.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Override {
  std::string path;
  std::string value;
  bool append = false;
};

absl::StatusOr<Override> Split(const std::string& text) {
  const size_t equals = text.find('=');
  Override split;
  absl::string_view path = absl::string_view(text).substr(0, equals);
  split.append = absl::ConsumeSuffix(&path, "+");
  if (equals == std::string::npos || path.empty()) {
    return absl::InvalidArgumentError("write it path=value");
  }
  split.path = std::string(path);
  split.value = text.substr(equals + 1);
  if (split.append && split.value.empty()) {
    return absl::InvalidArgumentError("there is nothing to append");
  }
  return split;
}

bool IsSlot(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type() == Any::descriptor();
}

// A component of a path.
struct Step {
  const FieldDescriptor* field;
  std::string type_url;  // of the plugin that the path enters, or ""
};

// Unpacks the plugin in slot `field` of `parent`.
absl::StatusOr<std::unique_ptr<Message>> PluginIn(const Message& parent,
                                                  const FieldDescriptor* field,
                                                  std::string* type_url) {
  const auto& any = static_cast<const Any&>(
      parent.GetReflection()->GetMessage(parent, field));
  *type_url = any.type_url();
  if (!any.type_url().empty()) return Unpack(any);
  return absl::InvalidArgumentError(
      absl::StrCat("no plugin is set for \"", field->name(),
                   "\": set it first, --set ", field->name(), "=PACKAGE"));
}

absl::StatusOr<std::vector<Step>> Resolve(const std::string& path,
                                          const RunConfig& base) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  const Message* message = &base;
  std::unique_ptr<Message> plugin;
  const Descriptor* type = base.GetDescriptor();
  std::vector<Step> steps;
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = type->FindFieldByName(names[i]);
    if (field == nullptr) {
      return WithCode(
          absl::InvalidArgumentError(UnknownField(type, names[i], base).text),
          "config/unknown-field");
    }
    steps.push_back({field, ""});
    if (i + 1 == names.size()) break;
    if (field->is_repeated()) {
      const std::string list =
          absl::StrJoin(names.begin(), names.begin() + i + 1, ".");
      return absl::InvalidArgumentError(
          absl::StrCat("\"", names[i], "\" is a list: set it whole, ", list,
                       "=[..], or add to it, ", list, "+=.."));
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", names[i], "\" has no fields of its own"));
    }
    if (IsSlot(field)) {
      CAPSTAN_ASSIGN_OR_RETURN(
          std::unique_ptr<Message> held,
          PluginIn(*message, field, &steps.back().type_url));
      plugin = std::move(held);
      message = plugin.get();
      type = plugin->GetDescriptor();
    } else {
      message = &message->GetReflection()->GetMessage(*message, field);
      type = field->message_type();
    }
  }
  return steps;
}

// `value` in text format, to follow the name of `field`.
std::string ValueText(const FieldDescriptor* field, const std::string& value) {
  const absl::string_view shown = absl::StripLeadingAsciiWhitespace(value);
  if (field->is_repeated() && absl::StartsWith(shown, "[")) {
    return absl::StrCat(": ", value);
  }
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !quoted) {
    return absl::StrCat(": \"", absl::Utf8SafeCEscape(value), "\"");
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::StrCat(": ", value);
  }
  const bool is_package = value.find_first_of(" []{}:") == std::string::npos;
  if (IsSlot(field) && is_package) {
    return absl::StrCat(" { [plugin/", value, ".Config] {} }");
  }
  return absl::StartsWith(shown, "{") ? absl::StrCat(" ", value)
                                      : absl::StrCat(" { ", value, " }");
}

std::string TextOf(const std::vector<Step>& steps, const std::string& value) {
  std::string text;
  std::string closing;
  for (const Step& step : steps) {
    absl::StrAppend(&text, step.field->name());
    if (&step == &steps.back()) break;
    absl::StrAppend(&text, " { ");
    absl::StrAppend(&closing, " }");
    if (!step.type_url.empty()) {
      absl::StrAppend(&text, "[", step.type_url, "] { ");
      absl::StrAppend(&closing, " }");
    }
  }
  return absl::StrCat(text, ValueText(steps.back().field, value), closing);
}

absl::Status Clear(absl::Span<const Step> steps, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const FieldDescriptor* const field = steps[0].field;
  if (steps.size() == 1) {
    reflection.ClearField(message, field);
    return absl::OkStatus();
  }
  if (!reflection.HasField(*message, field)) return absl::OkStatus();
  Message* const nested = reflection.MutableMessage(message, field);
  if (steps[0].type_url.empty()) return Clear(steps.subspan(1), nested);
  Any* const any = static_cast<Any*>(nested);
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Message> plugin, Unpack(*any));
  CAPSTAN_RETURN_IF_ERROR(Clear(steps.subspan(1), plugin.get()));
  any->set_value(plugin->SerializeAsString());
  return absl::OkStatus();
}

absl::Status Apply(const std::string& text, const ConfigContext& context,
                   TextOrigin origin, LoadedConfig* loaded) {
  CAPSTAN_ASSIGN_OR_RETURN(const Override change, Split(text));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Step> steps,
                           Resolve(change.path, loaded->config));
  const FieldDescriptor* const field = steps.back().field;
  if (change.append && !field->is_repeated()) {
    return absl::InvalidArgumentError(
        absl::StrCat("+= adds to a list, and ", change.path,
                     " isn't one: write ", change.path, "=", change.value));
  }
  // For strings, empty is a value.
  if (change.value.empty() &&
      (field->is_repeated() ||
       field->cpp_type() != FieldDescriptor::CPPTYPE_STRING)) {
    loaded->Forget(change.path);
    loaded->locations[change.path] = origin.name;
    return Clear(steps, &loaded->config);
  }
  origin.append = change.append;
  return MergeText(TextOf(steps, change.value), origin, context,
                   &loaded->config, loaded);
}

}  // namespace

absl::Status ApplyOverride(const std::string& text,
                           const ConfigContext& context, LoadedConfig* loaded) {
  const TextOrigin origin = {absl::StrCat("--set ", text),
                             /*has_lines=*/false, context.caller_folder};
  const absl::Status status = Apply(text, context, origin, loaded);
  // The parser's errors already have the name.
  return WithCode(absl::StartsWith(status.message(), origin.name)
                      ? status
                      : Annotate(status, origin.name),
                  "config/set");
}

}  // namespace capstan
