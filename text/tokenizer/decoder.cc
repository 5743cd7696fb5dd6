// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/decoder.h"

#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// Transforms a token's text. Returns false if the result is raw bytes, which
// later steps must not touch.
using Step = std::function<bool(std::string*)>;

Step ByteLevelStep() {
  return [](std::string* token) {
    std::string bytes;
    if (CharactersToBytes(*token, &bytes)) *token = std::move(bytes);
    return false;
  };
}

// "<0x0A>" is byte 10.
bool ByteFallback(std::string* token) {
  if (token->size() != 6 || !absl::StartsWith(*token, "<0x") ||
      (*token)[5] != '>' || !absl::ascii_isxdigit((*token)[3]) ||
      !absl::ascii_isxdigit((*token)[4])) {
    return true;
  }
  *token = absl::HexStringToBytes(token->substr(3, 2));
  return false;
}

Step ReplaceStep(std::string from, std::string to, Budget* budget) {
  return
      [from = std::move(from), to = std::move(to), budget](std::string* token) {
        LiteralMatches matches(from, *token);
        size_t begin = 0;
        size_t end = 0;
        while (matches.Next(&begin, &end)) budget->Charge(to.size());
        *token = absl::StrReplaceAll(*token, {{from, to}});
        return true;
      };
}

Step StripStep(std::string content, int64_t start, int64_t stop) {
  return [content = std::move(content), start, stop](std::string* token) {
    absl::string_view rest = *token;
    for (int64_t i = 0; i < start && absl::StartsWith(rest, content); ++i) {
      rest.remove_prefix(content.size());
    }
    for (int64_t i = 0; i < stop && absl::EndsWith(rest, content); ++i) {
      rest.remove_suffix(content.size());
    }
    *token = std::string(rest);
    return true;
  };
}

class Maker {
 public:
  explicit Maker(Budget* budget) : budget_(budget) {}

  absl::Status Add(const JsonNode& node, const std::string& type) {
    if (steps_.size() >= kMaxSteps) {
      return node.Unsupported("there are too many decoders");
    }
    if (type == "Strip") return AddStrip(node);
    if (fused_) {
      return node.Unsupported("\"", type, "\" behind Fuse isn't supported");
    }
    if (type == "Replace") return AddReplace(node);
    if (type == "Metaspace") return AddMetaspace(node);
    if (type == "ByteLevel") {
      CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(
          {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
      steps_.push_back(ByteLevelStep());
      return absl::OkStatus();
    }
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type"}));
    if (type == "ByteFallback") {
      steps_.emplace_back(ByteFallback);
      return absl::OkStatus();
    }
    if (type == "Fuse") {
      fused_ = true;
      return absl::OkStatus();
    }
    return node.Unsupported("a decoder of type \"", type, "\" isn't supported");
  }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  absl::Status AddReplace(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "pattern", "content"}));
    CAPSTAN_ASSIGN_OR_RETURN(Pattern pattern,
                             MakePattern(node.Member("pattern")));
    CAPSTAN_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    if (pattern.regex != nullptr) {
      return node.Member("pattern").Unsupported(
          "a regular expression isn't supported in a decoder");
    }
    steps_.push_back(
        ReplaceStep(std::move(pattern.literal), std::move(content), budget_));
    return absl::OkStatus();
  }

  absl::Status AddMetaspace(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(
        node.CheckMembers({"type", "replacement", "str_rep", "prepend_scheme",
                           "add_prefix_space", "split"}));
    CAPSTAN_ASSIGN_OR_RETURN(std::string mark, node.String("replacement"));
    if (mark.empty()) return node.Member("replacement").Invalid("is empty");
    steps_.push_back(ReplaceStep(std::move(mark), " ", budget_));
    return absl::OkStatus();
  }

  absl::Status AddStrip(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(
        node.CheckMembers({"type", "content", "start", "stop"}));
    CAPSTAN_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t start, node.Int("start"));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t stop, node.Int("stop"));
    if (content.empty()) return node.Member("content").Invalid("is empty");
    if (!fused_) steps_.push_back(StripStep(std::move(content), start, stop));
    return absl::OkStatus();
  }

  Budget* const budget_;
  std::vector<Step> steps_;
  bool fused_ = false;  // tokens are joined: steps see the whole text
};

}  // namespace

absl::StatusOr<Decoder> Decoder::Make(const JsonNode& node,
                                      const Vocabulary& vocabulary) {
  if (node.IsNull()) {
    return node.Unsupported(
        "there is none: how tokens become text must be said");
  }
  size_t bytes = 0;
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    bytes += vocabulary.TokenOf(id).size();
  }
  Budget budget;
  budget.Begin(bytes);
  Maker maker(&budget);
  CAPSTAN_RETURN_IF_ERROR(ForEachStep(
      node, "decoders", [&](const JsonNode& step, const std::string& type) {
        return maker.Add(step, type);
      }));
  Decoder decoder;
  decoder.begins_.push_back(0);
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    std::string token(vocabulary.TokenOf(id));
    for (const Step& step : maker.steps()) {
      budget.Tick();
      if (!step(&token)) break;
    }
    decoder.bytes_ += token;
    if (decoder.bytes_.size() >= (uint64_t{1} << 32)) {
      return node.Unsupported("tokens of more than 4 GiB aren't supported");
    }
    decoder.begins_.push_back(static_cast<uint32_t>(decoder.bytes_.size()));
  }
  return decoder;
}

std::string Decoder::Decode(absl::Span<const int64_t> ids) const {
  std::string text;
  const auto tokens = static_cast<int64_t>(begins_.size()) - 1;
  for (int64_t id : ids) {
    if (id < 0 || id >= tokens) continue;
    text.append(bytes_, begins_[id], begins_[id + 1] - begins_[id]);
  }
  return text;
}

namespace {

// Of both sides together; known files have two.
constexpr size_t kMaxEnds = 64;

absl::Status CheckId(const JsonNode& node, int64_t id,
                     const Vocabulary& vocabulary) {
  if (id >= 0 && id < vocabulary.size() && vocabulary.Has(id)) {
    return absl::OkStatus();
  }
  return node.Invalid(id, " is the id of no token");
}

// Ids of a template's special token.
absl::StatusOr<std::vector<int64_t>> SpecialIds(const JsonNode& processor,
                                                const std::string& name,
                                                const Vocabulary& vocabulary) {
  const JsonNode token = processor.Member("special_tokens").Member(name);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items,
                           token.Items("ids"));
  std::vector<int64_t> ids;
  if (items.size() > kMaxEnds) return token.Invalid("has too many ids");
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, item.Int());
    CAPSTAN_RETURN_IF_ERROR(CheckId(item, id, vocabulary));
    ids.push_back(id);
  }
  return ids;
}

absl::Status AddTemplate(const JsonNode& node, const Vocabulary& vocabulary,
                         Ends* ends) {
  CAPSTAN_RETURN_IF_ERROR(
      node.CheckMembers({"type", "single", "pair", "special_tokens"}));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items,
                           node.Items("single"));
  Ends made;
  int texts = 0;
  if (items.size() > kMaxEnds) {
    return node.Member("single").Invalid("has more than ", kMaxEnds, " items");
  }
  for (const JsonNode& item : items) {
    const JsonNode special = item.Member("SpecialToken");
    if (special.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string id,
                               item.Member("Sequence").String("id"));
      if (id != "A") return item.Invalid("must be sequence A");
      ++texts;
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                             SpecialIds(node, name, vocabulary));
    std::vector<int64_t>* const side = texts == 0 ? &made.before : &made.behind;
    side->insert(side->end(), ids.begin(), ids.end());
  }
  if (texts != 1) {
    return node.Member("single").Invalid("must have sequence A once");
  }
  // Goes outside what an earlier processor added.
  ends->before.insert(ends->before.begin(), made.before.begin(),
                      made.before.end());
  ends->behind.insert(ends->behind.end(), made.behind.begin(),
                      made.behind.end());
  return absl::OkStatus();
}

// ["</s>", 2]
absl::StatusOr<int64_t> PairId(const JsonNode& node,
                               const Vocabulary& vocabulary) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, node.Items());
  if (pair.size() != 2) return node.Invalid("must be [\"token\", id]");
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, pair[1].Int());
  CAPSTAN_RETURN_IF_ERROR(CheckId(pair[1], id, vocabulary));
  return id;
}

absl::Status Add(const JsonNode& node, const std::string& type,
                 const Vocabulary& vocabulary, Ends* ends) {
  if (type == "ByteLevel") {
    // ByteLevel only trims spaces from offsets. Our offsets cover all of a
    // token's bytes.
    return node.CheckMembers(
        {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "TemplateProcessing") return AddTemplate(node, vocabulary, ends);
  if (type == "RobertaProcessing") {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(
        {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t cls,
                             PairId(node.Member("cls"), vocabulary));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t sep,
                             PairId(node.Member("sep"), vocabulary));
    ends->before.insert(ends->before.begin(), cls);
    ends->behind.push_back(sep);
    return absl::OkStatus();
  }
  return node.Unsupported("a post-processor of type \"", type,
                          "\" isn't supported");
}

}  // namespace

absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary) {
  Ends ends;
  if (node.IsNull()) return ends;
  CAPSTAN_RETURN_IF_ERROR(ForEachStep(
      node, "processors", [&](const JsonNode& step, const std::string& type) {
        if (ends.before.size() + ends.behind.size() > kMaxEnds) {
          return step.Invalid("there are more than ", kMaxEnds,
                              " tokens around a text");
        }
        return Add(step, type, vocabulary, &ends);
      }));
  return ends;
}

}  // namespace capstan::tokenizer
