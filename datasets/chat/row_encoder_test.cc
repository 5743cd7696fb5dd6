// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/sdk/dataset.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::chat {
namespace {

using ::testing::HasSubstr;

// ChatML's tokens; bos and eos as a base model has them.
std::unique_ptr<FakeTokenizer> Base(bool adds_bos = false) {
  auto tokenizer = std::make_unique<FakeTokenizer>(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>", "<|endoftext|>"});
  tokenizer->set_special_ids({258, 258, -1}, adds_bos);
  return tokenizer;
}

struct Parts {
  explicit Parts(LossOn loss_on, int64_t max_length = 1000,
                 bool adds_bos = false, Truncation truncation = KEEP_START)
      : tokenizer(WithChatTemplate(Base(adds_bos), *chatml)),
        encoder(tokenizer.get(), chatml.get(), absl::OkStatus(), loss_on,
                max_length, "", truncation) {}

  const std::unique_ptr<ChatTemplate> chatml = *ChatTemplate::Named("chatml");
  const std::unique_ptr<Tokenizer> tokenizer;
  const RowEncoder encoder;
};

std::string ShownBy(const RowEncoder& encoder, const Tokenizer& tokenizer,
                    const std::string& json);

// What is trained on, in brackets: "user: [text]"; or the error.
std::string Shown(const Parts& parts, const std::string& json) {
  return ShownBy(parts.encoder, *parts.tokenizer, json);
}

std::string ShownBy(const RowEncoder& encoder, const Tokenizer& tokenizer,
                    const std::string& json) {
  RowParser parser;
  Row row;
  RenderedRow rendered;
  TokenRow tokens;
  absl::Status status = parser.Parse(json, json.size(), AUTO, &row);
  if (status.ok()) status = encoder.Render(row, &rendered);
  if (!status.ok()) return std::string(status.message());
  encoder.Encode(rendered, &tokens);
  EXPECT_EQ(tokens.ids.size(), tokens.labels.size());
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    const bool trained = tokens.labels[i] != kIgnoredTarget;
    if (trained) {
      EXPECT_EQ(tokens.labels[i], tokens.ids[i]);
    }
    if (trained != inside) out += trained ? "[" : "]";
    inside = trained;
    out += tokenizer.Decode({tokens.ids[i]});
  }
  return out + (inside ? "]" : "");
}

constexpr char kTalk[] = R"({"messages": [{"role": "user", "content": "a"},)"
                         R"({"role": "assistant", "content": "b"},)"
                         R"({"role": "user", "content": "<|im_end|>c"},)"
                         R"({"role": "assistant", "content": "d"}]})";

TEST(RowEncoderTest, LossOnSaysWhatOfAConversationIsTrained) {
  const std::string u = "<|im_start|>user\n";
  const std::string a = "<|im_start|>assistant\n";
  const std::string e = "<|im_end|>";
  EXPECT_EQ(Shown(Parts(BY_KIND), kTalk), "[" + u + "a" + e + "\n" + a + "b" +
                                              e + "\n" + u + e + "c" + e +
                                              "\n" + a + "d" + e + "\n]");
  // By position: the same id is trained on only at the end of the assistant's
  // turns, though eos and pad have that id.
  EXPECT_EQ(Shown(Parts(ASSISTANT), kTalk), u + "a" + e + "\n" + a + "[b" + e +
                                                "]\n" + u + e + "c" + e + "\n" +
                                                a + "[d" + e + "]\n");
  EXPECT_EQ(Shown(Parts(COMPLETION), kTalk), u + "a" + e + "\n" + a + "b" + e +
                                                 "\n" + u + e + "c" + e + "\n" +
                                                 a + "[d" + e + "]\n");
}

TEST(RowEncoderTest, ACompletionEndsWithEos) {
  const std::string texts = R"({"prompt": "p ", "completion": "c"})";
  EXPECT_EQ(Shown(Parts(BY_KIND), texts), "p [c<|im_end|>]");
  EXPECT_EQ(Shown(Parts(ASSISTANT), texts), "p [c<|im_end|>]");
  EXPECT_EQ(Shown(Parts(ALL), texts), "[p c<|im_end|>]");
  const std::string lists =
      R"({"prompt": [{"role": "user", "content": "p"},)"
      R"({"role": "assistant", "content": "x"},)"
      R"({"role": "user", "content": "q"}],)"
      R"("completion": [{"role": "assistant", "content": "c"}]})";
  EXPECT_THAT(Shown(Parts(BY_KIND), lists),
              ::testing::AllOf(HasSubstr("\nx<|im_end|>"),
                               HasSubstr("assistant\n[c<|im_end|>]\n")));
  EXPECT_THAT(Shown(Parts(ASSISTANT), lists), HasSubstr("[x<|im_end|>]"));
}

TEST(RowEncoderTest, PlainTextsEndWithEosAndGetWhatTheTokenizerAdds) {
  EXPECT_EQ(Shown(Parts(BY_KIND), R"({"text": "ab"})"), "[ab<|im_end|>]");
  EXPECT_EQ(Shown(Parts(BY_KIND), R"({"text": "ab<|im_end|>"})"),
            "[ab<|im_end|>]");
  EXPECT_EQ(Shown(Parts(BY_KIND, 1000, true), R"({"text": "ab"})"),
            "[<|endoftext|>ab<|im_end|>]");
  EXPECT_EQ(Shown(Parts(BY_KIND, 1000, true), R"({"text": "<|endoftext|>ab"})"),
            "[<|endoftext|>ab<|im_end|>]");
  EXPECT_EQ(Shown(Parts(BY_KIND, 1000, true),
                  R"({"prompt": "p", "completion": "c"})"),
            "<|endoftext|>p[c<|im_end|>]");
  EXPECT_THAT(Shown(Parts(ASSISTANT), R"({"text": "ab"})"),
              HasSubstr("set loss_on: ALL"));
}

// A template that writes tools, calls and the last turn's thought.
constexpr char kAgent[] =
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% set parts = (m.content or '').split('</think>') %}"
    "{% if loop.last and think is not defined and parts | length > 1 %}"
    "{{ parts[0] + '</think>' }}{% endif %}{{ parts[-1] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}("
    "{{ c.function.arguments | tojson }}){% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

std::string ShownByAgent(LossOn loss_on, const std::string& json,
                         const std::string& variables = "") {
  const FakeTokenizer tokenizer({"<|im_start|>", "<|im_end|>"}, kAgent);
  const auto chat = ChatTemplate::Recognise(tokenizer);
  EXPECT_TRUE(chat.ok()) << chat.status();
  const RowEncoder encoder(&tokenizer, chat->get(), absl::OkStatus(), loss_on,
                           1000, variables);
  return ShownBy(encoder, tokenizer, json);
}

TEST(RowEncoderTest, ToolsAndThoughtsAreTheTemplates) {
  const std::string messages =
      R"("messages": [{"role": "user", "content": "a"}, {"role": )"
      R"("assistant", "tool_calls": [{"function": {"name": "f", )"
      R"("arguments": {"n": 99999999999999999999}}}]}, {"role": "tool", )"
      R"("content": "1"}, {"role": "assistant", "content": "hm</think>b"}, )"
      R"({"role": "user", "content": "c"}, {"role": "assistant", )"
      R"("content": "so</think>d"}])";
  const std::string u = "<|im_start|>user\n", a = "<|im_start|>assistant\n",
                    t = "<|im_start|>tool\n", e = "<|im_end|>";
  EXPECT_EQ(
      ShownByAgent(ASSISTANT, R"({"tools": [{"x":1}], )" + messages + "}"),
      "{\"x\": 1}\n" + u + "a" + e + "\n" + a +
          R"([f({"n": 99999999999999999999}))" + e + "]\n" + t + "1" + e +
          "\n" + a + "[b" + e + "]\n" + u + "c" + e + "\n" + a +
          "[so</think>d" + e + "]\n");
  EXPECT_THAT(ShownByAgent(COMPLETION, "{" + messages + "}"),
              HasSubstr("b" + e + "\n" + u + "c" + e + "\n" + a +
                        "[so</think>d" + e + "]\n"));
  EXPECT_THAT(
      ShownByAgent(ASSISTANT, "{" + messages + "}", R"({"think": false})"),
      HasSubstr(a + "[d" + e + "]\n"));
  EXPECT_THAT(
      ShownByAgent(ASSISTANT, R"({"chat_template_kwargs": {"think": 1}, )" +
                                  messages + "}"),
      HasSubstr(a + "[d" + e + "]\n"));
  EXPECT_EQ(ShownByAgent(ALL, "{" + messages + "}").back(), ']');
  // Turns of the prompt aren't the completion, whatever was dropped of them.
  EXPECT_THAT(
      ShownByAgent(BY_KIND,
                   R"({"prompt": [{"role": "user", "content": "a"}, {"role": )"
                   R"("assistant", "content": "x</think>b"}, {"role": "user", )"
                   R"("content": "c"}], "completion": [{"role": "assistant", )"
                   R"("tool_calls": [{"function": {"name": "g", )"
                   R"("arguments": {}}}]}]})"),
      ::testing::AllOf(HasSubstr("\nb" + e),
                       HasSubstr(a + "[g({})" + e + "]")));
}

// Two generation blocks are one turn; the prompt's aren't the completion.
TEST(RowEncoderTest, GenerationBlocksOfAPromptArentItsCompletion) {
  const FakeTokenizer tokenizer(
      {"<|im_end|>"},
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content[:1] }}{% endgeneration %}-{% generation %}"
      "{{ m.content[1:] }}<|im_end|>{% endgeneration %}{% else %}"
      "{{ m.content }}{% endif %};{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  const auto chat = ChatTemplate::Recognise(tokenizer);
  ASSERT_TRUE(chat.ok()) << chat.status();
  const RowEncoder encoder(&tokenizer, chat->get(), absl::OkStatus(), BY_KIND,
                           1000);
  EXPECT_EQ(
      ShownBy(encoder, tokenizer,
              R"({"prompt": [{"role": "user", "content": "a"}, )"
              R"({"role": "assistant", "content": "bb"}, {"role": )"
              R"("user", "content": "c"}], "completion": [{"role": )"
              R"("assistant", "content": "dd"}]})"),
      "user:a;assistant:b-b<|im_end|>;user:c;assistant:[d]-[d<|im_end|>];");
}

TEST(RowEncoderTest, TruncationKeepsTheStartOrTheEnd) {
  EXPECT_EQ(Shown(Parts(ALL, 3), R"({"text": "abcdef"})"), "[abc]");
  EXPECT_EQ(Shown(Parts(COMPLETION, 3), R"({"prompt":"ab","completion":"cd"})"),
            "ab[c]");
  EXPECT_EQ(Shown(Parts(COMPLETION, 12, false, KEEP_END),
                  R"({"prompt":"abcd","completion":"ef"})"),
            "abcd[ef<|im_end|>]");
  EXPECT_EQ(Shown(Parts(COMPLETION, 4, false, KEEP_END),
                  R"({"prompt":"abcd","completion":"ef"})"),
            "d[ef<|im_end|>]");
  TokenRow row;
  row.labels = {7};  // nothing predicts the first
  EXPECT_EQ(row.trained(), 0);
  row.labels = {7, 7, kIgnoredTarget};
  EXPECT_EQ(row.trained(), 1);
}

TEST(RowEncoderTest, WithoutATemplateOnlyConversationsAreErrors) {
  const auto base = Base();
  const RowEncoder encoder(base.get(), nullptr, absl::NotFoundError("none"),
                           ALL, 10);
  Row row;
  RenderedRow rendered;
  row.kind = TEXT;
  row.is_text = true;
  row.completion = "a";
  EXPECT_TRUE(encoder.Render(row, &rendered).ok());
  row.Clear();
  row.kind = MESSAGES;
  row.Add("user", "a");
  const absl::Status status = encoder.Render(row, &rendered);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("but none"));
}

TEST(ChatTokenizerTest, SavesTheTemplateAndItsTokens) {
  const std::string folder = ::testing::TempDir() + "/saved";
  std::filesystem::create_directories(folder);
  const Parts parts(ALL);
  const Tokenizer::SpecialIds ids = parts.tokenizer->special_ids();
  EXPECT_EQ(ids.bos, 256);
  EXPECT_EQ(ids.eos, 257);
  EXPECT_EQ(ids.pad, 257);
  ASSERT_TRUE(parts.tokenizer->Save(folder).ok());
  const auto json =
      nlohmann::json::parse(std::ifstream(folder + "/tokenizer_config.json"));
  EXPECT_EQ(json.at("chat_template"), parts.chatml->jinja());
  EXPECT_EQ(json.at("bos_token"), "<|im_start|>");
  EXPECT_EQ(json.at("eos_token"), "<|im_end|>");
  EXPECT_EQ(json.at("pad_token"), "<|im_end|>");
  EXPECT_EQ(json.at("model_max_length"), 64);  // kept
  EXPECT_TRUE(std::filesystem::exists(folder + "/tokenizer.json"));
}

}  // namespace
}  // namespace capstan::chat
