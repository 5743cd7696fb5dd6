// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/model_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

ModelTokenizer& Current() {
  static auto* const tokenizer = new ModelTokenizer();
  return *tokenizer;
}

// The UTF-8 character that `text` begins with, and its code; size 1 and code -1
// if it begins with none.
int32_t FirstCharacter(absl::string_view text, size_t* size) {
  const auto first = static_cast<unsigned char>(text[0]);
  *size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first < 0x80) return first;
  int32_t code = first & (0x7f >> *size);
  bool valid = first >= 0xc2 && first < 0xf5 && *size <= text.size();
  for (size_t i = 1; valid && i < *size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    valid = (byte & 0xc0) == 0x80;
    code = code << 6 | (byte & 0x3f);
  }
  if (valid) return code;
  *size = 1;
  return -1;
}

}  // namespace

const ModelTokenizer& CurrentModelTokenizer() { return Current(); }

absl::StatusOr<ModelTokenizer> TokenizerToRead(const std::string& folder,
                                               absl::string_view field) {
  if (folder.empty()) return CurrentModelTokenizer();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(folder);
  if (!tokenizer.ok()) return FieldError(field, tokenizer.status().message());
  return ModelTokenizer{*std::move(tokenizer), folder};
}

void SetModelTokenizer(ModelTokenizer tokenizer) {
  Current() = std::move(tokenizer);
}

absl::Status CheckKnown(const Tokenizer& tokenizer, absl::string_view text) {
  const int64_t at = tokenizer.FirstUnknown(text);
  return at < 0 ? absl::OkStatus() : UnknownAt(text, at);
}

absl::Status UnknownAt(absl::string_view text, int64_t at) {
  size_t size = 1;
  const int32_t code = FirstCharacter(text.substr(at), &size);
  const bool shown = code >= 0x20 && (code < 0x7f || code >= 0xa0);
  return absl::InvalidArgumentError(absl::StrCat(
      "has the ",
      code < 0
          ? absl::StrFormat("byte 0x%02x", static_cast<unsigned char>(text[at]))
          : absl::StrCat(
                "character ",
                shown ? absl::StrCat("\"", text.substr(at, size), "\" (") : "",
                absl::StrFormat("U+%04X", code), shown ? ")" : ""),
      ", for which the tokenizer has neither a token nor one that stands for "
      "unknown text"));
}

}  // namespace capstan
