// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_
#define CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/regex.h"

namespace capstan::tokenizer {

// Per-thread scratch and output for encoding a text.
struct Worker {
  RegexState regex;
  BpeState bpe;
  std::vector<Symbol> symbols;
  std::vector<int64_t> ids;
  bool with_places = false;
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
};

// A step from text to words: takes pieces from left to right and passes each
// on, split or transformed, to the next step. Thread-safe.
class PieceStep {
 public:
  virtual ~PieceStep() = default;
  // `piece` isn't empty.
  virtual void Take(const Piece& piece, Worker* worker) const = 0;

  // Call once, before the first Take; `next` must outlive this.
  void set_next(const PieceStep* next) { next_ = next; }

 protected:
  void Give(const Piece& piece, Worker* worker) const {
    if (!piece.text.empty()) next_->Take(piece, worker);
  }

 private:
  const PieceStep* next_ = nullptr;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PieceStep>> steps;
  // Words are bytes rather than characters (the last step is a ByteLevel).
  bool byte_level = false;
  // Some step reads characters, so the text must be UTF-8.
  bool reads_characters = false;
};

// The "pre_tokenizer" of a tokenizer.json, sequences flattened.
absl::StatusOr<PreTokenizers> MakePreTokenizers(const JsonNode& node);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_
