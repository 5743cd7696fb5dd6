// SPDX-License-Identifier: Apache-2.0
#include "desk/serve/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kHello[] = R"("messages": [{"role": "user", "content": "Hi"}])";

CompletionRequest Parsed(Api api, const std::string& body) {
  auto request = ParseCompletionRequest(api, body);
  EXPECT_TRUE(request.ok()) << body << ": " << request.status();
  return request.ok() ? *request : CompletionRequest();
}

std::string Problem(Api api, const std::string& body) {
  const auto request = ParseCompletionRequest(api, body);
  EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << body;
  return std::string(request.status().message());
}

TEST(OpenaiRequest, ReadsAChat) {
  const CompletionRequest request = Parsed(Api::kChat, R"({
    "model": "m", "messages": [
      {"role": "developer", "content": "Be short."},
      {"role": "user", "content": [{"type": "text", "text": "Hel"},
                                   {"type": "text", "text": "lo"}]}],
    "temperature": 0.5, "top_p": 0.25, "top_k": -1, "max_tokens": 3,
    "max_completion_tokens": 7, "n": 2, "seed": -1, "stop": "END",
    "logprobs": true, "top_logprobs": 4, "stream": true,
    "stream_options": {"include_usage": true},
    "tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1},
    "frequency_penalty": 0.0, "user": "u", "metadata": {}, "logit_bias": null,
    "response_format": {"type": "text"}})");
  EXPECT_EQ(request.model, "m");
  ASSERT_THAT(request.prompts, SizeIs(1));
  const Prompt& prompt = request.prompts[0];
  ASSERT_THAT(prompt.messages, SizeIs(2));
  EXPECT_EQ(prompt.messages[0].role, "system");
  EXPECT_EQ(prompt.messages[1].content, "Hello");
  EXPECT_EQ(prompt.tools, R"([{"type":"function"}])");
  EXPECT_EQ(prompt.variables, R"({"a":1})");
  EXPECT_EQ(request.sample.temperature, 0.5);
  EXPECT_EQ(request.sample.top_p, 0.25);
  EXPECT_EQ(request.sample.top_k, 0);
  EXPECT_EQ(request.sample.max_new_tokens, 7);
  EXPECT_EQ(request.choices, 2);
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_THAT(request.stop, ElementsAre("END"));
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.stream_usage);
}

TEST(OpenaiRequest, ReadsPrompts) {
  EXPECT_EQ(Parsed(Api::kCompletions, R"({"prompt": "a"})").prompts[0].text,
            "a");
  EXPECT_THAT(Parsed(Api::kCompletions, R"({"prompt": ["a", "b"]})").prompts,
              SizeIs(2));
  EXPECT_THAT(Parsed(Api::kCompletions, R"({"prompt": [1, 2]})").prompt_ids,
              ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT(
      Parsed(Api::kCompletions, R"({"prompt": [[1, 2], [3]]})").prompt_ids,
      ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
  const CompletionRequest echo = Parsed(
      Api::kCompletions,
      R"({"prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 1})");
  EXPECT_TRUE(echo.echo);
  EXPECT_TRUE(echo.only_echo);
  EXPECT_EQ(echo.sample.max_new_tokens, 1);
  EXPECT_EQ(echo.logprobs, 1);
  // The least share of all is the likeliest token's.
  EXPECT_EQ(
      Parsed(Api::kCompletions, R"({"prompt": "a", "top_p": 0})").sample.top_k,
      1);
}

TEST(OpenaiRequest, SaysWhichFieldIsWrong) {
  const std::string text = R"({"prompt": "a", )";
  for (const auto& [fields, field] :
       {std::pair("\"max_tokens\": 0}", "max_tokens"),
        {"\"max_tokens\": 1.5}", "max_tokens"},
        {"\"max_tokens\": 99999999999999999999}", "max_tokens"},
        {"\"temperature\": -1}", "temperature"},
        {"\"temperature\": 1e999}", "temperature"},
        {"\"temperature\": \"hot\"}", "temperature"},
        {"\"top_p\": 1.1}", "top_p"},
        {"\"n\": 0}", "n "},
        {"\"n\": 257}", "n "},
        {"\"logprobs\": true}", "logprobs"},
        {"\"logprobs\": 21}", "logprobs"},
        {"\"stop\": [\"\"]}", "stop"},
        {"\"stop\": 7}", "stop"},
        {"\"seed\": 1.5}", "seed"},
        {"\"stream\": 1}", "stream"},
        {"\"stream_options\": {}}", "stream_options"},
        {"\"echo\": \"yes\"}", "echo"},
        {"\"model\": 7}", "model"},
        {"\"frequency_penalty\": 0.5}", "frequency_penalty can only be 0"},
        {"\"logit_bias\": {\"1\": 2}}", "logit_bias"},
        {"\"best_of\": 2}", "best_of can only be 1"},
        {"\"suffix\": \"x\"}", "suffix isn't known"},
        {"\"tempperature\": 1}", "tempperature isn't known"}}) {
    EXPECT_THAT(Problem(Api::kCompletions, text + fields), HasSubstr(field));
  }
  EXPECT_THAT(
      Problem(Api::kCompletions, absl::StrCat(text, "\"stop\": \"",
                                              std::string(1025, 'x'), "\"}")),
      HasSubstr("stop has a string of more than 1024 bytes"));
  for (const char* const prompt :
       {"null", "[]", "{}", "[[]]", "[1, \"a\"]", "[\"a\", [1]]", "[1.5]"}) {
    EXPECT_THAT(
        Problem(Api::kCompletions, absl::StrCat("{\"prompt\": ", prompt, "}")),
        HasSubstr("prompt"));
  }
  for (const char* const messages :
       {"7", "[]", "[7]", "[{}]", R"([{"role": "user"}])",
        R"([{"role": "user", "content": [{"type": "image_url"}]}])",
        R"([{"role": "user", "content": [7]}])",
        R"([{"role": "assistant", "content": "a"}])"}) {
    EXPECT_THAT(
        Problem(Api::kChat, absl::StrCat("{\"messages\": ", messages, "}")),
        HasSubstr("messages"))
        << messages;
  }
  EXPECT_THAT(
      Problem(Api::kChat, absl::StrCat("{", kHello, ", \"top_logprobs\": 2}")),
      HasSubstr("needs logprobs"));
  EXPECT_THAT(
      Problem(Api::kChat, absl::StrCat("{", kHello, ", \"tool_choice\": {}}")),
      HasSubstr("tool_choice"));
}

TEST(OpenaiRequest, ErrorsHaveOpenaisCodeAndField) {
  const auto details = [](const std::string& body) {
    const ErrorDetails found =
        DetailsOf(ParseCompletionRequest(Api::kCompletions, body).status());
    return std::make_pair(found.param, found.code);
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(details("{}"), Pair("prompt", "missing_required_parameter"));
  EXPECT_EQ(details(R"({"prompt": "a", "n": "2"})"),
            Pair("n", "invalid_value"));
  EXPECT_EQ(details(R"({"prompt": "a", "suffix": "b"})"),
            Pair("suffix", "unknown_parameter"));
  EXPECT_EQ(details(R"({"prompt": "a", "best_of": 2})"),
            Pair("best_of", "unsupported_value"));
  EXPECT_EQ(details("["), Pair("", ""));
  std::string members = "\"k\": 0";
  for (int i = 0; i < 1024; ++i) {
    absl::StrAppend(&members, ", \"k", i, "\": 1");
  }
  EXPECT_EQ(details(absl::StrCat(R"({"prompt": "a", "metadata": [{)", members,
                                 "}]}")),
            Pair("metadata", "invalid_value"));
  EXPECT_EQ(details(absl::StrCat("{", members, "}")), Pair("", ""));
  const auto chat = ParseCompletionRequest(Api::kChat, R"({"messages": [5]})");
  EXPECT_EQ(DetailsOf(chat.status()).param, "messages");
}

TEST(OpenaiRequest, ObjectsOfManyMembersAreRefusedAtOnce) {
  std::string members;
  for (int i = 0; i < 60000; ++i) absl::StrAppend(&members, ",\"k", i, "\":1");
  const std::string object = "{\"prompt\":\"a\"" + members + "}";
  EXPECT_THAT(Problem(Api::kCompletions, object), HasSubstr("1024 members"));
  EXPECT_THAT(Problem(Api::kCompletions,
                      "{\"prompt\":\"a\",\"metadata\":[" + object + "]}"),
              HasSubstr("1024 members"));
}

TEST(OpenaiRequest, HostileBytesAreNoRequest) {
  const std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(), std::string("null"), std::string("[]"),
        std::string("{\"prompt\": \"a\""), std::string("\xff\xfe{}"),
        "{\"prompt\": " + deep, std::string(1 << 20, '{')}) {
    EXPECT_THAT(Problem(Api::kCompletions, body), HasSubstr("JSON"));
  }
  EXPECT_THAT(Problem(Api::kCompletions, "{\"prompt\": \"\xff\"}"),
              HasSubstr("JSON"));
}

}  // namespace
}  // namespace capstan
