// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_LLADA_WINDOWS_CHARACTERS_H_
#define CAPSTAN_PLUGINS_LLADA_WINDOWS_CHARACTERS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::llada_windows {

constexpr int64_t kPad = 0;
constexpr int64_t kBos = 1;
constexpr int64_t kEos = 2;
constexpr int64_t kFirstCharacter = 3;
constexpr char kBosText[] = "<|startoftext|>";

// The character at text[*at]; advances *at past it. If it isn't valid UTF-8, or
// at the end, returns -1 and leaves *at.
int64_t NextCharacter(absl::string_view text, size_t* at);

// Each character is a token; Encode leaves out those missing from the
// vocabulary (FirstUnknown). Special tokens are spelled as LLaDA's:
// "<|padding|>", "<|startoftext|>",
// "<|endoftext|>" and "<|mdm_mask|>".
class CharacterTokenizer final : public Tokenizer {
 public:
  // A vocabulary of the text's distinct characters; the mask is the last id.
  static absl::StatusOr<std::shared_ptr<const CharacterTokenizer>> OfText(
      absl::string_view text);
  // `ids` by code point, distinct and in [3, vocab_size), without `mask`.
  CharacterTokenizer(const std::map<uint32_t, int64_t>& ids, int64_t mask,
                     int64_t vocab_size);

  // -1 if the vocabulary lacks it.
  int64_t IdOfCode(uint32_t code) const;
  const std::map<uint32_t, int64_t>& ids() const { return ids_; }
  int64_t mask() const { return mask_; }

  int64_t vocab_size() const override {
    return static_cast<int64_t>(tokens_.size());
  }
  std::vector<int64_t> Encode(absl::string_view text) const override;
  Encoding EncodeWithPlaces(absl::string_view text) const override;
  void AddEnds(std::vector<int64_t>* ids) const override;
  std::string Decode(absl::Span<const int64_t> ids) const override;
  absl::optional<int64_t> IdOf(absl::string_view token) const override;
  bool IsSpecial(int64_t id) const override;
  SpecialIds special_ids() const override { return {kBos, kEos, kPad}; }
  // Saves a BPE without merges.
  absl::Status Save(const std::string& folder) const override;
  int64_t FirstUnknown(absl::string_view text) const override;

 private:
  // The id at text[*at], -1 if the vocabulary lacks it; advances *at.
  int64_t Next(absl::string_view text, size_t* at) const;
  // The special token spelled at text[at], or -1.
  int64_t SpecialAt(absl::string_view text, size_t at) const;

  const std::map<uint32_t, int64_t> ids_;
  const int64_t mask_;
  std::array<int32_t, 128> ascii_;   // ids, -1 for none
  std::vector<std::string> tokens_;  // by id, "" for none
};

}  // namespace capstan::llada_windows

#endif  // CAPSTAN_PLUGINS_LLADA_WINDOWS_CHARACTERS_H_
