// SPDX-License-Identifier: Apache-2.0
//
// Replies between two turns of a model, by templates good and bad.
#include "plugins/grpo/objective/reply_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/grpo/objective/fake_data.h"

namespace capstan::grpo {
namespace {

using ::testing::HasSubstr;
using Json = ReplyWriter::Json;

const std::vector<std::string> kSpecial = {"<|im_start|>", "<|im_end|>",
                                           "</s>"};
constexpr int64_t kImEnd = 257, kEos = 258;

constexpr char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// As Qwen3's: what tools say is the user's, earlier thoughts are left out, and
// an assistant that isn't to think gets an empty thought.
constexpr char kThinker[] =
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}"
    "{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
    "{{ '<|im_end|>\\n' }}{% endif %}{% else %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + "
    "'<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and "
    "enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}";
// As Mistral's: a tool's turn needs a call before it; prompts have no head.
constexpr char kCaller[] =
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'tool' %}"
    "{% if not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a tool speaks uncalled') }}{% endif %}"
    "{{ '[RESULT]' + m.tool_call_id + ':' + m.content + '[/RESULT]' }}"
    "{% elif m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ '[CALL]' + c.id + c.function.name + c.function.arguments | tojson + "
    "eos_token }}{% endfor %}{% else %}{{ m.content + eos_token }}{% endif %}"
    "{% endfor %}";

class Data final : public FakeData {
 public:
  explicit Data(const std::string& jinja, const std::string& head = "")
      : FakeData(kSpecial, jinja), head_(head) {
    tokenizer_.set_special_ids({-1, jinja == kCaller ? kEos : kImEnd, kImEnd});
  }
  std::vector<int64_t> PromptIds(absl::string_view text) const override {
    if (head_.empty()) return tokenizer_.Encode(text);
    return tokenizer_.Encode(
        absl::StrCat("<|im_start|>user\n", text, "<|im_end|>\n", head_));
  }

 private:
  const std::string head_;
};

constexpr char kText[] = R"({"prompt": "7+5="})";
constexpr char kChat[] = R"({"messages": [{"role": "user", "content": "?"}]})";
constexpr char kPrompt[] =
    "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n";

Json Says(const std::string& content, const std::string& role = "tool") {
  return Json::array({{{"role", role}, {"content", content}}});
}

// What is written, or the error.
std::string Written(const Data& data, const std::string& prompt,
                    const std::string& row, const Json& messages,
                    int64_t last = kImEnd) {
  ReplyWriter writer(data);
  const absl::Status check = writer.Check(prompt, row);
  if (!check.ok()) return absl::StrCat("check: ", check.message());
  const auto ids = writer.Write(prompt, row, last, messages);
  return ids.ok() ? data.tokenizer()->Decode(*ids)
                  : std::string(ids.status().message());
}

TEST(ReplyWriterTest, WhatTheTemplateWritesBetweenTwoTurns) {
  const Data data(kChatMl);
  EXPECT_EQ(Written(data, kPrompt, kChat, Says("12")),
            "\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Written(data, kPrompt, kChat, Says("And now?", "user")),
            "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n");
  // Ends that aren't the template's stay where they are.
  EXPECT_EQ(Written(data, kPrompt, kChat, Says("12"), kEos),
            "\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n");
  // Special tokens are tokens.
  ReplyWriter writer(data);
  const auto ids = writer.Write(kPrompt, kChat, kImEnd, Says("1"));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ((*ids)[1], 256);
  EXPECT_EQ(ids->size(), std::string("\n_tool\n1_\n_assistant\n").size());
}

TEST(ReplyWriterTest, TextsAreContinuedByTheTextAlone) {
  for (const char* const jinja : {"", kChatMl}) {
    const Data data(jinja);
    EXPECT_EQ(Written(data, "7+5=", kText, Says("12")), "12");
    EXPECT_EQ(Written(data, "7+5=", kText, Says("")), "");
  }
  // But those that are a template's text are conversations.
  EXPECT_EQ(Written(Data(kChatMl), kPrompt, kText, Says("12")),
            "\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ReplyWriterTest, HeadsAreThePromptsOwn) {
  const std::string said =
      "\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n";
  const std::string thought = "<think>\n\n</think>\n\n";
  const Data data(kThinker);
  EXPECT_EQ(Written(data, kPrompt, kChat, Says("12")), said);
  // By the row's variables.
  const std::string row =
      R"({"messages": [], "chat_template_kwargs": {"enable_thinking": false}})";
  EXPECT_EQ(Written(data, kPrompt + thought, row, Says("12")), said + thought);
  // By the reader's.
  const Data other(kThinker, "<|im_start|>assistant\n" + thought);
  EXPECT_EQ(Written(other, kPrompt + thought, kChat, Says("12")),
            said + thought);
  EXPECT_THAT(Written(other, kPrompt, kChat, Says("12")),
              HasSubstr("check: the prompt doesn't end with the head"));
  // Two messages, one turn.
  Json both = Says("1");
  both.push_back(Says("2")[0]);
  EXPECT_EQ(Written(data, kPrompt, kChat, both),
            "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
            "<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ReplyWriterTest, TemplatesThatWantACall) {
  const Data data(kCaller);
  Json said = Says("12");
  said[0]["tool_call_id"] = "call12345";
  EXPECT_EQ(Written(data, "[INST] ? [/INST]", kChat, said, kEos),
            "[RESULT]call12345:12[/RESULT]");
}

TEST(ReplyWriterTest, TemplatesThatCantSayIt) {
  EXPECT_THAT(Written(Data(""), "?", kChat, Says("12")),
              HasSubstr("check: a prompt is a conversation"));
  const std::string silent = absl::StrCat(
      "{% for m in messages %}{% if m.role != 'tool' %}{{ '<|im_start|>' + "
      "m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}",
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
      "{% endif %}");
  EXPECT_THAT(
      Written(Data(silent), kPrompt, kChat, Says("12")),
      HasSubstr("doesn't write what somebody of the role \"tool\" says"));
  const std::string strict = absl::StrCat(
      "{% for m in messages %}{% if m.role == 'tool' %}"
      "{{ raise_exception('no tools here') }}{% endif %}{% endfor %}",
      silent);
  EXPECT_THAT(Written(Data(strict), kPrompt, kChat, Says("12")),
              HasSubstr("no tools here"));
  const std::string endless =
      "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";
  EXPECT_THAT(Written(Data(endless), "user:?\nassistant:", kChat, Says("12")),
              HasSubstr("it ends an assistant's turn neither with"));
}

}  // namespace
}  // namespace capstan::grpo
