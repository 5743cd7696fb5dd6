// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/python_source.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "inference/evaluate/python_literal.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

// A statement at the left margin, with what belongs to it.
struct Block {
  std::string code;  // lines, each with its end
  std::vector<std::string> defines;
};

bool IsWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
}

std::string WordAt(absl::string_view text) {
  size_t size = 0;
  while (size < text.size() && IsWord(text[size])) ++size;
  return std::string(text.substr(0, size));
}

std::set<std::string> WordsOf(absl::string_view code) {
  std::set<std::string> words;
  while (!code.empty()) {
    const std::string word = WordAt(code);
    if (!word.empty()) words.insert(word);
    code.remove_prefix(std::max<size_t>(word.size(), 1));
  }
  return words;
}

// How many brackets a line leaves open, and whether it opens or closes a text
// of three quotes. Quotes within comments and odd texts may mislead it; then
// blocks are larger than they are, and digests stay digests.
void Follow(absl::string_view line, int* open, std::string* text) {
  while (!line.empty()) {
    if (!text->empty()) {
      if (absl::StartsWith(line, *text)) {
        line.remove_prefix(text->size());
        text->clear();
      } else {
        line.remove_prefix(line[0] == '\\' && line.size() > 1 ? 2 : 1);
      }
      continue;
    }
    const char c = line[0];
    if (c == '#') return;
    if (c == '"' || c == '\'') {
      const std::string three(3, c);
      *text = absl::StartsWith(line, three) ? three : std::string(1, c);
      line.remove_prefix(text->size());
      continue;
    }
    if (absl::StrContains("([{", c)) ++*open;
    if (absl::StrContains(")]}", c)) --*open;
    line.remove_prefix(1);
  }
}

std::vector<std::string> Definitions(absl::string_view code) {
  absl::string_view rest = code.substr(0, code.find('\n'));
  absl::ConsumePrefix(&rest, "async ");
  if (absl::ConsumePrefix(&rest, "def ") ||
      absl::ConsumePrefix(&rest, "class ")) {
    return {WordAt(absl::StripLeadingAsciiWhitespace(rest))};
  }
  if (absl::StartsWith(rest, "import ") || absl::StartsWith(rest, "from ")) {
    const size_t names = code.find("import ");
    if (names == code.npos) return {};
    const std::set<std::string> words = WordsOf(code.substr(names + 7));
    return {words.begin(), words.end()};
  }
  const std::string word = WordAt(rest);
  rest.remove_prefix(word.size());
  rest = absl::StripLeadingAsciiWhitespace(rest);
  const bool assigns =
      absl::StartsWith(rest, ":") ||
      (absl::StartsWith(rest, "=") && !absl::StartsWith(rest, "=="));
  // try:, else: and their like define what is in them.
  if (!assigns || word == "try" || word == "else" || word == "finally") {
    const std::set<std::string> words = WordsOf(code);
    return {words.begin(), words.end()};
  }
  return {word};
}

std::vector<Block> BlocksOf(absl::string_view source) {
  std::vector<Block> blocks;
  int open = 0;
  std::string text;
  bool decorated = false;
  for (const absl::string_view line : absl::StrSplit(source, '\n')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (text.empty() && (stripped.empty() || stripped[0] == '#')) continue;
    const bool inside = open > 0 || !text.empty() || line[0] == ' ' ||
                        line[0] == '\t' || line[0] == ')' || decorated;
    if (!inside || blocks.empty()) blocks.emplace_back();
    decorated = !inside && line[0] == '@';
    absl::StrAppend(&blocks.back().code,
                    absl::StripTrailingAsciiWhitespace(line), "\n");
    Follow(line, &open, &text);
    if (text.size() == 1) text.clear();  // such a text ends with its line
  }
  for (Block& block : blocks) block.defines = Definitions(block.code);
  return blocks;
}

// What stands behind NAME = of an assignment; empty if it is none.
absl::string_view RightSide(const Block& block) {
  if (block.defines.size() != 1) return "";
  absl::string_view rest = block.code;
  if (!absl::ConsumePrefix(&rest, block.defines[0])) return "";
  const size_t equals = rest.find('=');
  if (equals == rest.npos) return "";
  return absl::StripAsciiWhitespace(rest.substr(equals + 1));
}

// partial(FUNCTION, name=LITERAL, ..): the function, and its arguments.
absl::optional<std::pair<std::string, Json>> Partial(absl::string_view right) {
  absl::ConsumePrefix(&right, "functools.");
  if (!absl::ConsumePrefix(&right, "partial(") ||
      !absl::ConsumeSuffix(&right, ")")) {
    return absl::nullopt;
  }
  right = absl::StripAsciiWhitespace(right);
  const std::string function = WordAt(right);
  right.remove_prefix(function.size());
  if (!absl::ConsumePrefix(&right, ",")) return absl::nullopt;
  // name=value, .. is almost a dictionary's {"name": value, ..}.
  std::string dictionary = "{";
  int open = 0;
  std::string text;
  bool names = true;
  for (size_t i = 0; i < right.size(); ++i) {
    Follow(right.substr(i, 1), &open, &text);
    const std::string word = names ? WordAt(right.substr(i)) : "";
    if (names && !word.empty()) {
      absl::StrAppend(&dictionary, "\"", word, "\"");
      i += word.size() - 1;
      names = false;
    } else if (open == 0 && right[i] == '=') {
      absl::StrAppend(&dictionary, ":");
    } else {
      dictionary.push_back(right[i]);
      if (open == 0 && right[i] == ',') names = true;
    }
  }
  absl::optional<Json> arguments = PythonLiteral(dictionary + "}");
  if (!arguments.has_value()) return absl::nullopt;
  return std::make_pair(function, *std::move(arguments));
}

uint64_t Fnv1a(absl::string_view text, uint64_t hash) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

// Assignments of constants on lines of their own, within `code`.
void AddLocals(absl::string_view code, Json* constants) {
  for (const absl::string_view line : absl::StrSplit(code, '\n')) {
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(line);
    const std::string word = WordAt(rest);
    if (rest.size() == line.size() || word.empty()) continue;
    rest.remove_prefix(word.size());
    if (!absl::ConsumePrefix(&rest, " = ") || constants->contains(word)) {
      continue;
    }
    if (absl::optional<Json> value = PythonLiteral(rest); value.has_value()) {
      (*constants)[word] = *std::move(value);
    }
  }
}

// The one expression that a function returns, after its description; empty if
// there is more to it.
absl::string_view Returned(absl::string_view code) {
  if (!absl::StartsWith(code, "def ")) return "";
  std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripAsciiWhitespace(code), '\n');
  if (lines.size() == 3 &&
      absl::StartsWith(absl::StripAsciiWhitespace(lines[1]), "\"\"\"")) {
    lines.erase(lines.begin() + 1);
  }
  if (lines.size() != 2) return "";
  absl::string_view last = absl::StripAsciiWhitespace(lines[1]);
  return absl::ConsumePrefix(&last, "return ") ? last : "";
}

// The definitions of a file.
class Module {
 public:
  explicit Module(absl::string_view source) : blocks_(BlocksOf(source)) {
    for (const Block& block : blocks_) {
      for (const std::string& word : block.defines) {
        defined_[word].push_back(&block);
      }
    }
  }

  bool Defines(const std::string& name) const {
    return defined_.count(name) != 0;
  }
  const Block& Last(const std::string& name) const {
    return *defined_.at(name).back();
  }

  struct Digests {
    uint64_t code = 0;
    uint64_t whole = 0;
  };
  // Of what `name` reaches; its constants are added to `constants`, which may
  // hold arguments.
  Digests DigestsOf(const std::string& name, Json* constants) const {
    std::set<const Block*> reached;
    std::set<std::string> seen;
    std::vector<std::string> open = {name};
    while (!open.empty()) {
      const std::string word = open.back();
      open.pop_back();
      if (!seen.insert(word).second || !Defines(word)) continue;
      for (const Block* block : defined_.at(word)) {
        if (absl::optional<Json> value = Constant(word, *block);
            value.has_value()) {
          (*constants)[word] = *std::move(value);
          continue;
        }
        reached.insert(block);
        for (const std::string& next : WordsOf(block->code)) {
          open.push_back(next);
        }
      }
    }
    Digests digests = {0xcbf29ce484222325};
    for (const Block& block : blocks_) {
      if (reached.count(&block) == 0) continue;
      digests.code = Fnv1a(block.code, digests.code);
    }
    digests.whole = digests.code;
    for (const auto& [word, value] :
         constants->get<std::map<std::string, Json>>()) {
      const std::string text = JsonText(value);
      digests.whole = Fnv1a(absl::StrCat(word, "=", text, "\n"), digests.whole);
    }
    for (const Block* block : reached) AddLocals(block->code, constants);
    return digests;
  }

  // The function that `name` only calls, and the constants that it gives it.
  absl::optional<std::pair<std::string, Json>> Inner(
      const std::string& name) const {
    const Block& block = Last(name);
    absl::string_view call = Returned(block.code);
    if (call.empty()) call = RightSide(block);
    const std::string function = WordAt(call);
    call.remove_prefix(function.size());
    if (!Defines(function) || !absl::ConsumePrefix(&call, "(") ||
        !absl::ConsumeSuffix(&call, ")")) {
      return absl::nullopt;
    }
    Json arguments = Json::array();
    for (const absl::string_view part : absl::StrSplit(call, ", ")) {
      if (WordAt(part) == part && !Defines(std::string(part))) continue;
      absl::optional<Json> value = ValueOf(part);
      if (!value.has_value()) return absl::nullopt;
      arguments.push_back(*std::move(value));
    }
    if (arguments.empty()) return absl::nullopt;
    return std::make_pair(function, std::move(arguments));
  }

 private:
  absl::optional<Json> Constant(const std::string& word,
                                const Block& block) const {
    if (defined_.at(word).size() != 1) return absl::nullopt;
    return PythonLiteral(RightSide(block));
  }

  // A literal, or an entry of a dictionary that is a constant.
  absl::optional<Json> ValueOf(absl::string_view text) const {
    const std::string word = WordAt(text);
    if (!Defines(word)) return PythonLiteral(text);
    const absl::optional<Json> constant = Constant(word, Last(word));
    text.remove_prefix(word.size());
    if (!constant.has_value() || !constant->is_object() ||
        !absl::ConsumePrefix(&text, "[") || !absl::ConsumeSuffix(&text, "]")) {
      return absl::nullopt;
    }
    const absl::optional<Json> key = PythonLiteral(text);
    if (!key.has_value() || !key->is_string()) return absl::nullopt;
    const auto found = constant->find(key->get<std::string>());
    if (found == constant->end()) return absl::nullopt;
    return *found;
  }

  const std::vector<Block> blocks_;
  std::map<std::string, std::vector<const Block*>> defined_;
};

}  // namespace

absl::StatusOr<PythonFunction> FindPythonFunction(const std::string& path,
                                                  const std::string& name) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string source, ReadWholeFile(path));
  const Module module(source);
  if (!module.Defines(name)) {
    return absl::NotFoundError(
        absl::StrCat(path, " defines no \"", name, "\""));
  }
  PythonFunction function;
  function.name = name;
  if (auto partial = Partial(RightSide(module.Last(name)));
      partial.has_value()) {
    function.name = partial->first;
    function.constants = std::move(partial->second);
  }
  const Module::Digests digests =
      module.DigestsOf(function.name, &function.constants);
  function.digest = digests.code;
  function.whole_digest = digests.whole;
  if (!module.Defines(function.name)) return function;
  if (auto inner = module.Inner(function.name); inner.has_value()) {
    function.inner_digest =
        module.DigestsOf(inner->first, &function.constants).code;
    function.constants["arguments"] = std::move(inner->second);
  }
  return function;
}

}  // namespace capstan::evaluate
