// SPDX-License-Identifier: Apache-2.0
#include "host/config/base_model.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "host/config/load_config.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {

BaseModel BaseModelOf(const RunConfig& config) {
  BaseModel base;
  const auto message = Unpack(config.model());
  if (!message.ok()) return base;
  const google::protobuf::Descriptor& type = *(*message)->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = type.field(i);
    if (!field->options().GetExtension(base_model) || field->is_repeated() ||
        field->type() != google::protobuf::FieldDescriptor::TYPE_STRING) {
      continue;
    }
    base.field = field->name();
    base.folder = (*message)->GetReflection()->GetString(**message, field);
  }
  return base;
}

}  // namespace capstan
