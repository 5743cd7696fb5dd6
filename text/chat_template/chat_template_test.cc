// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Messages = std::vector<ChatMessage>;

std::unique_ptr<ChatTemplate> Get(const std::string& name) {
  auto chat_template = ChatTemplate::Named(name);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return *std::move(chat_template);
}

ChatText Text(const std::string& name, const Messages& messages,
              bool prompt = false) {
  const auto text = Get(name)->Render(messages, prompt);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : ChatText();
}

std::string ErrorOf(const std::string& name, const Messages& messages) {
  return std::string(Get(name)->Render(messages, false).status().message());
}

// What the assistant writes.
std::vector<std::string> Assistant(const ChatText& text) {
  std::vector<std::string> pieces;
  for (const auto& [begin, end] : text.assistant) {
    pieces.push_back(text.text.substr(begin, end - begin));
  }
  return pieces;
}

const Messages kTalk = {{"system", " Be brief. "},
                        {"user", "\u00a0Hi\n"},
                        {"assistant", " Yes\u3000"}};

TEST(ChatTemplateTest, ChatMlWritesContentsAsTheyAre) {
  const ChatText text = Text("chatml", kTalk);
  EXPECT_EQ(text.text,
            "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n"
            "\u00a0Hi\n<|im_end|>\n<|im_start|>assistant\n Yes\u3000"
            "<|im_end|>\n");
  EXPECT_THAT(Assistant(text), ElementsAre(" Yes\u3000<|im_end|>"));
}

TEST(ChatTemplateTest, SmolLm2OpensWithItsOwnSystemTurn) {
  EXPECT_EQ(Text("smollm2", {{"user", "Hi"}}, true).text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
            "trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi"
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Text("smollm2", kTalk).text, Text("chatml", kTalk).text);
}

TEST(ChatTemplateTest, Llama3TrimsAndBeginsOnce) {
  const ChatText text = Text("llama3", kTalk, true);
  EXPECT_EQ(text.text,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
            "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
            "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            "Yes<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_THAT(Assistant(text), ElementsAre("Yes<|eot_id|>"));
}

TEST(ChatTemplateTest, LladaAlwaysEndsWithTheAssistantsHead) {
  const std::string want =
      "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(Text("llada", {{"user", "Hi"}}).text, want);
  EXPECT_EQ(Text("llada", {{"user", "Hi"}}, true).text, want);
}

TEST(ChatTemplateTest, GemmaPutsTheSystemIntoTheFirstUserTurn) {
  const ChatText text = Text("gemma", kTalk, true);
  EXPECT_EQ(text.text,
            "<bos><start_of_turn>user\n Be brief. \n\nHi<end_of_turn>\n"
            "<start_of_turn>model\nYes<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_THAT(Assistant(text), ElementsAre("Yes<end_of_turn>"));
}

TEST(ChatTemplateTest, WrongRolesAndTurnsAreNamed) {
  EXPECT_THAT(ErrorOf("chatml", {}), HasSubstr("no message"));
  EXPECT_THAT(ErrorOf("chatml", {{"user", "a"}, {"robot", "b"}}),
              HasSubstr("message 2 has the role \"robot\"; the template chatml "
                        "knows system, user, assistant and tool"));
  EXPECT_THAT(ErrorOf("gemma", {{"user", "a"}, {"user", "b"}}),
              HasSubstr("message 2 has the role \"user\" where the template "
                        "gemma wants \"assistant\""));
  EXPECT_THAT(ErrorOf("gemma", {{"assistant", "a"}}), HasSubstr("message 1"));
  EXPECT_THAT(ErrorOf("gemma", {{"system", "a"}}), HasSubstr("only a system"));
}

TEST(ChatTemplateTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(std::string(ChatTemplate::Named("mistral").status().message()),
              HasSubstr("no chat template \"mistral\", only chatml, smollm2, "
                        "llama3, gemma and llada"));
}

TEST(ChatTemplateTest, TheTokenizerMustHaveTheSpecialTokens) {
  EXPECT_TRUE(
      Get("chatml")->Check(FakeTokenizer({"<|im_start|>", "<|im_end|>"})).ok());
  EXPECT_THAT(
      std::string(
          Get("llama3")->Check(FakeTokenizer({"<|eot_id|>"})).message()),
      HasSubstr("no token <|begin_of_text|>, <|start_header_id|> and "
                "<|end_header_id|>"));
}

// The name, or the error.
std::string Recognised(const std::string& jinja, const std::string& bos) {
  FakeTokenizer tokenizer({bos}, jinja);
  tokenizer.set_special_ids({256, -1, -1});
  const auto found = ChatTemplate::Recognise(tokenizer);
  return found.ok() ? (*found)->name() : std::string(found.status().message());
}

TEST(ChatTemplateTest, EachKnowsItsOwnJinja) {
  for (const std::string& name : ChatTemplate::Names()) {
    EXPECT_EQ(Recognised(Get(name)->jinja(), "<s>"), name);
  }
}

constexpr char kSpelledOut[] = R"({#- ChatML -#}
{% if not add_generation_prompt is defined %}
    {% set add_generation_prompt = false %}
{% endif %}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\n" }}
    {%- generation -%}
    {{ message.content + "<|im_end|>" }}
    {%- endgeneration -%}
    {{ "\n" }}
{%- endfor %}
{% if (add_generation_prompt) %}
{{ '<|im_start|>' }}{{ 'assistant\n' }}
{%- endif %}
)";

constexpr char kHeaders[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}";
constexpr char kHeaderPrompt[] =
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
constexpr char kIf[] = "{% if add_generation_prompt %}";

TEST(ChatTemplateTest, OtherSpellingsAreRecognised) {
  EXPECT_EQ(Recognised(kSpelledOut, "<s>"), "chatml");
  // One text, disambiguated by the tokenizer's BOS.
  const std::string headers = kHeaders;
  EXPECT_EQ(Recognised(headers + kIf + kHeaderPrompt + "{% endif %}",
                       "<|begin_of_text|>"),
            "llama3");
  EXPECT_EQ(Recognised(headers + kHeaderPrompt, "<|startoftext|>"), "llada");
  EXPECT_EQ(
      Recognised("{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
                 "{{ raise_exception('System role not supported') }}"
                 "{% endif %}{% for message in messages %}"
                 "{% if (message['role'] == 'user') != "
                 "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation "
                 "roles must alternate') }}{% endif %}"
                 "{% if (message['role'] == 'assistant') %}"
                 "{% set role = 'model' %}{% else %}"
                 "{% set role = message['role'] %}{% endif %}"
                 "{{ '<start_of_turn>' + role + '\n' + message['content'] | "
                 "trim + '<end_of_turn>\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}"
                 "{% endif %}",
                 "<bos>"),
      "gemma");
}

// A template that renders differently is another one, however similar.
TEST(ChatTemplateTest, WhatRendersOtherwiseIsTheTokenizersOwn) {
  const std::string chatml = Get("chatml")->jinja();
  const auto changed = [&](const char* from, const char* to) {
    const std::string jinja = absl::StrReplaceAll(chatml, {{from, to}});
    EXPECT_NE(jinja, chatml);
    return Recognised(jinja, "<s>");
  };
  const std::string own = "the tokenizer's own";
  EXPECT_EQ(changed("assistant\\n", "assistant"), own);
  EXPECT_EQ(changed("message['content']", "message['content'] | trim"), own);
  EXPECT_EQ(changed("'<|im_end|>' + '\\n'", "'<|im_end|>'"), own);
  EXPECT_EQ(changed("{% if add_generation_prompt %}", "{% if true %}"), own);
  EXPECT_EQ(changed("{% for", "{{ bos_token }}{% for"), own);
  EXPECT_EQ(Recognised(absl::StrReplaceAll(Get("smollm2")->jinja(),
                                           {{"helpful", "rude"}}),
                       "<s>"),
            own);
  EXPECT_EQ(
      Recognised(std::string(kHeaders) + kHeaderPrompt, "<|begin_of_text|>"),
      own);
  EXPECT_THAT(Recognised("", "<s>"), HasSubstr("has no chat template"));
}

}  // namespace
}  // namespace capstan
