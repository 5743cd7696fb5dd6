// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/style.h"

namespace capstan {
namespace {

enum class Kind { kText, kOutput, kStatement, kComment };

struct Element {
  Kind kind;
  std::string body;
  bool trims_before = false;  // {%-
  bool trims_after = false;   // -%}
};

// A token of an expression: a name, number, operator or literal (unquoted).
struct Token {
  bool literal;
  std::string text;

  bool Is(const char* sign) const { return !literal && text == sign; }
};

// Where tags close. Scanning from each tag that isn't closed to the end would
// take quadratic time, so each place's answer is made from those behind it.
class Closes {
 public:
  explicit Closes(absl::string_view text)
      : comment_(Scan(text, "#}", /*quotes=*/false)),
        output_(Scan(text, "}}", /*quotes=*/true)),
        statement_(Scan(text, "%}", /*quotes=*/true)) {}

  // Offset of the close of the tag whose body begins at `at`, at most the
  // text's size; npos if unclosed. A close between quotes doesn't count, except
  // in a comment.
  size_t Find(Kind kind, size_t at) const {
    const uint32_t close = kind == Kind::kComment  ? comment_[at]
                           : kind == Kind::kOutput ? output_[at]
                                                   : statement_[at];
    return close == kNone ? absl::string_view::npos : close;
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  static std::vector<uint32_t> Scan(absl::string_view text, const char* close,
                                    bool quotes) {
    std::vector<uint32_t> found(text.size() + 1, kNone);
    // By place, from within quotes of each sort: behind the next one.
    std::vector<uint32_t> behind[2];
    for (auto& places : behind) places.assign(text.size() + 2, kNone);
    for (size_t at = text.size(); at-- > 0;) {
      const char c = text[at];
      for (int quote : {0, 1}) {
        if (c == '\\') {
          behind[quote][at] = behind[quote][at + 2];
        } else if (c == (quote == 0 ? '\'' : '"')) {
          behind[quote][at] = static_cast<uint32_t>(at + 1);
        } else {
          behind[quote][at] = behind[quote][at + 1];
        }
      }
      if (quotes && (c == '\'' || c == '"')) {
        const uint32_t next = behind[c == '"' ? 1 : 0][at + 1];
        if (next != kNone) found[at] = found[next];
      } else if (c == close[0] && at + 1 < text.size() &&
                 text[at + 1] == close[1]) {
        found[at] = static_cast<uint32_t>(at);
      } else {
        found[at] = found[at + 1];
      }
    }
    return found;
  }

  const std::vector<uint32_t> comment_;
  const std::vector<uint32_t> output_;
  const std::vector<uint32_t> statement_;
};

struct Tag {
  absl::string_view open;
  Kind kind;
};
constexpr Tag kTags[] = {
    {"{%", Kind::kStatement}, {"{#", Kind::kComment}, {"{{", Kind::kOutput}};

std::vector<Element> Split(absl::string_view text) {
  const Closes closes(text);
  std::vector<Element> elements;
  std::string plain;
  size_t at = 0;
  while (at < text.size()) {
    const Tag* const tag = std::find_if(
        std::begin(kTags), std::end(kTags),
        [&](const Tag& t) { return text.substr(at, 2) == t.open; });
    const size_t close = tag == std::end(kTags)
                             ? absl::string_view::npos
                             : closes.Find(tag->kind, at + 2);
    if (close == absl::string_view::npos) {
      plain += text[at++];
      continue;
    }
    elements.push_back({Kind::kText, plain});
    plain.clear();
    Element element{tag->kind,
                    std::string(text.substr(at + 2, close - at - 2))};
    std::string& body = element.body;
    if (!body.empty() && body.front() == '-') {
      element.trims_before = true;
      body.erase(0, 1);
    }
    if (!body.empty() && body.back() == '-') {
      element.trims_after = true;
      body.pop_back();
    }
    elements.push_back(element);
    at = close + 2;
  }
  // Jinja drops one newline at the end of a template.
  if (!plain.empty() && plain.back() == '\n') plain.pop_back();
  elements.push_back({Kind::kText, plain});
  return elements;
}

// Plain text after lstrip_blocks, trim_blocks and '-'.
std::string TrimmedText(const Element* before, const std::string& text,
                        const Element* after) {
  absl::string_view out = text;
  if (before != nullptr && before->trims_after) {
    out = absl::StripLeadingAsciiWhitespace(out);
  } else if (before != nullptr && before->kind != Kind::kOutput &&
             !out.empty() && out.front() == '\n') {
    out.remove_prefix(1);
  }
  if (after != nullptr && after->trims_before) {
    out = absl::StripTrailingAsciiWhitespace(out);
  } else if (after != nullptr && after->kind != Kind::kOutput) {
    size_t end = out.size();
    while (end > 0 && (out[end - 1] == ' ' || out[end - 1] == '\t')) --end;
    const bool line_start =
        end > 0 ? out[end - 1] == '\n'
                : before == nullptr || out.data() != text.data();
    if (line_start) out = out.substr(0, end);
  }
  return std::string(out);
}

std::string Unescaped(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'n') {
      out += '\n';
    } else if (c == 't') {
      out += '\t';
    } else if (c == '\\' || c == '\'' || c == '"') {
      out += c;
    } else {
      out += {'\\', c};
    }
  }
  return out;
}

bool IsName(char c) { return absl::ascii_isalnum(c) || c == '_'; }

std::vector<Token> Tokens(absl::string_view text, absl::string_view bos,
                          absl::string_view eos) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t end = i + 1;
    if (absl::ascii_isspace(c)) {
      i = end;
      continue;
    }
    if (c == '\'' || c == '"') {
      while (end < text.size() && text[end] != c) {
        end += text[end] == '\\' ? 2 : 1;
      }
      end = std::min(end, text.size());
      tokens.push_back({true, Unescaped(text.substr(i + 1, end - i - 1))});
      i = end + 1;
      continue;
    }
    if (IsName(c)) {
      while (end < text.size() && IsName(text[end])) ++end;
    } else if (end < text.size() && text[end] == '=' &&
               absl::string_view("=!<>").find(c) != absl::string_view::npos) {
      ++end;
    }
    const std::string word(text.substr(i, end - i));
    i = end;
    const bool member = !tokens.empty() && tokens.back().Is(".");
    if (member && IsName(word[0])) {  // a.b is a['b']
      tokens.pop_back();
      tokens.insert(tokens.end(), {{false, "["}, {true, word}, {false, "]"}});
    } else if (word == "bos_token" || word == "eos_token") {
      tokens.push_back({true, std::string(word[0] == 'b' ? bos : eos)});
    } else {
      tokens.push_back({false, word});
    }
  }
  return tokens;
}

// Folds 'a' + 'b' into 'ab'; drops the arguments of raise_exception.
std::vector<Token> Joined(const std::vector<Token>& tokens) {
  std::vector<Token> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool filtered = i + 1 < tokens.size() && tokens[i + 1].Is("|");
    const size_t size = out.size();
    if (tokens[i].literal && !filtered && size >= 2 && out[size - 1].Is("+") &&
        out[size - 2].literal) {
      out.pop_back();
      out.back().text += tokens[i].text;
    } else if (tokens[i].literal && size >= 2 && out[size - 1].Is("(") &&
               out[size - 2].Is("raise_exception")) {
      continue;
    } else {
      out.push_back(tokens[i]);
    }
  }
  return out;
}

// Index after the token that closes the bracket tokens[at].
size_t Behind(const std::vector<Token>& tokens, size_t at) {
  int depth = 0;
  for (; at < tokens.size(); ++at) {
    if (tokens[at].Is("(") || tokens[at].Is("[")) ++depth;
    if (tokens[at].Is(")") || tokens[at].Is("]")) --depth;
    if (depth == 0) return at + 1;
  }
  return at;
}

// Control bytes as unambiguous separators.
constexpr char kLiteral = '\1';
constexpr char kOutputMark = '\2';
constexpr char kStatementMark = '\3';

std::string Spelled(const std::vector<Token>& tokens) {
  std::string out;
  for (const Token& token : tokens) {
    absl::StrAppend(&out, " ", token.literal ? std::string(1, kLiteral) : "",
                    token.text);
  }
  return out;
}

// Builds the normal form; merges consecutive literal outputs.
class Writer {
 public:
  void Literal(absl::string_view text) {
    if (text.empty()) return;
    if (!in_literal_) out_ += kLiteral;
    out_.append(text.data(), text.size());
    in_literal_ = true;
  }
  void Mark(char mark, const std::vector<Token>& tokens) {
    absl::StrAppend(&out_, std::string(1, mark), Spelled(tokens));
    in_literal_ = false;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
  bool in_literal_ = false;
};

// {{ a + b }} becomes {{ a }}{{ b }} if + is its last operation.
void WriteOutput(const std::vector<Token>& tokens, Writer* writer) {
  std::vector<std::vector<Token>> terms(1);
  bool sum = true;
  for (size_t i = 0; i < tokens.size();) {
    if (tokens[i].Is("+")) {
      terms.emplace_back();
      ++i;
      continue;
    }
    for (const char* other : {"if", "else", "and", "or", "not", "in", "is",
                              "==", "!=", "<", ">", "<=", ">=", "~", "-"}) {
      if (tokens[i].Is(other)) sum = false;
    }
    const size_t end =
        tokens[i].Is("(") || tokens[i].Is("[") ? Behind(tokens, i) : i + 1;
    terms.back().insert(terms.back().end(), tokens.begin() + i,
                        tokens.begin() + end);
    i = end;
  }
  if (!sum) terms = {tokens};
  for (const std::vector<Token>& term : terms) {
    if (term.size() == 1 && term[0].literal) {
      writer->Literal(term[0].text);
    } else {
      writer->Mark(kOutputMark, term);
    }
  }
}

void WriteStatement(std::vector<Token> tokens, Writer* writer) {
  // Markers of training spans produce no output.
  if (tokens.size() == 1 &&
      (tokens[0].Is("generation") || tokens[0].Is("endgeneration"))) {
    return;
  }
  // if (a) is if a.
  if (tokens.size() > 2 && (tokens[0].Is("if") || tokens[0].Is("elif")) &&
      tokens[1].Is("(") && Behind(tokens, 1) == tokens.size()) {
    tokens.erase(tokens.begin() + 1);
    tokens.pop_back();
  }
  writer->Mark(kStatementMark, tokens);
}

// Normalizes a Jinja template: templates that differ only in quotes, white
// space, line breaks, comments, a.b versus a['b'], how output is split and the
// like get the same text. Substitutes the variables bos_token and eos_token.
// White space follows transformers' settings (trim_blocks, lstrip_blocks). Text
// that isn't Jinja is returned in some form, too.
//
// Not an engine: expressions are compared as text.
std::string NormalJinja(absl::string_view text, absl::string_view bos,
                        absl::string_view eos) {
  const std::vector<Element> elements = Split(text);
  Writer writer;
  for (size_t i = 0; i < elements.size(); ++i) {
    const Element& element = elements[i];
    if (element.kind == Kind::kText) {
      writer.Literal(
          TrimmedText(i > 0 ? &elements[i - 1] : nullptr, element.body,
                      i + 1 < elements.size() ? &elements[i + 1] : nullptr));
    } else if (element.kind == Kind::kOutput) {
      WriteOutput(Joined(Tokens(element.body, bos, eos)), &writer);
    } else if (element.kind == Kind::kStatement) {
      WriteStatement(Joined(Tokens(element.body, bos, eos)), &writer);
    }
  }
  // A default for a variable that is false when undefined has no effect.
  const std::string stop(1, kStatementMark);
  const std::string set_false =
      absl::StrCat(stop, " set add_generation_prompt = false", stop, " endif");
  return absl::StrReplaceAll(
      writer.Take(),
      {{absl::StrCat(stop, " if not add_generation_prompt is defined",
                     set_false),
        ""},
       {absl::StrCat(stop, " if add_generation_prompt is not defined",
                     set_false),
        ""}});
}

// Known templates have up to 20 KB.
constexpr size_t kMaxTemplateBytes = 1 << 20;
// Of a token that a template may write at any place.
constexpr size_t kMaxTokenBytes = 256;

std::string TextOf(const Tokenizer& tokenizer, int64_t id) {
  return id < 0 ? "" : tokenizer.Decode({id});
}

absl::Status CheckSizes(const std::string& jinja, const std::string& bos,
                        const std::string& eos) {
  const auto too_long = [](const char* what, size_t bytes, size_t most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer's ", what, " has ", bytes,
                     " bytes, more than the limit of ", most));
  };
  if (jinja.size() > kMaxTemplateBytes) {
    return too_long("chat template", jinja.size(), kMaxTemplateBytes);
  }
  if (bos.size() > kMaxTokenBytes) {
    return too_long("bos_token", bos.size(), kMaxTokenBytes);
  }
  if (eos.size() > kMaxTokenBytes) {
    return too_long("eos_token", eos.size(), kMaxTokenBytes);
  }
  return absl::OkStatus();
}

bool IsSpelling(const ChatStyle& style, const std::string& normal) {
  if (NormalJinja(style.jinja, style.bos, "") == normal) return true;
  for (const std::string& other : style.other_jinja) {
    if (NormalJinja(other, style.bos, "") == normal) return true;
  }
  return false;
}

// For the error: the named template whose turns the text seems to use.
std::string Alike(const std::string& jinja, const Tokenizer& tokenizer) {
  if (absl::StrContains(jinja, "named SmolLM")) return "smollm2";
  if (absl::StrContains(jinja, "<|im_start|>")) return "chatml";
  if (absl::StrContains(jinja, "<start_of_turn>")) return "gemma";
  if (absl::StrContains(jinja, "<|start_header_id|>")) {
    return tokenizer.IdOf("<|startoftext|>").has_value() ? "llada" : "llama3";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Recognise(
    const Tokenizer& tokenizer) {
  const std::string jinja = tokenizer.chat_template();
  const std::string names = absl::StrJoin(Names(), ", ");
  if (jinja.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the tokenizer has no chat template: set one of ", names,
                     ", for instance chat_template: \"chatml\""));
  }
  const Tokenizer::SpecialIds ids = tokenizer.special_ids();
  const std::string bos = TextOf(tokenizer, ids.bos);
  const std::string eos = TextOf(tokenizer, ids.eos);
  CAPSTAN_RETURN_IF_ERROR(CheckSizes(jinja, bos, eos));
  const std::string normal = NormalJinja(jinja, bos, eos);
  for (const ChatStyle& style : ChatStyles()) {
    if (IsSpelling(style, normal)) return Named(style.name);
  }
  const std::string alike = Alike(jinja, tokenizer);
  return absl::UnimplementedError(absl::StrCat(
      "the tokenizer's chat template is none that is known (", names, "): ",
      alike.empty()
          ? std::string("set the one to train with, for instance "
                        "chat_template: \"chatml\"")
          : absl::StrCat("it writes turns as ", alike,
                         " does, and something else besides; to train with "
                         "that one, set chat_template: \"",
                         alike, "\"")));
}

}  // namespace capstan
