// SPDX-License-Identifier: Apache-2.0
#include "host/config/not_negative.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

double NumberOf(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    default:
      return 0.0;
  }
}

absl::Status CheckIn(const std::string& name, const Message& message) {
  if (message.GetDescriptor() == Any::descriptor()) {
    const auto plugin = Unpack(static_cast<const Any&>(message));
    // What isn't loaded is another's error.
    return plugin.ok() ? CheckIn(name, **plugin) : absl::OkStatus();
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path =
        absl::StrCat(name, name.empty() ? "" : ".", field->name());
    const bool below = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (below && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        CAPSTAN_RETURN_IF_ERROR(
            CheckIn(absl::StrCat(path, "[", i, "]"),
                    reflection.GetRepeatedMessage(message, field, i)));
      }
    } else if (below) {
      CAPSTAN_RETURN_IF_ERROR(
          CheckIn(path, reflection.GetMessage(message, field)));
    } else if (!field->is_repeated() &&
               field->options().GetExtension(not_negative)) {
      const double value = NumberOf(message, *field);
      if (value >= 0.0) continue;
      return FieldError(path, absl::StrCat("must not be negative, is ", value));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNotNegative(const Message& config) {
  return CheckIn("", config);
}

}  // namespace capstan
