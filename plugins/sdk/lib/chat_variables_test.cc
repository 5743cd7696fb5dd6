// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/chat_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

class OneSwitch final : public ChatTemplate {
 public:
  std::string name() const override { return "one_switch"; }
  std::string jinja() const override {
    return "{% if enable_thinking %}..{% endif %}{{size}}";
  }
  absl::StatusOr<ChatText> Render(absl::Span<const ChatMessage>,
                                  bool) const override {
    return ChatText();
  }
  std::string end_of_turn() const override { return ""; }
  absl::Status Check(const Tokenizer&) const override {
    return absl::OkStatus();
  }
};

std::string ErrorOf(const std::string& json) {
  return std::string(CheckChatVariables(json, OneSwitch()).message());
}

TEST(ChatVariablesTest, AreWordsOfTheTemplate) {
  EXPECT_EQ(ErrorOf(""), "");
  EXPECT_EQ(ErrorOf("{}"), "");
  EXPECT_EQ(ErrorOf(R"({"enable_thinking": false, "size": 1})"), "");
  for (const char* name :
       {"enable_thinkin", "thinking", "ize", "siz", "think", ""}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{\"", name, "\": 1}")),
                HasSubstr(absl::StrCat("sets \"", name,
                                       "\", which the template one_switch")));
  }
}

TEST(ChatVariablesTest, AreAnObject) {
  for (const char* json : {"[]", "{", "enable_thinking=false", "\"a\""}) {
    EXPECT_THAT(ErrorOf(json), HasSubstr("isn't a JSON object")) << json;
  }
}

}  // namespace
}  // namespace capstan
