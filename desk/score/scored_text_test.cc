// SPDX-License-Identifier: Apache-2.0
#include "desk/score/scored_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/chat_template/fake_tokenizer.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// A token is a byte, or an end of ChatML's, which is eos.
class ScoredTextsTest : public ::testing::Test {
 protected:
  ScoredTextsTest() { tokenizer_.set_special_ids({-1, 257, 257}); }

  std::string TextOf(const std::string& line) {
    const auto ids = texts_.TokensOf(line);
    EXPECT_TRUE(ids.ok()) << line << ": " << ids.status();
    return ids.ok() ? tokenizer_.Decode(*ids) : "";
  }
  std::string ErrorOf(const std::string& line) {
    const auto ids = texts_.TokensOf(line);
    EXPECT_FALSE(ids.ok()) << line;
    return std::string(ids.status().message());
  }

  FakeTokenizer tokenizer_{
      std::vector<std::string>{"<|im_start|>", "<|im_end|>"}};
  const TaskSettings settings_ = {"model", "chatml", ""};
  ScoredTexts texts_{settings_, tokenizer_};
};

TEST_F(ScoredTextsTest, Texts) {
  for (const char* const line :
       {R"({"prompt": "7+5=", "completion": "12"})",
        R"({"prompt": "7+5=", "completion": "12<|im_end|>"})",
        R"({"text": "7+5=12"})",
        // What a program of a reward gets: the policy's prompt isn't used.
        R"({"prompt": "<s>7+5=", "text": "12", "row": {"prompt": "7+5="}})"}) {
    EXPECT_EQ(TextOf(line), "7+5=12<|im_end|>") << line;
  }
}

TEST_F(ScoredTextsTest, Conversations) {
  const std::string user = R"({"role": "user", "content": "7+5="})";
  const std::string twelve = R"({"role": "assistant", "content": "12"})";
  const std::string wrong = R"({"role": "assistant", "content": "13"})";
  for (const std::string& line :
       {R"({"prompt": [)" + user + R"(], "completion": [)" + twelve + "]}",
        R"({"prompt": [)" + user + R"(], "completion": "12"})",
        R"({"prompt": "7+5=", "completion": [)" + twelve + "]}",
        R"({"messages": [)" + user + ", " + twelve + "]}",
        R"({"text": "12", "row": {"prompt": [)" + user + "]}}",
        R"({"text": "12", "row": {"messages": [)" + user + "]}}",
        // Its own answer isn't what is scored.
        R"({"text": "12", "row": {"messages": [)" + user + ", " + wrong +
            "]}}"}) {
    EXPECT_EQ(TextOf(line),
              "<|im_start|>user\n7+5=<|im_end|>\n"
              "<|im_start|>assistant\n12<|im_end|>\n")
        << line;
  }
}

// All that followed the prompt, as the policy read it.
TEST_F(ScoredTextsTest, AnswersOfSeveralTurns) {
  const std::string turns =
      R"(, "turn": 2, "messages": [{"role": "assistant", "content": "sum"}, )"
      R"({"role": "tool", "content": "12"}, )"
      R"({"role": "assistant", "content": "It is 12"}]})";
  EXPECT_EQ(TextOf(R"({"text": "It is 12", "row": {"prompt": "7+5="})" + turns),
            "7+5=sum<|im_end|>12It is 12<|im_end|>");
  EXPECT_EQ(TextOf(R"({"text": "It is 12", "row": {"messages": [)"
                   R"({"role": "user", "content": "7+5="}]})" +
                   turns),
            "<|im_start|>user\n7+5=<|im_end|>\n"
            "<|im_start|>assistant\nsum<|im_end|>\n"
            "<|im_start|>tool\n12<|im_end|>\n"
            "<|im_start|>assistant\nIt is 12<|im_end|>\n");
}

TEST_F(ScoredTextsTest, WhatIsLongIsCutAsInTraining) {
  Reading reading;
  reading.max_length = 4;
  const auto cut = [&] {
    ScoredTexts texts(settings_, tokenizer_, reading);
    return tokenizer_.Decode(*texts.TokensOf(R"({"text": "7+5=12"})"));
  };
  EXPECT_EQ(cut(), "7+5=");
  reading.keeps_end = true;
  EXPECT_EQ(cut(), "=12<|im_end|>");
  reading.max_length = 7;
  EXPECT_EQ(cut(), "7+5=12<|im_end|>");
}

TEST_F(ScoredTextsTest, WhatCantBeScored) {
  EXPECT_EQ(ErrorOf("{"), "isn't a JSON object");
  EXPECT_THAT(ErrorOf(R"({"prompt": "7+5="})"), HasSubstr("nothing to score"));
  EXPECT_THAT(ErrorOf(R"({"text": "12", "row": {"question": "7+5="}})"),
              HasSubstr("has neither a \"prompt\""));
  EXPECT_THAT(ErrorOf(R"({"messages": [{"role": "usher", "content": ""}]})"),
              HasSubstr("usher"));
}

}  // namespace
}  // namespace capstan
