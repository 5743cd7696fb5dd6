// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/windows/characters.h"

#include <utf8proc.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan::llada_windows {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPadText[] = "<|padding|>";
constexpr char kEosText[] = "<|endoftext|>";
constexpr char kMaskText[] = "<|mdm_mask|>";

std::string Utf8(uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

}  // namespace

int64_t NextCharacter(absl::string_view text, size_t* at) {
  if (*at >= text.size()) return -1;
  const auto* const bytes =
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + *at;
  if (*bytes < 0x80) {
    ++*at;
    return *bytes;
  }
  utf8proc_int32_t code = -1;
  const utf8proc_ssize_t size = utf8proc_iterate(
      bytes, static_cast<utf8proc_ssize_t>(text.size() - *at), &code);
  if (size <= 0) return -1;
  *at += size;
  return code;
}

absl::StatusOr<std::shared_ptr<const CharacterTokenizer>>
CharacterTokenizer::OfText(absl::string_view text) {
  std::vector<bool> occurs(0x110000);
  for (size_t at = 0; at < text.size();) {
    const int64_t code = NextCharacter(text, &at);
    if (code < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("isn't UTF-8 text: byte ", at, " begins no character"));
    }
    occurs[code] = true;
  }
  std::map<uint32_t, int64_t> ids;
  int64_t next = kFirstCharacter;
  for (uint32_t code = 0; code < occurs.size(); ++code) {
    if (occurs[code]) ids[code] = next++;
  }
  return std::make_shared<const CharacterTokenizer>(ids, next, next + 1);
}

CharacterTokenizer::CharacterTokenizer(const std::map<uint32_t, int64_t>& ids,
                                       int64_t mask, int64_t vocab_size)
    : ids_(ids), mask_(mask), tokens_(vocab_size) {
  ascii_.fill(-1);
  for (const auto& [code, id] : ids_) {
    if (code < 128) ascii_[code] = static_cast<int32_t>(id);
    tokens_[id] = Utf8(code);
  }
  tokens_[kPad] = kPadText;
  tokens_[kBos] = kBosText;
  tokens_[kEos] = kEosText;
  tokens_[mask_] = kMaskText;
}

int64_t CharacterTokenizer::IdOfCode(uint32_t code) const {
  if (code < 128) return ascii_[code];
  const auto found = ids_.find(code);
  return found == ids_.end() ? -1 : found->second;
}

int64_t CharacterTokenizer::SpecialAt(absl::string_view text, size_t at) const {
  if (text[at] != '<') return -1;
  for (int64_t id : {kPad, kBos, kEos, mask_}) {
    if (absl::StartsWith(text.substr(at), tokens_[id])) return id;
  }
  return -1;
}

std::vector<int64_t> CharacterTokenizer::Encode(absl::string_view text) const {
  return EncodeWithPlaces(text).ids;
}

int64_t CharacterTokenizer::Next(absl::string_view text, size_t* at) const {
  const int64_t special = SpecialAt(text, *at);
  if (special >= 0) {
    *at += tokens_[special].size();
    return special;
  }
  const int64_t code = NextCharacter(text, at);
  if (code < 0) ++*at;
  return IdOfCode(code < 0 ? 0xfffd : static_cast<uint32_t>(code));
}

Encoding CharacterTokenizer::EncodeWithPlaces(absl::string_view text) const {
  Encoding encoding;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const int64_t id = Next(text, &at);
    if (id < 0) continue;
    encoding.ids.push_back(id);
    encoding.begins.push_back(static_cast<int64_t>(begin));
    encoding.ends.push_back(static_cast<int64_t>(at));
  }
  return encoding;
}

int64_t CharacterTokenizer::FirstUnknown(absl::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const auto begin = static_cast<int64_t>(at);
    if (Next(text, &at) < 0) return begin;
  }
  return -1;
}

void CharacterTokenizer::AddEnds(std::vector<int64_t>* ids) const {
  ids->insert(ids->begin(), kBos);
}

std::string CharacterTokenizer::Decode(absl::Span<const int64_t> ids) const {
  std::string text;
  for (int64_t id : ids) {
    if (id >= 0 && id < vocab_size()) text += tokens_[id];
  }
  return text;
}

absl::optional<int64_t> CharacterTokenizer::IdOf(
    absl::string_view token) const {
  if (token.empty()) return absl::nullopt;
  for (int64_t id = 0; id < vocab_size(); ++id) {
    if (tokens_[id] == token) return id;
  }
  return absl::nullopt;
}

bool CharacterTokenizer::IsSpecial(int64_t id) const {
  return id == kPad || id == kBos || id == kEos || id == mask_;
}

absl::Status CharacterTokenizer::Save(const std::string& folder) const {
  Json vocab = Json::object();
  Json added = Json::array();
  for (int64_t id = 0; id < vocab_size(); ++id) {
    if (tokens_[id].empty()) continue;
    vocab[tokens_[id]] = id;
    if (!IsSpecial(id)) continue;
    added.push_back({{"id", id},
                     {"content", tokens_[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const auto token = [](const char* text) {
    return Json{{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  // A byte tokenizer's file is that of a BPE without merges, too.
  Json json = ParseJson<Json>(ByteTokenizerJson());
  json["added_tokens"] = added;
  json["pre_tokenizer"] = nullptr;
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({token(kBosText), sequence("A", 0)})},
      {"pair",
       Json::array({token(kBosText), sequence("A", 0), sequence("B", 1)})},
      {"special_tokens",
       {{kBosText,
         {{"id", kBosText},
          {"ids", Json::array({kBos})},
          {"tokens", Json::array({kBosText})}}}}}};
  json["decoder"] = {{"type", "Fuse"}};
  json["model"]["vocab"] = vocab;
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(folder + "/tokenizer.json", json.dump(2) + "\n"));
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", kBosText},
                       {"eos_token", kEosText},
                       {"pad_token", kPadText},
                       {"mask_token", kMaskText},
                       {"clean_up_tokenization_spaces", false}};
  return WriteWholeFile(folder + "/tokenizer_config.json",
                        config.dump(2) + "\n");
}

}  // namespace capstan::llada_windows
