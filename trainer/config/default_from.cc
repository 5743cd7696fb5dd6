// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/status.h"
#include "plugins/sdk/options.pb.h"
#include "trainer/config/text_source.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Null unless it is a field with one string.
const FieldDescriptor* StringField(const FieldDescriptor* field) {
  return field != nullptr && !field->is_repeated() &&
                 field->type() == FieldDescriptor::TYPE_STRING
             ? field
             : nullptr;
}

std::string StringOf(const Message& message, const FieldDescriptor* field) {
  return message.GetReflection()->GetString(message, field);
}

// The string at "SLOT.FIELD"; "" if there is none.
absl::StatusOr<std::string> StringAt(const RunConfig& config,
                                     const std::string& path) {
  const std::pair<std::string, std::string> names =
      absl::StrSplit(path, absl::MaxSplits('.', 1));
  if (!HasSlot(config, names.first)) return "";
  const FieldDescriptor* slot =
      config.GetDescriptor()->FindFieldByName(names.first);
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Message> other,
      Unpack(static_cast<const Any&>(
          config.GetReflection()->GetMessage(config, slot))));
  const FieldDescriptor* field =
      StringField(other->GetDescriptor()->FindFieldByName(names.second));
  return field == nullptr ? "" : StringOf(*other, field);
}

}  // namespace

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

}  // namespace capstan
