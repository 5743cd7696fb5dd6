// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/chat_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace chat {
namespace {

using Json = nlohmann::ordered_json;

class ChatTokenizer final : public Tokenizer {
 public:
  ChatTokenizer(std::unique_ptr<Tokenizer> base, const ChatTemplate& chat)
      : base_(std::move(base)),
        jinja_(chat.jinja()),
        ids_(base_->special_ids()) {
    ids_.eos = base_->IdOf(chat.end_of_turn()).value_or(ids_.eos);
    const bool chatml = chat.name() == "chatml" || chat.name() == "smollm2";
    if (chatml) ids_.bos = base_->IdOf("<|im_start|>").value_or(ids_.bos);
    if (chatml || ids_.pad < 0) ids_.pad = ids_.eos;
  }

  int64_t vocab_size() const override { return base_->vocab_size(); }
  std::vector<int64_t> Encode(absl::string_view text) const override {
    return base_->Encode(text);
  }
  Encoding EncodeWithPlaces(absl::string_view text) const override {
    return base_->EncodeWithPlaces(text);
  }
  void AddEnds(std::vector<int64_t>* ids) const override {
    base_->AddEnds(ids);
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return base_->Decode(ids);
  }
  absl::optional<int64_t> IdOf(absl::string_view token) const override {
    return base_->IdOf(token);
  }
  bool IsSpecial(int64_t id) const override { return base_->IsSpecial(id); }
  SpecialIds special_ids() const override { return ids_; }
  std::string chat_template() const override { return jinja_; }
  absl::Status Save(const std::string& folder) const override;

 private:
  const std::unique_ptr<Tokenizer> base_;
  const std::string jinja_;
  SpecialIds ids_;
};

absl::Status ChatTokenizer::Save(const std::string& folder) const {
  CAPSTAN_RETURN_IF_ERROR(base_->Save(folder));
  const std::string path = folder + "/tokenizer_config.json";
  Json config = Json::object();
  if (std::filesystem::exists(path)) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
    config = ParseJson<Json>(text);
    if (!config.is_object()) config = Json::object();
  }
  const auto set = [&](const char* key, int64_t id) {
    if (id >= 0) config[key] = base_->Decode({id});
  };
  set("bos_token", ids_.bos);
  set("eos_token", ids_.eos);
  set("pad_token", ids_.pad);
  config["chat_template"] = jinja_;
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(path, config.dump(2) + "\n"));
  // Where there is one, it is read instead.
  const std::string own = folder + "/chat_template.jinja";
  std::error_code error;
  if (!std::filesystem::exists(own, error)) return absl::OkStatus();
  return WriteWholeFile(own, jinja_);
}

}  // namespace

std::unique_ptr<Tokenizer> WithChatTemplate(
    std::unique_ptr<Tokenizer> tokenizer, const ChatTemplate& chat_template) {
  return std::make_unique<ChatTokenizer>(std::move(tokenizer), chat_template);
}

}  // namespace chat
}  // namespace capstan
