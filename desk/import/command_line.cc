// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "desk/import/settings.h"

namespace capstan::import {
namespace {

struct Word {
  std::string text;
  int line = 1;
  bool ends = false;  // the command ends before it: a line break, ; | or &
};

constexpr size_t kMostExpanded = 16 << 20;  // bytes

bool IsName(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// How many characters a variable's name at the beginning of `text` has.
size_t NameLength(absl::string_view text) {
  return std::find_if_not(text.begin(), text.end(), IsName) - text.begin();
}

// Splits a script into words as a shell does, without comments, quotes,
// redirections and assignments.
class Script {
 public:
  explicit Script(absl::string_view text) : text_(text) {}

  // False if its variables stand for more than settings are.
  bool Split() {
    for (; at_ < text_.size() && spent_ <= kMostExpanded; ++at_) Step();
    EndWord();
    return spent_ <= kMostExpanded;
  }

  int line() const { return line_; }
  const std::vector<Word>& words() const { return words_; }

 private:
  absl::string_view Rest() const { return text_.substr(at_); }
  absl::string_view Next() const { return text_.substr(at_ + 1, 1); }

  // Takes what is at at_, and moves at_ to its last character.
  void Step() {
    const char c = text_[at_];
    const bool quoted = quote_ != 0;
    if (c == '\\' && quote_ != '\'' && !Next().empty()) {
      Escape();
    } else if (quoted ? c == quote_ : c == '"' || c == '\'') {
      open_ = open_ || !quoted;  // a word may be empty
      quote_ = quoted ? 0 : c;
    } else if ((c == '$' && quote_ != '\'') ||
               (!quoted && (c == '<' || c == '>') && Next() == "(")) {
      Expand();
    } else if (quoted) {
      Add(c);
      if (c == '\n') ++line_;
    } else if (c == '<' && BeginHereDocument()) {
    } else if (c == '<' || c == '>' || absl::StartsWith(Rest(), "&>")) {
      Redirect();
    } else if (c == '(' && BeginArray()) {
    } else if (c == ')' && !array_.empty()) {
      EndWord();
      array_.clear();
    } else if (c == '#' && !open_) {
      at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
    } else if (absl::ascii_isspace(c) || c == ';' || c == '&' || c == '|') {
      EndWord();
      if (c == '\n') EndLine();
      if (!absl::ascii_isspace(c) || c == '\n') {
        ends_ = true;
        skips_ = false;
      }
    } else {
      Add(c);
    }
  }

  void Add(char c) {
    word_.push_back(c);
    open_ = true;
  }

  void DropWord() {
    word_.clear();
    open_ = false;
  }

  void EndWord() {
    if (!open_) return;
    const size_t name = NameLength(word_);
    if (skips_) {
      skips_ = false;
    } else if (!array_.empty()) {
      set_[array_].push_back(word_);
    } else if (ends_ && name > 0 && name == word_.find('=')) {
      set_[word_.substr(0, name)] = {word_.substr(name + 1)};
    } else if (!ends_ || word_ != "export") {
      words_.push_back({word_, line_, ends_});
      ends_ = false;
    }
    DropWord();
  }

  void EndLine() {
    ++line_;
    for (const std::string& name : heres_) SkipHereDocument(name);
    heres_.clear();
  }

  void Escape() {
    ++at_;
    if (text_[at_] == '\r' && !Next().empty()) ++at_;
    if (text_[at_] != '\n') return Add(text_[at_]);
    if (quote_ == 0) EndWord();
    ++line_;
  }

  // Of "2>" the number before it and the word behind it are none of the
  // command's.
  void Redirect() {
    if (word_.find_first_not_of("0123456789") == word_.npos) DropWord();
    EndWord();
    skips_ = true;
    at_ = std::min(text_.find_first_not_of("<>&|", at_ + 1), text_.size()) - 1;
  }

  // "NAME=(": what follows are the items of an array.
  bool BeginArray() {
    const size_t name = NameLength(word_);
    const std::string sign = word_.substr(name);
    if (!ends_ || name == 0 || (sign != "=" && sign != "+=")) return false;
    array_ = word_.substr(0, name);
    if (sign == "=") set_[array_].clear();
    DropWord();
    return true;
  }

  // "<<NAME": the lines that follow this one, to NAME, are no words.
  bool BeginHereDocument() {
    absl::string_view rest = Rest();
    if (!absl::ConsumePrefix(&rest, "<<") || absl::StartsWith(rest, "<")) {
      return false;
    }
    const size_t start =
        std::min(rest.find_first_not_of("- \"'\\"), rest.size());
    const size_t length = NameLength(rest.substr(start));
    if (length == 0) return false;
    heres_.emplace_back(rest.substr(start, length));
    const size_t end = start + length;
    const bool quoted =
        end < rest.size() && (rest[end] == '"' || rest[end] == '\'');
    at_ += 1 + end + quoted;
    return true;
  }

  void SkipHereDocument(const std::string& name) {
    while (at_ < text_.size()) {
      const size_t start = at_ + 1;
      at_ = std::min(text_.find('\n', start), text_.size());
      ++line_;
      if (start >= text_.size() || absl::StripAsciiWhitespace(text_.substr(
                                       start, at_ - start)) == name) {
        return;
      }
    }
  }

  // Unquoted, a variable may be several words, as in srun $COMMAND.
  void Expand() {
    const std::vector<std::string> items = Expansion();
    // "$@" of nothing is no word, in quotes neither.
    if (items.empty()) open_ = open_ && !word_.empty();
    for (size_t item = 0; item < items.size(); ++item) {
      spent_ += items[item].size() + sizeof(Word);
      if (item > 0) EndWord();
      if (quote_ != 0) open_ = true;
      for (const char in : items[item]) {
        if (quote_ == 0 && in == ' ') {
          EndWord();
        } else {
          Add(in);
        }
      }
    }
  }

  // What "$NAME", "${NAME}", "${NAME[@]}", "${NAME:-OTHERWISE}", "$(COMMAND)"
  // or ">(COMMAND)" stands for; as it is if the script doesn't set it.
  std::vector<std::string> Expansion() {
    const absl::string_view rest = Rest();
    // What the script itself is given.
    if (absl::StartsWith(rest, "$@") || absl::StartsWith(rest, "$*")) {
      ++at_;
      return {};
    }
    if (Next() == "(") return {Command()};
    const size_t begin = absl::StartsWith(rest, "${") ? 2 : 1;
    size_t end = begin + NameLength(rest.substr(begin));
    const std::string name(rest.substr(begin, end - begin));
    absl::string_view behind;
    if (begin == 2) {
      const size_t close = braces_close_ ? rest.find('}', end) : rest.npos;
      braces_close_ = close != rest.npos;
      if (!braces_close_) return {"$"};
      behind = rest.substr(end, close - end);
      end = close + 1;
    }
    if (end == 1) return {"$"};
    at_ += end - 1;
    if (name.empty() &&
        (absl::StartsWith(behind, "@") || absl::StartsWith(behind, "*"))) {
      return {};
    }
    const auto found = set_.find(name);
    if (found != set_.end()) {
      const bool all = behind == "[@]" || behind == "[*]";
      if (all || found->second.empty()) return found->second;
      return {found->second[0]};
    }
    if (absl::ConsumePrefix(&behind, ":-")) return {std::string(behind)};
    return {std::string(rest.substr(0, end))};
  }

  // What a command says isn't known: one word.
  std::string Command() {
    int depth = 0;
    for (size_t end = at_ + 1; parens_close_ && end < text_.size(); ++end) {
      depth += text_[end] == '(' ? 1 : text_[end] == ')' ? -1 : 0;
      if (depth > 0) continue;
      const absl::string_view command = text_.substr(at_, end + 1 - at_);
      at_ = end;
      return absl::StrReplaceAll(command, {{" ", "_"}});
    }
    parens_close_ = false;
    return "$";
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  char quote_ = 0;  // that is open
  std::vector<Word> words_;
  std::string word_;
  bool open_ = false;   // a word has begun
  bool ends_ = true;    // the command, before the next word
  bool skips_ = false;  // the next word is a redirection's
  std::string array_;   // its name, while its items are read
  // What the script sets; of an array all items.
  std::map<std::string, std::vector<std::string>> set_;
  std::vector<std::string> heres_;  // here-documents behind this line
  size_t spent_ = 0;                // bytes that variables stood for
  // Each false once one was found open: else all that follow it would be
  // searched to the end.
  bool parens_close_ = true, braces_close_ = true;
};

bool IsStarter(absl::string_view name) {
  static constexpr absl::string_view kStarters[] = {
      "accelerate", "torchrun",  "trl",    "llamafactory-cli", "tune",
      "axolotl",    "deepspeed", "python", "python3"};
  return absl::c_linear_search(kStarters, name);
}

// "deepspeed" of "/opt/bin/deepspeed".
std::string BaseName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// Reads the words of one command.
class CommandReader {
 public:
  explicit CommandReader(Settings* read) : read_(read) {}

  void Take(const Word& word) {
    const std::string& text = word.text;
    if (module_) {
      module_ = false;
      Program(text, IsLauncher(text));
    } else if (text == "--") {
      // axolotl's launcher has what is behind it.
      End();
      launching_ = true;
    } else if (text[0] == '$' && (option_.key.empty() || values_ > 0)) {
      // It may be more options, from outside of the script.
      End();
      read_->unread.push_back({absl::StrCat("line ", word.line), text,
                               "the script doesn't set it: write what it "
                               "stands for"});
    } else if (text[0] == '-' && text.find_first_not_of('-') != text.npos &&
               !absl::ascii_isdigit(text[1]) && text[1] != '.') {
      Option(word);
    } else if (!option_.key.empty() && !IsScript(text) &&
               (values_ == 0 || !(launching_ || IsAssignment(text)))) {
      option_.items.push_back(text);
      ++values_;
    } else {
      End();
      Positional(word);
    }
  }

  void End() {
    if (option_.key.empty()) return;
    option_.value =
        option_.items.empty() ? "true"
        : option_.items.size() == 1
            ? option_.items[0]
            : absl::StrCat("[", absl::StrJoin(option_.items, ", "), "]");
    option_.is_list = option_.items.size() > 1;
    if (!option_.is_list) option_.items.clear();
    if (option_.value == "None") option_.is_null = true;
    read_->settings.push_back(std::move(option_));
    option_ = Setting();
  }

 private:
  static bool IsScript(const std::string& text) {
    return absl::EndsWith(text, ".py");
  }

  // tune's and llamafactory-cli's "key=value".
  static bool IsAssignment(absl::string_view text) {
    const absl::string_view name = text.substr(0, text.find('='));
    return !name.empty() && name.size() < text.size() &&
           absl::c_all_of(name, [](char c) { return IsName(c) || c == '.'; });
  }

  // Names that start another program, whose options come before its name.
  static bool IsLauncher(const std::string& name) {
    return name == "accelerate" || name == "torchrun" || name == "deepspeed" ||
           absl::StartsWith(name, "python") ||
           absl::StartsWith(name, "torch.distributed.") ||
           absl::StartsWith(name, "accelerate.");
  }

  void Program(const std::string& name, bool launches) {
    read_->program = name;
    launching_ = launches;
  }

  void Option(const Word& word) {
    End();
    const std::string text = word.text.substr(word.text.find_first_not_of('-'));
    module_ = launching_ && (text == "m" || text == "module");
    if (module_) return;
    const size_t equals = text.find('=');
    option_.key =
        absl::StrCat(launching_ ? "launcher." : "",
                     absl::StrReplaceAll(text.substr(0, equals), {{"-", "_"}}));
    values_ = 0;
    if (equals == text.npos) return;
    option_.items.push_back(text.substr(equals + 1));
    End();
  }

  void Positional(const Word& word) {
    const std::string name = BaseName(word.text);
    if (IsScript(name)) {
      Program(name, false);
    } else if (const size_t equals = word.text.find('=');
               IsAssignment(word.text)) {
      read_->settings.push_back(
          {word.text.substr(0, equals), word.text.substr(equals + 1)});
    } else if (absl::EndsWith(name, ".yaml") || absl::EndsWith(name, ".yml") ||
               absl::EndsWith(name, ".json")) {
      read_->settings.push_back({"config", word.text});
    } else if (name != "launch" && name != "run" && name != "train" &&
               (read_->program.empty() || read_->program == "trl" ||
                IsStarter(name))) {
      // "trl grpo": what it is to do says what is trained.
      Program(read_->program == "trl" ? absl::StrCat("trl ", name) : name,
              IsLauncher(name));
    } else if (read_->program == "tune") {
      // "tune run": torchrun's options, and the recipe.
      launching_ = name == "run";
    }
  }

  Settings* const read_;
  Setting option_;
  int values_ = 0;
  bool launching_ = false;
  bool module_ = false;  // its name is the next word
};

// The first command from `start` on that starts a training; words.size() if
// there is none.
size_t FindCommand(const std::vector<Word>& words, size_t start) {
  bool begins = false;  // nothing before it is of its own command
  for (; start < words.size(); ++start) {
    const std::string name = BaseName(words[start].text);
    begins = words[start].ends || begins;
    if (begins && IsStarter(name)) break;
    // These start another command.
    if (words[start].ends) {
      begins = name == "srun" || name == "exec" || name == "nohup";
    }
  }
  return start;
}

// Of repeated options the last counts, as in argparse.
void KeepLast(std::vector<Setting>* settings) {
  std::set<std::string> seen;
  std::vector<Setting> last;
  for (auto at = settings->rbegin(); at != settings->rend(); ++at) {
    if (seen.insert(at->key).second) last.push_back(std::move(*at));
  }
  settings->assign(std::make_move_iterator(last.rbegin()),
                   std::make_move_iterator(last.rend()));
}

}  // namespace

absl::StatusOr<Settings> ParseCommand(const std::string& path,
                                      absl::string_view text) {
  Script script(text);
  if (!script.Split()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":", script.line(),
        ": its variables stand for more than settings are: give the command "
        "without them"));
  }
  const std::vector<Word>& words = script.words();
  Settings read{path};
  const size_t start = FindCommand(words, 0);
  CommandReader reader(&read);
  size_t i = start;
  for (; i < words.size() && (i == start || !words[i].ends); ++i) {
    reader.Take(words[i]);
  }
  reader.End();
  KeepLast(&read.settings);
  while ((i = FindCommand(words, i)) < words.size()) {
    std::string command = words[i].text;
    const int line = words[i].line;
    for (++i; i < words.size() && !words[i].ends; ++i) {
      if (command.size() < 60) absl::StrAppend(&command, " ", words[i].text);
    }
    read.unread.push_back({absl::StrCat("line ", line), command,
                           "only the first command is read: import this one "
                           "from a file of its own"});
  }
  return read;
}

}  // namespace capstan::import
