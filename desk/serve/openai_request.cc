// SPDX-License-Identifier: Apache-2.0
#include "desk/serve/openai_request.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFieldPayload[] = "capstan/request_field";
constexpr char kCodePayload[] = "capstan/openai_code";
constexpr int64_t kMostTokens = 1'000'000'000;
constexpr size_t kMostStopBytes = 1024;
// Of an object: ordered ones take time by the square of their members.
constexpr size_t kMostMembers = 1024;

// Of the largest object in `json`.
size_t MostMembers(const nlohmann::json& json) {
  if (!json.is_structured()) return 0;
  size_t most = json.is_object() ? json.size() : 0;
  for (const nlohmann::json& part : json) {
    most = std::max(most, MostMembers(part));
  }
  return most;
}

absl::Status CheckMembers(const nlohmann::json& request) {
  const auto error = [](absl::string_view of) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an object of ", of, " has more than ", kMostMembers, " members"));
  };
  if (!request.is_object()) {
    return MostMembers(request) > kMostMembers ? error("the request")
                                               : absl::OkStatus();
  }
  for (const auto& [key, value] : request.items()) {
    if (MostMembers(value) > kMostMembers) {
      return AboutField(error(key), key, "invalid_value");
    }
  }
  return request.size() > kMostMembers ? error("the request")
                                       : absl::OkStatus();
}

// Reads a request's fields, and keeps the first error.
class RequestReader {
 public:
  RequestReader(Api api, Json json) : api_(api), json_(std::move(json)) {}

  absl::StatusOr<CompletionRequest> Read() {
    if (const Json* const model = Take("model")) {
      if (!model->is_string()) Fail("model", "must be a string");
      if (model->is_string()) request_.model = model->get<std::string>();
    }
    if (api_ == Api::kChat) {
      ReadMessages();
    } else {
      ReadPrompt();
    }
    ReadSampling();
    ReadLength();
    ReadStop();
    ReadLogprobs();
    ReadStream();
    ReadNeutral();
    for (const auto& [key, value] : json_.items()) {
      if (!value.is_null() && taken_.count(key) == 0) {
        Fail(key, "isn't known here", "unknown_parameter");
      }
    }
    if (!status_.ok()) return status_;
    return std::move(request_);
  }

 private:
  void Fail(absl::string_view key, absl::string_view problem,
            absl::string_view code = "invalid_value") {
    status_.Update(
        AboutField(absl::InvalidArgumentError(absl::StrCat(key, " ", problem)),
                   key, code));
  }
  void Miss(absl::string_view key) {
    Fail(key, "is missing", "missing_required_parameter");
  }

  // Null if it isn't there or null.
  const Json* Take(const char* key) {
    taken_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::optional<int64_t> TakeInt(const char* key, int64_t least,
                                  int64_t most) {
    const Json* const value = Take(key);
    if (value == nullptr) return absl::nullopt;
    const absl::optional<int64_t> number = JsonInteger(*value);
    if (number.has_value() && *number >= least && *number <= most) {
      return number;
    }
    Fail(key, absl::StrCat("must be an integer from ", least, " to ", most));
    return absl::nullopt;
  }

  absl::optional<double> TakeNumber(const char* key, double least,
                                    double most) {
    const Json* const value = Take(key);
    if (value == nullptr) return absl::nullopt;
    if (value->is_number()) {
      const double number = value->get<double>();
      if (number >= least && number <= most) return number;
    }
    Fail(key, absl::StrCat("must be a number from ", least, " to ", most));
    return absl::nullopt;
  }

  bool TakeBool(const char* key) {
    const Json* const value = Take(key);
    if (value != nullptr && !value->is_boolean()) {
      Fail(key, "must be true or false");
    }
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }

  void ReadMessages() {
    const Json* const messages = Take("messages");
    if (messages == nullptr) return Miss("messages");
    if (!messages->is_array()) {
      return Fail("messages", "must be a list of messages");
    }
    Json row = {{"messages", *messages}};
    for (Json& message : row["messages"]) FlattenContent(&message);
    const Json* const tools = Take("tools");
    const Json* const choice = Take("tool_choice");
    const bool without = choice != nullptr && *choice == "none";
    if (choice != nullptr && !without && *choice != "auto") {
      Fail("tool_choice", "must be \"auto\" or \"none\" here");
    }
    if (tools != nullptr && !tools->is_array()) Fail("tools", "must be a list");
    if (tools != nullptr && !tools->empty() && !without) row["tools"] = *tools;
    if (const Json* const variables = Take("chat_template_kwargs")) {
      if (!variables->is_object()) {
        Fail("chat_template_kwargs", "must be an object");
      }
      row["chat_template_kwargs"] = *variables;
    }
    if (!status_.ok()) return;
    Prompt prompt;
    prompt.place = "messages";
    const absl::Status parsed = ParsePrompt(JsonText(row), &prompt);
    if (!parsed.ok()) {
      status_ =
          AboutField(Annotate(parsed, "messages"), "messages", "invalid_value");
    }
    request_.prompts.push_back(std::move(prompt));
  }

  // Parts of text become the text that most templates expect.
  void FlattenContent(Json* message) {
    if (!message->is_object()) return;
    const auto role = message->find("role");
    if (role != message->end() && *role == "developer") *role = "system";
    const auto content = message->find("content");
    if (content == message->end() || !content->is_array()) return;
    std::string text;
    for (const Json& part : *content) {
      const auto type = part.find("type");
      const auto of_part = part.find("text");
      if (!part.is_object() || type == part.end() || *type != "text" ||
          of_part == part.end() || !of_part->is_string()) {
        return Fail("messages", "may have content of type \"text\" alone");
      }
      text += of_part->get<std::string>();
    }
    *content = text;
  }

  void ReadPrompt() {
    const Json* const prompt = Take("prompt");
    if (prompt == nullptr) return Miss("prompt");
    const bool ids =
        prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number();
    if (prompt->is_string() || ids) return AddPrompt(*prompt);
    if (!prompt->is_array() || prompt->empty()) {
      return Fail("prompt", "must be a text, token ids, or a list of them");
    }
    if (static_cast<int64_t>(prompt->size()) > kMostTexts) {
      return Fail("prompt", absl::StrCat("has more than ", kMostTexts));
    }
    for (const Json& one : *prompt) AddPrompt(one);
    if (!request_.prompts.empty() && !request_.prompt_ids.empty()) {
      Fail("prompt", "must have texts or token ids, not both");
    }
  }

  void AddPrompt(const Json& one) {
    if (one.is_string()) {
      request_.prompts.emplace_back();
      request_.prompts.back().place = "prompt";
      request_.prompts.back().text = one.get<std::string>();
      return;
    }
    if (!one.is_array() || one.empty()) {
      return Fail("prompt", "must be a text or token ids");
    }
    std::vector<int64_t> ids;
    for (const Json& token : one) {
      const absl::optional<int64_t> id = JsonInteger(token);
      if (!id.has_value()) {
        return Fail("prompt", "must have integers as token ids");
      }
      ids.push_back(*id);
    }
    request_.prompt_ids.push_back(std::move(ids));
  }

  void ReadSampling() {
    SampleOptions& sample = request_.sample;
    constexpr double kMost = 1e6;
    sample.temperature = TakeNumber("temperature", 0.0, kMost);
    sample.top_p = TakeNumber("top_p", 0.0, 1.0);
    if (sample.top_p == 0.0) {
      // OpenAI's least: the likeliest token alone.
      sample.top_p = absl::nullopt;
      sample.top_k = 1;
    }
    sample.min_p = TakeNumber("min_p", 0.0, 1.0);
    if (const auto k = TakeInt("top_k", -1, kMostTokens)) {
      sample.top_k = std::max<int64_t>(*k, 0);  // others' -1 is our 0: all
    }
    sample.repetition_penalty = TakeNumber("repetition_penalty", 1e-6, kMost);
    sample.no_repeat_ngram_size =
        TakeInt("no_repeat_ngram_size", 0, kMostTokens);
    sample.stop_at_eos = !TakeBool("ignore_eos");
    if (const Json* const seed = Take("seed")) {
      if (seed->is_number_unsigned()) {
        request_.seed = seed->get<uint64_t>();
      } else if (seed->is_number_integer()) {
        request_.seed = static_cast<uint64_t>(seed->get<int64_t>());
      } else {
        Fail("seed", "must be an integer of 64 bits");
      }
    }
    request_.choices = TakeInt("n", 1, kMostTexts).value_or(1);
    if (request_.choices * static_cast<int64_t>(request_.prompt_count()) >
        kMostTexts) {
      Fail("n", absl::StrCat("makes more than ", kMostTexts, " texts"));
    }
  }

  void ReadLength() {
    request_.echo = api_ == Api::kCompletions && TakeBool("echo");
    const int64_t least = request_.echo ? 0 : 1;
    absl::optional<int64_t> most = TakeInt("max_tokens", least, kMostTokens);
    if (api_ == Api::kChat) {
      const auto newer = TakeInt("max_completion_tokens", 1, kMostTokens);
      if (newer.has_value()) most = newer;
    }
    request_.only_echo = most == 0;
    request_.sample.max_new_tokens = request_.only_echo ? 1 : most.value_or(0);
  }

  void ReadStop() {
    const Json* const stop = Take("stop");
    if (stop == nullptr) return;
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    if (static_cast<int64_t>(list.size()) > kMostStops) {
      Fail("stop", absl::StrCat("has more than ", kMostStops, " strings"));
    }
    for (const Json& one : list) {
      if (!one.is_string() || one.get<std::string>().empty()) {
        return Fail("stop", "must be a string that isn't empty, or several");
      }
      if (one.get<std::string>().size() > kMostStopBytes) {
        return Fail("stop", absl::StrCat("has a string of more than ",
                                         kMostStopBytes, " bytes"));
      }
      request_.stop.push_back(one.get<std::string>());
    }
  }

  void ReadLogprobs() {
    if (api_ == Api::kCompletions) {
      request_.logprobs = TakeInt("logprobs", 0, kMostLogprobs).value_or(-1);
      return;
    }
    if (TakeBool("logprobs")) request_.logprobs = 0;
    const auto top = TakeInt("top_logprobs", 0, kMostLogprobs);
    if (!top.has_value()) return;
    if (request_.logprobs < 0) Fail("top_logprobs", "needs logprobs: true");
    request_.logprobs = *top;
  }

  void ReadStream() {
    request_.stream = TakeBool("stream");
    const Json* const options = Take("stream_options");
    if (options == nullptr) return;
    if (!request_.stream || !options->is_object()) {
      return Fail("stream_options", "must be an object, beside stream: true");
    }
    for (const auto& [key, value] : options->items()) {
      if (value.is_null()) continue;
      if (!value.is_boolean() ||
          (key != "include_usage" && key != "include_obfuscation")) {
        Fail("stream_options", "may have include_usage: true or false");
      } else if (key == "include_usage") {
        request_.stream_usage = value.get<bool>();
      }
    }
  }

  // What says nothing of the text, or has the one value that changes nothing.
  void ReadNeutral() {
    for (const char* const key :
         {"user", "metadata", "store", "service_tier", "safety_identifier",
          "prompt_cache_key", "prompt_cache_retention",
          "parallel_tool_calls"}) {
      Take(key);
    }
    const Json one = request_.choices, zero = 0, empty = Json::object();
    const Json text = {{"type", "text"}}, texts = Json::array({"text"});
    const std::pair<const char*, const Json*> neutral[] = {
        {"frequency_penalty", &zero}, {"presence_penalty", &zero},
        {"logit_bias", &empty},       {"best_of", &one},
        {"response_format", &text},   {"modalities", &texts}};
    for (const auto& [key, value] : neutral) {
      const Json* const given = Take(key);
      if (given != nullptr && *given != *value) {
        Fail(key, absl::StrCat("can only be ", JsonText(*value), " here"),
             "unsupported_value");
      }
    }
  }

  const Api api_;
  const Json json_;
  std::set<std::string> taken_;
  CompletionRequest request_;
  absl::Status status_;
};

std::string PayloadOf(const absl::Status& status, const char* name) {
  const absl::optional<absl::Cord> payload = status.GetPayload(name);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace

absl::Status AboutField(absl::Status status, absl::string_view field,
                        absl::string_view code) {
  status.SetPayload(kFieldPayload, absl::Cord(field));
  status.SetPayload(kCodePayload, absl::Cord(code));
  return status;
}

ErrorDetails DetailsOf(const absl::Status& status) {
  return {PayloadOf(status, kCodePayload), PayloadOf(status, kFieldPayload)};
}

absl::StatusOr<CompletionRequest> ParseCompletionRequest(
    Api api, absl::string_view body) {
  CAPSTAN_RETURN_IF_ERROR(CheckMembers(ParseJson<nlohmann::json>(body)));
  Json json = ParseJson<Json>(body);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the request isn't a JSON object");
  }
  return RequestReader(api, std::move(json)).Read();
}

}  // namespace capstan
