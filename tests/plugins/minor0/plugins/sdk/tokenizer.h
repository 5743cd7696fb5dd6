// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_TOKENIZER_H_
#define CAPSTAN_PLUGINS_SDK_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace capstan {

// Tokens, and where in the text they come from.
struct Encoding {
  std::vector<int64_t> ids;
  // Token i stands for the text's bytes [begins[i], ends[i]). Tokens of one
  // character, written as bytes, each have the whole character.
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
};

// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer();

  // One more than the greatest id.
  virtual int64_t vocab_size() const = 0;

  // The text's own tokens: nothing is added at its ends. Where the text spells
  // an added token ("<|im_end|>"), it becomes that token. Bytes that aren't
  // UTF-8 are encoded as U+FFFD, except where every byte is a token.
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  // The same tokens, with their places.
  virtual Encoding EncodeWithPlaces(absl::string_view text) const = 0;
  // Adds what the tokenizer puts around a text that stands alone (a token of
  // beginning, mostly); by default nothing.
  virtual void AddEnds(std::vector<int64_t>* ids) const {}

  // Bytes; a caller that prints them deals with incomplete UTF-8. Special
  // tokens are written out; ids that are no token give nothing. For parts of a
  // text one after the other, too: Decode(a) + Decode(b) is Decode(a + b).
  virtual std::string Decode(absl::Span<const int64_t> ids) const = 0;

  // The token that is written so ("<|im_end|>", or a vocabulary's own form).
  virtual absl::optional<int64_t> IdOf(absl::string_view token) const {
    return absl::nullopt;
  }
  // Whether it marks something rather than stands for text.
  virtual bool IsSpecial(int64_t id) const { return false; }

  // -1: there is none.
  struct SpecialIds {
    int64_t bos = -1;
    int64_t eos = -1;
    int64_t pad = -1;
  };
  virtual SpecialIds special_ids() const { return {}; }

  // The jinja text of its chat template, "" if it has none.
  virtual std::string chat_template() const { return ""; }

  // Writes tokenizer.json, tokenizer_config.json and, if there is one,
  // chat_template.jinja for Hugging Face's tools.
  virtual absl::Status Save(const std::string& folder) const = 0;
};

// The tokenizer of a Hugging Face folder: its tokenizer.json, with what
// tokenizer_config.json and chat_template.jinja say beside it, if they exist.
// NOT_FOUND without a tokenizer.json; UNIMPLEMENTED, with the place and the
// name, for what the file asks for and isn't supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKENIZER_H_
