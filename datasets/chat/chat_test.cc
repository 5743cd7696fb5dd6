// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/chat.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/chat_testing.h"
#include "plugins/sdk/model_tokenizer.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> Row(const Batch& batch, const char* name, int64_t row) {
  const at::Tensor& tensor = batch.at(name);
  const int64_t length = tensor.size(1);
  const int64_t* begin = tensor.const_data_ptr<int64_t>() + row * length;
  return {begin, begin + length};
}

std::vector<int64_t> Counts(const Batch& batch) {
  const at::Tensor& counts = batch.at(kTokenCounts);
  const int64_t* begin = counts.const_data_ptr<int64_t>();
  return {begin, begin + counts.numel()};
}

std::string TextOf(const DatasetReader& reader, int64_t index) {
  Batch batch;
  EXPECT_TRUE(reader.Read({index}, &batch).ok());
  return reader.tokenizer()->Decode(Row(batch, "input_ids", 0));
}

// The model of the run has few positions.
TEST(ChatTest, TheDefaultLengthIsWhatTheModelTakes) {
  const std::string rows = File("rows.jsonl", TextRow("abc"));
  File("config.json", "{\"max_position_embeddings\": 64}");
  SetModelTokenizer({nullptr, fs::path(rows).parent_path().string()});
  const auto few = MustMake(Of(rows, /*max_length=*/0));
  const auto told = MustMake(Of(rows, /*max_length=*/100));
  SetModelTokenizer({});
  ASSERT_NE(few, nullptr);
  EXPECT_EQ(few->max_sequence_length(), 64);
  EXPECT_THAT(few->notes(), ElementsAre(HasSubstr("max_length is 64")));
  EXPECT_EQ(told->max_sequence_length(), 100);
  EXPECT_EQ(MustMake(Of(rows, 0))->max_sequence_length(), 1024);
}

TEST(ChatTest, APromptIsWrittenAsTheRowsAre) {
  Config config = Of(File("t", TextRow("abc")));
  config.set_chat_template("chatml");
  const auto texts = MustMake(config);
  EXPECT_EQ(texts->tokenizer()->Decode(texts->PromptIds("Hi")), "Hi");
  config.set_path(File("c", R"({"question": "q", "answer": "a"})"));
  const auto chats = MustMake(config);
  EXPECT_EQ(chats->tokenizer()->Decode(chats->PromptIds("Hi")),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTest, BatchesArePaddedToTheirLongest) {
  const auto chat = MustMake(
      Of(File("a.jsonl", TextRow("ab") + TextRow("cdefg") + TextRow("hi"))));
  ASSERT_EQ(chat->size(), 3);
  Batch batch;
  ASSERT_TRUE(chat->Read({1, 0}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 1),
              ElementsAre('a', 'b', 257, 257, 257, 257));
  EXPECT_THAT(Row(batch, "labels", 1),
              ElementsAre('a', 'b', 257, -100, -100, -100));
  EXPECT_THAT(Row(batch, "labels", 0),
              ElementsAre('c', 'd', 'e', 'f', 'g', 257));
  EXPECT_THAT(Counts(batch), ElementsAre(6, 3));
  EXPECT_EQ(CountTokens(batch).padding, 3);
  EXPECT_EQ(batch.count("positions"), 0);
  EXPECT_EQ(chat->sample_length(1), 6);
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 0), ElementsAre('a', 'b', 257));
  EXPECT_THAT(Counts(batch), ElementsAre(3));
  EXPECT_FALSE(chat->Read({3}, &batch).ok());
  EXPECT_FALSE(chat->Read({-1}, &batch).ok());
  EXPECT_EQ(chat->max_sequence_length(), 100);
  EXPECT_THAT(chat->notes(), IsEmpty());
}

TEST(ChatTest, PacksRestartPositionsAndDoNotPredictAcrossRows) {
  Config config =
      Of(File("p.jsonl", TextRow("abc") + TextRow("defgh") + TextRow("ij")), 7);
  config.set_packing(BEST_FIT);
  const auto chat = MustMake(config);
  ASSERT_EQ(chat->size(), 2);  // abc is packed with ij; eos is behind each
  Batch batch;
  ASSERT_TRUE(chat->Read({0, 1}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 1),
              ElementsAre('d', 'e', 'f', 'g', 'h', 257, 257));
  EXPECT_THAT(Row(batch, "labels", 1),
              ElementsAre(-100, 'e', 'f', 'g', 'h', 257, -100));
  EXPECT_THAT(Row(batch, "positions", 1), ElementsAre(0, 1, 2, 3, 4, 5, 0));
  EXPECT_THAT(Row(batch, "labels", 0),
              ElementsAre(-100, 'b', 'c', 257, -100, 'j', 257));
  EXPECT_THAT(Row(batch, "positions", 0), ElementsAre(0, 1, 2, 3, 0, 1, 2));
  EXPECT_THAT(Counts(batch), ElementsAre(7, 6));
  EXPECT_EQ(chat->sample_length(0), 0);
}

TEST(ChatTest, RowsWithoutATrainedTokenAreLeftOutAndCounted) {
  const std::string long_prompt(20, 'p');
  const auto chat = MustMake(Of(
      File("d.jsonl", absl::StrCat("{\"prompt\": \"", long_prompt,
                                   "\", \"completion\": \"c\"}\n",
                                   "{\"prompt\": \"0123456789\", "
                                   "\"completion\": \"c\"}\n",
                                   TextRow("0123456789abcdef"), TextRow("ok"))),
      10));
  ASSERT_EQ(chat->size(), 2);
  EXPECT_EQ(TextOf(*chat, 0), "0123456789");
  EXPECT_EQ(TextOf(*chat, 1), "ok<|im_end|>");
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("2 rows were left out, without a token "
                                    "to train on within max_length (10)"),
                          HasSubstr("1 of 2 rows lost their end")));
}

TEST(ChatTest, TheEndOfALongRowCanBeKept) {
  Config config = Of(File("d.jsonl", TextRow("0123456789abcdef")), 10);
  config.set_truncation(KEEP_END);
  const auto chat = MustMake(config);
  EXPECT_EQ(TextOf(*chat, 0), "789abcdef<|im_end|>");
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("1 of 1 rows lost their beginning")));
  config.set_packing(WRAPPED);
  EXPECT_EQ(FieldOf(Make(config).status()), "truncation");
}

TEST(ChatTest, ABadRowIsAnErrorWithItsLineOrIsSkipped) {
  Config config = Of(File("b.jsonl", TextRow("one") + "\n{\"text\": 3}\n" +
                                         TextRow("two") + "{broken\n"));
  const auto chat = Make(config);
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(FieldOf(chat.status()), "path");
  EXPECT_THAT(std::string(chat.status().message()),
              HasSubstr("b.jsonl:3: \"text\" is a number, not a text"));
  config.set_bad_rows(SKIP);
  const auto skipped = MustMake(config);
  EXPECT_EQ(skipped->size(), 2);
  EXPECT_EQ(TextOf(*skipped, 1), "two<|im_end|>");
  EXPECT_THAT(skipped->notes(),
              ElementsAre(HasSubstr("2 bad rows were left out, the first is")));
}

TEST(ChatTest, WhatTheConfigGetsWrongNamesItsField) {
  const std::string path = File("e.jsonl", TextRow("abc") + TextRow("def"));
  const auto expect = [](const Config& config, const std::string& field,
                         const std::string& words) {
    const auto chat = Make(config);
    ASSERT_FALSE(chat.ok()) << words;
    EXPECT_EQ(FieldOf(chat.status()), field);
    EXPECT_THAT(std::string(chat.status().message()), HasSubstr(words));
  };
  expect(Config(), "path", "is not set");
  expect(Of("/no/such"), "path", "/no/such can't be opened");
  expect(Of(path, 1), "max_length", ", or 0 for the default, is 1");
  Config config = Of(path);
  config.set_validation_fraction(1);
  expect(config, "validation_fraction", "[0, 1)");
  config = Of(path);
  config.set_chat_template("mistral");
  expect(config, "chat_template", "no chat template \"mistral\"");
  config.set_chat_template("gemma");
  expect(config, "chat_template", "no token <bos>");
  expect(config, "chat_template", "set chat_format: CHATML");
  config = Of(path);
  config.add_source()->set_path(path);
  expect(config, "source", "together with path");
  config.clear_path();
  config.add_source()->set_path(path);
  config.mutable_source(0)->set_weight(1);
  expect(config, "source", "has the weight 0");
  config = Of(path);
  config.set_loss_on(ASSISTANT);
  config.set_bad_rows(SKIP);  // nothing that can be skipped
  expect(config, "path", "e.jsonl:1: a row is a plain text");
  const std::string chats = File("c.jsonl", R"({"question":"a","answer":"b"})");
  expect(Of(chats), "path", "the tokenizer has no chat template: set one of");
  expect(Of(chats), "path", "set chat_format: CHATML");
  expect(Of(File("blank", "\n\n")), "path", "has no row to train on");
  config = Of(File("same", TextRow("abc") + TextRow("abc")));
  config.set_validation_fraction(0.5);
  expect(config, "validation_fraction", "leave nothing to train on");
}

TEST(ChatTest, ValidationIsApartAndTheSameInAnotherOrder) {
  Config config = Of(File("v.jsonl", ManyRows()));
  config.set_validation_fraction(0.1);
  config.set_shuffle(true);
  const auto chat = MustMake(config);
  const auto held = chat->Validation();
  ASSERT_TRUE(held.ok() && *held != nullptr);
  EXPECT_EQ((*held)->size(), 100);
  EXPECT_EQ(chat->size(), 900);
  EXPECT_TRUE(chat->shuffle());
  EXPECT_FALSE((*held)->shuffle());
  std::set<std::string> texts;
  for (int64_t i = 0; i < 900; ++i) texts.insert(TextOf(*chat, i));
  std::set<std::string> held_texts;
  for (int64_t i = 0; i < 100; ++i) held_texts.insert(TextOf(**held, i));
  texts.insert(held_texts.begin(), held_texts.end());
  EXPECT_EQ(texts.size(), 1000);
  // From the end to the beginning, and some rows twice.
  std::string reversed;
  for (int i = 999; i >= 0; --i) {
    reversed += TextRow(absl::StrCat("row ", i));
  }
  config.set_path(File("r.jsonl", reversed));
  const auto again = MustMake(config)->Validation();
  ASSERT_TRUE(again.ok());
  std::set<std::string> again_texts;
  for (int64_t i = 0; i < 100; ++i) again_texts.insert(TextOf(**again, i));
  EXPECT_EQ(again_texts, held_texts);
}

TEST(ChatTest, SourcesAreMixedByWeight) {
  Config config;
  config.set_max_length(50);
  for (const char* name : {"a", "b"}) {
    Source* source = config.add_source();
    source->set_path(File(name, TextRow(std::string(name) + "1") +
                                    TextRow(std::string(name) + "2")));
  }
  const auto plain = MustMake(config);
  EXPECT_EQ(plain->size(), 4);
  EXPECT_EQ(TextOf(*plain, 2), "b1<|im_end|>");
  config.mutable_source(0)->set_weight(1);
  config.mutable_source(1)->set_weight(3);
  const auto mixed = MustMake(config);
  ASSERT_EQ(mixed->size(), 8);
  std::multiset<std::string> texts;
  for (int64_t i = 0; i < 8; ++i) texts.insert(TextOf(*mixed, i));
  EXPECT_EQ(texts.count("a1<|im_end|>"), 1);
  EXPECT_EQ(texts.count("b1<|im_end|>"), 3);
}

// A row of some MB among short ones.
TEST(ChatTest, ARowLongerThanAnything) {
  const auto chat = MustMake(
      Of(File("l.jsonl", TextRow("ab") + TextRow(std::string(5 << 20, 'x')) +
                             TextRow("cd"))));
  ASSERT_EQ(chat->size(), 3);
  EXPECT_EQ(TextOf(*chat, 1), std::string(100, 'x'));
  EXPECT_EQ(TextOf(*chat, 2), "cd<|im_end|>");
}

TEST(ChatTest, ATemplateMayBeAFileWithVariables) {
  Config config =
      Of(File("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                         R"({"role": "assistant", "content": "b"}]})"
                         "\n"));
  config.set_chat_template_file(File(
      "own.jinja",
      "{% for m in messages %}{% if m.content == 'refused' %}"
      "{{ raise_exception('no') }}{% endif %}{{ m.role[0] ~ sign ~ m.content }}"
      "<|im_end|>{% endfor %}{% if add_generation_prompt %}a{{ sign }}"
      "{% endif %}"));
  config.set_chat_template_kwargs(R"({"sign": ":"})");
  const auto chat = MustMake(config);
  ASSERT_NE(chat, nullptr);
  Batch batch;
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  const std::string text = "u:a|a:b|";
  std::vector<int64_t> ids(text.begin(), text.end());
  std::replace(ids.begin(), ids.end(), int64_t{'|'}, int64_t{257});
  EXPECT_EQ(Row(batch, kInputIds, 0), ids);
  // It is what the model is saved with, and asked in.
  EXPECT_THAT(chat->tokenizer()->chat_template(), HasSubstr("m.role[0]"));
  ids.assign({'u', ':', 'x', 257, 'a', ':'});
  EXPECT_EQ(chat->PromptIds("x"), ids);
  // Nothing of its own making in place of a turn that can't be written.
  EXPECT_THROW(chat->PromptIds("refused"), std::invalid_argument);

  const auto error = [](const Config& wrong) {
    return std::string(Make(wrong).status().message());
  };
  config.set_chat_template_kwargs(R"({"sign": "", "enable_thinking": 1})");
  EXPECT_THAT(error(config),
              HasSubstr("sets \"enable_thinking\", which the template"));
  config.set_chat_template_kwargs(R"({"sig": ":"})");
  EXPECT_THAT(error(config), HasSubstr("sets \"sig\", which the template"));
  config.set_chat_template_kwargs("false");
  EXPECT_THAT(error(config), HasSubstr("isn't a JSON object"));
  config.clear_chat_template_kwargs();
  config.set_chat_template("chatml");
  EXPECT_THAT(error(config), HasSubstr("together with chat_template"));
  config.clear_chat_template_file();
  config.set_chat_template("own.jinja");
  EXPECT_THAT(error(config), HasSubstr("set chat_template_file"));
}

TEST(ChatTest, ToolsThatATemplateDoesntWriteAreNoted) {
  const std::string talk =
      R"("messages": [{"role": "user", "content": "a"}, {"role": )"
      R"("assistant", "content": "b"}]})"
      "\n";
  Config config =
      Of(File("a.jsonl", "{" + talk + R"({"tools": [{"name": "f"}], )" + talk));
  config.set_chat_template("chatml");
  config.set_max_length(1000);
  const auto chat = MustMake(config);
  ASSERT_NE(chat, nullptr);
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("1 row has tools or calls that the "
                                    "template doesn't write")));
}

}  // namespace
}  // namespace capstan::chat
