// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// The character that stands for a byte in byte-level BPE vocabularies
// (bytes_to_unicode of GPT-2's encoder.py): printable Latin-1 stands for
// itself, the other 68 bytes for U+0100, U+0101, .. in order.
std::string ByteCharacter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) ||
           (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6),
          static_cast<char>(0x80 | (code & 0x3f))};
}

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }

  std::vector<int64_t> Encode(absl::string_view text) const override {
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  Encoding EncodeWithPlaces(absl::string_view text) const override {
    Encoding encoding;
    encoding.ids = Encode(text);
    for (size_t i = 0; i < text.size(); ++i) {
      encoding.begins.push_back(static_cast<int64_t>(i));
      encoding.ends.push_back(static_cast<int64_t>(i + 1));
    }
    return encoding;
  }

  std::string Decode(absl::Span<const int64_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (int64_t id : ids) {
      // A larger vocabulary's other ids aren't bytes.
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  absl::Status Save(const std::string& folder) const override {
    const absl::Status status =
        WriteWholeFile(folder + "/tokenizer.json", ByteTokenizerJson() + "\n");
    if (!status.ok()) return status;
    const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
    return WriteWholeFile(folder + "/tokenizer_config.json",
                          config.dump(2) + "\n");
  }
};

}  // namespace

std::string ByteTokenizerJson() {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[ByteCharacter(b)] = b;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", Json::array()}}}};
  return json.dump(2);
}

std::unique_ptr<Tokenizer> NewByteTokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace capstan
