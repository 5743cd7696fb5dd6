// SPDX-License-Identifier: Apache-2.0
//
// For tests: a byte tokenizer with a few special tokens from id 256 on.
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_FAKE_TOKENIZER_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_FAKE_TOKENIZER_H_

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> special,
                         std::string chat_template = "")
      : special_(std::move(special)), jinja_(std::move(chat_template)) {}

  int64_t vocab_size() const override {
    return 256 + static_cast<int64_t>(special_.size());
  }
  std::vector<int64_t> Encode(absl::string_view text) const override {
    return EncodeWithPlaces(text).ids;
  }
  Encoding EncodeWithPlaces(absl::string_view text) const override {
    Encoding out;
    for (size_t at = 0; at < text.size();) {
      size_t size = 1;
      int64_t id = static_cast<unsigned char>(text[at]);
      for (size_t s = 0; s < special_.size(); ++s) {
        if (absl::StartsWith(text.substr(at), special_[s])) {
          size = special_[s].size();
          id = 256 + static_cast<int64_t>(s);
        }
      }
      out.ids.push_back(id);
      out.begins.push_back(static_cast<int64_t>(at));
      out.ends.push_back(static_cast<int64_t>(at + size));
      at += size;
    }
    return out;
  }
  void AddEnds(std::vector<int64_t>* ids) const override {
    if (ids_.bos >= 0 && adds_bos_) ids->insert(ids->begin(), ids_.bos);
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    std::string text;
    for (int64_t id : ids) {
      text += id < 256 ? std::string(1, static_cast<char>(id))
                       : special_[static_cast<size_t>(id - 256)];
    }
    return text;
  }
  absl::optional<int64_t> IdOf(absl::string_view token) const override {
    for (size_t s = 0; s < special_.size(); ++s) {
      if (special_[s] == token) return 256 + static_cast<int64_t>(s);
    }
    return absl::nullopt;
  }
  bool IsSpecial(int64_t id) const override { return id >= 256; }
  SpecialIds special_ids() const override { return ids_; }
  std::string chat_template() const override { return jinja_; }
  absl::Status Save(const std::string& folder) const override {
    std::ofstream(folder + "/tokenizer.json") << "{}\n";
    std::ofstream(folder + "/tokenizer_config.json")
        << "{\"model_max_length\": 64}\n";
    return absl::OkStatus();
  }

  void set_special_ids(SpecialIds ids, bool adds_bos = false) {
    ids_ = ids;
    adds_bos_ = adds_bos;
  }

 private:
  const std::vector<std::string> special_;
  const std::string jinja_;
  SpecialIds ids_;
  bool adds_bos_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_FAKE_TOKENIZER_H_
