// SPDX-License-Identifier: Apache-2.0
#include "desk/export/llama_tokenizer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer/hf_tokenizer.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
using tokenizer::AddedToken;
using tokenizer::HfTokenizer;

constexpr char kSpace[] = "\u2581";  // that SentencePiece writes for " "

// As llama.cpp numbers what tokens are.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Expressions of pre-tokenizers. Those of Llama 3 and Qwen 2 differ in how many
// digits a word has.
constexpr char kContractions[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr char kWords[] = "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+";
constexpr char kRest[] =
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
// Words of o200k and Tekken are of one case, but for their first letters.
constexpr char kCased[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}"
    "\\p{Lo}\\p{M}]+";
constexpr char kUpper[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}"
    "\\p{Lo}\\p{M}]*";
constexpr char kRestWithSlash[] =
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// llama.cpp's name for the expression that words are split by; "": none. Some
// names also say that a word that is a token is never merged from parts.
std::string NameOfRegex(const std::string& regex, bool ignore_merges) {
  const auto is = [&](const std::vector<std::string>& parts) {
    return regex == absl::StrJoin(parts, "|");
  };
  if (is({kContractions, kWords, "\\p{N}{1,3}", kRest})) {
    return ignore_merges ? "llama-bpe" : "dbrx";
  }
  if (is({kCased, kUpper, "\\p{N}", kRestWithSlash})) {
    return ignore_merges ? "tekken" : "";
  }
  if (ignore_merges) return "";
  if (is({kContractions, kWords, "\\p{N}", kRest})) return "qwen2";
  const std::string ending = absl::StrCat(kContractions, "?");
  if (is({kCased + ending, kUpper + ending, "\\p{N}{1,3}", kRestWithSlash})) {
    return "gpt-4o";
  }
  return "";
}

// A tokenizer.json, and what llama.cpp is to know of it.
class Export {
 public:
  Export(std::string path, const HfTokenizer& tokenizer, Json json,
         int64_t rows, std::vector<std::string>* notes)
      : path_(std::move(path)),
        tokenizer_(tokenizer),
        json_(std::move(json)),
        rows_(rows),
        notes_(notes) {}

  absl::StatusOr<GgufValues> Values(const std::string& pre);

 private:
  template <typename... Parts>
  absl::Status Not(const Parts&... problem) const {
    return WithCode(absl::UnimplementedError(
                        absl::StrCat(path_, ": ", absl::StrCat(problem...))),
                    "export/tokenizer");
  }
  void Set(const char* key, GgufValue value) {
    values_.emplace_back(absl::StrCat("tokenizer.", key), std::move(value));
  }
  const Json& model() const { return json_["model"]; }
  bool Is(const char* key) const {
    return model().contains(key) && model()[key] == true;
  }
  // The steps of "normalizer" or "pre_tokenizer", without the sequences.
  std::vector<Json> Steps(const char* kind, const char* list) const;
  absl::Status CollectTokens();
  absl::Status CollectMerges();
  absl::StatusOr<std::string> PreName() const;
  absl::Status ByteLevel(const std::string& pre);
  absl::Status SentencePiece();
  absl::StatusOr<bool> PrependsSpace();
  absl::StatusOr<std::vector<float>> Scores() const;
  absl::Status SetSpecial(bool bytes);

  const std::string path_;
  const HfTokenizer& tokenizer_;
  const Json json_;
  const int64_t rows_;
  std::vector<std::string>* const notes_;
  GgufValues values_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  std::vector<std::pair<std::string, std::string>> merges_;
};

std::vector<Json> Export::Steps(const char* kind, const char* list) const {
  if (!json_.contains(kind) || json_[kind].is_null()) return {};
  if (json_[kind].value("type", "") != "Sequence") return {json_[kind]};
  return json_[kind][list].get<std::vector<Json>>();
}

absl::Status Export::CollectTokens() {
  if (tokenizer_.vocab_size() > rows_) {
    return Not("it has ", tokenizer_.vocab_size(),
               " tokens, and the model's embedding ", rows_, " rows");
  }
  const auto found = model().find("unk_token");
  const std::string unknown =
      found != model().end() && found->is_string() ? *found : Json("");
  tokens_.resize(rows_);
  types_.assign(rows_, kUnused);
  for (int64_t i = 0; i < rows_; ++i) tokens_[i] = absl::StrCat("[PAD", i, "]");
  for (const auto& [token, id] : model()["vocab"].items()) {
    tokens_[id.get<int64_t>()] = token;
    types_[id.get<int64_t>()] = token == unknown ? kUnknown : kNormal;
  }
  for (const auto& [id, token] : tokenizer_.added_tokens()) {
    // Nobody types what SentencePiece writes for spaces: such a token is only
    // ever merged, and must be written as spaces.
    const bool typed = !absl::StrContains(token.content, kSpace);
    if (!token.special && !typed && types_[id] == kNormal) continue;
    tokens_[id] = token.content;
    if (types_[id] == kUnknown) continue;
    types_[id] = token.special ? kControl : kUserDefined;
  }
  return absl::OkStatus();
}

absl::Status Export::CollectMerges() {
  for (const Json& merge : model()["merges"]) {
    // "a b" of older files.
    if (merge.is_string()) {
      merges_.push_back(
          absl::StrSplit(merge.get<std::string>(), absl::MaxSplits(' ', 1)));
    } else {
      merges_.emplace_back(merge[0], merge[1]);
    }
    if (absl::StrContains(merges_.back().first, ' ') ||
        absl::StrContains(merges_.back().second, ' ')) {
      return Not("model.merges: llama.cpp can't have spaces in tokens");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Export::PreName() const {
  // How words are split matters to merges alone.
  if (merges_.empty()) return std::string("gpt-2");
  std::string regex, name;
  bool digits = false, by_gpt2 = false, other = false;
  for (const Json& step : Steps("pre_tokenizer", "pretokenizers")) {
    const std::string type = step.value("type", "");
    if (type == "Digits" && step.value("individual_digits", false)) {
      digits = true;
    } else if (type == "ByteLevel" && !step.value("add_prefix_space", false)) {
      by_gpt2 = step.value("use_regex", true);
    } else if (type == "Split" && step["pattern"].contains("Regex") &&
               step.value("behavior", "") == "Isolated" && regex.empty()) {
      regex = step["pattern"]["Regex"];
    } else {
      other = true;
    }
  }
  const bool ignore_merges = Is("ignore_merges");
  if (!other && by_gpt2 && regex.empty() && !ignore_merges) {
    name = digits ? "smollm" : "gpt-2";
  } else if (!other && !by_gpt2 && !digits) {
    name = NameOfRegex(regex, ignore_merges);
  }
  if (name.empty()) {
    return Not(
        "pre_tokenizer: llama.cpp's name for this way of splitting words isn't "
        "known here; if there is one, say it by --pre=NAME");
  }
  return name;
}

absl::Status Export::ByteLevel(const std::string& pre) {
  std::string name = pre;
  if (name.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(name, PreName());
  }
  for (const Json& step : Steps("normalizer", "normalizers")) {
    // llama.cpp has no normal forms; most texts are in NFC.
    if (step.value("type", "") != "NFC") {
      return Not("normalizer: llama.cpp has no \"", step.value("type", ""),
                 "\" for byte-level tokens");
    }
  }
  Set("ggml.model", "gpt2");
  Set("ggml.pre", name);
  std::vector<std::string> merges;
  for (const auto& [left, right] : merges_) {
    merges.push_back(absl::StrCat(left, " ", right));
  }
  Set("ggml.merges", std::move(merges));
  return absl::OkStatus();
}

// Whether a text gets a space in front.
absl::StatusOr<bool> Export::PrependsSpace() {
  bool replaces = false, prepends = false;
  for (const Json& step : Steps("normalizer", "normalizers")) {
    const std::string type = step.value("type", "");
    if (type == "Prepend" && step.value("prepend", "") == kSpace) {
      prepends = true;
    } else if (type == "Replace" && step.value("content", "") == kSpace &&
               step["pattern"].value("String", "") == " ") {
      replaces = true;
    } else {
      return Not("normalizer: llama.cpp has no \"", type, "\" like this one");
    }
  }
  for (const Json& step : Steps("pre_tokenizer", "pretokenizers")) {
    const std::string type = step.value("type", "");
    if (type == "Metaspace" && step.value("replacement", kSpace) == kSpace) {
      replaces = true;
      if (step.value("prepend_scheme", "") == "first") {
        notes_->push_back(kSpaceNote);
      }
      prepends = prepends || (step.contains("prepend_scheme")
                                  ? step.value("prepend_scheme", "") != "never"
                                  : step.value("add_prefix_space", true));
    } else if (type != "Split" || !replaces ||
               step["pattern"].value("String", "") != " ") {
      // Splitting at spaces does nothing where there are none any more.
      return Not("pre_tokenizer: llama.cpp has no \"", type,
                 "\" for tokens like SentencePiece's");
    }
  }
  if (!replaces) return Not("normalizer: spaces don't become \"", kSpace, "\"");
  return prepends;
}

// llama.cpp merges whichever neighbours make the token of the highest score,
// tokenizer.json's list says which pairs merge. That is the same where merges
// are grouped by what they make, and all pairs that make a token are in it, as
// when it was made from a SentencePiece model.
absl::StatusOr<std::vector<float>> Export::Scores() const {
  absl::flat_hash_map<std::string, float> scores;
  absl::flat_hash_set<std::pair<std::string, std::string>> pairs;
  absl::flat_hash_set<std::string> known;
  std::string last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (types_[i] == kNormal) known.insert(tokens_[i]);
  }
  for (const auto& merge : merges_) {
    const std::string made = merge.first + merge.second;
    const bool first =
        scores.emplace(made, -static_cast<float>(scores.size())).second;
    if (!first && last != made) {
      return Not("model.merges: those that make \"", made,
                 "\" aren't together, so that they are no SentencePiece "
                 "model's, and llama.cpp would make other tokens");
    }
    last = made;
    pairs.insert(merge);
  }
  std::vector<float> by_id(tokens_.size(), 0.0f);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& token = tokens_[i];
    if (types_[i] != kNormal) continue;
    const auto score = scores.find(token);
    if (score != scores.end()) by_id[i] = score->second;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((token[cut] & 0xc0) == 0x80) continue;  // inside a character
      std::pair<std::string, std::string> pair = {token.substr(0, cut),
                                                  token.substr(cut)};
      if (known.contains(pair.first) && known.contains(pair.second) &&
          !pairs.contains(pair)) {
        return Not("model.merges: \"", pair.first, "\" and \"", pair.second,
                   "\" don't merge, so that they are no SentencePiece model's, "
                   "and llama.cpp would make other tokens");
      }
    }
  }
  return by_id;
}

absl::Status Export::SentencePiece() {
  CAPSTAN_ASSIGN_OR_RETURN(const bool prepends, PrependsSpace());
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = absl::StrFormat("<0x%02X>", byte);
    const absl::optional<int64_t> id = tokenizer_.IdOf(name);
    if (!id.has_value()) return Not("model.vocab: there is no ", name);
    types_[*id] = kByte;
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<float> scores, Scores());
  Set("ggml.model", "llama");
  Set("ggml.pre", "default");
  Set("ggml.scores", std::move(scores));
  Set("ggml.add_space_prefix", prepends);
  return absl::OkStatus();
}

absl::Status Export::SetSpecial(bool bytes) {
  Tokenizer::SpecialIds ids = tokenizer_.special_ids();
  constexpr int64_t kText = -1;  // what stands for a text's tokens
  std::vector<int64_t> all = {kText};
  tokenizer_.AddEnds(&all);
  const bool begins = all.front() != kText, ends = all.back() != kText;
  // llama.cpp adds the begin and the end token, one of each.
  if (begins && ids.bos < 0) ids.bos = all.front();
  if (ends && ids.eos < 0) ids.eos = all.back();
  std::vector<int64_t> added = {kText};
  if (begins) added.insert(added.begin(), ids.bos);
  if (ends) added.push_back(ids.eos);
  if (added != all) {
    return Not(
        "post_processor: llama.cpp adds no other tokens to a text than "
        "the begin and the end token");
  }
  for (const auto& [key, id] :
       {std::make_pair("ggml.bos_token_id", ids.bos),
        std::make_pair("ggml.eos_token_id", ids.eos),
        std::make_pair("ggml.padding_token_id", ids.pad)}) {
    if (id >= 0) Set(key, static_cast<uint32_t>(id));
  }
  if (bytes && (ids.bos < 0 || ids.eos < 0)) {
    notes_->push_back(
        absl::StrCat("the tokenizer has no ",
                     ids.bos >= 0   ? "end token"
                     : ids.eos >= 0 ? "begin token"
                                    : "begin and no end token",
                     ": llama.cpp takes token 11 (GPT-2's) in its place"));
  }
  Set("ggml.add_bos_token", begins);
  Set("ggml.add_eos_token", ends);
  const std::string chat = tokenizer_.chat_template();
  if (!chat.empty()) Set("chat_template", chat);
  return absl::OkStatus();
}

absl::StatusOr<GgufValues> Export::Values(const std::string& pre) {
  if (!json_.is_object() || !json_.contains("model") ||
      model().value("type", "") != "BPE") {
    return Not("model: llama.cpp gets BPE tokenizers alone from here");
  }
  const std::vector<Json> steps = Steps("pre_tokenizer", "pretokenizers");
  const bool bytes = std::any_of(
      steps.begin(), steps.end(),
      [](const Json& step) { return step.value("type", "") == "ByteLevel"; });
  if (!bytes && !Is("byte_fallback")) {
    return Not(
        "pre_tokenizer: neither bytes nor, with model.byte_fallback, "
        "SentencePiece's characters are tokens");
  }
  CAPSTAN_RETURN_IF_ERROR(CollectTokens());
  CAPSTAN_RETURN_IF_ERROR(CollectMerges());
  CAPSTAN_RETURN_IF_ERROR(bytes ? ByteLevel(pre) : SentencePiece());
  Set("ggml.tokens", std::move(tokens_));
  Set("ggml.token_type", std::move(types_));
  CAPSTAN_RETURN_IF_ERROR(SetSpecial(bytes));
  return std::move(values_);
}

}  // namespace

absl::StatusOr<GgufValues> TokenizerValues(const std::string& folder,
                                           int64_t rows, const std::string& pre,
                                           std::vector<std::string>* notes) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfTokenizer> tokenizer,
                           HfTokenizer::Open(folder));
  Json json = ParseJson<Json>(tokenizer->files().at("tokenizer.json"));
  // The folder may be one that is made for the export.
  return Export("the model's tokenizer.json", *tokenizer, std::move(json), rows,
                notes)
      .Values(pre);
}

}  // namespace capstan
