// SPDX-License-Identifier: Apache-2.0
#include "host/config/text_source.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/config/hub_path.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;
using ParseInfoTree = TextFormat::ParseInfoTree;

// Loads a plugin when the parser encounters its type: dlopen registers its
// descriptors, and parsing continues with them.
class PluginFinder : public TextFormat::Finder {
 public:
  explicit PluginFinder(PluginHost& host) : host_(host) {}

  const Descriptor* FindAnyType(const Message&, const std::string& prefix,
                                const std::string& name) const override {
    if (prefix != "plugin/") {
      error_ = absl::StrCat("a plugin is written [plugin/", name, "], not [",
                            prefix, name, "]");
      return nullptr;
    }
    const absl::StatusOr<const LoadedPlugin*> plugin = host_.Load(name);
    if (!plugin.ok()) {
      error_ = std::string(plugin.status().message());
      return nullptr;
    }
    if ((*plugin)->descriptor->category == PluginCategory::kCommand) {
      const std::string package = PackageOf(name);
      error_ =
          absl::StrCat(package, " is a command, `trainer ", CommandOf(package),
                       "`, which a config can't name: name a plugin that "
                       "`trainer plugins` lists for configs");
      return nullptr;
    }
    return DescriptorPool::generated_pool()->FindMessageTypeByName(name);
  }

  // Why the last FindAnyType failed; clears it.
  std::string TakeError() const { return std::exchange(error_, ""); }

 private:
  PluginHost& host_;
  mutable std::string error_;
};

// Whether the last word before `column` is a plugin slot followed by a colon:
// "strategy: ddp".
bool SlotBefore(absl::string_view line, size_t column, const Descriptor* type) {
  absl::string_view text =
      absl::StripTrailingAsciiWhitespace(line.substr(0, column));
  if (!absl::ConsumeSuffix(&text, ":")) return false;
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t begin = text.find_last_of(" \t{};,");
  if (begin != absl::string_view::npos) text.remove_prefix(begin + 1);
  const FieldDescriptor* const field = type->FindFieldByName(std::string(text));
  return field != nullptr && field->message_type() == Any::descriptor();
}

// The name at `column`, possibly quoted: "capstan.ddp".
std::string NameAt(absl::string_view line, size_t column) {
  line.remove_prefix(std::min(column, line.size()));
  const size_t begin = line.find_first_not_of("\"'");
  if (begin == absl::string_view::npos) return "";
  size_t end = begin;
  while (end < line.size() && (absl::ascii_isalnum(line[end]) ||
                               line[end] == '_' || line[end] == '.')) {
    ++end;
  }
  return std::string(line.substr(begin, end - begin));
}

// Rephrases protobuf's errors in terms of the config. Keeps the first, as later
// ones follow from it.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  FirstError(const PluginFinder& finder, const PluginHost& host,
             const TextOrigin& origin, const std::string& text,
             const Descriptor* type)
      : finder_(finder),
        host_(host),
        origin_(origin),
        lines_(absl::StrSplit(text, '\n')),
        type_(type) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    const std::string plugin_error = finder_.TakeError();
    if (!text_.empty()) return;
    const std::string what =
        plugin_error.empty() ? InOurTerms(line, column, message) : plugin_error;
    text_ = origin_.has_lines && line >= 0
                ? absl::StrCat(origin_.name, ":", line + 1, ":", column + 1,
                               ": ", what)
                : absl::StrCat(origin_.name, ": ", what);
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber,
                  const std::string&) override {}

  const std::string& text() const { return text_; }

 private:
  std::string InOurTerms(int line_number, int column_number,
                         const std::string& message) const {
    const std::vector<std::string> words = absl::StrSplit(message, '"');
    const absl::string_view line =
        line_number >= 0 && static_cast<size_t>(line_number) < lines_.size()
            ? absl::string_view(lines_[line_number])
            : "";
    const size_t column = static_cast<size_t>(std::max(column_number, 0));
    // Message type "T" has no field named "f".
    if (words.size() >= 5 && absl::StrContains(message, "has no field named")) {
      const Descriptor* const type =
          DescriptorPool::generated_pool()->FindMessageTypeByName(words[1]);
      if (type == Any::descriptor()) {
        return HowToWriteAPlugin(NameAt(line, line.rfind(words[3], column)));
      }
      return type == nullptr ? message : UnknownField(type, words[3]);
    }
    // Field "a" is specified along with field "b", another member of oneof ..
    if (words.size() >= 5 && absl::StrContains(message, "another member of")) {
      return absl::StrCat("set either ", words[1], " or ", words[3]);
    }
    if (absl::StartsWith(message, "Expected \"{\", found") &&
        SlotBefore(line, column, type_)) {
      return HowToWriteAPlugin(NameAt(line, column));
    }
    if (absl::StartsWith(message, "Expected \"/\"")) {
      // The parser is past the name in [acme.lion.Config].
      const size_t bracket = line.rfind('[', column);
      std::string name =
          bracket == absl::string_view::npos ? "" : NameAt(line, bracket + 1);
      if (name.empty()) name = "PACKAGE.Config";
      return absl::StrCat("a plugin has a prefix: write [plugin/", name, "]");
    }
    return message;
  }

  std::string HowToWriteAPlugin(const std::string& name) const {
    const std::string nearest = host_.NearestPackage(name);
    return nearest.empty()
               ? absl::StrCat("\"", name, "\": a plugin is written ",
                              "{ [plugin/PACKAGE.Config] { .. } }")
               : absl::StrCat("\"", name, "\": did you mean { [plugin/",
                              nearest, ".Config] {} }?");
  }

  const PluginFinder& finder_;
  const PluginHost& host_;
  const TextOrigin& origin_;
  const std::vector<std::string> lines_;
  const Descriptor* const type_;
  std::string text_;
};

// A plugin's message may hold itself, however often; binary parsing, which has
// this limit by itself, reads what was written in text.
constexpr int kMostNestedMessages = 64;

constexpr char kAnyType[] = "google.protobuf.Any";

// What is wrong with a value whatever it is for, "" if nothing is: a number
// that no setting can mean (as text, nan and inf are numbers), or bytes that
// protobuf can't keep.
std::string WrongValue(const FieldDescriptor* field, const Message& from) {
  const Reflection& reflection = *from.GetReflection();
  const int count =
      field->is_repeated() ? reflection.FieldSize(from, field) : 1;
  const auto number = [&](int i) -> double {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return field->is_repeated()
                   ? reflection.GetRepeatedDouble(from, field, i)
                   : reflection.GetDouble(from, field);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return field->is_repeated()
                   ? reflection.GetRepeatedFloat(from, field, i)
                   : reflection.GetFloat(from, field);
      default:
        return 0.0;
    }
  };
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(number(i))) {
      return absl::StrCat("must be a finite number, is ", number(i));
    }
    if (field->type() != FieldDescriptor::TYPE_STRING) continue;
    const std::string text = field->is_repeated()
                                 ? reflection.GetRepeatedString(from, field, i)
                                 : reflection.GetString(from, field);
    if (!simdjson::validate_utf8(text)) {
      return absl::StrCat("must be UTF-8, is \"", absl::CHexEscape(text), "\"");
    }
  }
  return "";
}

// Copies the fields set by a text into the merged message.
class Merger {
 public:
  Merger(const TextOrigin& origin, const ConfigContext& context,
         FieldPlaces* places)
      : origin_(origin), context_(context), places_(places) {}

  absl::Status Merge(const ParseInfoTree& tree, const std::string& prefix,
                     const Message& from, Message* to) {
    const Descriptor* type = from.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const int index = field->is_repeated() ? 0 : -1;
      const TextFormat::ParseLocation place = tree.GetLocation(field, index);
      if (place.line < 0) continue;  // not set by the text
      const std::string path = prefix.empty()
                                   ? field->name()
                                   : absl::StrCat(prefix, ".", field->name());
      places_->locations[path] = PlaceText(place);
      CAPSTAN_RETURN_IF_ERROR(MergeField(tree, path, field, from, to));
    }
    return absl::OkStatus();
  }

 private:
  std::string PlaceText(const TextFormat::ParseLocation& place) const {
    return origin_.has_lines ? absl::StrCat(origin_.name, ":", place.line + 1,
                                            ":", place.column + 1)
                             : origin_.name;
  }

  // Location of a list element; [a, b] has one location as a whole.
  std::string ElementPlace(const ParseInfoTree& tree,
                           const FieldDescriptor* field, int i) const {
    while (i > 0 && tree.GetLocation(field, i).line < 0) --i;
    return PlaceText(tree.GetLocation(field, i));
  }

  absl::Status MergeField(const ParseInfoTree& tree, const std::string& path,
                          const FieldDescriptor* field, const Message& from,
                          Message* to) {
    const Reflection& reflection = *from.GetReflection();
    const bool is_message =
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const std::string wrong = WrongValue(field, from);
    if (!wrong.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(places_->locations[path], ": ", path, ": ", wrong));
    }
    ForgetOthers(field, path);
    if (is_message && !field->is_repeated()) {
      return MergeMessage(tree.GetTreeForNested(field, -1), path,
                          reflection.GetMessage(from, field),
                          to->GetReflection()->MutableMessage(to, field));
    }
    // Scalars, and repeated fields as a whole.
    if (!field->is_repeated() || !origin_.append) {
      to->GetReflection()->ClearField(to, field);
      places_->Forget(path);
    }
    if (is_message) return MergeMessages(tree, path, field, from, to);
    if (field->is_repeated() || reflection.HasField(from, field)) {
      CopyField(field, from, to);
    }
    if (field->type() == FieldDescriptor::TYPE_STRING &&
        !field->is_repeated() && field->options().GetExtension(capstan::path)) {
      const std::string text = reflection.GetString(from, field);
      if (!text.empty()) {
        absl::StatusOr<std::string> resolved = Resolve(field, text);
        if (!resolved.ok()) {
          return absl::Status(resolved.status().code(),
                              absl::StrCat(places_->locations[path], ": ", path,
                                           ": ", resolved.status().message()));
        }
        to->GetReflection()->SetString(to, field, *resolved);
        places_->paths[path] = {text, *resolved};
      }
    }
    return absl::OkStatus();
  }

  // Copies one field through an otherwise empty message of the same type.
  static void CopyField(const FieldDescriptor* field, const Message& from,
                        Message* to) {
    std::unique_ptr<Message> only(from.New());
    only->CopyFrom(from);
    std::vector<const FieldDescriptor*> set;
    only->GetReflection()->ListFields(*only, &set);
    for (const FieldDescriptor* other : set) {
      if (other != field) only->GetReflection()->ClearField(only.get(), other);
    }
    to->MergeFrom(*only);
  }

  absl::Status MergeSlot(const ParseInfoTree& tree, const std::string& path,
                         const Any& from, Any* to) {
    const absl::StatusOr<std::unique_ptr<Message>> value = Unpack(from);
    if (!value.ok()) {
      // All else the parser has refused.
      return absl::InvalidArgumentError(
          absl::StrCat(places_->locations[path], ": ", path, ": ",
                       value.status().message(), ": are its texts UTF-8?"));
    }
    std::unique_ptr<Message> merged((*value)->New());
    if (to->type_url() == from.type_url()) {
      CAPSTAN_ASSIGN_OR_RETURN(merged, Unpack(*to));
    } else {
      places_->Forget(path);  // the old plugin's fields
    }
    CAPSTAN_RETURN_IF_ERROR(Merge(tree, path, **value, merged.get()));
    to->set_type_url(from.type_url());
    to->set_value(merged->SerializeAsString());
    return absl::OkStatus();
  }

  // Appends repeated messages or slots, resolving their paths.
  absl::Status MergeMessages(const ParseInfoTree& tree, const std::string& path,
                             const FieldDescriptor* field, const Message& from,
                             Message* to) {
    const Reflection& reflection = *from.GetReflection();
    const int before = reflection.FieldSize(*to, field);
    for (int i = 0; i < reflection.FieldSize(from, field); ++i) {
      const std::string element = absl::StrCat(path, "[", before + i, "]");
      places_->locations[element] = ElementPlace(tree, field, i);
      Message* target = to->GetReflection()->AddMessage(to, field);
      CAPSTAN_RETURN_IF_ERROR(
          MergeMessage(tree.GetTreeForNested(field, i), element,
                       reflection.GetRepeatedMessage(from, field, i), target));
    }
    return absl::OkStatus();
  }

  // A message or a slot; `tree` is null if the text sets nothing in it.
  absl::Status MergeMessage(const ParseInfoTree* tree, const std::string& path,
                            const Message& from, Message* to) {
    if (tree == nullptr) return absl::OkStatus();
    if (from.GetDescriptor()->full_name() != kAnyType) {
      return Merge(*tree, path, from, to);
    }
    return MergeSlot(*tree, path, static_cast<const Any&>(from),
                     static_cast<Any*>(to));
  }

  // Setting a member of a oneof clears the others.
  void ForgetOthers(const FieldDescriptor* field, const std::string& path) {
    const google::protobuf::OneofDescriptor* const oneof =
        field->real_containing_oneof();
    if (oneof == nullptr) return;
    const std::string parent =
        path.substr(0, path.size() - field->name().size());
    for (int i = 0; i < oneof->field_count(); ++i) {
      if (oneof->field(i) == field) continue;
      const std::string other = parent + oneof->field(i)->name();
      places_->locations.erase(other);
      places_->paths.erase(other);
      places_->Forget(other);
    }
  }

  absl::StatusOr<std::string> Resolve(const FieldDescriptor* field,
                                      const std::string& text) const {
    if (IsHubPath(text)) {
      // Where data is named; elsewhere it is a model.
      const DataRole::Value role = field->options().GetExtension(data_role);
      return ResolveHubPath(
          text, role == DataRole::NONE ? HubKind::kModel : HubKind::kDataset);
    }
    if (absl::StartsWith(text, "//")) {
      const std::string relative =
          absl::StrReplaceAll(text.substr(2), {{":", "/"}});
      return (fs::path(context_.build_folder) / relative)
          .lexically_normal()
          .string();
    }
    return FollowLatestRun(
        (fs::path(origin_.folder) / text).lexically_normal().string());
  }

  const TextOrigin& origin_;
  const ConfigContext& context_;
  FieldPlaces* const places_;
};

}  // namespace

absl::Status MergeText(const std::string& text, const TextOrigin& origin,
                       const ConfigContext& context, Message* config,
                       FieldPlaces* places) {
  const std::unique_ptr<Message> parsed(config->New());
  PluginFinder finder(*context.host);
  FirstError errors(finder, *context.host, origin, text,
                    config->GetDescriptor());
  ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.SetFinder(&finder);
  parser.SetRecursionLimit(kMostNestedMessages);
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&tree);
  if (!parser.ParseFromString(text, parsed.get())) {
    return absl::InvalidArgumentError(
        errors.text().empty() ? absl::StrCat(origin.name, ": not a ",
                                             config->GetDescriptor()->name())
                              : errors.text());
  }
  return Merger(origin, context, places).Merge(tree, "", *parsed, config);
}

std::string TypeOf(const Any& any) {
  return any.type_url().substr(any.type_url().rfind('/') + 1);
}

absl::StatusOr<std::unique_ptr<Message>> Unpack(const Any& any) {
  const Descriptor* type =
      DescriptorPool::generated_pool()->FindMessageTypeByName(TypeOf(any));
  if (type == nullptr) {
    return absl::InternalError(absl::StrCat(any.type_url(), " is not loaded"));
  }
  std::unique_ptr<Message> message(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(type)
          ->New());
  if (!message->ParseFromString(any.value())) {
    return absl::InternalError(
        absl::StrCat(any.type_url(), " holds bytes that do not parse"));
  }
  return message;
}

}  // namespace capstan
