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

// Tokens with their byte offsets in the text.
struct Encoding {
  std::vector<int64_t> ids;
  // Token i spans the text's bytes [begins[i], ends[i]). If several tokens are
  // bytes of one character, each spans the whole character.
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
};

// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer();

  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;

  // The tokens of the text alone: nothing is added at its ends. Text that
  // spells an added token ("<|im_end|>") becomes that token. Invalid UTF-8 is
  // encoded as U+FFFD, unless every byte is a token.
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  // The same tokens with their offsets.
  virtual Encoding EncodeWithPlaces(absl::string_view text) const = 0;
  // Adds the tokens that surround a standalone text (usually a begin token); by
  // default none.
  virtual void AddEnds(std::vector<int64_t>* ids) const {}

  // Returns bytes, which may be incomplete UTF-8. Special tokens are spelled
  // out; unknown ids yield nothing. Decode(a) + Decode(b) equals Decode(a + b).
  virtual std::string Decode(absl::Span<const int64_t> ids) const = 0;

  // The id of a token's spelling ("<|im_end|>", or the vocabulary's own form).
  virtual absl::optional<int64_t> IdOf(absl::string_view token) const {
    return absl::nullopt;
  }
  // Whether the token is a marker rather than text.
  virtual bool IsSpecial(int64_t id) const { return false; }

  // -1: none.
  struct SpecialIds {
    int64_t bos = -1;
    int64_t eos = -1;
    int64_t pad = -1;
  };
  virtual SpecialIds special_ids() const { return {}; }

  // The jinja source of its chat template, "" if it has none.
  virtual std::string chat_template() const { return ""; }

  // The byte offset in `text` of the first character that Encode drops, since
  // the vocabulary has neither it nor a token for unknown ones; -1 if there is
  // none.
  virtual int64_t FirstUnknown(absl::string_view text) const { return -1; }

  // Writes tokenizer.json, tokenizer_config.json and, if there is a template,
  // chat_template.jinja for Hugging Face's tools.
  virtual absl::Status Save(const std::string& folder) const = 0;
};

// Returns INVALID_ARGUMENT, naming the character, if there is a FirstUnknown.
absl::Status CheckKnown(const Tokenizer& tokenizer, absl::string_view text);

// Returns CheckKnown's error for the character at text[at].
absl::Status UnknownAt(absl::string_view text, int64_t at);

// Loads the tokenizer of a Hugging Face folder: tokenizer.json or, for GPT-2
// and Qwen2, vocab.json and merges.txt, and if they exist
// tokenizer_config.json, special_tokens_map.json, added_tokens.json and
// chat_template.jinja. NOT_FOUND without a vocabulary; UNIMPLEMENTED, with
// location and name, for features that aren't supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKENIZER_H_
