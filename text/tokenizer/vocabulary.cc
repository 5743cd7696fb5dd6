// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocabulary.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

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

absl::Status Vocabulary::Load(const JsonNode& vocab,
                              const JsonNode& added_tokens) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::object object, vocab.Object());
  std::vector<std::pair<absl::string_view, int64_t>> model;
  int64_t greatest = -1;
  for (const simdjson::dom::key_value_pair entry : object) {
    const absl::string_view token = ToView(entry.key);
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS) {
      return vocab.Invalid("the id of \"", token, "\" must be an integer");
    }
    CAPSTAN_RETURN_IF_ERROR(CheckId(id, token, vocab));
    greatest = std::max(greatest, id);
    model.emplace_back(token, id);
  }
  std::vector<std::pair<std::string, int64_t>> added;
  std::vector<JsonNode> items;
  if (!added_tokens.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(items, added_tokens.Items());
  }
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(std::string content, item.String("content"));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, item.Int("id"));
    CAPSTAN_RETURN_IF_ERROR(CheckId(id, content, item));
    greatest = std::max(greatest, id);
    added.emplace_back(std::move(content), id);
  }
  if (greatest < 0) return vocab.Invalid("there is no token in it");
  tokens_.resize(greatest + 1);
  has_.resize(greatest + 1);
  ids_.reserve(model.size() + added.size());
  for (const auto& [token, id] : model) {
    if (IdOf(token) >= 0) {
      return vocab.Invalid("the token \"", token, "\" is there twice");
    }
    CAPSTAN_RETURN_IF_ERROR(Add(token, id, vocab));
  }
  in_model_ = has_;
  for (size_t i = 0; i < added.size(); ++i) {
    const int32_t known = IdOf(added[i].first);
    if (known == added[i].second) continue;
    if (known >= 0) {
      return items[i].Invalid("\"", added[i].first, "\" has id ",
                              added[i].second, " here and ", known,
                              " elsewhere in the file");
    }
    CAPSTAN_RETURN_IF_ERROR(Add(added[i].first, added[i].second, items[i]));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::Add(absl::string_view token, int64_t id,
                             const JsonNode& place) {
  if (has_[id]) {
    return place.Invalid("id ", id, " is that of \"", tokens_[id],
                         "\" and of \"", token, "\"");
  }
  tokens_[id] = std::string(token);
  has_[id] = true;
  ids_[tokens_[id]] = static_cast<int32_t>(id);
  return absl::OkStatus();
}

namespace {

// \w of Rust's regex crate (UTS #18 annex C): letters, marks, decimal digits,
// connectors, joiners.
bool IsWord(uint32_t code) {
  if (code == 0x200c || code == 0x200d) return true;
  const utf8proc_category_t category =
      utf8proc_category(static_cast<utf8proc_int32_t>(code));
  // From LU to NL the categories are those of letters, marks, ND and NL.
  return (category >= UTF8PROC_CATEGORY_LU &&
          category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

// Unicode's White_Space.
bool IsSpace(uint32_t code) {
  return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

// Start of the character that ends at `end`.
size_t BeginOfLast(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && IsContinuation(text[begin])) --begin;
  return begin;
}

uint32_t CharacterAt(absl::string_view text, size_t at) {
  // Invalid UTF-8 may end in the middle of a character.
  if (at + CharacterBytes(text[at]) > text.size()) return 0xfffd;
  return NextCharacter(text, &at);
}

bool IsSingleWord(absl::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 && IsWord(CharacterAt(text, BeginOfLast(text, begin)));
  const bool word_behind = end < text.size() && IsWord(CharacterAt(text, end));
  return !word_before && !word_behind;
}

}  // namespace

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
    CAPSTAN_ASSIGN_OR_RETURN(token.content, item.String("content"));
    CAPSTAN_ASSIGN_OR_RETURN(token.single_word,
                             item.Bool("single_word", false));
    CAPSTAN_ASSIGN_OR_RETURN(token.lstrip, item.Bool("lstrip", false));
    CAPSTAN_ASSIGN_OR_RETURN(token.rstrip, item.Bool("rstrip", false));
    CAPSTAN_ASSIGN_OR_RETURN(token.special, item.Bool("special", false));
    CAPSTAN_ASSIGN_OR_RETURN(token.normalized,
                             item.Bool("normalized", !token.special));
    if (token.content.empty()) return item.Invalid("its content is empty");
    if (token.content.size() > kMaxAddedBytes) {
      return item.Invalid("its content has ", token.content.size(),
                          " bytes, more than the limit of ", kMaxAddedBytes);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void AddedTokenFinder::Add(absl::string_view spelling,
                           const AddedToken* token) {
  uint32_t node = 0;
  for (char c : spelling) {
    const uint64_t key =
        static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [child, added] = children_.try_emplace(key, nodes_);
    if (added) ++nodes_;
    node = child->second;
  }
  ends_[node] = token;
  first_[static_cast<unsigned char>(spelling[0])] = true;
}

const AddedToken* AddedTokenFinder::Longest(absl::string_view text, size_t at,
                                            size_t* end) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  while (at < text.size()) {
    const auto child = children_.find(static_cast<uint64_t>(node) << 8 |
                                      static_cast<unsigned char>(text[at++]));
    if (child == children_.end()) break;
    node = child->second;
    const auto ending = ends_.find(node);
    if (ending == ends_.end()) continue;
    longest = ending->second;
    *end = at;
  }
  return longest;
}

bool AddedTokenFinder::Next(absl::string_view text, size_t from, Budget* budget,
                            size_t* search, Match* match) const {
  if (empty()) return false;
  size_t at = std::max(*search, from);
  while (at < text.size()) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    budget->Tick();
    size_t end = 0;
    const AddedToken* const token = Longest(text, at, &end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    // A match rejected by single_word still consumes its bytes.
    at = *search = end;
    if (token->single_word && !IsSingleWord(text, begin, end)) continue;
    while (token->lstrip && begin > from) {
      const size_t before = BeginOfLast(text, begin);
      if (before < from || !IsSpace(CharacterAt(text, before))) break;
      begin = before;
    }
    while (token->rstrip && end < text.size() &&
           IsSpace(CharacterAt(text, end))) {
      end += CharacterBytes(text[end]);
    }
    *match = {token, begin, end};
    return true;
  }
  *search = text.size();
  return false;
}

}  // namespace capstan::tokenizer
