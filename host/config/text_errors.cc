// SPDX-License-Identifier: Apache-2.0
#include "host/config/text_errors.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/config/field_names.h"
#include "host/config/load_config.h"
#include "host/config/text_place.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The plugin slot whose name is the last word in `text` but for a colon:
// "strategy:"; null if it isn't one.
const FieldDescriptor* SlotBefore(absl::string_view text,
                                  const Descriptor* type) {
  text = absl::StripTrailingAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&text, ":")) return nullptr;
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t begin = text.find_last_of(" \t{};,");
  if (begin != absl::string_view::npos) text.remove_prefix(begin + 1);
  const FieldDescriptor* const field = type->FindFieldByName(std::string(text));
  return field != nullptr && field->message_type() == Any::descriptor()
             ? field
             : nullptr;
}

// The value that `text` begins with: a text in quotes, or a word as
// capstan.ddp.
absl::string_view FirstValue(absl::string_view text) {
  if (absl::StartsWith(text, "\"") || absl::StartsWith(text, "'")) {
    const size_t end = text.find(text[0], 1);
    return end == absl::string_view::npos ? text : text.substr(0, end + 1);
  }
  size_t end = 0;
  while (end < text.size() &&
         (absl::ascii_isalnum(text[end]) ||
          absl::StrContains("_.+-", text.substr(end, 1)))) {
    ++end;
  }
  return text.substr(0, end);
}

std::string Unquoted(absl::string_view text) {
  if (text.size() >= 2 && text.front() == text.back() &&
      (text.front() == '"' || text.front() == '\'')) {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

// The field of `type` that is called `name`, here or by others; null if none.
const FieldDescriptor* FieldCalled(const Descriptor* type,
                                   const std::string& name) {
  if (type == nullptr) return nullptr;
  const std::unique_ptr<Message> empty(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(type)
          ->New());
  for (const NamedField& field : FieldsCalled(name, *empty)) {
    const FieldDescriptor* const own = type->FindFieldByName(field.path);
    if (own != nullptr && field.instead.empty()) return own;
  }
  return nullptr;
}

// A value that was refused, and the one that was meant; "": not known.
struct WrongValue {
  std::string text;
  std::string meant;
};

WrongValue WrongBool(const std::string& value) {
  const std::string lower = absl::AsciiStrToLower(Unquoted(value));
  WrongValue wrong = {"must be true or false", ""};
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) wrong.meant = "true";
  }
  for (const char* no : {"false", "no", "off", "none", "0"}) {
    if (lower == no) wrong.meant = "false";
  }
  return wrong;
}

WrongValue WrongEnum(const google::protobuf::EnumDescriptor& type,
                     const std::string& value) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    names.push_back(type.value(i)->name());
  }
  WrongValue wrong;
  wrong.meant = NearestName(absl::AsciiStrToUpper(Unquoted(value)), names);
  // Nearest first.
  const auto nearest = std::find(names.begin(), names.end(), wrong.meant);
  if (nearest != names.end()) std::rotate(names.begin(), nearest, nearest + 1);
  wrong.text = absl::StrCat("must be one of ", absl::StrJoin(names, ", "));
  return wrong;
}

// Of a field of whole numbers.
const char* RangeOf(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return "from -2147483648 to 2147483647";
    case FieldDescriptor::CPPTYPE_UINT32:
      return "from 0 to 4294967295";
    case FieldDescriptor::CPPTYPE_UINT64:
      return "from 0 to 18446744073709551615";
    default:
      return "of 64 bits";
  }
}

WrongValue WrongInteger(const FieldDescriptor& field,
                        const std::string& value) {
  WrongValue wrong;
  wrong.text = absl::StrCat("must be an integer ", RangeOf(field));
  double number = 0.0;
  constexpr double kExact = 1e15;
  // "10", 1e3
  if (absl::SimpleAtod(Unquoted(value), &number) && number >= 0.0 &&
      number < kExact && std::floor(number) == number) {
    wrong.meant = absl::StrCat(static_cast<int64_t>(number));
  }
  return wrong;
}

WrongValue WrongFor(const FieldDescriptor& field, const std::string& value) {
  double number = 0.0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return WrongBool(value);
    case FieldDescriptor::CPPTYPE_ENUM:
      return WrongEnum(*field.enum_type(), value);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return {"must be a number", absl::SimpleAtod(Unquoted(value), &number)
                                      ? Unquoted(value)
                                      : std::string()};
    case FieldDescriptor::CPPTYPE_STRING:
      return {"must be a text in quotes", ""};
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return {"must be { .. }", ""};
    default:
      return WrongInteger(field, value);
  }
}

// The value that protobuf complains of; "" if the message is about another
// thing.
std::string RefusedValue(const std::string& message) {
  const std::vector<std::string> words = absl::StrSplit(message, '"');
  if (absl::StartsWith(message, "Unknown enumeration value of")) {
    return words.size() > 1 ? words[1] : "";
  }
  if (absl::StartsWith(message, "Invalid value for boolean field")) {
    return words.size() > 3 ? words[3] : "";
  }
  if (absl::StartsWith(message, "Integer out of range (")) {
    const size_t begin = message.find('(') + 1;
    return message.substr(begin, message.find(')') - begin);
  }
  // Expected integer, got: fast
  constexpr absl::string_view kGot = ", got: ";
  const size_t got = message.find(kGot.data());
  return absl::StartsWith(message, "Expected ") && got != std::string::npos
             ? message.substr(got + kGot.size())
             : "";
}

// The field that the last value before a place is for; null if unknown.
const FieldDescriptor* FieldBefore(const TextPlace& place,
                                   const TextToken& value) {
  if (place.type == nullptr) return nullptr;
  const FieldDescriptor* field = nullptr;
  for (const TextToken& token : place.tokens) {
    if (&token == &value) return field;
    const FieldDescriptor* const named =
        place.type->FindFieldByName(token.text);
    if (named != nullptr) field = named;
  }
  return field;
}

// An error of protobuf's and where it is.
class Explained {
 public:
  Explained(const std::string& message, int line, int column,
            const std::string& text, const Message& parsed,
            const PluginHost& host)
      : message_(message),
        words_(absl::StrSplit(message, '"')),
        line_(line),
        column_(column),
        lines_(absl::StrSplit(text, '\n')),
        begins_as_config_(BeginsAs(parsed.GetDescriptor(), text)),
        line_text_(Line(line)),
        place_(PlaceIn(text, parsed.GetDescriptor(), line, column)),
        parsed_(parsed),
        host_(host) {}

  TextError Error() const {
    if (absl::StartsWith(message_, "Expected identifier") &&
        (absl::StartsWith(Rest(), "//") || absl::StartsWith(Rest(), "/*"))) {
      TextError error = Here("comments begin with #", "config/syntax");
      if (begins_as_config_) {
        error.after = WithToken(line_text_, {line_, column_, "//"}, "#");
      }
      return error;
    }
    if (message_ == "Expected identifier, got: ") {
      return Here(absl::StrCat("the text ends within ", place_.path,
                               " { ..: a } is missing"),
                  "config/syntax");
    }
    if (message_ == "Expected identifier, got: }") {
      return Here("there is a } too many", "config/syntax");
    }
    // Message type "T" has no field named "f".
    if (Says("has no field named", 5)) return Unknown();
    // Field "a" is specified along with field "b", another member of oneof ..
    if (Says("another member of", 5)) {
      return Here(absl::StrCat("set either ", words_[1], " or ", words_[3],
                               Earlier(words_[1], words_[3])),
                  "config/either");
    }
    if (Says("specified multiple", 3)) {
      return At(words_[1], "",
                absl::StrCat("\"", words_[1], "\" is there twice",
                             Earlier(words_[1], words_[1]),
                             ": keep one, with all of it"),
                "config/twice");
    }
    const FieldDescriptor* const slot =
        SlotBefore(absl::string_view(line_text_).substr(0, Column()),
                   parsed_.GetDescriptor());
    if (absl::StartsWith(message_, "Expected \"{\", found") &&
        slot != nullptr) {
      return SlotValue(*slot);
    }
    if (absl::StartsWith(message_, "Expected \"/\"")) return NoPrefix();
    return Value();
  }

 private:
  bool Says(const char* text, size_t words) const {
    return words_.size() >= words && absl::StrContains(message_, text);
  }

  std::string Line(int line) const {
    return line >= 0 && static_cast<size_t>(line) < lines_.size() ? lines_[line]
                                                                  : "";
  }
  // Of the line, from the place.
  absl::string_view Rest() const {
    return absl::string_view(line_text_).substr(Column());
  }
  size_t Column() const { return OffsetIn(line_text_, column_); }

  // ", the latter in line 3", if it is another line than the last `name`'s.
  std::string Earlier(const std::string& name, const std::string& other) const {
    const TextToken* const last = place_.Last(name);
    const TextToken* const first =
        last == nullptr ? nullptr : place_.LastBefore(*last, other);
    if (first == nullptr || first->line == last->line) return "";
    return absl::StrCat(name == other ? ", first" : ", which is", " in line ",
                        first->line + 1);
  }

  TextError Here(std::string what, const char* code) const {
    return {line_, column_, std::move(what), code};
  }

  // About `word`, in whose place `meant` was to stand ("": not known).
  TextError At(const std::string& word, const std::string& meant,
               std::string what, const char* code) const {
    TextError error = Here(std::move(what), code);
    const TextToken* const token = place_.Last(word);
    if (token == nullptr) return error;
    error.line = token->line;
    error.column = token->column;
    if (!meant.empty()) {
      error.after = WithToken(Line(token->line), *token, meant);
    }
    return error;
  }

  TextError Unknown() const {
    const Descriptor* const type =
        DescriptorPool::generated_pool()->FindMessageTypeByName(words_[1]);
    if (type == nullptr) return Here(message_, "config/syntax");
    if (type == Any::descriptor()) return InSlot();
    LoadExamples();
    const UnknownName unknown = UnknownField(type, words_[3], parsed_);
    const bool other =
        type == parsed_.GetDescriptor() && !CommandWithField(words_[3]).empty();
    TextError error = At(
        words_[3], unknown.instead.empty() ? unknown.field : "", unknown.text,
        other ? "config/other-command" : "config/unknown-field");
    // "EVERY_UNIT for true"
    const std::vector<std::string> instead =
        absl::StrSplit(unknown.instead, " for ");
    const TextToken* const token = place_.Last(words_[3]);
    if (instead.size() != 2 || token == nullptr) return error;
    const std::string line = Line(token->line);
    const size_t begin = OffsetIn(line, token->column);
    absl::string_view rest = absl::string_view(line).substr(begin);
    if (!absl::ConsumePrefix(&rest, words_[3])) return error;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!absl::ConsumePrefix(&rest, ":")) return error;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    const absl::string_view value = FirstValue(rest);
    if (value != instead[1]) return error;
    error.after = absl::StrCat(line.substr(0, begin), unknown.field, ": ",
                               instead[0], rest.substr(value.size()));
    return error;
  }

  // What the examples of slots have is known after this.
  void LoadExamples() const {
    PluginHost host = host_;
    const Descriptor& type = *parsed_.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const std::string example = ExampleType(*type.field(i));
      if (!example.empty()) host.LoadBuilt(example).status().IgnoreError();
    }
  }

  // The config type of the plugin that `slot` has where it isn't said: that of
  // train_data, for eval_data, or the example's; "" if there is none.
  std::string UsualType(const FieldDescriptor& slot) const {
    const std::string example = ExampleType(slot);
    if (slot.name() != "eval_data" || !example.empty()) return example;
    const FieldDescriptor* const data =
        parsed_.GetDescriptor()->FindFieldByName("train_data");
    if (data == nullptr || data->message_type() != Any::descriptor()) return "";
    const std::string type = TypeOf(static_cast<const Any&>(
        parsed_.GetReflection()->GetMessage(parsed_, data)));
    return type.empty() ? ExampleType(*data) : type;
  }

  // The package nearest to `name` that `slot`, null if unknown, may name; "" if
  // there is none.
  std::string PackageFor(const FieldDescriptor* slot,
                         const std::string& name) const {
    const std::string nearest = host_.NearestPackage(name);
    if (nearest.empty() || slot == nullptr) return nearest;
    PluginHost host = host_;
    const auto found = host.LoadBuilt(nearest + ".Config");
    const absl::optional<PluginCategory> category = CategoryOf(*slot);
    const bool other = found.ok() && category.has_value() &&
                       (*found)->descriptor->category != *category;
    return other ? "" : nearest;
  }

  // strategy: ddp, model: "OWNER/NAME"
  TextError SlotValue(const FieldDescriptor& slot) const {
    const std::string value(FirstValue(Rest()));
    const std::string name = Unquoted(value);
    const bool is_path = absl::StrContains(name, "/");
    const std::string package = is_path ? "" : PackageFor(&slot, name);
    if (!package.empty()) {
      const std::string meant =
          absl::StrCat("{ [plugin/", package, ".Config] {} }");
      TextError error =
          Here(absl::StrCat("\"", name, "\": did you mean ", meant, "?"),
               "config/plugin-syntax");
      if (!UsualType(slot).empty()) {
        error.after = WithToken(line_text_, {line_, column_, value}, meant);
      }
      return error;
    }
    const std::string& example = slot.options().GetExtension(slot_example);
    const std::vector<std::string> parts = absl::StrSplit(example, '"');
    if (name == value || parts.size() != 3) return PluginSyntax(name);
    // A model on the Hub, a file: in place of what the example names.
    const bool hub = !HubDownloadHint(name, "").empty();
    const absl::string_view rest =
        absl::string_view(parts[2]).substr(0, parts[2].find('#'));
    return Here(absl::StrCat("a plugin stands here: write ", slot.name(), " ",
                             parts[0], "\"", hub ? "hf:" : "", name, "\"",
                             absl::StripTrailingAsciiWhitespace(rest)),
                "config/plugin-syntax");
  }

  TextError PluginSyntax(const std::string& name) const {
    return Here(absl::StrCat("\"", name, "\": a plugin is written ",
                             "{ [plugin/PACKAGE.Config] { .. } }"),
                "config/plugin-syntax");
  }

  // strategy { ddp {} }, optimizer { lr: 1e-4 }
  TextError InSlot() const {
    const size_t begin = line_text_.rfind(words_[3], Column());
    if (begin == std::string::npos) return PluginSyntax(words_[3]);
    const std::string name(
        FirstValue(absl::string_view(line_text_).substr(begin)));
    absl::string_view rest(line_text_);
    rest.remove_prefix(begin + name.size());
    rest = absl::StripLeadingAsciiWhitespace(rest);
    const FieldDescriptor* const slot =
        parsed_.GetDescriptor()->FindFieldByName(place_.path);
    if (slot != nullptr) {
      const std::string usual = UsualType(*slot);
      PluginHost host = host_;
      host.LoadBuilt(usual).status().IgnoreError();
      const FieldDescriptor* const field = FieldCalled(
          DescriptorPool::generated_pool()->FindMessageTypeByName(usual), name);
      if (field != nullptr) {
        std::string value = "{ .. }";
        if (absl::ConsumePrefix(&rest, ":")) {
          value =
              std::string(FirstValue(absl::StripLeadingAsciiWhitespace(rest)));
          value = absl::StrCat(": ", value.empty() ? ".." : value);
        }
        return Here(absl::StrCat("\"", name, "\" is a plugin's: write ",
                                 slot->name(), " { [plugin/", usual, "] { ",
                                 field->name(), value, " } }"),
                    "config/plugin-syntax");
      }
    }
    const std::string package = PackageFor(slot, name);
    if (package.empty()) return PluginSyntax(name);
    TextError error =
        Here(absl::StrCat("\"", name, "\": did you mean { [plugin/", package,
                          ".Config] {} }?"),
             "config/plugin-syntax");
    const bool checked = slot != nullptr && !UsualType(*slot).empty();
    if (checked && absl::StartsWith(rest, "{")) {
      error.after = absl::StrCat(line_text_.substr(0, begin), "[plugin/",
                                 package, ".Config] ", rest);
    }
    return error;
  }

  // The parser is past the name in [acme.lion.Config].
  TextError NoPrefix() const {
    const absl::string_view line = line_text_;
    const size_t bracket = line.rfind('[', Column());
    std::string name(bracket == std::string::npos
                         ? ""
                         : FirstValue(line.substr(bracket + 1)));
    if (name.empty()) name = "PACKAGE.Config";
    return Here(
        absl::StrCat("a plugin has a prefix: write [plugin/", name, "]"),
        "config/plugin-syntax");
  }

  TextError Value() const {
    const std::string value = RefusedValue(message_);
    const TextToken* const token = place_.Last(value);
    const FieldDescriptor* const field =
        token == nullptr ? nullptr : FieldBefore(place_, *token);
    if (value.empty() || field == nullptr) {
      return Here(message_, "config/syntax");
    }
    const WrongValue wrong = WrongFor(*field, value);
    TextError error =
        At(value, wrong.meant,
           absl::StrCat(place_.path, place_.path.empty() ? "" : ".",
                        field->name(), ": ", wrong.text, ", is ", value),
           "config/type");
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      // All of data/a.jsonl, of which the parser took "data".
      const std::string line = Line(token->line);
      const size_t begin = OffsetIn(line, token->column);
      const std::string word =
          line.substr(begin, line.find_first_of(" \t\r,;]}#", begin) - begin);
      if (word.find_first_of("\"'\\") == std::string::npos) {
        error.after = WithToken(line, {token->line, token->column, word},
                                absl::StrCat("\"", word, "\""));
      }
    }
    return error;
  }

  const std::string& message_;
  const std::vector<std::string> words_;
  const int line_;
  const int column_;
  const std::vector<std::string> lines_;
  const bool begins_as_config_;
  const std::string line_text_;
  const TextPlace place_;
  const Message& parsed_;
  const PluginHost& host_;
};

}  // namespace

TextError InOurTerms(const std::string& message, int line, int column,
                     const std::string& text, const Message& parsed,
                     const PluginHost& host) {
  return Explained(message, line, column, text, parsed, host).Error();
}

}  // namespace capstan
