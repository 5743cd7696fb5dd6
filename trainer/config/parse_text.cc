// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/config/text_source.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::TextFormat;

// Loads a plugin when the parser encounters its type: dlopen registers its
// descriptors, and parsing continues with them.
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
  const google::protobuf::FieldDescriptor* const field =
      type->FindFieldByName(std::string(text));
  return field != nullptr &&
         field->message_type() == google::protobuf::Any::descriptor();
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
      if (type == google::protobuf::Any::descriptor()) {
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

}  // namespace

absl::StatusOr<std::unique_ptr<TextSource>> ParseText(
    const std::string& text, const TextOrigin& origin,
    const google::protobuf::Message& prototype, PluginHost& host) {
  auto source = std::make_unique<TextSource>();
  source->message.reset(prototype.New());
  PluginFinder finder(host);
  FirstError errors(finder, host, origin, text, prototype.GetDescriptor());
  TextFormat::Parser parser;
  parser.SetFinder(&finder);
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&source->tree);
  if (!parser.ParseFromString(text, source->message.get())) {
    return absl::InvalidArgumentError(
        errors.text().empty() ? absl::StrCat(origin.name, ": not a ",
                                             prototype.GetDescriptor()->name())
                              : errors.text());
  }
  return source;
}

}  // namespace capstan
