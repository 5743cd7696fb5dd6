// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/special_tokens.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/status.h"

namespace capstan::tokenizer {
namespace {

// PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES, in its order.
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token",
                                  "sep_token", "pad_token", "cls_token",
                                  "mask_token"};

bool IsNamed(absl::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

absl::StatusOr<WrittenToken> MakeToken(const JsonNode& node) {
  WrittenToken token;
  if (node.IsString()) {
    CAPSTAN_ASSIGN_OR_RETURN(token.content, node.String());
    return token;
  }
  CAPSTAN_RETURN_IF_ERROR(
      node.CheckMembers({"__type", "id", "content", "single_word", "lstrip",
                         "rstrip", "normalized", "special"}));
  token.plain = false;
  token.says_normalized = !node.Member("normalized").IsNull();
  CAPSTAN_RETURN_IF_ERROR(ReadFlags(node, &token));
  return token;
}

absl::StatusOr<std::vector<WrittenToken>> MakeTokens(const JsonNode& list) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, list.Items());
  std::vector<WrittenToken> tokens;
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(WrittenToken token, MakeToken(item));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Far more than any tokenizer has: they are looked up one after another.
constexpr size_t kMostNamed = 1000;

void Set(const std::string& name, WrittenToken token, NamedTokens* tokens) {
  for (auto& [known, value] : *tokens) {
    if (known != name) continue;
    value = std::move(token);
    return;
  }
  tokens->emplace_back(name, std::move(token));
}

absl::Status Read(const std::string& name, const JsonNode& node,
                  WrittenToken token, NamedTokens* tokens) {
  Set(name, std::move(token), tokens);
  if (tokens->size() <= kMostNamed) return absl::OkStatus();
  return node.Invalid("there are more than ", kMostNamed,
                      " tokens with names of their own");
}

// {"image_token": .., ..}
absl::Status SetAll(const JsonNode& node, NamedTokens* tokens) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto members, node.Members());
  for (const auto& [name, member] : members) {
    CAPSTAN_ASSIGN_OR_RETURN(WrittenToken token, MakeToken(member));
    CAPSTAN_RETURN_IF_ERROR(Read(name, node, std::move(token), tokens));
  }
  return absl::OkStatus();
}

AddedToken ToAdded(const WrittenToken& token, bool special) {
  AddedToken added = token;
  added.special = special;
  if (!token.says_normalized) added.normalized = !special;
  return added;
}

}  // namespace

bool WrittenToken::operator==(const WrittenToken& other) const {
  const auto all = [](const WrittenToken& t) {
    return std::make_tuple(t.content, t.plain, t.single_word, t.lstrip,
                           t.rstrip, t.says_normalized,
                           t.says_normalized && t.normalized, t.special);
  };
  return all(*this) == all(other);
}

absl::Status SpecialTokens::SetNamed(const std::string& name,
                                     const JsonNode& node) {
  if (node.IsNull()) {
    named_[name] = absl::nullopt;
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(named_[name], MakeToken(node));
  return absl::OkStatus();
}

absl::Status SpecialTokens::ReadConfig(const JsonNode& root) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto members, root.Members());
  for (const auto& [name, node] : members) {
    if (IsNamed(name)) {
      CAPSTAN_RETURN_IF_ERROR(SetNamed(name, node));
    } else if (absl::EndsWith(name, "_token") &&
               (node.IsString() || !node.Member("__type").IsNull())) {
      CAPSTAN_ASSIGN_OR_RETURN(WrittenToken token, MakeToken(node));
      CAPSTAN_RETURN_IF_ERROR(Read(
          name, root, token, token.plain ? &model_texts_ : &model_objects_));
    }
  }
  JsonNode extra = root.Member("extra_special_tokens");
  const JsonNode older = root.Member("additional_special_tokens");
  // An empty list or object counts as none.
  const bool has_extra = !extra.IsNull() &&
                         !(extra.Array().ok() && extra.Items()->empty()) &&
                         !(extra.Object().ok() && extra.Object()->size() == 0);
  if (!has_extra) extra = older;
  if (extra.Object().ok()) {
    CAPSTAN_RETURN_IF_ERROR(SetAll(extra, &model_texts_));
  } else if (!extra.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(extra_, MakeTokens(extra));
  }
  const JsonNode model = root.Member("model_specific_special_tokens");
  if (model_texts_.empty() && !model.IsNull()) {
    CAPSTAN_RETURN_IF_ERROR(SetAll(model, &model_texts_));
  }
  CAPSTAN_ASSIGN_OR_RETURN(split_special_tokens_,
                           root.Bool("split_special_tokens", false));
  const JsonNode decoder = root.Member("added_tokens_decoder");
  if (decoder.IsNull()) return absl::OkStatus();
  has_decoder_ = true;
  CAPSTAN_ASSIGN_OR_RETURN(const auto entries, decoder.Members());
  for (const auto& [name, entry] : entries) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(name, &id)) {
      return decoder.Invalid("\"", name, "\" isn't an id");
    }
    CAPSTAN_ASSIGN_OR_RETURN(decoder_[id], MakeToken(entry));
  }
  return absl::OkStatus();
}

absl::Status SpecialTokens::ReadMap(const JsonNode& root) {
  if (has_decoder_) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const auto members, root.Members());
  for (const auto& [name, node] : members) {
    if (name == "extra_special_tokens" && node.Object().ok()) {
      CAPSTAN_RETURN_IF_ERROR(SetAll(node, &model_texts_));
    } else if (name == "extra_special_tokens" && !node.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(std::vector<WrittenToken> tokens,
                               MakeTokens(node));
      if (!extra_.has_value()) extra_.emplace();
      std::set<std::string> known;
      for (const WrittenToken& token : *extra_) known.insert(token.content);
      for (WrittenToken& token : tokens) {
        if (!token.plain) token.special = true;
        if (known.insert(token.content).second ||
            std::find(extra_->begin(), extra_->end(), token) == extra_->end()) {
          extra_->push_back(std::move(token));
        }
      }
    } else if (name == "additional_special_tokens" && !node.IsNull()) {
      if (extra_.has_value()) continue;
      CAPSTAN_ASSIGN_OR_RETURN(extra_, MakeTokens(node));
    } else if (IsNamed(name)) {
      CAPSTAN_RETURN_IF_ERROR(SetNamed(name, node));
      if (named_[name].has_value() && !named_[name]->plain) {
        named_[name]->special = true;
      }
    } else if (absl::EndsWith(name, "_token") && !node.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(WrittenToken token, MakeToken(node));
      if (!token.plain) token.special = true;
      CAPSTAN_RETURN_IF_ERROR(
          Read(name, root, std::move(token), &model_objects_));
    }
  }
  return absl::OkStatus();
}

absl::Status SpecialTokens::ReadAddedTokens(const JsonNode& root) {
  if (has_decoder_) return absl::OkStatus();
  std::set<std::string> special;
  for (const auto& [name, token] : named_) {
    if (token.has_value()) special.insert(token->content);
  }
  if (extra_.has_value()) {
    for (const WrittenToken& token : *extra_) special.insert(token.content);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto members, root.Members());
  for (const auto& [name, node] : members) {
    WrittenToken token;
    token.plain = false;
    token.content = name;
    token.special = special.count(token.content) > 0;
    token.says_normalized = true;
    token.normalized = !token.special;
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, node.Int());
    decoder_[id] = std::move(token);
  }
  return absl::OkStatus();
}

absl::Status SpecialTokens::ReadTokenizer(const JsonNode& root) {
  const JsonNode padding = root.Member("padding");
  if (!padding.IsNull() && named_.count("pad_token") == 0) {
    CAPSTAN_RETURN_IF_ERROR(SetNamed("pad_token", padding.Member("pad_token")));
  }
  const JsonNode tokens = root.Member("added_tokens");
  if (has_decoder_ || tokens.IsNull()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, tokens.Items());
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, item.Int("id"));
    CAPSTAN_ASSIGN_OR_RETURN(decoder_[id], MakeToken(item));
  }
  return absl::OkStatus();
}

NamedTokens SpecialTokens::AllNamed() const {
  NamedTokens all;
  for (const char* name : kNames) {
    const auto found = named_.find(name);
    if (found != named_.end() && found->second.has_value()) {
      all.emplace_back(name, *found->second);
    }
  }
  for (const NamedTokens* tokens : {&model_objects_, &model_texts_}) {
    for (const auto& [name, token] : *tokens) Set(name, token, &all);
  }
  return all;
}

std::vector<AddedToken> SpecialTokens::Added() const {
  const NamedTokens named = AllNamed();
  std::set<std::string> names;
  for (const auto& [name, token] : named) names.insert(token.content);
  std::set<std::string> known;
  std::vector<WrittenToken> written;
  for (const auto& [id, token] : decoder_) {
    known.insert(token.content);
    written.push_back(token);
  }
  // Of one content only what differs in its flags is written again.
  std::map<std::string, std::vector<WrittenToken>> others;
  const auto add = [&](const WrittenToken& token) {
    if (known.count(token.content) > 0) return;
    std::vector<WrittenToken>& same = others[token.content];
    if (std::find(same.begin(), same.end(), token) != same.end()) return;
    same.push_back(token);
    written.push_back(token);
  };
  for (const auto& [name, token] : named) add(token);
  if (extra_.has_value()) {
    for (const WrittenToken& token : *extra_) add(token);
  }
  std::vector<AddedToken> added;
  for (const WrittenToken& token : written) {
    const bool special =
        token.plain || token.special || names.count(token.content) > 0;
    added.push_back(ToAdded(token, special));
  }
  return added;
}

std::string SpecialTokens::Named(const std::string& name) const {
  const auto found = named_.find(name);
  return found == named_.end() || !found->second.has_value()
             ? ""
             : found->second->content;
}

}  // namespace capstan::tokenizer
