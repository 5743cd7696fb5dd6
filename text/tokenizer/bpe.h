// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_BPE_H_
#define CAPSTAN_TEXT_TOKENIZER_BPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan::tokenizer {

// The result of merging two adjacent tokens.
struct Merge {
  uint32_t rank;  // lower merges first
  uint32_t id;    // of the merged token
};

constexpr uint32_t kNoRank = ~uint32_t{0};

// An open-addressing hash table from token pairs to merges.
class MergeTable {
 public:
  // Reserves room for `merges` merges.
  explicit MergeTable(size_t merges) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.resize(slots);
  }

  // Overwrites an earlier merge of the pair.
  void Set(uint32_t left, uint32_t right, Merge merge) {
    size_t i = Place(Key(left, right));
    while (slots_[i].key != kEmpty && slots_[i].key != Key(left, right)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = {Key(left, right), merge};
  }

  // rank is kNoRank if the pair doesn't merge.
  Merge Find(uint32_t left, uint32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t i = Place(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {kNoRank, 0};
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = {kNoRank, 0};
  };

  static uint64_t Key(uint32_t left, uint32_t right) {
    return static_cast<uint64_t>(left) << 32 | right;
  }
  size_t Place(uint64_t key) const {
    key *= 0x9e3779b97f4a7c15u;
    return (key ^ key >> 32) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_;
};

// Per-thread scratch for encoding.
struct BpeState {
  struct Candidate {
    uint32_t rank;
    uint32_t left;  // index of the left symbol
    uint32_t right_id;
    uint32_t left_id;
    uint32_t id;
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<uint32_t> previous;
  std::vector<uint32_t> next;
  std::vector<Candidate> heap;
  std::vector<int64_t> ids;
};

// Byte pair encoding (Sennrich et al., arXiv:1508.07909) as in Hugging Face's
// tokenizers: repeatedly merges the adjacent pair of lowest rank, leftmost
// first, until no pair merges. Thread-safe.
class Bpe {
 public:
  // Whether words may be bytes: for what looks at their characters they are
  // written as such.
  static bool TakesBytes(const JsonNode& model);
  // From the "model" of a tokenizer.json. If `byte_level`, words are bytes,
  // each written as a character in the vocabulary; otherwise UTF-8.
  // `vocabulary` must outlive it.
  static absl::StatusOr<std::unique_ptr<Bpe>> Make(
      const JsonNode& model, bool byte_level, const Vocabulary* vocabulary);

  // Appends the tokens of `word` (not empty), a view into `text`, all of which
  // must be readable.
  void Encode(absl::string_view word, absl::string_view text, BpeState* state,
              std::vector<int64_t>* ids) const;
  // Leaves the same tokens with their offsets in the word in *symbols. Bytes
  // without a token are in none.
  void EncodeWithPlaces(absl::string_view word, absl::string_view text,
                        BpeState* state, std::vector<Symbol>* symbols) const;

  // Whether some words have bytes that no token, not even an unknown one,
  // stands for: they are left out.
  bool leaves_out() const;
  // The offset of the first such byte of `word`; npos: it has none.
  size_t FirstLeftOut(absl::string_view word) const;

 private:
  Bpe(bool byte_level, const Vocabulary* vocabulary)
      : byte_level_(byte_level), vocabulary_(*vocabulary) {}

  absl::Status Load(const JsonNode& model);
  void LoadBytes();
  absl::Status LoadMerges(const JsonNode& merges);
  absl::Status AddMerge(const JsonNode& merges, uint32_t rank,
                        absl::string_view left, absl::string_view right);
  void NoteNeighbours(absl::string_view token);
  void NoteSizes();

  // Length in bytes of the longest prefix of `word` that can be encoded on its
  // own: no merge joins the characters on either side of its end.
  size_t Prefix(absl::string_view word) const;
  // Encodes a prefix into state->symbols.
  void Run(absl::string_view word, BpeState* state) const;
  void Split(absl::string_view word, std::vector<Symbol>* symbols) const;
  void SplitCharacters(absl::string_view word,
                       std::vector<Symbol>* symbols) const;
  void MergeShort(BpeState* state) const;
  void MergeLong(BpeState* state) const;
  // Appends tokens for the bytes of `text`, which word's bytes [begin, begin +
  // size) have become; false if it doesn't fall back to bytes.
  bool AddBytes(absl::string_view text, size_t begin, size_t size,
                std::vector<Symbol>* symbols) const;
  // Throws if the vocabulary lacks it.
  uint32_t UnknownId() const;
  int32_t WholeWord(absl::string_view word) const;

  const bool byte_level_;
  const Vocabulary& vocabulary_;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  std::string unknown_token_;  // "": none
  int32_t unknown_ = -1;       // its id
  std::string prefix_;         // of characters that begin no word
  std::string suffix_;         // of those that end one
  bool has_affix_ = false;
  std::array<int32_t, 256> byte_ids_;  // -1: none
  bool every_byte_ = false;            // byte_ids_ has all of them
  bool byte_fallback_ = false;         // falls back to byte_ids_
  // No merge involves a token that stands for other characters than its text.
  bool plain_ = true;
  // Byte-level vocabulary by the bytes its tokens stand for; only with
  // ignore_merges.
  absl::flat_hash_map<std::string, int32_t> words_;
  std::unique_ptr<MergeTable> merges_;
  bool has_merges_ = false;
  // Bytes that each token stands for; empty if not determined by the token
  // alone.
  std::vector<uint32_t> sizes_;

  // Pairs of characters (bytes if byte-level) adjacent within some merge's
  // result. No token contains any other pair.
  bool prefixes_ = true;  // whether pairs determine where words can be cut
  std::vector<bool> byte_neighbours_;
  absl::flat_hash_set<uint64_t> neighbours_;
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_BPE_H_
