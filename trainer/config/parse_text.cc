// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trainer/config/text_source.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::TextFormat;

// Loads the plugin when the parser meets its type: its generated descriptors
// are registered by dlopen, and parsing goes on with them.
class PluginFinder : public TextFormat::Finder {
 public:
  explicit PluginFinder(PluginHost& host) : host_(host) {}

  const Descriptor* FindAnyType(const google::protobuf::Message&,
                                const std::string& prefix,
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
    return DescriptorPool::generated_pool()->FindMessageTypeByName(name);
  }

  // Why the last FindAnyType failed; empties it.
  std::string TakeError() const { return std::exchange(error_, ""); }

 private:
  PluginHost& host_;
  mutable std::string error_;
};

// What protobuf says, with the nearest name where a field's name is wrong.
std::string WithSuggestion(const std::string& message) {
  // Message type "T" has no field named "f".
  const std::vector<std::string> words = absl::StrSplit(message, '"');
  if (words.size() < 5 || !absl::StrContains(message, "has no field named")) {
    return message;
  }
  const Descriptor* type =
      DescriptorPool::generated_pool()->FindMessageTypeByName(words[1]);
  if (type == nullptr) return message;
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    names.push_back(type->field(i)->name());
  }
  const std::string nearest = NearestName(words[3], names);
  std::string text =
      absl::StrCat("unknown field \"", words[3], "\" in ", words[1]);
  if (!nearest.empty()) {
    absl::StrAppend(&text, "; did you mean \"", nearest, "\"?");
  } else {
    absl::StrAppend(&text, "; it has: ", absl::StrJoin(names, ", "));
  }
  return text;
}

// Keeps the first error: the later ones follow from it.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  FirstError(const PluginFinder& finder, std::string name, bool has_lines)
      : finder_(finder), name_(std::move(name)), has_lines_(has_lines) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    const std::string plugin_error = finder_.TakeError();
    if (!text_.empty()) return;
    const std::string what =
        plugin_error.empty() ? WithSuggestion(message) : plugin_error;
    text_ = has_lines_ && line >= 0 ? absl::StrCat(name_, ":", line + 1, ":",
                                                   column + 1, ": ", what)
                                    : absl::StrCat(name_, ": ", what);
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber,
                  const std::string&) override {}

  const std::string& text() const { return text_; }

 private:
  const PluginFinder& finder_;
  const std::string name_;
  const bool has_lines_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextSource>> ParseText(
    const std::string& text, const std::string& name, bool has_lines,
    const google::protobuf::Message& prototype, PluginHost& host) {
  auto source = std::make_unique<TextSource>();
  source->message.reset(prototype.New());
  PluginFinder finder(host);
  FirstError errors(finder, name, has_lines);
  TextFormat::Parser parser;
  parser.SetFinder(&finder);
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&source->tree);
  if (!parser.ParseFromString(text, source->message.get())) {
    return absl::InvalidArgumentError(
        errors.text().empty()
            ? absl::StrCat(name, ": not a ", prototype.GetDescriptor()->name())
            : errors.text());
  }
  return source;
}

}  // namespace capstan
