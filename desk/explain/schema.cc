// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "desk/explain/reference_text.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

// Schemas of messages, by full name, in "$defs": they may hold themselves.
class Definitions {
 public:
  explicit Definitions(const Reference& reference) : reference_(reference) {}

  // A reference to the schema of `message`.
  Json Of(const Descriptor& message) {
    const std::string& name = message.full_name();
    if (!all_.contains(name)) {
      all_[name] = Json::object();  // before what it holds
      Json made = Message(message);
      all_[name] = std::move(made);
    }
    return {{"$ref", absl::StrCat("#/$defs/", name)}};
  }

  const Json& all() const { return all_; }

 private:
  Json Message(const Descriptor& message) {
    Json fields = Json::object();
    for (int i = 0; i < message.field_count(); ++i) {
      fields[message.field(i)->name()] = Field(*message.field(i));
    }
    return {{"type", "object"},
            {"description", CommentOf(message)},
            {"properties", std::move(fields)},
            {"additionalProperties", false}};
  }

  Json Field(const FieldDescriptor& field) {
    Json one = One(field);
    // Text format takes one element without brackets.
    if (field.is_repeated()) {
      one = {{"anyOf", {one, {{"type", "array"}, {"items", one}}}}};
    }
    const std::string meaning = Describe(field).meaning;
    if (!meaning.empty()) one["description"] = meaning;
    return one;
  }

  Json One(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return {{"type", "number"}};
      case FieldDescriptor::CPPTYPE_STRING:
        return {{"type", "string"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return Enum(*field.enum_type());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return field.message_type()->full_name() == "google.protobuf.Any"
                   ? Slot(field)
                   : Of(*field.message_type());
      default:
        return {{"type", "integer"}};
    }
  }

  // Enums are open: AUTO, or a number of ranks.
  static Json Enum(const google::protobuf::EnumDescriptor& type) {
    Json names = Json::array();
    for (int i = 0; i < type.value_count(); ++i) {
      names.push_back(type.value(i)->name());
    }
    return {{"anyOf", {{{"enum", names}}, {{"type", "integer"}}}}};
  }

  // {"[plugin/capstan.ddp.Config]": {..}}
  Json Slot(const FieldDescriptor& field) {
    Json plugins = Json::object();
    for (const DescribedPlugin* plugin : reference_.PluginsFor(field)) {
      plugins[absl::StrCat("[plugin/", plugin->package, ".Config]")] =
          Of(*plugin->config);
    }
    return {{"type", "object"},
            {"properties", std::move(plugins)},
            {"additionalProperties", false},
            {"minProperties", 1},
            {"maxProperties", 1}};
  }

  const Reference& reference_;
  Json all_ = Json::object();
};

}  // namespace

Json ConfigSchema(const Reference& reference) {
  Definitions definitions(reference);
  const Json run = definitions.Of(reference.run());
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "A run of Capstan's trainer"},
          {"$ref", run["$ref"]},
          {"$defs", definitions.all()}};
}

}  // namespace capstan
