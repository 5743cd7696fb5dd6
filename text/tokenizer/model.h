// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_MODEL_H_
#define CAPSTAN_TEXT_TOKENIZER_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// A token covering bytes [begin, begin + size) of a word.
struct Symbol {
  uint32_t id;
  uint32_t size;
  size_t begin;
};

class UnknownWord final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Words to tokens, for all models but BPE (bpe.h). Thread-safe.
class Model {
 public:
  virtual ~Model() = default;

  // Leaves the tokens of `word` (UTF-8, not empty) in *symbols. Throws
  // UnknownWord if a token for what is unknown is needed, but isn't there.
  virtual void Encode(absl::string_view word, Budget* budget,
                      std::vector<Symbol>* symbols) const = 0;
  // Whether it may throw UnknownWord.
  virtual bool refuses_unknown() const = 0;
};

// The greatest matching prefix of a word, then of the rest, ..: Schuster and
// Nakajima, "Japanese and Korean voice search" (2012), as in Hugging Face's
// tokenizers. From the "model" of a tokenizer.json. `vocabulary` must outlive
// it.
absl::StatusOr<std::unique_ptr<Model>> MakeWordPiece(
    const JsonNode& model, const Vocabulary* vocabulary);

// Whole words.
absl::StatusOr<std::unique_ptr<Model>> MakeWordLevel(
    const JsonNode& model, const Vocabulary* vocabulary);

// The cut of greatest probability: Kudo, arXiv:1804.10959, as in Hugging Face's
// tokenizers (sums in double, the first of equal ones).
absl::StatusOr<std::unique_ptr<Model>> MakeUnigram(
    const JsonNode& model, const Vocabulary* vocabulary);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_MODEL_H_
