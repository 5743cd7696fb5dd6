// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_encoder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::chat {
namespace {

using Json = nlohmann::ordered_json;

// JSON of this size takes ten times as much memory.
constexpr uint64_t kMostRowBytes = 256 << 20;

class ChatTokenizer final : public Tokenizer {
 public:
  ChatTokenizer(std::shared_ptr<const Tokenizer> base, const ChatTemplate& chat)
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
  int64_t FirstUnknown(absl::string_view text) const override {
    return base_->FirstUnknown(text);
  }

 private:
  void SetSpecialTokens(Json* object) const;

  const std::shared_ptr<const Tokenizer> base_;
  const std::string jinja_;
  SpecialIds ids_;
};

// What is in a file; an empty object if that is none.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  Json object = Json::object();
  if (!std::filesystem::exists(path)) return object;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  object = ParseJson<Json>(text);
  if (!object.is_object()) object = Json::object();
  return object;
}

void ChatTokenizer::SetSpecialTokens(Json* object) const {
  const auto set = [&](const char* key, int64_t id) {
    if (id >= 0) (*object)[key] = base_->Decode({id});
  };
  set("bos_token", ids_.bos);
  set("eos_token", ids_.eos);
  set("pad_token", ids_.pad);
}

absl::Status ChatTokenizer::Save(const std::string& folder) const {
  CAPSTAN_RETURN_IF_ERROR(base_->Save(folder));
  const std::string path = folder + "/tokenizer_config.json";
  CAPSTAN_ASSIGN_OR_RETURN(Json config, ReadObject(path));
  SetSpecialTokens(&config);
  // Its tokens win over those of the config.
  const std::string map_path = folder + "/special_tokens_map.json";
  if (std::filesystem::exists(map_path)) {
    CAPSTAN_ASSIGN_OR_RETURN(Json map, ReadObject(map_path));
    SetSpecialTokens(&map);
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(map_path, map.dump(2) + "\n"));
  }
  config["chat_template"] = jinja_;
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(path, config.dump(2) + "\n"));
  // If it exists, it is read instead.
  const std::string own = folder + "/chat_template.jinja";
  std::error_code error;
  if (!std::filesystem::exists(own, error)) return absl::OkStatus();
  return WriteWholeFile(own, jinja_);
}

}  // namespace

std::unique_ptr<Tokenizer> WithChatTemplate(
    std::shared_ptr<const Tokenizer> tokenizer,
    const ChatTemplate& chat_template) {
  return std::make_unique<ChatTokenizer>(std::move(tokenizer), chat_template);
}

int64_t TokenRow::trained() const {
  if (labels.empty()) return 0;
  return static_cast<int64_t>(labels.size()) - 1 -
         std::count(labels.begin() + 1, labels.end(), kIgnoredTarget);
}

void TokenRow::Cut(int64_t max_length, Truncation truncation) {
  const int64_t more = static_cast<int64_t>(ids.size()) - max_length;
  was_cut = more > 0;
  if (!was_cut) return;
  const int64_t from = truncation == KEEP_END ? 0 : max_length;
  ids.erase(ids.begin() + from, ids.begin() + from + more);
  labels.erase(labels.begin() + from, labels.begin() + from + more);
}

RowEncoder::RowEncoder(const Tokenizer* tokenizer,
                       const ChatTemplate* chat_template,
                       absl::Status no_template, LossOn loss_on,
                       int64_t max_length, std::string variables,
                       Truncation truncation)
    : tokenizer_(tokenizer),
      template_(chat_template),
      no_template_(std::move(no_template)),
      loss_on_(loss_on),
      max_length_(max_length),
      variables_(std::move(variables)),
      truncation_(truncation) {
  const int64_t eos = tokenizer->special_ids().eos;
  if (eos >= 0) eos_ = tokenizer->Decode({eos});
  // Tokens around a text of one token that no tokenizer has.
  std::vector<int64_t> ids = {-1};
  tokenizer->AddEnds(&ids);
  const auto text = std::find(ids.begin(), ids.end(), -1);
  begin_.assign(ids.begin(), text);
  if (text != ids.end()) end_.assign(text + 1, ids.end());
}

LossOn RowEncoder::LossOf(Kind kind) const {
  if (loss_on_ != BY_KIND) return loss_on_;
  return kind == PROMPT_COMPLETION ? COMPLETION : ALL;
}

absl::Status RowEncoder::Render(const Row& row, RenderedRow* out) const {
  out->trained.clear();
  out->tools_as_text = false;
  out->everything = LossOf(row.kind) == ALL;
  CAPSTAN_RETURN_IF_ERROR(row.is_text ? RenderText(row, out)
                                      : RenderChat(row, out));
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(*tokenizer_, out->text));
  if (out->everything) {
    out->trained.assign(1, {0, static_cast<int64_t>(out->text.size())});
  }
  return absl::OkStatus();
}

absl::Status RowEncoder::RenderText(const Row& row, RenderedRow* out) const {
  out->with_begin = true;
  out->with_end = row.kind == TEXT;
  if (row.kind == TEXT && !out->everything) {
    return absl::FailedPreconditionError(
        "a row is a plain text, of which nothing is the assistant's or a "
        "completion: set loss_on: ALL for this source");
  }
  out->text = row.prompt;
  out->text += row.completion;
  // As TRL's SFTTrainer (add_eos), but not beside an end of the tokenizer's.
  const bool ends = row.kind == TEXT && !end_.empty();
  if (!ends && !absl::EndsWith(out->text, eos_)) out->text += eos_;
  if (row.kind == TEXT) return absl::OkStatus();
  out->trained.emplace_back(static_cast<int64_t>(row.prompt.size()),
                            static_cast<int64_t>(out->text.size()));
  return absl::OkStatus();
}

absl::Status RowEncoder::RenderChat(const Row& row, RenderedRow* out) const {
  out->with_begin = false;
  out->with_end = false;
  if (template_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a row is a conversation, but ", no_template_.message()));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      RenderedChat chat,
      RenderMessages(row, row.messages().size(), /*generation_prompt=*/false,
                     /*find_turns=*/!out->everything));
  out->text = std::move(chat.text);
  out->tools_as_text = chat.tools_as_text;
  if (out->everything) return absl::OkStatus();
  auto first = chat.turns.begin();
  if (LossOf(row.kind) == COMPLETION && row.kind == PROMPT_COMPLETION) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t begin, CompletionBegin(row, *out));
    first = std::find_if(first, chat.turns.end(), [&](const ChatTurn& turn) {
      return turn.message < 0
                 ? turn.begin >= begin
                 : turn.message >= static_cast<int64_t>(row.prompt_messages);
    });
  } else if (LossOf(row.kind) == COMPLETION && !chat.turns.empty()) {
    first = chat.turns.end() - 1;
  }
  for (; first != chat.turns.end(); ++first) {
    out->trained.emplace_back(first->begin, first->end);
  }
  return absl::OkStatus();
}

absl::StatusOr<RenderedChat> RowEncoder::RenderMessages(const Row& row,
                                                        size_t count,
                                                        bool generation_prompt,
                                                        bool find_turns) const {
  std::string json;
  ChatInput input = row.Input(count, &json);
  input.variables = variables_;
  input.generation_prompt = generation_prompt;
  input.find_turns = find_turns;
  return template_->RenderInput(input);
}

absl::StatusOr<int64_t> RowEncoder::CompletionBegin(
    const Row& row, const RenderedRow& rendered) const {
  CAPSTAN_ASSIGN_OR_RETURN(
      const RenderedChat prompt,
      RenderMessages(row, row.prompt_messages, /*generation_prompt=*/true,
                     /*find_turns=*/false));
  const size_t most = std::min(prompt.text.size(), rendered.text.size());
  return std::mismatch(prompt.text.begin(), prompt.text.begin() + most,
                       rendered.text.begin())
             .first -
         prompt.text.begin();
}

void RowEncoder::Encode(const RenderedRow& row, TokenRow* out) const {
  Encoding encoding = tokenizer_->EncodeWithPlaces(row.text);
  const size_t count = encoding.ids.size();
  out->ids.clear();
  out->labels.clear();
  // Not twice, if the text itself spells them.
  if (row.with_begin && !begin_.empty() &&
      (count == 0 || encoding.ids[0] != begin_[0])) {
    out->ids = begin_;
    out->labels.assign(begin_.size(), kIgnoredTarget);
    if (row.everything) out->labels = begin_;
  }
  auto range = row.trained.begin();
  for (size_t i = 0; i < count; ++i) {
    while (range != row.trained.end() && range->second <= encoding.begins[i]) {
      ++range;
    }
    const bool trained = range != row.trained.end() &&
                         range->first <= encoding.begins[i] &&
                         encoding.ends[i] <= range->second;
    out->ids.push_back(encoding.ids[i]);
    out->labels.push_back(trained ? encoding.ids[i] : kIgnoredTarget);
  }
  if (row.with_end &&
      (count == 0 || end_.empty() || encoding.ids.back() != end_.back())) {
    out->ids.insert(out->ids.end(), end_.begin(), end_.end());
    out->labels.insert(out->labels.end(), end_.begin(), end_.end());
  }
  out->Cut(max_length_, truncation_);
}

absl::StatusOr<std::vector<int64_t>> RowEncoder::PairIds(
    const Row& row, bool prompt_alone, bool* tools_as_text) const {
  if (!row.is_text) {
    if (template_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a row is a conversation, but ", no_template_.message()));
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const RenderedChat text,
        RenderMessages(
            row, prompt_alone ? row.prompt_messages : row.messages().size(),
            /*generation_prompt=*/prompt_alone,
            /*find_turns=*/false));
    CAPSTAN_RETURN_IF_ERROR(CheckKnown(*tokenizer_, text.text));
    *tools_as_text |= text.tools_as_text;
    return tokenizer_->Encode(text.text);
  }
  std::string text = row.prompt;
  if (!prompt_alone) {
    text += row.completion;
    if (!absl::EndsWith(row.completion, eos_)) text += eos_;
  }
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(*tokenizer_, text));
  std::vector<int64_t> ids = tokenizer_->Encode(text);
  if (!begin_.empty() && (ids.empty() || ids[0] != begin_[0])) {
    ids.insert(ids.begin(), begin_.begin(), begin_.end());
  }
  return ids;
}

absl::Status RowEncoder::EncodeAnswers(const Row& row, TokenRow* chosen,
                                       TokenRow* rejected,
                                       bool* tools_as_text) const {
  std::vector<TokenRow*> texts = {chosen};
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt,
                           PairIds(row, /*prompt_alone=*/true, tools_as_text));
  CAPSTAN_ASSIGN_OR_RETURN(chosen->ids, PairIds(row, false, tools_as_text));
  if (row.kind == PREFERENCE) {
    CAPSTAN_ASSIGN_OR_RETURN(rejected->ids,
                             PairIds(*row.rejected, false, tools_as_text));
    if (chosen->ids == rejected->ids) {
      return absl::InvalidArgumentError(
          "\"chosen\" and \"rejected\" are the same text, which prefers "
          "nothing");
    }
    texts.push_back(rejected);
  }
  // As TRL 1.16's DPOTrainer._prepare_dataset: completions begin where the
  // tokens of one of them leave those of the prompt.
  size_t begin = prompt.size();
  for (const TokenRow* each : texts) {
    const size_t most = std::min(begin, each->ids.size());
    begin =
        std::mismatch(prompt.begin(), prompt.begin() + most, each->ids.begin())
            .first -
        prompt.begin();
  }
  for (TokenRow* each : texts) {
    each->labels = each->ids;
    std::fill_n(each->labels.begin(), std::min(begin, each->labels.size()),
                kIgnoredTarget);
    each->Cut(max_length_, truncation_);
  }
  return absl::OkStatus();
}

absl::Status CheckPromptLength(int64_t length, int64_t max_length) {
  if (length <= max_length) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the prompt has ", length, " tokens, more than max_length (", max_length,
      "), and isn't cut, as that would be another question: raise max_length, "
      "or set bad_rows: SKIP"));
}

absl::Status RowEncoder::EncodePrompt(const Row& row, TokenRow* out,
                                      bool* tools_as_text) const {
  CAPSTAN_ASSIGN_OR_RETURN(out->ids,
                           PairIds(row, /*prompt_alone=*/true, tools_as_text));
  if (out->ids.empty()) {
    return absl::InvalidArgumentError("the prompt has no token");
  }
  out->labels.assign(out->ids.size(), kIgnoredTarget);
  out->was_cut = false;
  return CheckPromptLength(static_cast<int64_t>(out->ids.size()), max_length_);
}

std::string RowEncoder::Settings() const {
  return absl::StrCat(
      "template ", template_ == nullptr ? "" : template_->name(), "; jinja ",
      template_ == nullptr ? "" : template_->jinja(), "; with ", variables_,
      "; loss on ", LossOn_Name(loss_on_), "; at most ", max_length_, " tokens",
      truncation_ == KEEP_END ? ", the last" : "", "; ends with ", eos_);
}

int64_t RowReader::trained() const {
  if (row.kind != PREFERENCE) return tokens.trained();
  if (tokens.ids == rejected.ids) return 0;
  return std::min(tokens.trained(), rejected.trained());
}

absl::Status RowReader::Read(absl::string_view json, Kind kind,
                             const RowEncoder& encoder) {
  if (json.size() > kMostRowBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row has ", json.size(),
                     " bytes, more than the limit of ", kMostRowBytes));
  }
  CAPSTAN_RETURN_IF_ERROR(parser.Parse(json, json.size(), kind, &row));
  rendered.tools_as_text = false;
  rejected.ids.clear();
  rejected.labels.clear();
  rejected.was_cut = false;
  if (row.kind == PROMPT) {
    return encoder.EncodePrompt(row, &tokens, &rendered.tools_as_text);
  }
  if (row.kind == PREFERENCE || row.kind == UNPAIRED) {
    return encoder.EncodeAnswers(row, &tokens, &rejected,
                                 &rendered.tools_as_text);
  }
  CAPSTAN_RETURN_IF_ERROR(encoder.Render(row, &rendered));
  encoder.Encode(rendered, &tokens);
  return absl::OkStatus();
}

}  // namespace capstan::chat
