// SPDX-License-Identifier: Apache-2.0
//
// Rows that the model is to answer, kind: PROMPT.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "datasets/chat/chat.h"
#include "datasets/chat/chat_testing.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan::chat {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config Prompts(const std::string& rows, int64_t max_length = 200) {
  Config config = Of(File("prompts.jsonl", rows), max_length);
  config.set_kind(PROMPT);
  config.set_chat_template("chatml");
  return config;
}

std::string ErrorOf(const Config& config) {
  const auto chat = Make(config);
  return chat.ok() ? "" : std::string(chat.status().message());
}

std::string TextOf(const Chat& chat, const Batch& batch, int64_t row) {
  const int64_t count = batch.at(kTokenCounts)[row].item<int64_t>();
  const at::Tensor ids = batch.at(kInputIds)[row].contiguous();
  return chat.tokenizer()->Decode(
      {ids.const_data_ptr<int64_t>(), static_cast<size_t>(count)});
}

std::string JsonOf(const Batch& batch, int64_t row) {
  const at::Tensor bytes = batch.at(kRowText)[row].contiguous();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
          static_cast<size_t>(bytes.ne(0).sum().item<int64_t>())};
}

std::vector<std::string> Texts(const Config& config) {
  std::vector<std::string> texts;
  const auto chat = MustMake(config);
  for (int64_t i = 0; chat != nullptr && i < chat->size(); ++i) {
    Batch batch;
    const absl::Status read = chat->Read({i}, &batch);
    EXPECT_TRUE(read.ok()) << read;
    texts.push_back(TextOf(*chat, batch, 0));
  }
  return texts;
}

TEST(PromptTest, ABatchHasWhatTheModelReadsAndTheRows) {
  const std::string rows[] = {R"({"prompt": "3+4=", "answer": 7})",
                              R"({"answer": [1, 2], "prompt": "10+20="})"};
  const auto chat = MustMake(Prompts(rows[0] + "\n" + rows[1] + "\n"));
  ASSERT_NE(chat, nullptr);
  EXPECT_EQ(chat->size(), 2);
  EXPECT_EQ(chat->sample_length(0), 4);
  EXPECT_EQ(chat->max_sequence_length(), 200);
  // In the memory of a batch of texts, whose labels don't stay.
  const auto texts = MustMake(Of(File("texts.jsonl", TextRow("0123456789"))));
  Batch batch;
  ASSERT_TRUE(texts->Read({0}, &batch).ok());
  ASSERT_TRUE(chat->Read({0, 1}, &batch).ok());
  EXPECT_EQ(batch.count(kLabels), 0u);
  EXPECT_EQ(batch.at(kInputIds).sizes(), at::IntArrayRef({2, 6}));
  EXPECT_EQ(TextOf(*chat, batch, 0), "3+4=");
  EXPECT_EQ(batch.at(kInputIds)[0][5].item<int64_t>(), 257);
  EXPECT_EQ(TextOf(*chat, batch, 1), "10+20=");
  EXPECT_EQ(batch.at(kRowText).scalar_type(), at::kByte);
  EXPECT_EQ(JsonOf(batch, 0), rows[0]);
  EXPECT_EQ(JsonOf(batch, 1), rows[1]);
  // Other rows' lengths; and the other way round.
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  EXPECT_EQ(batch.at(kRowText).size(1), static_cast<int64_t>(rows[0].size()));
  ASSERT_TRUE(texts->Read({0}, &batch).ok());
  EXPECT_EQ(batch.count(kRowText), 0u);
  EXPECT_EQ(batch.count(kLabels), 1u);
}

TEST(PromptTest, RowsOfOtherKindsWithoutTheirAnswers) {
  const std::string head =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const std::string user = R"({"role": "user", "content": "Hi"})";
  const std::string answer = R"({"role": "assistant", "content": "Oh"})";
  for (const std::string& row : {
           absl::StrCat(R"({"prompt": [)", user, "]}"),
           absl::StrCat(R"({"prompt": [)", user, R"(], "completion": [)",
                        answer, "]}"),
           absl::StrCat(R"({"messages": [)", user, "]}"),
           absl::StrCat(R"({"messages": [)", user, ", ", answer, "]}"),
           std::string(R"({"conversations": [{"from": "human", "value": "Hi"},
               {"from": "gpt", "value": "Oh"}]})"),
           std::string(R"({"question": "Hi", "answer": "Oh"})"),
           std::string(R"({"question": "Hi", "answer": 7})"),
           std::string(R"({"instruction": "Hi", "output": "Oh"})"),
           std::string(R"({"user": "Hi", "assistant": "Oh"})"),
           std::string(R"({"input": "Hi", "target": ["Oh"]})"),
       }) {
    const std::string line =
        absl::StrJoin(absl::StrSplit(row, '\n'), " ") + "\n";
    EXPECT_THAT(Texts(Prompts(line)), ElementsAre(head)) << row;
  }
  EXPECT_THAT(
      Texts(Prompts(R"({"system": "S", "instruction": "Add", "input": "1 2"})"
                    "\n")),
      ElementsAre("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nAdd\n1 "
                  "2<|im_end|>\n<|im_start|>assistant\n"));
  // What was answered before is part of the question.
  EXPECT_THAT(Texts(Prompts(absl::StrCat(R"({"messages": [)", user, ", ",
                                         answer, ", ", user, "]}\n"))),
              ElementsAre(absl::StrCat(head, "Oh<|im_end|>\n", head)));
}

TEST(PromptTest, AWrongRowIsAnErrorWithItsLine) {
  const std::string good = "{\"prompt\": \"p\"}\n";
  const std::string answer = R"({"role": "assistant", "content": "Oh"})";
  const std::pair<std::string, std::string> wrong[] = {
      {R"({"prompt": 7})", "\"prompt\" is a number, not a text"},
      {R"({"prompt": ""})", "\"prompt\" is empty"},
      {R"({"prompt": []})", "\"prompt\" is empty"},
      {R"({"text": "p"})", "has neither a \"prompt\" nor messages"},
      {absl::StrCat(R"({"prompt": [)", answer, "]}"), "ends with an answer"},
      {absl::StrCat(R"({"messages": [)", answer, "]}"), "is an answer alone"},
      {R"({"question": 3})", "\"question\" is a number"},
      {R"(["Hi", "Oh"])", "is a list, not an object"},
      {R"({"prompt": "0123456789"})",
       "has 10 tokens, more than max_length (9)"},
  };
  for (const auto& [row, problem] : wrong) {
    Config config = Prompts(good + row + "\n" + good, 9);
    EXPECT_THAT(ErrorOf(config),
                AllOf(HasSubstr("prompts.jsonl:2: "), HasSubstr(problem)))
        << row;
    config.set_bad_rows(SKIP);
    const auto chat = MustMake(config);
    ASSERT_NE(chat, nullptr);
    EXPECT_EQ(chat->size(), 2) << row;
    EXPECT_THAT(chat->notes(), ElementsAre(AllOf(HasSubstr("1 bad row was"),
                                                 HasSubstr(problem))));
    EXPECT_EQ(chat->counted_files()[0].counts.at("bad_rows"), 1);
  }
}

TEST(PromptTest, PromptsDoNotMixWithOthersAndAreWhole) {
  Config config = Prompts("{\"prompt\": \"p\"}\n");
  config.set_packing(BEST_FIT);
  EXPECT_THAT(ErrorOf(config), HasSubstr("can't be packed"));
  config.clear_packing();
  config.set_truncation(KEEP_END);
  EXPECT_THAT(ErrorOf(config), HasSubstr("prompts are never cut"));
  config.clear_truncation();
  Source* const source = config.add_source();
  source->set_path(config.path());
  source->set_kind(PROMPT);
  *config.add_source() = *source;
  config.mutable_source(1)->set_kind(TEXT);
  config.clear_path();
  EXPECT_THAT(ErrorOf(config), HasSubstr("some are kind: PROMPT and some"));
  // Nobody trains on questions by mistake.
  config.mutable_source()->DeleteSubrange(1, 1);
  config.mutable_source(0)->set_kind(AUTO);
  config.clear_kind();
  EXPECT_THAT(ErrorOf(config), HasSubstr("has the keys"));
}

TEST(PromptTest, MixturesAndValidationSplits) {
  std::string rows;
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"", i, "?\", \"id\": ", i, "}\n");
  }
  Config config = Prompts(rows);
  config.set_validation_fraction(0.1);
  config.set_shuffle(true);
  const auto chat = MustMake(config);
  ASSERT_NE(chat, nullptr);
  EXPECT_TRUE(chat->shuffle());
  EXPECT_EQ(chat->size(), 90);
  const auto held_back = chat->Validation();
  ASSERT_TRUE(held_back.ok()) << held_back.status();
  ASSERT_EQ((*held_back)->size(), 10);
  Batch batch;
  ASSERT_TRUE((*held_back)->Read({3, 9}, &batch).ok());
  for (const int64_t row : {0, 1}) {
    const auto json = nlohmann::json::parse(JsonOf(batch, row));
    EXPECT_EQ(TextOf(*chat, batch, row), json["prompt"]);
  }
  // The digest is of the rows' bytes, answers included.
  const auto other = MustMake(Prompts(rows + "{\"prompt\": \"x\"}\n"));
  EXPECT_NE(*chat->Digest(), *other->Digest());

  Config mixed = Prompts(rows);
  for (const double weight : {3.0, 1.0}) {
    Source* const source = mixed.add_source();
    source->set_path(weight > 1 ? mixed.path()
                                : File("b.jsonl", "{\"prompt\": \"b\"}\n"));
    source->set_weight(weight);
  }
  mixed.clear_path();
  const auto mixture = MustMake(mixed);
  ASSERT_NE(mixture, nullptr);
  ASSERT_TRUE(mixture->draws_anew());
  std::vector<int64_t> indices(mixture->size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  ASSERT_TRUE(mixture->Read(indices, &batch).ok());
  int64_t b = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto json = nlohmann::json::parse(JsonOf(batch, i));
    EXPECT_EQ(TextOf(*mixture, batch, i), json["prompt"]);
    b += json["prompt"] == "b" ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(b) / static_cast<double>(indices.size()),
              0.25, 0.02);
}

TEST(PromptTest, RowsOfTablesAreTheJsonThatTheyBecome) {
  Config config = Prompts("");
  config.set_path(File("sums.csv", "prompt,answer\n1+2=,3\n"));
  const auto made = Make(config);
  if (absl::StrContains(made.status().message(), "isn't part of this build")) {
    GTEST_SKIP() << made.status();
  }
  ASSERT_TRUE(made.ok()) << made.status();
  const Chat* const chat = made->get();
  Batch batch;
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  EXPECT_EQ(TextOf(*chat, batch, 0), "1+2=");
  EXPECT_EQ(nlohmann::json::parse(JsonOf(batch, 0))["answer"], "3");
}

// `trainer data` reads them as a run does.
TEST(PromptTest, VisitedRowsAreNotUntrained) {
  Config config = Prompts(
      "{\"prompt\": \"p\", \"label\": 1}\n{\"prompt\": \"0123456789\"}\n", 9);
  const std::string folder =
      std::filesystem::path(config.path()).parent_path().string();
  std::ofstream(folder + "/tokenizer.json") << ByteTokenizerJson();
  config.set_tokenizer(folder);
  config.clear_chat_template();
  std::vector<DataRow> rows;
  const absl::Status visited = Chat::VisitRows(
      config.SerializeAsString(), [&](const RowsOfReader&, const DataRow& row) {
        rows.push_back(row);
        return absl::OkStatus();
      });
  ASSERT_TRUE(visited.ok()) << visited;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].is_prompt);
  EXPECT_FALSE(rows[0].left_out());
  EXPECT_EQ(rows[0].trained(), 0);
  EXPECT_EQ(rows[0].label, "");
  EXPECT_EQ(rows[0].length, 1);
  ASSERT_EQ(rows[0].texts[0].turns.size(), 1u);
  EXPECT_EQ(rows[0].texts[0].turns[0].role, "prompt");
  EXPECT_THAT(std::string(rows[1].status.message()),
              HasSubstr("has 10 tokens, more than max_length (9)"));
}

}  // namespace
}  // namespace capstan::chat
