// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_
#define CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  // Instead of encoding, looks for the first byte of the caller's text that no
  // token stands for; npos: none yet.
  bool seeks_left_out = false;
  size_t left_out = absl::string_view::npos;
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
  // Words are bytes rather than characters: the last step is a ByteLevel, and
  // the model takes them as they are.
  bool byte_level = false;
  // Some step reads characters, so the text must be UTF-8.
  bool reads_characters = false;
};

// The "pre_tokenizer" of a tokenizer.json, sequences flattened. Unless the
// model `takes_bytes`, a ByteLevel gives the characters that stand for them.
absl::StatusOr<PreTokenizers> MakePreTokenizers(const JsonNode& node,
                                                bool takes_bytes);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_PRE_TOKENIZER_H_
