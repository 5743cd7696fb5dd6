// SPDX-License-Identifier: Apache-2.0
//
// CAPSTAN_SFT_ROWS may name another file like sft_rows.json, to be measured as
// well.
#include "datasets/chat/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "datasets/chat/row.h"
#include "datasets/chat/row_encoder.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan {
namespace chat {
namespace {

using Json = nlohmann::ordered_json;

Json FileJson(const std::string& path) {
  const Json json = Json::parse(std::ifstream(path), nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

std::unique_ptr<Tokenizer> Load() {
  auto tokenizer = LoadTokenizer("datasets/samples/tokenizer");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::unique_ptr<ChatTemplate> Named(const std::string& name) {
  return *ChatTemplate::Named(name == "smollm" ? "smollm2" : name);
}

TEST(ChatGoldenTest, TemplatesRenderAsJinjaDoes) {
  const auto tokenizer = Load();
  const Json golden = FileJson("tests/golden/chat/chat_templates.json");
  ASSERT_FALSE(golden.at("cases").empty());
  for (const Json& c : golden.at("cases")) {
    std::vector<ChatMessage> messages;
    for (const Json& m : c.at("messages")) {
      messages.push_back({m.at("role"), m.at("content")});
    }
    const auto text = Named(c.at("template"))
                          ->Render(messages, c.at("add_generation_prompt"));
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->text, c.at("text"));
    EXPECT_EQ(tokenizer->Encode(text->text),
              c.at("ids").get<std::vector<int64_t>>());
  }
}

TEST(ChatGoldenTest, TemplatesAreRecognised) {
  const Json golden = FileJson("tests/golden/chat/chat_templates.json");
  for (const auto& [name, jinja] : golden.at("jinja").items()) {
    const auto found = ChatTemplate::Recognise(FakeTokenizer({}, jinja));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)->name(), Named(name)->name());
  }
  const auto tokenizer = Load();
  const auto found = ChatTemplate::Recognise(*tokenizer);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->name(), "smollm2");
  EXPECT_TRUE((*found)->Check(*tokenizer).ok());
}

// What a row becomes depends on the folder's template file, too.
TEST(ChatGoldenTest, AnotherTemplateFileMakesAnotherIndex) {
  namespace fs = std::filesystem;
  const std::string folder = ::testing::TempDir() + "/another_template";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(std::string("datasets/samples/tokenizer/") + name,
                  folder + "/" + name);
  }
  std::ofstream(folder + "/rows.jsonl")
      << R"({"messages": [{"role": "user", "content": "Hi"},)"
         R"( {"role": "assistant", "content": "Yes"}]})"
         "\n";
  Config config;
  config.set_path(folder + "/rows.jsonl");
  config.set_tokenizer(folder);
  config.set_max_length(100);
  const auto first = Chat::Create(config);
  ASSERT_TRUE(first.ok()) << first.status();
  std::ofstream(folder + "/chat_template.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}";
  const auto second = Chat::Create(config);
  ASSERT_TRUE(second.ok()) << second.status();
  int indices = 0;
  for (const auto& entry : fs::directory_iterator(folder + "/.capstan")) {
    indices += entry.path().filename() != "lock";
  }
  EXPECT_EQ(indices, 2);
}

void CheckRow(const Json& c, const Tokenizer& tokenizer,
              const ChatTemplate& chat_template) {
  LossOn loss_on = ALL;
  ASSERT_TRUE(LossOn_Parse(
      absl::AsciiStrToUpper(c.at("loss_on").get<std::string>()), &loss_on));
  const int64_t max_length = c.at("max_length").is_null()
                                 ? std::numeric_limits<int64_t>::max()
                                 : c.at("max_length").get<int64_t>();
  const RowEncoder encoder(&tokenizer, &chat_template, absl::OkStatus(),
                           loss_on, max_length);
  RowParser parser;
  Row row;
  RenderedRow rendered;
  TokenRow tokens;
  const std::string json = c.at("row").dump();
  const absl::Status parsed = parser.Parse(json, json.size(), AUTO, &row);
  ASSERT_TRUE(parsed.ok()) << parsed;
  EXPECT_EQ(absl::AsciiStrToLower(Kind_Name(row.kind)), c.at("kind"));
  const absl::Status status = encoder.Render(row, &rendered);
  ASSERT_TRUE(status.ok()) << status;
  encoder.Encode(rendered, &tokens);
  if (c.contains("text")) {
    EXPECT_EQ(rendered.text, c.at("text"));
  }
  EXPECT_EQ(tokens.ids, c.at("ids").get<std::vector<int64_t>>());
  EXPECT_EQ(tokens.labels, c.at("labels").get<std::vector<int64_t>>());
}

TEST(ChatGoldenTest, RowsBecomeTheSameTokensAndLabels) {
  const auto chatml = Named("chatml");
  const auto tokenizer = WithChatTemplate(Load(), *chatml);
  std::vector<std::string> files = {"tests/golden/chat/sft_rows.json"};
  const char* const more = std::getenv("CAPSTAN_SFT_ROWS");
  if (more != nullptr) files.push_back(more);
  for (const std::string& file : files) {
    const Json golden = FileJson(file);
    ASSERT_FALSE(golden.at("cases").empty());
    for (const Json& c : golden.at("cases")) {
      SCOPED_TRACE(file + ": " + c.at("row").dump().substr(0, 200));
      CheckRow(c, *tokenizer, *chatml);
    }
  }
}

}  // namespace
}  // namespace chat
}  // namespace capstan
