// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_CHARACTER_NORMALIZERS_H_
#define CAPSTAN_TEXT_TOKENIZER_CHARACTER_NORMALIZERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"

namespace capstan::tokenizer {

// By Unicode's full mapping, without regard to neighbours.
std::unique_ptr<Normalizer> NewLowercase();
// Drops combining marks; doesn't decompose.
std::unique_ptr<Normalizer> NewStripAccents();
// Drops white space at the ends.
std::unique_ptr<Normalizer> NewStrip(bool left, bool right);
// SentencePiece's "nmt" rules.
std::unique_ptr<Normalizer> NewNmt();
// Each byte as the character that byte-level vocabularies write for it.
std::unique_ptr<Normalizer> NewToByteCharacters();

struct BertOptions {
  bool clean_text;            // drops control characters; all spaces are ' '
  bool handle_chinese_chars;  // puts spaces around them
  bool strip_accents;
  bool lowercase;
};
// In this order.
std::vector<std::unique_ptr<Normalizer>> NewBertNormalizers(
    const BertOptions& options);

// "Precompiled": replacements that SentencePiece has compiled into a trie.
absl::StatusOr<std::unique_ptr<Normalizer>> MakePrecompiled(
    const JsonNode& node);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_CHARACTER_NORMALIZERS_H_
