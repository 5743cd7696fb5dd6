// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// Bounds what a corrupt file can make us allocate.
constexpr int64_t kMaxId = (1 << 22) - 1;
// Of an added token: a text is compared with all of it at each byte. Known ones
// have less than a hundred.
constexpr size_t kMaxAddedBytes = 1024;

absl::Status CheckId(int64_t id, absl::string_view token,
                     const JsonNode& place) {
  if (id >= 0 && id <= kMaxId) return absl::OkStatus();
  return place.Invalid("the token \"", token, "\" has the id ", id,
                       ", ids are from 0 to ", kMaxId);
}

}  // namespace

int ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::ConsumePrefix(&token, "<0x") ||
      !absl::ConsumeSuffix(&token, ">") || !absl::ascii_isxdigit(token[0]) ||
      !absl::ascii_isxdigit(token[1])) {
    return -1;
  }
  return static_cast<unsigned char>(absl::HexStringToBytes(token)[0]);
}

std::array<int32_t, 256> Vocabulary::ByteIds() const {
  std::array<int32_t, 256> ids;
  for (int b = 0; b < 256; ++b) {
    ids[b] = ModelIdOf(absl::StrFormat("<0x%02X>", b));
  }
  return ids;
}

absl::Status Vocabulary::Load(const JsonNode& vocab) {
  CAPSTAN_RETURN_IF_ERROR(vocab.Array().ok() ? LoadArray(vocab)
                                             : LoadObject(vocab));
  in_model_ = has_;
  return absl::OkStatus();
}

absl::Status Vocabulary::LoadObject(const JsonNode& vocab) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::object object, vocab.Object());
  std::vector<std::pair<absl::string_view, int64_t>> tokens;
  int64_t greatest = -1;
  for (const simdjson::dom::key_value_pair entry : object) {
    const absl::string_view token = ToView(entry.key);
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS) {
      return vocab.Invalid("the id of \"", token, "\" must be an integer");
    }
    CAPSTAN_RETURN_IF_ERROR(CheckId(id, token, vocab));
    greatest = std::max(greatest, id);
    tokens.emplace_back(token, id);
  }
  Resize(greatest + 1);
  ids_.reserve(tokens.size());
  for (const auto& [token, id] : tokens) {
    if (IdOf(token) >= 0) {
      return vocab.Invalid("the token \"", token, "\" is there twice");
    }
    CAPSTAN_RETURN_IF_ERROR(Add(token, id, vocab));
  }
  model_size_ = static_cast<int64_t>(tokens.size());
  return absl::OkStatus();
}

absl::Status Vocabulary::LoadArray(const JsonNode& vocab) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::array array, vocab.Array());
  for (const simdjson::dom::element entry : array) {
    std::string_view token;
    simdjson::dom::array pair;
    const int64_t id = size();
    if (entry.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get(token) != simdjson::SUCCESS || id > kMaxId) {
      return vocab.Invalid("token ", id, " must be [\"token\", score]");
    }
    Resize(id + 1);
    CAPSTAN_RETURN_IF_ERROR(Add(ToView(token), id, vocab));
  }
  model_size_ = size();
  return absl::OkStatus();
}

void Vocabulary::Resize(int64_t size) {
  tokens_.resize(size);
  has_.resize(size);
  in_model_.resize(size);
}

absl::Status Vocabulary::Add(absl::string_view token, int64_t id,
                             const JsonNode& place) {
  if (has_[id]) {
    return place.Invalid("id ", id, " is that of \"", tokens_[id],
                         "\" and of \"", token, "\"");
  }
  tokens_[id] = std::string(token);
  has_[id] = true;
  // The key has to view this text, not that of an equal token.
  ids_.erase(tokens_[id]);
  ids_[tokens_[id]] = static_cast<int32_t>(id);
  return absl::OkStatus();
}

bool Vocabulary::AddOutsideModel(absl::string_view token, int64_t id) {
  if (id >= size()) Resize(id + 1);
  if (has_[id]) return false;
  tokens_[id] = std::string(token);
  has_[id] = true;
  ids_[tokens_[id]] = static_cast<int32_t>(id);
  return true;
}

namespace {

bool IsSingleWord(absl::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 && IsWord(CharacterAt(text, BeginOfLast(text, begin)));
  const bool word_behind = end < text.size() && IsWord(CharacterAt(text, end));
  return !word_before && !word_behind;
}

}  // namespace

absl::Status ReadFlags(const JsonNode& node, AddedToken* token) {
  CAPSTAN_ASSIGN_OR_RETURN(token->content, node.String("content"));
  for (const auto& [name, flag] :
       {std::pair("single_word", &token->single_word),
        std::pair("lstrip", &token->lstrip),
        std::pair("rstrip", &token->rstrip),
        std::pair("special", &token->special)}) {
    CAPSTAN_ASSIGN_OR_RETURN(*flag, node.Bool(name, false));
  }
  CAPSTAN_ASSIGN_OR_RETURN(token->normalized,
                           node.Bool("normalized", !token->special));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> MakeAddedTokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (node.IsNull()) return tokens;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.Items());
  for (const JsonNode& item : items) {
    CAPSTAN_RETURN_IF_ERROR(
        item.CheckMembers({"id", "content", "single_word", "lstrip", "rstrip",
                           "normalized", "special"}));
    AddedToken token;
    CAPSTAN_ASSIGN_OR_RETURN(token.id, item.Int("id"));
    CAPSTAN_RETURN_IF_ERROR(ReadFlags(item, &token));
    CAPSTAN_RETURN_IF_ERROR(CheckId(token.id, token.content, item));
    if (token.content.empty()) return item.Invalid("its content is empty");
    if (token.content.size() > kMaxAddedBytes) {
      return item.Invalid("its content has ", token.content.size(),
                          " bytes, more than the limit of ", kMaxAddedBytes);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::Status AddedTokens::Add(std::vector<AddedToken> tokens,
                              Vocabulary* vocabulary) {
  int64_t next = vocabulary->model_size();
  if (!all_.empty()) next = std::max(next, all_.rbegin()->first + 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedToken& token = tokens[i];
    if (token.content.empty()) continue;
    const int64_t known = vocabulary->IdOf(token.content);
    const int64_t id = known >= 0 ? known : next++;
    if (token.id >= 0 && token.id != id) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added_tokens[", i, "]: \"", token.content, "\" has id ", token.id,
          ", but ", id,
          known >= 0 ? " elsewhere in the file"
                     : " is the next: ids are counted, from the number of "
                       "the model's tokens"));
    }
    if (known < 0 && !vocabulary->AddOutsideModel(token.content, id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", token.content, "\" would get the id ", id,
                       ", the number of the model's tokens, which \"",
                       vocabulary->TokenOf(id), "\" has"));
    }
    token.id = id;
    AddedToken& entry = all_[id];
    token.special = token.special || entry.special;
    entry = std::move(token);
  }
  return absl::OkStatus();
}

void AddedTokenFinder::Add(absl::string_view spelling,
                           const AddedToken* token) {
  if (trie_.Has(spelling)) return;
  trie_.Set(spelling, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
  first_[static_cast<unsigned char>(spelling[0])] = true;
}

bool AddedTokenFinder::Next(absl::string_view text, Budget* budget,
                            Search* search, Match* match) const {
  if (tokens_.empty()) return false;
  while (true) {
    size_t at = search->at;
    while (at < text.size() && !first_[static_cast<unsigned char>(text[at])]) {
      ++at;
    }
    search->at = at;
    if (at >= text.size()) return false;
    budget->Tick();
    size_t begin = at;
    size_t end = at;
    const AddedToken* token = nullptr;
    trie_.ForEachPrefix(text.substr(at), [&](int32_t index, size_t size) {
      token = tokens_[index];
      end = at + size;
    });
    if (token == nullptr) {
      ++search->at;
      continue;
    }
    // What isn't taken still consumes its bytes.
    search->at = end;
    if (skip_special_ && token->special) continue;
    if (token->single_word && !IsSingleWord(text, begin, end)) continue;
    while (token->lstrip && begin > search->done) {
      const size_t before = BeginOfLast(text, begin);
      if (before < search->done || !IsSpace(CharacterAt(text, before))) break;
      begin = before;
    }
    while (token->rstrip && end < text.size() &&
           IsSpace(CharacterAt(text, end))) {
      end += CharacterBytes(text[end]);
    }
    search->done = end;
    *match = {token, begin, end};
    return true;
  }
}

}  // namespace capstan::tokenizer
