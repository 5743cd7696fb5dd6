// SPDX-License-Identifier: Apache-2.0
#include "host/config/text_place.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::Tokenizer;

class NoErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber,
                const std::string&) override {}
};

// Follows a text's messages, token by token.
class Nesting {
 public:
  explicit Nesting(const Descriptor* type) { open_.push_back({"", type}); }

  void Take(const Tokenizer::Token& token) {
    const std::string& text = token.text;
    if (in_type_) {
      in_type_ = text != "]";
      if (text == "/") {
        type_.clear();
      } else if (in_type_) {
        type_ += text;
      } else {
        plugin_ =
            DescriptorPool::generated_pool()->FindMessageTypeByName(type_);
      }
    } else if (text == "{" || text == "<") {
      Open();
    } else if (text == "}" || text == ">") {
      if (open_.size() > 1) open_.pop_back();
      after_colon_ = false;
    } else if (text == "[") {
      // Not a list: the name of a plugin.
      in_type_ = !after_colon_ && open_.back().type == Any();
      in_list_ = !in_type_;
      type_.clear();
    } else if (text == "]") {
      in_list_ = after_colon_ = false;
    } else if (text == ":") {
      after_colon_ = true;
    } else if (!in_list_) {
      // A name, or the value behind a colon.
      if (!after_colon_ && token.type == Tokenizer::TYPE_IDENTIFIER) {
        Name(text);
      } else if (text != "-") {
        after_colon_ = false;
      }
    }
  }

  const std::string& path() const { return open_.back().path; }
  const Descriptor* type() const { return open_.back().type; }
  int message() const { return open_.back().number; }

 private:
  struct Message {
    std::string path;
    const Descriptor* type;
    const FieldDescriptor* field = nullptr;  // the last one named
    std::string name = {};                   // its
    int number = 0;
  };

  static const Descriptor* Any() { return google::protobuf::Any::descriptor(); }

  void Name(const std::string& text) {
    Message& in = open_.back();
    in.name = text;
    in.field = in.type == nullptr ? nullptr : in.type->FindFieldByName(text);
  }

  void Open() {
    const Message& in = open_.back();
    Message next;
    if (in.type == Any()) {
      next = {in.path, std::exchange(plugin_, nullptr)};
    } else {
      next = {
          absl::StrCat(in.path, in.path.empty() ? "" : ".", in.name),
          in.field == nullptr ? nullptr : in.field->message_type(),
      };
    }
    next.number = ++opened_;
    open_.push_back(std::move(next));
    after_colon_ = in_list_ = false;
  }

  std::vector<Message> open_;
  int opened_ = 0;
  bool after_colon_ = false;
  bool in_list_ = false;  // of values
  bool in_type_ = false;  // in [plugin/capstan.ddp.Config]
  std::string type_;
  const Descriptor* plugin_ = nullptr;
};

}  // namespace

const TextToken* TextPlace::Last(absl::string_view text) const {
  const auto found = std::find_if(
      tokens.rbegin(), tokens.rend(),
      [text](const TextToken& token) { return token.text == text; });
  return found == tokens.rend() ? nullptr : &*found;
}

const TextToken* TextPlace::LastBefore(const TextToken& token,
                                       absl::string_view text) const {
  const TextToken* found = nullptr;
  for (const TextToken& other : tokens) {
    if (&other == &token) break;
    if (other.message == token.message && other.text == text) found = &other;
  }
  return found;
}

TextPlace PlaceIn(const std::string& text, const Descriptor* type, int line,
                  int column) {
  ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  NoErrors errors;
  Tokenizer tokenizer(&input, &errors);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_require_space_after_number(false);
  Nesting nesting(type);
  TextPlace place;
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    const std::pair<int, int> at = {token.line, token.column};
    if (at > std::make_pair(line, column)) break;
    place.tokens.push_back(
        {token.line, token.column, token.text, nesting.message()});
    // What opens or closes a message here isn't yet part of the place.
    if (at < std::make_pair(line, column)) nesting.Take(token);
  }
  place.path = nesting.path();
  place.type = nesting.type();
  return place;
}

bool BeginsAs(const Descriptor* type, absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || absl::StartsWith(line, "//")) {
      continue;
    }
    const auto end = std::find_if(line.begin(), line.end(), [](char c) {
      return !absl::ascii_isalnum(c) && c != '_';
    });
    return type->FindFieldByName(std::string(line.begin(), end)) != nullptr;
  }
  return false;
}

size_t OffsetIn(absl::string_view line, int column) {
  size_t at = 0;
  for (int i = 0; at < line.size() && i < column; ++at) {
    constexpr int kTab = 8;
    i = line[at] == '\t' ? (i / kTab + 1) * kTab : i + 1;
  }
  return at;
}

std::string WithToken(const std::string& line, const TextToken& token,
                      const std::string& text) {
  const size_t at = OffsetIn(line, token.column);
  if (line.compare(at, token.text.size(), token.text) != 0) return line;
  return absl::StrCat(line.substr(0, at), text,
                      line.substr(at + token.text.size()));
}

}  // namespace capstan
