// SPDX-License-Identifier: Apache-2.0
//
// What templates make of tools, calls, thoughts, documents and variables. The
// expected texts are what transformers' apply_chat_template makes of the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/chat_template.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// In the manner of Hermes and Qwen3: tools in the system's turn, calls in
// tags, results in a user's turn, and thoughts of the last turn alone.
constexpr char kAgent[] = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "Functions:" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for document in documents or [] %}
    {{- '[' + document.title + '] ' + document.text + '\n' }}
{%- endfor %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] | trim %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\n' + thought + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{% set call = call.function %}{% endif %}
            {{- '\n<call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<result>' + message.content + '</result><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})";

constexpr char kTalk[] = R"([
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "How big?"},
  {"role": "assistant", "content": null, "reasoning_content": "I measure.",
   "tool_calls": [
     {"id": "a", "type": "function", "function": {"name": "measure",
      "arguments": {"n": 18446744073709551616, "m": 9223372036854775808,
                    "of": "<|im_end|> é"}}},
     {"type": "function", "function": {"name": "wait",
      "arguments": "{\"s\":  1}"}}]},
  {"role": "tool", "name": "measure", "content": "2"},
  {"role": "assistant", "content": "<think>\nIt is 2.\n</think>\n\nTwo."},
  {"role": "user", "content": "Sure?"},
  {"role": "assistant", "content": "<think>\nYes.\n</think>\n\nYes."}])";
constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"measure"}}])";

constexpr char kTalkText[] =
    "<|im_start|>system\nBe brief.\n\nFunctions:\n"
    R"({"type": "function", "function": {"name": "measure"}})"
    "<|im_end|>\n<|im_start|>user\nHow big?<|im_end|>\n<|im_start|>assistant\n"
    "\n<call>\n"
    R"({"name": "measure", "arguments": {"n": 18446744073709551616, )"
    R"("m": 9223372036854775808, "of": "<|im_end|> é"}})"
    "\n</call>\n<call>\n"
    R"({"name": "wait", "arguments": {"s":  1}})"
    "\n</call><|im_end|>\n<|im_start|>user\n<result>2</result><|im_end|>\n"
    "<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nYes.\n</think>\n\nYes.<|im_end|>\n";

FakeTokenizer TokenizerOf(const std::string& jinja) {
  FakeTokenizer tokenizer({"<|im_start|>", "<|im_end|>"}, jinja);
  tokenizer.set_special_ids({-1, 257, -1});
  return tokenizer;
}

std::unique_ptr<ChatTemplate> Load(const std::string& jinja) {
  auto made = ChatTemplate::Recognise(TokenizerOf(jinja));
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

struct Asked {
  ChatInput input;
  Asked(absl::string_view messages, absl::string_view tools = "") {
    input.messages_json = messages;
    input.tools = tools;
    input.find_turns = true;
  }
};

RenderedChat Rendered(const ChatTemplate& chat, const ChatInput& input) {
  const auto made = chat.RenderInput(input);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *made : RenderedChat();
}

std::string ErrorOf(const ChatTemplate& chat, const ChatInput& input) {
  return std::string(chat.RenderInput(input).status().message());
}

std::vector<std::pair<int64_t, std::string>> Turns(const RenderedChat& chat) {
  std::vector<std::pair<int64_t, std::string>> turns;
  for (const ChatTurn& turn : chat.turns) {
    turns.emplace_back(turn.message,
                       chat.text.substr(turn.begin, turn.end - turn.begin));
  }
  return turns;
}

TEST(ChatInputTest, ToolsAndCallsAreAsTheTemplateWritesThem) {
  const RenderedChat chat = Rendered(*Load(kAgent), Asked(kTalk, kTools).input);
  EXPECT_EQ(chat.text, kTalkText);
  EXPECT_FALSE(chat.tools_as_text);
  EXPECT_THAT(
      Turns(chat),
      ElementsAre(
          std::pair(2,
                    "\n<call>\n"
                    R"({"name": "measure", "arguments": {"n": )"
                    R"(18446744073709551616, "m": 9223372036854775808, )"
                    R"("of": "<|im_end|> é"}})"
                    "\n</call>\n<call>\n"
                    R"({"name": "wait", "arguments": {"s":  1}})"
                    "\n</call><|im_end|>"),
          std::pair(4, "Two.<|im_end|>"),
          std::pair(6, "<think>\nYes.\n</think>\n\nYes.<|im_end|>")));
}

TEST(ChatInputTest, ATemplateSeesDocumentsAndVariables) {
  Asked asked(R"([{"role": "user", "content": "a"}])");
  asked.input.documents = R"([{"title": "t", "text": "u"}])";
  asked.input.variables = R"({"enable_thinking": true})";
  asked.input.own_variables = R"({"enable_thinking": false})";
  asked.input.generation_prompt = true;
  const auto chat = Load(kAgent);
  EXPECT_EQ(Rendered(*chat, asked.input).text,
            "[t] u\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n");
  asked.input.own_variables = "";
  EXPECT_THAT(Rendered(*chat, asked.input).text, Not(HasSubstr("<think>")));
  asked.input.variables = R"({"add_generation_prompt": false})";
  EXPECT_THAT(ErrorOf(*chat, asked.input),
              HasSubstr("can't set \"add_generation_prompt\""));
  asked.input.variables = "[]";
  EXPECT_THAT(ErrorOf(*chat, asked.input), HasSubstr("not an object"));
  asked.input.variables = "";
  asked.input.documents = R"(["a"])";
  EXPECT_THAT(ErrorOf(*chat, asked.input),
              HasSubstr("\"documents\" has a str in it"));
  asked.input.documents = "";
  asked.input.tools = "f(x)";
  EXPECT_THAT(ErrorOf(*chat, asked.input),
              HasSubstr("\"tools\" can't be read"));
}

TEST(ChatInputTest, ReasoningHasThreeNames) {
  const auto chat = Load(kAgent);
  for (const char* const name :
       {"reasoning_content", "thinking", "reasoning"}) {
    const std::string talk =
        std::string(R"([{"role": "user", "content": "a"}, )"
                    R"({"role": "assistant", "content": "b", "tool_calls": )"
                    R"(null, ")") +
        name + R"(": "hm"}])";
    const RenderedChat made = Rendered(*chat, Asked(talk).input);
    EXPECT_THAT(Turns(made), ElementsAre(std::pair(
                                 1, "<think>\nhm\n</think>\n\nb<|im_end|>")))
        << name;
  }
}

// ShareGPT's turns of calls.
TEST(ChatInputTest, TheTextOfACallBecomesOne) {
  const auto of = [](const std::string& jinja, const std::string& content) {
    const std::string talk = R"([{"role": "user", "content": "a"}, )"
                             R"({"role": "function_call", "content": )" +
                             content + "}]";
    const RenderedChat made = Rendered(*Load(jinja), Asked(talk).input);
    return Turns(made).empty() ? "" : Turns(made)[0].second;
  };
  const std::string call =
      R"("{\"name\": \"f\", \"arguments\": {\"a\": [1]}}")";
  EXPECT_EQ(of(kAgent, call),
            "<think>\n\n</think>\n\n\n<call>\n"
            R"({"name": "f", "arguments": {"a": [1]}})"
            "\n</call><|im_end|>");
  EXPECT_EQ(of(kAgent, "\"f 1\""), "<think>\n\n</think>\n\nf 1<|im_end|>");
  // As it is, where a template knows no calls.
  EXPECT_EQ(of((*ChatTemplate::Named("chatml"))->jinja(), call),
            R"({"name": "f", "arguments": {"a": [1]}}<|im_end|>)");
}

TEST(ChatInputTest, TemplatesWithoutToolsGetThemAsText) {
  constexpr char kCalls[] =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", )"
      R"("content": "So:", "tool_calls": [{"type": "function", "function": )"
      R"({"name": "f", "arguments": "{\"a\": 1}"}}, {"name": "g", )"
      R"("arguments": {"b": ["c"]}}, {"name": "h\""}]}])";
  constexpr char kText[] =
      "<|im_start|>system\nTools that you may call, each by a JSON object with "
      "its \"name\" and \"arguments\":\n"
      R"([{"type":"function","function":{"name":"measure"}}])"
      "<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nSo:\n"
      R"([{"name": "f", "arguments": {"a": 1}}, {"name": "g", )"
      R"("arguments": {"b":["c"]}}, {"name": "h\"", "arguments": {}}])"
      "<|im_end|>\n";
  const auto style = *ChatTemplate::Named("chatml");
  for (const ChatTemplate* const chat :
       {style.get(), Load(style->jinja()).release()}) {
    const RenderedChat made = Rendered(*chat, Asked(kCalls, kTools).input);
    EXPECT_EQ(made.text, kText);
    EXPECT_TRUE(made.tools_as_text);
    ASSERT_EQ(made.turns.size(), 1u);
    EXPECT_EQ(made.turns[0].message, 1);  // of the messages that were given
    EXPECT_THAT(
        ErrorOf(*chat, Asked(R"([{"role": "assistant", "content": "", )"
                             R"("tool_calls": [{"function": {}}]}])")
                           .input),
        HasSubstr("message 1 has \"tool_calls\" that aren't objects with a "
                  "function's name"));
    if (chat != style.get()) delete chat;
  }
  // One that only looks for them.
  const auto blind = Load(
      "{% for m in messages %}{% if 'tool_calls' not in m %}<|im_start|>"
      "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
      "{% if tools %}{% endif %}");
  EXPECT_EQ(Rendered(*blind, Asked(kCalls, kTools).input).text, kText);
}

// What a template drops isn't trained on; what it writes anew can't be told.
TEST(ChatInputTest, TurnsAreWhatTheTextHas) {
  const std::string head = "{% for m in messages %}";
  const std::string tail =
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
      "{% endif %}";
  const std::string talk =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", )"
      R"("content": "b"}, {"role": "user", "content": "c"}, {"role": )"
      R"("assistant", "content": "d"}])";
  const auto late = Load(head +
                         "{% if loop.index > 2 or messages|length < 3 %}"
                         "{{ '<|im_start|>' + m.role + '\\n' + m.content + "
                         "'<|im_end|>\\n' }}{% endif %}" +
                         tail);
  EXPECT_THAT(Turns(Rendered(*late, Asked(talk).input)),
              ElementsAre(std::pair(3, "d<|im_end|>")));
  const auto backward =
      Load(head +
           "{{ '<|im_start|>' + m.role + '\\n' + m.content | reverse + "
           "'<|im_end|>\\n' }}" +
           tail);
  Asked asked(R"([{"role": "user", "content": "a"}, {"role": "assistant", )"
              R"("content": "bc"}])");
  EXPECT_THAT(ErrorOf(*backward, asked.input),
              HasSubstr("what the assistant says in message 2 can't be told"));
  asked.input.find_turns = false;
  EXPECT_THAT(Rendered(*backward, asked.input).turns, IsEmpty());
}

// A turn's end that the message itself has isn't the turn's.
TEST(ChatInputTest, TokensInContentsDontEndTurns) {
  const RenderedChat made = Rendered(
      *Load(kAgent),
      Asked(R"([{"role": "user", "content": "<|im_start|>assistant\nx"}, )"
            R"({"role": "assistant", "content": "<think>\nno<|im_end|>\n)"
            R"(</think>\n\ny<|im_end|>z"}, {"role": "user", "content": "b"}, )"
            R"({"role": "assistant", "content": "c"}])")
          .input);
  EXPECT_THAT(Turns(made),
              ElementsAre(std::pair(1, "y<|im_end|>z<|im_end|>"),
                          std::pair(3, "<think>\n\n</think>\n\nc<|im_end|>")));
}

TEST(ChatInputTest, ATemplateMayBeAFile) {
  const std::string path = ::testing::TempDir() + "/own.jinja";
  std::ofstream(path) << kAgent;
  const FakeTokenizer tokenizer = TokenizerOf("");
  const auto chat = ChatTemplate::Find(path, tokenizer);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ((*chat)->name(), path);
  EXPECT_EQ((*chat)->jinja(), kAgent);
  EXPECT_EQ(Rendered(**chat, Asked(kTalk, kTools).input).text, kTalkText);
  std::ofstream(path) << "a\n{{ broken {% '";
  EXPECT_THAT(
      std::string(ChatTemplate::FromFile(path, tokenizer).status().message()),
      HasSubstr("the chat template " + path + ", line 2"));
  EXPECT_THAT(
      std::string(
          ChatTemplate::FromFile(path + "x", tokenizer).status().message()),
      HasSubstr(path + "x"));
  // A name is that of the tokenizer's own template, if it is that one's.
  const auto chatml = *ChatTemplate::Named("chatml");
  const std::string own = chatml->jinja() + "{# tools #}";
  EXPECT_EQ((*ChatTemplate::Find("chatml", TokenizerOf(own)))->jinja(), own);
  EXPECT_EQ((*ChatTemplate::Find("chatml", TokenizerOf(kAgent)))->jinja(),
            chatml->jinja());
}

}  // namespace
}  // namespace capstan
