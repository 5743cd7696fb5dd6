// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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
      const google::protobuf::TextFormat::ParseLocation place =
          tree.GetLocation(field, index);
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
  std::string PlaceText(
      const google::protobuf::TextFormat::ParseLocation& place) const {
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
    ForgetOthers(field, path);
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
    if (!field->is_repeated() || !origin_.append) {
      to->GetReflection()->ClearField(to, field);
      places_->Forget(path);
    }
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
        const std::string resolved = Resolve(text);
        to->GetReflection()->SetString(to, field, resolved);
        places_->paths[path] = {text, resolved};
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
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Message> value, Unpack(from));
    std::unique_ptr<Message> merged(value->New());
    if (to->type_url() == from.type_url()) {
      CAPSTAN_ASSIGN_OR_RETURN(merged, Unpack(*to));
    } else {
      places_->Forget(path);  // the old plugin's fields
    }
    CAPSTAN_RETURN_IF_ERROR(Merge(tree, path, *value, merged.get()));
    to->set_type_url(from.type_url());
    to->set_value(merged->SerializeAsString());
    return absl::OkStatus();
  }

  // Appends repeated slots.
  absl::Status MergeSlots(const ParseInfoTree& tree, const std::string& path,
                          const FieldDescriptor* field, const Message& from,
                          Message* to) {
    const Reflection& reflection = *from.GetReflection();
    const int before = reflection.FieldSize(*to, field);
    for (int i = 0; i < reflection.FieldSize(from, field); ++i) {
      const std::string slot = absl::StrCat(path, "[", before + i, "]");
      places_->locations[slot] = ElementPlace(tree, field, i);
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

  // Appends repeated messages, resolving their paths.
  absl::Status MergeMessages(const ParseInfoTree& tree, const std::string& path,
                             const FieldDescriptor* field, const Message& from,
                             Message* to) {
    const Reflection& reflection = *from.GetReflection();
    const int before = reflection.FieldSize(*to, field);
    for (int i = 0; i < reflection.FieldSize(from, field); ++i) {
      const std::string element = absl::StrCat(path, "[", before + i, "]");
      places_->locations[element] = ElementPlace(tree, field, i);
      const ParseInfoTree* nested = tree.GetTreeForNested(field, i);
      Message* target = to->GetReflection()->AddMessage(to, field);
      if (nested == nullptr) continue;
      CAPSTAN_RETURN_IF_ERROR(
          Merge(*nested, element, reflection.GetRepeatedMessage(from, field, i),
                target));
    }
    return absl::OkStatus();
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

  std::string Resolve(const std::string& text) const {
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

absl::Status MergeSource(const TextSource& source, const TextOrigin& origin,
                         const ConfigContext& context, Message* config,
                         FieldPlaces* places) {
  return Merger(origin, context, places)
      .Merge(source.tree, "", *source.message, config);
}

}  // namespace capstan
