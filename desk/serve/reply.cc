// SPDX-License-Identifier: Apache-2.0
#include "desk/serve/reply.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/launch/rank_info.h"
#include "desk/http/server.h"
#include "text/tokenizer/unicode.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

int64_t Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
}

}  // namespace

Reply::Reply(Api api, CompletionRequest request, std::string model,
             std::vector<ReplyPrompt> prompts, StopStrings stops,
             const Tokenizer* tokenizer)
    : api_(api),
      request_(std::move(request)),
      model_(std::move(model)),
      id_(absl::StrCat(api == Api::kChat ? "chatcmpl-" : "cmpl-",
                       RandomToken())),
      created_(std::time(nullptr)),
      prompts_(std::move(prompts)),
      stops_(std::move(stops)),
      tokenizer_(tokenizer) {
  const size_t count = prompts_.size() * static_cast<size_t>(request_.choices);
  for (size_t i = 0; i < count; ++i) {
    choices_.emplace_back(&stops_);
    choices_[i].logprobs = NewLogprobs();
    if (request_.echo) choices_[i].text = PromptOf(i).text;
  }
}

Json Reply::NewLogprobs() const {
  if (request_.logprobs < 0) return nullptr;
  if (api_ == Api::kChat) return {{"content", Json::array()}};
  return {{"tokens", Json::array()},
          {"token_logprobs", Json::array()},
          {"top_logprobs", Json::array()},
          {"text_offset", Json::array()}};
}

std::string Reply::TokenText(int64_t token) const {
  const std::string bytes = tokenizer_->Decode(absl::MakeConstSpan(&token, 1));
  if (tokenizer::IsUtf8(bytes)) return bytes;
  // As OpenAI's API writes a part of a character.
  std::string text = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return text;
}

void Reply::AddLogprob(const AnswerToken& token, bool first,
                       Choice* choice) const {
  if (request_.logprobs < 0) return;
  Json& logprobs = choice->logprobs;
  const std::string text = TokenText(token.token);
  choice->offsets.push_back(choice->characters);
  // Not of `text`, which is another for a part of a character; a begin token
  // has none.
  if (!first || token.token != tokenizer_->special_ids().bos) {
    choice->characters +=
        Characters(tokenizer_->Decode(absl::MakeConstSpan(&token.token, 1)));
  }
  if (api_ == Api::kChat) {
    const auto entry = [this](int64_t of, float logprob) {
      Json bytes = Json::array();
      for (const char c : tokenizer_->Decode(absl::MakeConstSpan(&of, 1))) {
        bytes.push_back(static_cast<unsigned char>(c));
      }
      return Json{
          {"token", TokenText(of)}, {"logprob", logprob}, {"bytes", bytes}};
    };
    Json of = entry(token.token, token.logprob);
    of["top_logprobs"] = Json::array();
    for (const auto& [other, logprob] : token.likeliest) {
      of["top_logprobs"].push_back(entry(other, logprob));
    }
    logprobs["content"].push_back(std::move(of));
    return;
  }
  logprobs["tokens"].push_back(text);
  logprobs["text_offset"].push_back(choice->offsets.back());
  // Nothing comes before a prompt's first token.
  logprobs["token_logprobs"].push_back(first ? Json() : Json(token.logprob));
  Json top;
  if (!first) {
    top = Json::object();
    for (const auto& [other, logprob] : token.likeliest) {
      top.emplace(TokenText(other), logprob);
    }
    top[text] = token.logprob;
  }
  logprobs["top_logprobs"].push_back(std::move(top));
}

void Reply::DropBehindStop(Choice* choice) const {
  const int64_t end = Characters(choice->text);
  while (!choice->offsets.empty() && choice->offsets.back() >= end) {
    choice->offsets.pop_back();
    for (Json& of : choice->logprobs) of.erase(of.size() - 1);
  }
}

void Reply::Add(const AnswerPiece& piece) {
  Choice& choice = choices_[piece.request];
  const ReplyPrompt& prompt = PromptOf(piece.request);
  if (request_.echo && choice.tokens == 0 && !piece.tokens.empty()) {
    AnswerToken begin;
    begin.token = prompt.ids.front();
    AddLogprob(begin, /*first=*/true, &choice);
    for (const AnswerToken& token : piece.prompt) {
      AddLogprob(token, /*first=*/false, &choice);
    }
  }
  const auto is_end = [&prompt](int64_t token) {
    return std::find(prompt.ends.begin(), prompt.ends.end(), token) !=
           prompt.ends.end();
  };
  const auto add = [&](int64_t token) {
    ++choice.tokens;
    choice.at_end = is_end(token);
    if (request_.only_echo || choice.at_end) return;
    choice.text +=
        choice.certain.Add(tokenizer_->Decode(absl::MakeConstSpan(&token, 1)));
  };
  for (const AnswerToken& token : piece.tokens) {
    add(token.token);
    if (!request_.only_echo) AddLogprob(token, /*first=*/false, &choice);
  }
  // Of a model that writes in any order, only the last state is certain.
  if (!piece.whole.empty()) choice.whole = piece.whole;
  if (!piece.last) return;
  for (const int64_t token : choice.whole) {
    if (is_end(token)) break;
    add(token);
  }
  if (!request_.only_echo) choice.text += choice.certain.Finish();
  if (piece.stopped && !choice.at_end && !request_.only_echo) {
    DropBehindStop(&choice);
  }
  choice.finish = piece.stopped && !request_.only_echo ? "stop" : "length";
}

Json Reply::Frame(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_}};
}

Json Reply::ChoiceFrame(size_t index) const {
  return {{"index", index}, {"finish_reason", nullptr}, {"logprobs", nullptr}};
}

Json Reply::Usage() const {
  int64_t prompt = 0, made = 0;
  for (const ReplyPrompt& of : prompts_) {
    prompt += static_cast<int64_t>(of.ids.size());
  }
  for (const Choice& choice : choices_) {
    made += request_.only_echo ? 0 : choice.tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", made},
          {"total_tokens", prompt + made}};
}

std::string Reply::Event(Json choice) const {
  Json event =
      Frame(api_ == Api::kChat ? "chat.completion.chunk" : "text_completion");
  event["choices"] = Json::array({std::move(choice)});
  if (request_.stream_usage) event["usage"] = nullptr;
  return EventText(event);
}

std::string Reply::FirstEvents() {
  std::string events;
  for (size_t i = 0; i < choices_.size() && api_ == Api::kChat; ++i) {
    Json choice = ChoiceFrame(i);
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    absl::StrAppend(&events, Event(std::move(choice)));
  }
  return events;
}

std::string Reply::AddToStream(const AnswerPiece& piece) {
  Add(piece);
  Choice& of = choices_[piece.request];
  const std::string text = of.text.substr(of.sent);
  of.sent = of.text.size();
  Json logprobs = std::exchange(of.logprobs, NewLogprobs());
  of.offsets.clear();
  const bool news = request_.logprobs >= 0 && !piece.tokens.empty();
  std::string events;
  if (!text.empty() || news) {
    Json choice = ChoiceFrame(piece.request);
    if (api_ == Api::kChat) {
      choice["delta"] = {{"content", text}};
    } else {
      choice["text"] = text;
    }
    choice["logprobs"] = std::move(logprobs);
    absl::StrAppend(&events, Event(std::move(choice)));
  }
  if (piece.last) {
    Json choice = ChoiceFrame(piece.request);
    if (api_ == Api::kChat) {
      choice["delta"] = Json::object();
    } else {
      choice["text"] = "";
    }
    choice["finish_reason"] = of.finish;
    absl::StrAppend(&events, Event(std::move(choice)));
  }
  return events;
}

std::string Reply::LastEvents() const {
  std::string events;
  if (request_.stream_usage) {
    Json usage =
        Frame(api_ == Api::kChat ? "chat.completion.chunk" : "text_completion");
    usage["choices"] = Json::array();
    usage["usage"] = Usage();
    events = EventText(usage);
  }
  return absl::StrCat(events, "data: [DONE]\n\n");
}

Json Reply::Whole() const {
  Json whole =
      Frame(api_ == Api::kChat ? "chat.completion" : "text_completion");
  whole["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Json choice = ChoiceFrame(i);
    choice["finish_reason"] = choices_[i].finish;
    choice["logprobs"] = choices_[i].logprobs;
    if (api_ == Api::kChat) {
      choice["message"] = {{"role", "assistant"},
                           {"content", choices_[i].text},
                           {"refusal", nullptr}};
    } else {
      choice["text"] = choices_[i].text;
    }
    whole["choices"].push_back(std::move(choice));
  }
  whole["usage"] = Usage();
  return whole;
}

}  // namespace capstan
