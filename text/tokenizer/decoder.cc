// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/decoder.h"

#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// Transforms a token's text. Returns false if the result is raw bytes, which
// later steps must not touch.
using Step = std::function<bool(std::string*)>;

bool ToBytes(std::string* token) {
  std::string bytes;
  if (CharactersToBytes(*token, &bytes)) *token = std::move(bytes);
  return false;
}

bool ByteFallback(std::string* token) {
  const int byte = ByteOfToken(*token);
  if (byte < 0) return true;
  *token = std::string(1, static_cast<char>(byte));
  return false;
}

Step NormalizerStep(std::unique_ptr<Normalizer> normalizer, RegexState* state) {
  // Steps are copied.
  const std::shared_ptr<const Normalizer> shared = std::move(normalizer);
  return [shared, state](std::string* token) {
    std::string changed;
    Alignment alignment;
    if (shared->Apply(*token, state, &changed, &alignment)) {
      *token = std::move(changed);
    }
    return true;
  };
}

bool AddSpace(std::string* token) {
  token->insert(0, " ");
  return true;
}

// The rules of WordPiece's "cleanup", each for all of a token before the next.
std::string CleanUp(std::string text) {
  static constexpr const char* kRules[][2] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) {
    text = absl::StrReplaceAll(text, {{from, to}});
  }
  return text;
}

Step WordPieceStep(std::string prefix, bool cleanup) {
  return [prefix = std::move(prefix), cleanup](std::string* token) {
    if (absl::StartsWith(*token, prefix)) {
      token->erase(0, prefix.size());
    } else {
      token->insert(0, " ");
    }
    if (cleanup) *token = CleanUp(std::move(*token));
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
  explicit Maker(RegexState* state) : state_(state) {}

  absl::Status Add(const JsonNode& node, const std::string& type) {
    if (steps_.size() >= kMaxSteps) {
      return node.Unsupported("there are too many decoders");
    }
    if (type == "Strip") return AddStrip(node);
    if (type == "Fuse") {
      fused_ = true;
      return node.CheckMembers({"type"});
    }
    if (fused_) {
      return node.Unsupported("\"", type, "\" behind ",
                              bytes_ ? "ByteLevel" : "Fuse",
                              " isn't supported");
    }
    if (type == "Replace") {
      CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> replace,
                               MakeReplace(node));
      steps_.push_back(NormalizerStep(std::move(replace), state_));
      return absl::OkStatus();
    }
    if (type == "Metaspace") {
      return AddSpaceFor("replacement", node,
                         {"type", "replacement", "str_rep", "prepend_scheme",
                          "add_prefix_space", "split"});
    }
    if (type == "BPEDecoder") {
      return AddSpaceFor("suffix", node, {"type", "suffix"});
    }
    if (type == "WordPiece") return AddWordPiece(node);
    if (type == "ByteLevel") {
      CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(
          {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
      steps_.emplace_back(ToBytes);
      fused_ = bytes_ = true;
      return absl::OkStatus();
    }
    if (type == "ByteFallback") {
      steps_.emplace_back(ByteFallback);
      return node.CheckMembers({"type"});
    }
    return node.Unsupported("a decoder of type \"", type, "\" isn't supported");
  }

  // Without a decoder tokens are words.
  void AddSpaces() {
    steps_.emplace_back(AddSpace);
    puts_spaces_ = true;
  }

  bool puts_spaces() const { return puts_spaces_; }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  // Replaces the text that `field` names with a space.
  absl::Status AddSpaceFor(const char* field, const JsonNode& node,
                           std::initializer_list<absl::string_view> known) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(known));
    CAPSTAN_ASSIGN_OR_RETURN(std::string text, node.String(field));
    if (text.empty()) return node.Member(field).Invalid("is empty");
    steps_.push_back(NormalizerStep(NewReplace(std::move(text), " "), state_));
    return absl::OkStatus();
  }

  absl::Status AddWordPiece(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "prefix", "cleanup"}));
    CAPSTAN_ASSIGN_OR_RETURN(std::string prefix, node.String("prefix"));
    CAPSTAN_ASSIGN_OR_RETURN(const bool cleanup, node.Bool("cleanup", true));
    steps_.push_back(WordPieceStep(std::move(prefix), cleanup));
    puts_spaces_ = true;
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

  RegexState* const state_;
  std::vector<Step> steps_;
  bool fused_ = false;        // tokens are joined: steps see the whole text
  bool bytes_ = false;        // by ByteLevel
  bool puts_spaces_ = false;  // before words
};

}  // namespace

absl::StatusOr<Decoder> Decoder::Make(
    const JsonNode& node, const Vocabulary& vocabulary,
    const std::map<int64_t, Spelling>& added) {
  size_t bytes = 0;
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    bytes += vocabulary.TokenOf(id).size();
  }
  RegexState state;
  state.budget.Begin(bytes);
  Maker maker(&state);
  if (node.IsNull()) {
    maker.AddSpaces();
  } else {
    CAPSTAN_RETURN_IF_ERROR(ForEachStep(
        node, "decoders", [&](const JsonNode& step, const std::string& type) {
          return maker.Add(step, type);
        }));
  }
  Decoder decoder;
  decoder.begins_.push_back(0);
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    const auto found = added.find(id);
    const bool is_added = found != added.end();
    std::string token =
        is_added ? found->second.text : std::string(vocabulary.TokenOf(id));
    if (vocabulary.Has(id)) {
      for (const Step& step : maker.steps()) {
        state.budget.Tick();
        if (!step(&token)) break;
      }
    }
    if (maker.puts_spaces() && is_added && found->second.special) {
      token = std::string(absl::StripPrefix(token, " "));
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

}  // namespace capstan::tokenizer
