// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/portable_config.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/options.pb.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/config/load_config.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void Shorten(Message* message);

// The message of a slot, whose type has been loaded with its plugin.
void ShortenSlot(Any* slot) {
  const absl::StatusOr<std::unique_ptr<Message>> value = Unpack(*slot);
  if (!value.ok()) return;
  Shorten(value->get());
  slot->set_value((*value)->SerializeAsString());
}

void ShortenMessage(Message* message) {
  if (message->GetDescriptor()->full_name() == "google.protobuf.Any") {
    ShortenSlot(static_cast<Any*>(message));
  } else {
    Shorten(message);
  }
}

void Shorten(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        ShortenMessage(reflection.MutableMessage(message, field));
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
        ShortenMessage(reflection.MutableRepeatedMessage(message, field, i));
      }
    } else if (field->type() == FieldDescriptor::TYPE_STRING &&
               !field->is_repeated() &&
               field->options().GetExtension(capstan::path)) {
      reflection.SetString(message, field,
                           ModelName(reflection.GetString(*message, field)));
    }
  }
}

}  // namespace

RunConfig PortableConfig(const RunConfig& config) {
  RunConfig portable = config;
  portable.clear_output_dir();
  Shorten(&portable);
  return portable;
}

}  // namespace capstan
