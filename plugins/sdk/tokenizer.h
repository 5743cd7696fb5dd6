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

struct Encoding {
  std::vector<int64_t> ids;
  // Token i spans bytes [begins[i], ends[i]) of the text; tokens that are bytes
  // of one character all span the whole character.
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
};

// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer();

  virtual int64_t vocab_size() const = 0;  // one more than the largest id

  // Adds nothing at the ends. Text that spells an added token ("<|im_end|>")
  // becomes it. Invalid UTF-8 becomes U+FFFD, unless every byte is a token.
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  virtual Encoding EncodeWithPlaces(absl::string_view text) const = 0;
  // Adds the tokens around a standalone text, usually a begin token.
  virtual void AddEnds(std::vector<int64_t>* ids) const {}

  // Returns bytes, maybe incomplete UTF-8, with special tokens spelled out and
  // without unknown ids. Decode(a) + Decode(b) equals Decode(a + b).
  virtual std::string Decode(absl::Span<const int64_t> ids) const = 0;

  // Finds a token by its spelling ("<|im_end|>") or the vocabulary's own form.
  virtual absl::optional<int64_t> IdOf(absl::string_view token) const {
    return absl::nullopt;
  }
  virtual bool IsSpecial(int64_t id) const { return false; }  // not text

  struct SpecialIds {  // -1: none
    int64_t bos = -1;
    int64_t eos = -1;
    int64_t pad = -1;
  };
  virtual SpecialIds special_ids() const { return {}; }

  virtual std::string chat_template() const { return ""; }  // its jinja source

  // Returns the byte offset in `text` of the first character that Encode drops,
  // as neither it nor an unknown one has a token; -1: none.
  virtual int64_t FirstUnknown(absl::string_view text) const { return -1; }

  // Writes tokenizer.json, tokenizer_config.json and, if there is a template,
  // chat_template.jinja for Hugging Face's tools.
  virtual absl::Status Save(const std::string& folder) const = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

// Returns INVALID_ARGUMENT, naming the character, if there is a FirstUnknown.
absl::Status CheckKnown(const Tokenizer& tokenizer, absl::string_view text);

// Returns CheckKnown's error for the character at text[at].
absl::Status UnknownAt(absl::string_view text, int64_t at);

// Loads tokenizer.json of a Hugging Face folder, or vocab.json and merges.txt
// (GPT-2, Qwen2), and if they exist tokenizer_config.json, added_tokens.json,
// special_tokens_map.json and chat_template.jinja. NOT_FOUND without
// vocabulary; UNIMPLEMENTED, with location and name, for unsupported features.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKENIZER_H_
