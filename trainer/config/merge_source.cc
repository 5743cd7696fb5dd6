// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "plugins/sdk/options.pb.h"
#include "trainer/config/latest_run.h"
#include "trainer/config/text_source.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using ParseInfoTree = google::protobuf::TextFormat::ParseInfoTree;

constexpr char kAnyType[] = "google.protobuf.Any";

// Copies the fields that one text sets from its message to the merged one.
class Merger {
 public:
  Merger(std::string name, bool has_lines, std::string folder,
         const ConfigContext& context, FieldPlaces* places)
      : name_(std::move(name)),
        has_lines_(has_lines),
        folder_(std::move(folder)),
        context_(context),
        places_(places) {}

  absl::Status Merge(const ParseInfoTree& tree, const std::string& prefix,
                     const Message& from, Message* to) {
    const Descriptor* type = from.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const int index = field->is_repeated() ? 0 : -1;
      const google::protobuf::TextFormat::ParseLocation place =
          tree.GetLocation(field, index);
      if (place.line < 0) continue;  // the text doesn't set it
      const std::string path = prefix.empty()
                                   ? field->name()
                                   : absl::StrCat(prefix, ".", field->name());
      places_->locations[path] = PlaceText(place);
      CAPSTAN_RETURN_IF_ERROR(MergeField(tree, path, field, from, to));
    }
    return absl::OkStatus();
  }

 private:
  std::string PlaceText(
      const google::protobuf::TextFormat::ParseLocation& place) const {
    return has_lines_
               ? absl::StrCat(name_, ":", place.line + 1, ":", place.column + 1)
               : name_;
  }

  absl::Status MergeField(const ParseInfoTree& tree, const std::string& path,
                          const FieldDescriptor* field, const Message& from,
                          Message* to) {
    const Reflection& reflection = *from.GetReflection();
    const bool is_message =
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message && !field->is_repeated()) {
      const ParseInfoTree* nested = tree.GetTreeForNested(field, -1);
      const Message& value = reflection.GetMessage(from, field);
      Message* target = to->GetReflection()->MutableMessage(to, field);
      if (nested == nullptr) return absl::OkStatus();
      if (field->message_type()->full_name() == kAnyType) {
        return MergeSlot(*nested, path, static_cast<const Any&>(value),
                         static_cast<Any*>(target));
      }
      return Merge(*nested, path, value, target);
    }
    // Scalars, and repeated fields as a whole.
    to->GetReflection()->ClearField(to, field);
    if (is_message && field->message_type()->full_name() == kAnyType) {
      return MergeSlots(tree, path, field, from, to);
    }
    if (is_message) return MergeMessages(tree, path, field, from, to);
    if (field->is_repeated() || reflection.HasField(from, field)) {
      CopyField(field, from, to);
    }
    if (field->type() == FieldDescriptor::TYPE_STRING &&
        !field->is_repeated() && field->options().GetExtension(capstan::path)) {
      const std::string text = reflection.GetString(from, field);
      if (!text.empty()) {
        CAPSTAN_ASSIGN_OR_RETURN(std::string resolved, Resolve(text));
        to->GetReflection()->SetString(to, field, resolved);
      }
    }
    return absl::OkStatus();
  }

  // Copies one field by a message of the same type that holds nothing else.
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
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Message> value, Unpack(from));
    std::unique_ptr<Message> merged(value->New());
    if (to->type_url() == from.type_url()) {
      merged->ParseFromString(to->value());
    } else {
      ForgetLocations(path);
    }
    CAPSTAN_RETURN_IF_ERROR(Merge(tree, path, *value, merged.get()));
    to->set_type_url(from.type_url());
    to->set_value(merged->SerializeAsString());
    return absl::OkStatus();
  }

  // A repeated slot, into an empty one.
  absl::Status MergeSlots(const ParseInfoTree& tree, const std::string& path,
                          const FieldDescriptor* field, const Message& from,
                          Message* to) {
    const Reflection& reflection = *from.GetReflection();
    for (int i = 0; i < reflection.FieldSize(from, field); ++i) {
      const std::string slot = absl::StrCat(path, "[", i, "]");
      places_->locations[slot] = PlaceText(tree.GetLocation(field, i));
      const ParseInfoTree* nested = tree.GetTreeForNested(field, i);
      Message* target = to->GetReflection()->AddMessage(to, field);
      if (nested == nullptr) continue;
      CAPSTAN_RETURN_IF_ERROR(
          MergeSlot(*nested, slot,
                    static_cast<const Any&>(
                        reflection.GetRepeatedMessage(from, field, i)),
                    static_cast<Any*>(target)));
    }
    return absl::OkStatus();
  }

  // A repeated message, into an empty one: its paths are resolved, too.
  absl::Status MergeMessages(const ParseInfoTree& tree, const std::string& path,
                             const FieldDescriptor* field, const Message& from,
                             Message* to) {
    const Reflection& reflection = *from.GetReflection();
    for (int i = 0; i < reflection.FieldSize(from, field); ++i) {
      const std::string element = absl::StrCat(path, "[", i, "]");
      places_->locations[element] = PlaceText(tree.GetLocation(field, i));
      const ParseInfoTree* nested = tree.GetTreeForNested(field, i);
      Message* target = to->GetReflection()->AddMessage(to, field);
      if (nested == nullptr) continue;
      CAPSTAN_RETURN_IF_ERROR(
          Merge(*nested, element, reflection.GetRepeatedMessage(from, field, i),
                target));
    }
    return absl::OkStatus();
  }

  // Another plugin took the slot: the old one's fields are gone.
  void ForgetLocations(const std::string& path) {
    const std::string prefix = path + ".";
    for (auto it = places_->locations.begin();
         it != places_->locations.end();) {
      it = absl::StartsWith(it->first, prefix) ? places_->locations.erase(it)
                                               : std::next(it);
    }
  }

  absl::StatusOr<std::string> Resolve(const std::string& text) const {
    if (absl::StartsWith(text, "//")) {
      const std::string relative =
          absl::StrReplaceAll(text.substr(2), {{":", "/"}});
      return (fs::path(context_.build_folder) / relative)
          .lexically_normal()
          .string();
    }
    return FollowLatestRun(
        (fs::path(folder_) / text).lexically_normal().string());
  }

  const std::string name_;
  const bool has_lines_;
  const std::string folder_;
  const ConfigContext& context_;
  FieldPlaces* const places_;
};

// The names of a message's fields, for a message about a wrong one.
std::string FieldProblem(const Descriptor* type, const std::string& name) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    names.push_back(type->field(i)->name());
  }
  const std::string nearest = NearestName(name, names);
  return absl::StrCat(
      "unknown field \"", name, "\" in ", type->full_name(),
      nearest.empty() ? absl::StrCat("; it has: ", absl::StrJoin(names, ", "))
                      : absl::StrCat("; did you mean \"", nearest, "\"?"));
}

// `value` as text format wants it for `field`.
std::string ValueText(const FieldDescriptor* field, const std::string& value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !quoted) {
    return absl::StrCat(
        ": \"",
        absl::StrReplaceAll(value,
                            {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
        "\"");
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::StrCat(": ", value);
  }
  const bool is_package = value.find_first_of(" []{}:") == std::string::npos;
  if (field->message_type()->full_name() == kAnyType && is_package) {
    return absl::StrCat(" { [plugin/", value, ".Config] {} }");
  }
  return absl::StrCat(" { ", value, " }");
}

}  // namespace

std::string TypeOf(const Any& any) {
  return any.type_url().substr(any.type_url().rfind('/') + 1);
}

absl::StatusOr<std::unique_ptr<Message>> Unpack(const Any& any) {
  const Descriptor* type =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
          TypeOf(any));
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

absl::Status MergeSource(const TextSource& source, const std::string& name,
                         bool has_lines, const std::string& folder,
                         const ConfigContext& context, Message* config,
                         FieldPlaces* places) {
  return Merger(name, has_lines, folder, context, places)
      .Merge(source.tree, "", *source.message, config);
}

absl::StatusOr<std::string> OverrideText(const std::string& path,
                                         const std::string& value,
                                         const RunConfig& base) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  const Message* message = &base;
  std::unique_ptr<Message> unpacked;
  const Descriptor* type = base.GetDescriptor();
  std::string text;
  std::string closing;
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = type->FindFieldByName(names[i]);
    if (field == nullptr) {
      return absl::InvalidArgumentError(FieldProblem(type, names[i]));
    }
    absl::StrAppend(&text, names[i]);
    if (i + 1 == names.size()) {
      return absl::StrCat(text, ValueText(field, value), closing);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
        field->is_repeated()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", names[i], "\" has no fields of its own"));
    }
    type = field->message_type();
    if (message != nullptr) {
      message = &message->GetReflection()->GetMessage(*message, field);
    }
    absl::StrAppend(&text, " { ");
    absl::StrAppend(&closing, " }");
    if (type->full_name() == kAnyType) {
      const Any* any = static_cast<const Any*>(message);
      if (any == nullptr || any->type_url().empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("no plugin is set for \"", names[i],
                         "\": set it first, --set ", names[i], "=PACKAGE"));
      }
      CAPSTAN_ASSIGN_OR_RETURN(unpacked, Unpack(*any));
      absl::StrAppend(&text, "[", any->type_url(), "] { ");
      absl::StrAppend(&closing, " }");
      message = unpacked.get();
      type = unpacked->GetDescriptor();
    }
  }
  return absl::InternalError("empty path");
}

}  // namespace capstan
