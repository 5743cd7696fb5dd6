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

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/status.h"
#include "host/config/field_names.h"
#include "host/config/hub_path.h"
#include "host/config/mend.h"
#include "host/config/text_errors.h"
#include "host/config/text_place.h"
#include "host/storage/cache.h"
#include "host/storage/storage.h"
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
      error_ = WithCode(absl::InvalidArgumentError(
                            absl::StrCat("a plugin is written [plugin/", name,
                                         "], not [", prefix, name, "]")),
                        "config/plugin-syntax");
      return nullptr;
    }
    const absl::StatusOr<const LoadedPlugin*> plugin = host_.Load(name);
    if (!plugin.ok()) {
      error_ = plugin.status();
      nearest_ = host_.NearestPackage(PackageOf(name));
      return nullptr;
    }
    if ((*plugin)->descriptor->category == PluginCategory::kCommand) {
      const std::string package = PackageOf(name);
      error_ =
          WithCode(absl::InvalidArgumentError(absl::StrCat(
                       package, " is a command, `trainer ", CommandOf(package),
                       "`, which a config can't name: name a plugin that "
                       "`trainer plugins` lists for configs")),
                   "plugin/category");
      return nullptr;
    }
    return DescriptorPool::generated_pool()->FindMessageTypeByName(name);
  }

  // Why the last FindAnyType failed; clears it.
  absl::Status TakeError() const {
    return std::exchange(error_, absl::OkStatus());
  }

  // What the plugin that such an error proposes is, if `slot` (null: unknown)
  // doesn't take it; else "".
  std::string WrongKind(const FieldDescriptor* slot) const {
    const auto nearest = host_.LoadBuilt(nearest_ + ".Config");
    const auto wanted = slot == nullptr ? absl::nullopt : CategoryOf(*slot);
    if (!nearest.ok() || !wanted.has_value() ||
        (*nearest)->descriptor->category == *wanted) {
      return "";
    }
    return absl::StrCat(
        " Its category is ", CategoryName((*nearest)->descriptor->category),
        ", and ", slot->name(), " takes category ", CategoryName(*wanted));
  }

 private:
  PluginHost& host_;
  mutable absl::Status error_;
  mutable std::string nearest_;  // "": no plugin, or an error without one
};

// Keeps the first error, as later ones follow from it.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  FirstError(const PluginFinder& finder, const PluginHost& host,
             const TextOrigin& origin, const std::string& text,
             const Message& parsed)
      : finder_(finder),
        host_(host),
        origin_(origin),
        text_(text),
        parsed_(parsed) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    const absl::Status plugin = finder_.TakeError();
    if (!status_.ok()) return;
    const TextError error =
        plugin.ok()
            ? InOurTerms(message, line, column, text_, parsed_, host_)
            : TextError{line, column,
                        absl::StrCat(plugin.message(),
                                     finder_.WrongKind(SlotAt(line, column))),
                        CodeOf(plugin)};
    const bool placed = origin_.has_lines && error.line >= 0;
    const std::vector<std::string> lines = absl::StrSplit(text_, '\n');
    const std::string before =
        placed && static_cast<size_t>(error.line) < lines.size()
            ? lines[error.line]
            : "";
    const bool mended = !error.after.empty() && error.after != before &&
                        placed && !origin_.path.empty();
    const std::string said = absl::StrCat(
        origin_.name,
        placed ? absl::StrCat(":", error.line + 1, ":", error.column + 1) : "",
        ": ", error.text);
    status_ = WithCode(absl::InvalidArgumentError(said), error.code);
    line_ = error.line;
    if (!mended) return;
    with_mend_ = WithMend(WithCode(absl::InvalidArgumentError(absl::StrCat(
                                       said, Shown(error.text, error.after))),
                                   error.code),
                          {origin_.path, error.line + 1, before, error.after});
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber,
                  const std::string&) override {}

  const absl::Status& status() const { return status_; }
  int line() const { return line_; }  // of it, from 0
  // The same with the line that mends it; OK if none is known.
  const absl::Status& with_mend() const { return with_mend_; }

 private:
  // Null if it is in none.
  const FieldDescriptor* SlotAt(int line, int column) const {
    const Descriptor* const type = parsed_.GetDescriptor();
    return type->FindFieldByName(PlaceIn(text_, type, line, column).path);
  }

  // What follows `error`, whose mended line is `line`.
  static std::string Shown(const std::string& error, const std::string& line) {
    constexpr size_t kMost = 72;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    const bool question = absl::EndsWith(error, "?");
    return text.size() > kMost ? "; --apply mends the line"
                               : absl::StrCat(question ? " Write " : "; write ",
                                              text, " (--apply does)");
  }

  const PluginFinder& finder_;
  const PluginHost& host_;
  const TextOrigin& origin_;
  const std::string& text_;
  const Message& parsed_;
  absl::Status status_, with_mend_;
  int line_ = -1;
};

// A plugin's message may hold itself, however often; binary parsing, which has
// this limit by itself, reads what was written in text.
constexpr int kMostNestedMessages = 64;

constexpr char kAnyType[] = "google.protobuf.Any";

// The number of a field, or number `i` of a list; unset: it is none, or has no
// sign.
absl::optional<double> NumberOf(const Message& from,
                                const FieldDescriptor* field, int i) {
  const Reflection& reflection = *from.GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? reflection.GetRepeatedInt32(from, field, i)
                  : reflection.GetInt32(from, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(
          list ? reflection.GetRepeatedInt64(from, field, i)
               : reflection.GetInt64(from, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return list ? reflection.GetRepeatedFloat(from, field, i)
                  : reflection.GetFloat(from, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? reflection.GetRepeatedDouble(from, field, i)
                  : reflection.GetDouble(from, field);
    default:
      return absl::nullopt;
  }
}

// What is wrong with a value by itself, "" if nothing is: a number that no
// setting can mean (as text, nan and inf are numbers), or not this one
// (not_negative), or bytes that protobuf can't keep.
std::string WrongValue(const FieldDescriptor* field, const Message& from) {
  const Reflection& reflection = *from.GetReflection();
  const bool list = field->is_repeated();
  const int count = list ? reflection.FieldSize(from, field) : 1;
  for (int i = 0; i < count; ++i) {
    const absl::optional<double> number = NumberOf(from, field, i);
    if (number.has_value() && !std::isfinite(*number)) {
      return absl::StrCat("must be a finite number, is ", *number);
    }
    if (number.has_value() && *number < 0.0 &&
        field->options().GetExtension(not_negative)) {
      return absl::StrCat("must not be negative, is ", *number);
    }
    if (field->type() != FieldDescriptor::TYPE_STRING) continue;
    const std::string value = list
                                  ? reflection.GetRepeatedString(from, field, i)
                                  : reflection.GetString(from, field);
    if (!simdjson::validate_utf8(value)) {
      return absl::StrCat("must be UTF-8, is \"", absl::CHexEscape(value),
                          "\"");
    }
  }
  return "";
}

// The scheme of an address, "s3://"; "" of a path.
absl::string_view SchemeOf(absl::string_view path) {
  const size_t end = path.find("://");
  if (end == path.npos || end == 0) return "";
  const bool plain = absl::c_all_of(path.substr(0, end), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
  return plain ? path.substr(0, end + 3) : "";
}

constexpr char kOutputDir[] = "capstan.RunConfig.output_dir";

// Where the run of an address works; what lies there isn't fetched yet.
absl::StatusOr<std::string> OutputOf(const std::string& text) {
  if (!IsAddress(text)) return LocalCopy(text);
  CAPSTAN_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
  return WorkingFolder(address);
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
      return WithCode(absl::InvalidArgumentError(absl::StrCat(
                          places_->locations[path], ": ", path, ": ", wrong)),
                      "config/value");
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
    const int before =
        field->is_repeated() ? to->GetReflection()->FieldSize(*to, field) : 0;
    if (field->is_repeated() || reflection.HasField(from, field)) {
      CopyField(field, from, to);
    }
    if (field->type() != FieldDescriptor::TYPE_STRING ||
        !field->options().GetExtension(capstan::path)) {
      return absl::OkStatus();
    }
    return ResolvePaths(field, path, before, to);
  }

  // Makes a path, or those of a list from number `first` on, absolute.
  absl::Status ResolvePaths(const FieldDescriptor* field,
                            const std::string& path, int first, Message* to) {
    const auto resolve =
        [&](const std::string& place,
            const std::string& text) -> absl::StatusOr<std::string> {
      if (text.empty()) return text;
      absl::StatusOr<std::string> resolved = Resolve(field, text);
      if (!resolved.ok()) {
        return Annotate(resolved.status(),
                        absl::StrCat(places_->locations[path], ": ", path));
      }
      // What the run prints of its files begins with it.
      while (field->full_name() == kOutputDir && resolved->size() > 1 &&
             resolved->back() == '/') {
        resolved->pop_back();
      }
      places_->paths[place] = {text, *resolved};
      return resolved;
    };
    return ChangeStrings(field, path, first, resolve, to);
  }

  // Copies one field through otherwise empty messages of the same type.
  static void CopyField(const FieldDescriptor* field, const Message& from,
                        Message* to) {
    std::unique_ptr<Message> copy(from.New()), only(from.New());
    copy->CopyFrom(from);
    only->GetReflection()->SwapFields(only.get(), copy.get(), {field});
    to->MergeFrom(*only);
  }

  absl::Status MergeSlot(const ParseInfoTree& tree, const std::string& path,
                         const Any& from, Any* to) {
    if (from.type_url().empty()) {
      return WithCode(
          absl::InvalidArgumentError(absl::StrCat(
              places_->locations[path], ": ", path,
              ": names no plugin; leave it out to take the default, or write ",
              path, " { [plugin/PACKAGE.Config] { .. } }")),
          "config/missing");
    }
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
    if (IsAddress(text) && field->options().GetExtension(reads_addresses)) {
      return text;
    }
    if (IsAddress(text) || SchemeOf(text) == "file://") {
      return field->full_name() == kOutputDir ? OutputOf(text)
                                              : LocalCopy(text);
    }
    if (!SchemeOf(text).empty()) {
      return WithCode(
          absl::InvalidArgumentError(absl::StrCat(
              "is an address, ", SchemeOf(text),
              "..: only files and s3://, gs:// and az:// are read and written: "
              "copy it to a disk, or mount it")),
          "config/value");
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

// Lines with errors that are left out in search of one that can be mended: a
// file that is no config has many.
constexpr int kMostLeftOut = 16;

// `left_out`: the lines that `text` has already lost so.
absl::Status Parse(const std::string& text, const TextOrigin& origin,
                   const ConfigContext& context, Message* parsed,
                   ParseInfoTree* tree, int left_out = 0);

// `status`, the error of `line` (from 0), for which no mend is known, with that
// of a later error if there is one: what is found without the line. One that
// opens or closes a message can't be left out, nor one of a file of another
// kind.
absl::Status WithLaterMend(const absl::Status& status, int line,
                           const std::string& text, const TextOrigin& origin,
                           const ConfigContext& context, const Message& type,
                           int left_out) {
  if (origin.path.empty() || left_out >= kMostLeftOut ||
      (left_out == 0 && !BeginsAs(type.GetDescriptor(), text))) {
    return status;
  }
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!origin.has_lines || line < 0 ||
      static_cast<size_t>(line) >= lines.size() || lines[line].empty() ||
      absl::c_count(lines[line], '{') != absl::c_count(lines[line], '}')) {
    return status;
  }
  lines[line].clear();
  const std::unique_ptr<Message> scratch(type.New());
  ParseInfoTree unused;
  const absl::optional<Mend> later =
      MendOf(Parse(absl::StrJoin(lines, "\n"), origin, context, scratch.get(),
                   &unused, left_out + 1));
  return later.has_value() ? WithMend(status, *later) : status;
}

absl::Status Parse(const std::string& text, const TextOrigin& origin,
                   const ConfigContext& context, Message* parsed,
                   ParseInfoTree* tree, int left_out) {
  PluginFinder finder(*context.host);
  FirstError errors(finder, *context.host, origin, text, *parsed);
  TextFormat::Parser parser;
  parser.SetFinder(&finder);
  parser.SetRecursionLimit(kMostNestedMessages);
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(tree);
  if (parser.ParseFromString(text, parsed)) return absl::OkStatus();
  if (errors.status().ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin.name, ": not a ", parsed->GetDescriptor()->name()));
  }
  const absl::optional<Mend> mend = MendOf(errors.with_mend());
  if (!mend.has_value()) {
    return WithLaterMend(errors.status(), errors.line(), text, origin, context,
                         *parsed, left_out);
  }
  // A field that the text has already must not be there twice.
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines[mend->line - 1] = mend->after;
  TextOrigin mended = origin;
  mended.path.clear();  // this one isn't mended in turn
  const std::unique_ptr<Message> scratch(parsed->New());
  ParseInfoTree unused;
  const absl::Status then = Parse(absl::StrJoin(lines, "\n"), mended, context,
                                  scratch.get(), &unused);
  const std::string code = CodeOf(then);
  if (code != "config/twice" && code != "config/either") {
    return errors.with_mend();
  }
  return WithCode(absl::InvalidArgumentError(
                      absl::StrCat(errors.status().message(), "; but then ",
                                   then.message(), ": remove one of them")),
                  code);
}

}  // namespace

absl::Status MergeText(const std::string& text, const TextOrigin& origin,
                       const ConfigContext& context, Message* config,
                       FieldPlaces* places) {
  const std::unique_ptr<Message> parsed(config->New());
  ParseInfoTree tree;
  CAPSTAN_RETURN_IF_ERROR(Parse(text, origin, context, parsed.get(), &tree));
  return Merger(origin, context, places).Merge(tree, "", *parsed, config);
}

absl::Status ChangeStrings(const FieldDescriptor* field,
                           const std::string& path, int first,
                           const PathChange& change, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (!field->is_repeated()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        std::string changed,
        change(path, reflection.GetString(*message, field)));
    reflection.SetString(message, field, std::move(changed));
    return absl::OkStatus();
  }
  for (int i = first; i < reflection.FieldSize(*message, field); ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(
        std::string changed,
        change(absl::StrCat(path, "[", i, "]"),
               reflection.GetRepeatedString(*message, field, i)));
    reflection.SetRepeatedString(message, field, i, std::move(changed));
  }
  return absl::OkStatus();
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
