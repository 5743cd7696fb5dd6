// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/add_tokens.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer/hf_tokenizer.h"

namespace capstan::tokenizer {
namespace {

using Json = nlohmann::ordered_json;
using Files = HfTokenizer::Files;

// An entry of tokenizer.json's added_tokens; without "id" one of
// tokenizer_config.json's added_tokens_decoder.
template <typename Any>
Any Entry(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

// Those that `tokenizer` lacks, or has but not as added or as special ones: a
// piece of the vocabulary becomes a token that is found first.
std::vector<AddedToken> NumberedOf(const TokensToAdd& tokens,
                                   const HfTokenizer& tokenizer) {
  std::vector<AddedToken> numbered;
  int64_t next = tokenizer.vocab_size();
  const auto add = [&](const std::string& content, bool special) {
    const bool twice =
        std::any_of(numbered.begin(), numbered.end(),
                    [&](const AddedToken& n) { return n.content == content; });
    const absl::optional<int64_t> id = tokenizer.IdOf(content);
    const bool has_it =
        id.has_value() && (special ? tokenizer.IsSpecial(*id)
                                   : tokenizer.added_tokens().count(*id) > 0);
    if (twice || has_it) return;
    AddedToken token;
    token.content = content;
    token.id = id.has_value() ? *id : next++;
    token.special = special;
    token.normalized = !special;
    numbered.push_back(std::move(token));
  };
  // A token in both lists is special.
  for (const std::string& content : tokens.special) add(content, true);
  for (const std::string& content : tokens.plain) add(content, false);
  return numbered;
}

// tokenizer.json with the tokens of `known`, some of which may be of the files
// beside it, and `tokens`. Its vocabulary has more keys than ParseJson takes in
// their order, which means nothing there.
absl::StatusOr<std::string> WithAdded(const std::string& text,
                                      std::map<int64_t, AddedToken> known,
                                      const std::vector<AddedToken>& tokens) {
  auto json = ParseJson<nlohmann::json>(text);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("tokenizer.json isn't a JSON object");
  }
  for (const AddedToken& token : tokens) known[token.id] = token;
  nlohmann::json& added = json["added_tokens"] = nlohmann::json::array();
  for (const auto& [id, token] : known) {
    added.push_back(Entry<nlohmann::json>(token));
    added.back()["id"] = id;
  }
  return json.dump() + "\n";
}

// The file's object, changed by change(json), if it is there or `make`.
template <typename Change>
absl::Status Edit(const char* name, bool make, const Change& change,
                  Files* files) {
  const auto found = files->find(name);
  if (found == files->end() && !make) return absl::OkStatus();
  Json json = Json::object();
  if (found != files->end()) {
    CAPSTAN_ASSIGN_OR_RETURN(json, ParseObject(name, found->second));
  }
  change(json);
  (*files)[name] = json.dump(2) + "\n";
  return absl::OkStatus();
}

absl::Status EditFiles(const TokensToAdd& tokens,
                       const std::map<int64_t, AddedToken>& known,
                       const std::vector<AddedToken>& numbered, Files* files) {
  std::string& text = files->at("tokenizer.json");
  if (!numbered.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(text, WithAdded(text, known, numbered));
  }
  const auto name_tokens = [&](Json& json) {
    for (const auto& [key, content] : {std::pair("bos_token", &tokens.bos),
                                       std::pair("eos_token", &tokens.eos),
                                       std::pair("pad_token", &tokens.pad)}) {
      if (!content->empty()) json[key] = *content;
    }
  };
  CAPSTAN_RETURN_IF_ERROR(Edit(
      "tokenizer_config.json", /*make=*/true,
      [&](Json& json) {
        name_tokens(json);
        if (!tokens.chat_template.empty()) json.erase("chat_template");
        const auto decoder = json.find("added_tokens_decoder");
        if (decoder == json.end() || !decoder->is_object()) return;
        for (const AddedToken& token : numbered) {
          (*decoder)[absl::StrCat(token.id)] = Entry<Json>(token);
        }
      },
      files));
  CAPSTAN_RETURN_IF_ERROR(
      Edit("special_tokens_map.json", /*make=*/false, name_tokens, files));
  CAPSTAN_RETURN_IF_ERROR(Edit(
      "added_tokens.json", /*make=*/false,
      [&](Json& json) {
        for (const AddedToken& token : numbered) json[token.content] = token.id;
      },
      files));
  if (!tokens.chat_template.empty()) {
    (*files)["chat_template.jinja"] = tokens.chat_template;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> AddTokens(const std::string& folder,
                                  const TokensToAdd& tokens,
                                  const std::string& to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfTokenizer> tokenizer,
                           HfTokenizer::Open(folder));
  const std::vector<AddedToken> numbered = NumberedOf(tokens, *tokenizer);
  Files files = tokenizer->files();
  const absl::Status edited =
      EditFiles(tokens, tokenizer->added_tokens(), numbered, &files);
  if (!edited.ok()) return Annotate(edited, folder);
  for (const auto& [name, text] : files) {
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(to, "/", name), text));
  }
  return std::count_if(
      numbered.begin(), numbered.end(),
      [&](const AddedToken& n) { return n.id >= tokenizer->vocab_size(); });
}

}  // namespace capstan::tokenizer
