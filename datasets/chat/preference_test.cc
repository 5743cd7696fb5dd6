// SPDX-License-Identifier: Apache-2.0
//
// Rows of pairs, kind: PREFERENCE.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "datasets/chat/chat.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::chat {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string File(const std::string& bytes) {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/" + test->name();
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/pairs.jsonl";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Config Of(const std::string& bytes, int64_t max_length = 200) {
  Config config;
  config.set_path(File(bytes));
  config.set_kind(PREFERENCE);
  config.set_max_length(max_length);
  config.set_chat_template("chatml");
  return config;
}

absl::StatusOr<std::unique_ptr<Chat>> Make(const Config& config) {
  auto tokenizer = std::make_unique<FakeTokenizer>(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>"});
  tokenizer->set_special_ids({-1, 257, 257});
  return Chat::Create(config, std::move(tokenizer), 1);
}

std::string ErrorOf(const Config& config) {
  const auto chat = Make(config);
  return chat.ok() ? "" : std::string(chat.status().message());
}

// A row of a batch as text, with what is trained on in [ ].
std::string Shown(const Chat& chat, const Batch& batch, int64_t row) {
  const int64_t length = batch.at(kTokenCounts)[row].item<int64_t>();
  std::string text;
  bool trained = false;
  for (int64_t t = 0; t < length; ++t) {
    const bool now = batch.at(kLabels)[row][t].item<int64_t>() >= 0;
    if (now != trained) text += now ? "[" : "]";
    trained = now;
    text +=
        chat.tokenizer()->Decode({batch.at(kInputIds)[row][t].item<int64_t>()});
  }
  return trained ? text + "]" : text;
}

// Both texts of each pair.
std::vector<std::string> Texts(const Config& config) {
  auto chat = Make(config);
  EXPECT_TRUE(chat.ok()) << chat.status();
  if (!chat.ok()) return {};
  std::vector<std::string> texts;
  for (int64_t i = 0; i < (*chat)->size(); ++i) {
    Batch batch;
    const absl::Status read = (*chat)->Read({i}, &batch);
    EXPECT_TRUE(read.ok()) << read;
    for (const int64_t row : {0, 1}) {
      texts.push_back(Shown(**chat, batch, row));
    }
  }
  return texts;
}

TEST(PreferenceTest, TextsEndWithEos) {
  EXPECT_THAT(
      Texts(
          Of("{\"prompt\": \"2 + 2 is\", \"chosen\": \" 4\", \"rejected\": \" "
             "5<|im_end|>\", \"id\": 7}\n")),
      ElementsAre("2 + 2 is[ 4<|im_end|>]", "2 + 2 is[ 5<|im_end|>]"));
}

TEST(PreferenceTest, ThePromptOfTextsMayBeWhatBothBeginWith) {
  EXPECT_THAT(
      Texts(Of("{\"chosen\": \"The sky is blue\", \"rejected\": \"The sky is "
               "green\"}\n"
               // Differing second bytes of a character: it isn't shared.
               "{\"chosen\": \"a\\u00e4b\", \"rejected\": \"a\\u00e5b\"}\n")),
      ElementsAre("The sky is[ blue<|im_end|>]", "The sky is[ green<|im_end|>]",
                  "a[\u00e4b<|im_end|>]", "a[\u00e5b<|im_end|>]"));
}

TEST(PreferenceTest, TheEndsOfLongTextsCanBeKept) {
  Config config =
      Of("{\"prompt\": \"2 + 2 is\", \"chosen\": \" 4\", \"rejected\": \" "
         "five\"}\n",
         6);
  EXPECT_THAT(Make(config).status().message(), HasSubstr("no row to train on"));
  config.set_truncation(KEEP_END);
  EXPECT_THAT(Texts(config),
              ElementsAre(" is[ 4<|im_end|>]", "[ five<|im_end|>]"));
}

constexpr char kUser[] = "{\"role\": \"user\", \"content\": \"Hi\"}";
constexpr char kGood[] = "{\"role\": \"assistant\", \"content\": \"Hello\"}";
constexpr char kBad[] = "{\"role\": \"assistant\", \"content\": \"Go\"}";

// Writes a tokenizer of bytes but "q" beside the rows; returns the folder.
std::string WriteTokenizer(const Config& config) {
  auto json = nlohmann::json::parse(ByteTokenizerJson());
  auto& vocab = json["model"]["vocab"];
  vocab["qq"] = vocab["q"];
  vocab.erase("q");
  json["added_tokens"] = nlohmann::json::array();
  for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
    json["added_tokens"].push_back({{"id", 256 + json["added_tokens"].size()},
                                    {"content", token},
                                    {"special", true}});
  }
  std::string folder =
      std::filesystem::path(config.path()).parent_path().string();
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  return folder;
}

TEST(PreferenceTest, NoCharacterIsLeftOut) {
  const Config config =
      Of("{\"prompt\": [{\"role\": \"user\", \"content\": \"quip\"}], "
         "\"chosen\": [{\"role\": \"assistant\", \"content\": \"a\"}], "
         "\"rejected\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  auto tokenizer = LoadTokenizer(WriteTokenizer(config));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto chat = Chat::Create(config, *std::move(tokenizer), 1);
  EXPECT_THAT(std::string(chat.status().message()),
              AllOf(HasSubstr("pairs.jsonl:1"), HasSubstr("\"q\"")));
}

TEST(PreferenceTest, MessagesInEachOfTheirForms) {
  const std::string user = kUser, good = kGood, bad = kBad;
  const std::string rows = absl::StrCat(
      "{\"prompt\": [", user, "], \"chosen\": [", good, "], \"rejected\": [",
      bad, "]}\n",  //
      "{\"chosen\": [", user, ", ", good, "], \"rejected\": [", user, ", ", bad,
      "]}\n",  //
      "{\"prompt\": \"Hi\", \"chosen\": [", user, ", ", good,
      "], \"rejected\": [", user, ", ", bad, "]}\n",  //
      "{\"prompt\": \"Hi\", \"chosen\": [", good, "], \"rejected\": [", bad,
      "]}\n",  //
      "{\"prompt\": [", user,
      "], \"chosen\": \"Hello\", \"rejected\": \"Go\"}\n");
  const std::string head =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const std::vector<std::string> texts = Texts(Of(rows));
  ASSERT_EQ(texts.size(), 10u);
  for (size_t i = 0; i < texts.size(); i += 2) {
    // As TRL does, all that follows the prompt.
    EXPECT_EQ(texts[i], head + "[Hello<|im_end|>\n]") << i / 2;
    EXPECT_EQ(texts[i + 1], head + "[Go<|im_end|>\n]") << i / 2;
  }
}

TEST(PreferenceTest, ABatchHasTheChosenTextsFirst) {
  const auto row = [](const std::string& chosen, const std::string& rejected) {
    return absl::StrCat("{\"prompt\": \"p\", \"chosen\": \"", chosen,
                        "\", \"rejected\": \"", rejected, "\"}\n");
  };
  auto made = Make(Of(row("a", "bcd") + row("ef", "g") + row("a", "bcd")));
  ASSERT_TRUE(made.ok()) << made.status();
  const Chat& chat = **made;
  EXPECT_EQ(chat.size(), 3);
  EXPECT_EQ(chat.max_sequence_length(), 400);
  EXPECT_EQ(chat.sample_length(0), 10);
  EXPECT_EQ(chat.sample_length(1), 8);
  Batch batch;
  ASSERT_TRUE(chat.Read({0, 1, 2}, &batch).ok());
  EXPECT_EQ(batch.at(kInputIds).sizes(), at::IntArrayRef({6, 5}));
  EXPECT_EQ(Shown(chat, batch, 1), "p[ef<|im_end|>]");
  EXPECT_EQ(Shown(chat, batch, 3), "p[bcd<|im_end|>]");
  EXPECT_EQ(batch.at(kInputIds)[1][4].item<int64_t>(), 257);
  EXPECT_EQ(batch.at(kLabels)[1][4].item<int64_t>(), kIgnoredTarget);
  const at::Tensor& keys = batch.at(kPairKeys);
  EXPECT_EQ(keys.sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(keys[0].item<int64_t>(), keys[2].item<int64_t>());
  EXPECT_NE(keys[0].item<int64_t>(), keys[1].item<int64_t>());
}

TEST(PreferenceTest, APairNeedsBothOfItsEnds) {
  const std::string row =
      "{\"prompt\": \"0123456789\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  EXPECT_THAT(Texts(Of(row, 11)),
              ElementsAre("0123456789[a]", "0123456789[b]"));
  EXPECT_THAT(ErrorOf(Of(row, 10)), HasSubstr("has no row to train on"));
}

// They would train on nothing.
TEST(PreferenceTest, PairsThatDifferBehindMaxLengthAreLeftOut) {
  const auto row = [](const std::string& chosen, const std::string& rejected) {
    return absl::StrCat("{\"prompt\": \"01234\", \"chosen\": \"", chosen,
                        "\", \"rejected\": \"", rejected, "\"}\n");
  };
  const std::string equal = row("abc", "abd");
  EXPECT_THAT(Texts(Of(equal, 8)), ElementsAre("01234[abc]", "01234[abd]"));
  EXPECT_THAT(ErrorOf(Of(equal, 7)), HasSubstr("has no row to train on"));
  Config both = Of(equal + row("ab", "ac"), 7);
  EXPECT_THAT(Texts(both), ElementsAre("01234[ab]", "01234[ac]"));
  EXPECT_EQ((*Make(both))->counted_files()[0].counts.at("untrained_rows"), 1);
  // `trainer data` counts alike.
  std::vector<int64_t> trained;
  both.set_tokenizer(WriteTokenizer(both));
  const absl::Status visited = Chat::VisitRows(
      both.SerializeAsString(), [&](const RowsOfReader&, const DataRow& seen) {
        trained.push_back(seen.trained());
        return absl::OkStatus();
      });
  EXPECT_TRUE(visited.ok()) << visited;
  EXPECT_THAT(trained, ElementsAre(0, 2));
}

TEST(PreferenceTest, RowsMayHaveMargins) {
  const std::string pair =
      "\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"";
  const auto chat = Make(Of(absl::StrCat("{", pair, ", \"margin\": 2}\n{", pair,
                                         ", \"margin\": null}\n{", pair,
                                         ", \"margin\": -0.25}\n")));
  ASSERT_TRUE(chat.ok()) << chat.status();
  Batch batch;
  ASSERT_TRUE((*chat)->Read({0, 1, 2}, &batch).ok());
  EXPECT_TRUE(batch.at(kMargins).equal(at::tensor({2.0f, 0.0f, -0.25f})));
}

TEST(PreferenceTest, AWrongRowIsAnErrorWithItsLine) {
  const std::string good =
      "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  const std::string user = kUser, answer = kGood;
  const std::pair<std::string, std::string> wrong[] = {
      {"{\"prompt\": \"p\", \"chosen\": \"a\"}", "has no \"rejected\""},
      {"{\"prompt\": \"p\", \"rejected\": \"a\", \"chosen\": null}",
       "has no \"chosen\""},
      {"{\"prompt\": 7, \"chosen\": \"a\", \"rejected\": \"b\"}",
       "\"prompt\" is a number, not a text or a list of messages"},
      {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": 3}",
       "\"rejected\" is a number, not a text"},
      {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", "
       "\"margin\": \"2\"}",
       "\"margin\" is a text, not a number"},
      {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", "
       "\"margin\": 1e300}",
       "\"margin\" is beyond float32"},
      {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"a\"}",
       "are the same text"},
      {"{\"chosen\": \"a\", \"rejected\": \"b\"}", "don't begin alike"},
      {absl::StrCat("{\"prompt\": [], \"chosen\": [", answer,
                    "], \"rejected\": [", answer, "]}"),
       "\"prompt\" is empty"},
      {absl::StrCat("{\"chosen\": [", user, "], \"rejected\": [", user, ", ",
                    answer, "]}"),
       "\"chosen\" has no turn that the other hasn't"},
      {absl::StrCat("{\"chosen\": [", user, ", 3], \"rejected\": [", user, ", ",
                    answer, "]}"),
       "message 2 of \"chosen\" is a number"},
      {"[1]", "is a list"},
      {"{\"prompt\": \"p\"", "broken JSON"},
  };
  for (const auto& [row, problem] : wrong) {
    const std::string error = ErrorOf(Of(good + row + "\n" + good));
    EXPECT_THAT(error, HasSubstr("pairs.jsonl:2: ")) << row;
    EXPECT_THAT(error, HasSubstr(problem)) << row;
    Config skipping = Of(good + row + "\n" + good);
    skipping.set_bad_rows(SKIP);
    const auto chat = Make(skipping);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ((*chat)->size(), 2) << row;
  }
}

TEST(PreferenceTest, PairsDoNotMixWithSingleTexts) {
  Config config =
      Of("{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
  config.set_packing(BEST_FIT);
  EXPECT_THAT(ErrorOf(config), HasSubstr("can't be packed"));
  config.clear_packing();
  config.clear_kind();
  Source* source = config.add_source();
  source->set_path(config.path());
  source->set_kind(PREFERENCE);
  *config.add_source() = *source;
  config.mutable_source(1)->set_kind(TEXT);
  config.clear_path();
  EXPECT_THAT(ErrorOf(config), HasSubstr("can't be in one batch"));
  // Nobody trains on rejected texts by mistake.
  config.mutable_source()->DeleteSubrange(1, 1);
  config.mutable_source(0)->set_kind(AUTO);
  EXPECT_THAT(ErrorOf(config), HasSubstr("has the keys"));
}

Config Unpaired(const std::string& bytes, int64_t max_length = 200) {
  Config config = Of(bytes, max_length);
  config.set_kind(UNPAIRED);
  return config;
}

constexpr char kAnswers[] =
    "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
    "{\"prompt\": \"qq\", \"completion\": \"bcd\", \"label\": false}\n"
    "{\"prompt\": \"r\", \"completion\": \"e\", \"label\": true}\n";

TEST(UnpairedTest, AnAnswerAndItsPromptWithTheAnswerBefore) {
  EXPECT_THAT(
      Texts(Unpaired(kAnswers)),
      ElementsAre("p[a<|im_end|>]", "p[e<|im_end|>]", "qq[bcd<|im_end|>]",
                  "qq[a<|im_end|>]", "r[e<|im_end|>]", "r[bcd<|im_end|>]"));
  // Both are cut.
  EXPECT_THAT(Texts(Unpaired(kAnswers, 3)),
              ElementsAre("p[a<|im_end|>]", "p[e<|im_end|>]", "qq[b]", "qq[a]",
                          "r[e<|im_end|>]", "r[b]"));
}

TEST(UnpairedTest, AnAnswerToTheSamePromptIsNoMismatch) {
  EXPECT_THAT(
      Texts(Unpaired(
          "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
          "{\"prompt\": \"q\", \"completion\": \"b\", \"label\": true}\n"
          "{\"prompt\": \"q\", \"completion\": \"c\", \"label\": false}\n")),
      ElementsAre("p[a<|im_end|>]", "p[c<|im_end|>]", "q[b<|im_end|>]",
                  "q[a<|im_end|>]", "q[c<|im_end|>]", "q[a<|im_end|>]"));
}

TEST(UnpairedTest, BothKeepTheirEnds) {
  Config config = Unpaired(kAnswers, 3);
  config.set_truncation(KEEP_END);
  EXPECT_THAT(Texts(config),
              ElementsAre("p[a<|im_end|>]", "p[e<|im_end|>]", "[cd<|im_end|>]",
                          "[a<|im_end|>]", "r[e<|im_end|>]", "[cd<|im_end|>]"));
}

TEST(UnpairedTest, ABatchHasTheLabels) {
  const auto chat = Make(Unpaired(kAnswers));
  ASSERT_TRUE(chat.ok()) << chat.status();
  Batch batch;
  ASSERT_TRUE((*chat)->Read({1, 2}, &batch).ok());
  EXPECT_EQ(batch.at(kInputIds).sizes(), at::IntArrayRef({4, 6}));
  EXPECT_EQ(batch.at("desirable")[0].item<int64_t>(), 0);
  EXPECT_EQ(batch.at("desirable")[1].item<int64_t>(), 1);
  EXPECT_EQ(batch.at(kPairKeys).sizes(), at::IntArrayRef({2}));
  // Pairs that come after in the same memory have none.
  const auto pairs =
      Make(Of("{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"));
  ASSERT_TRUE((*pairs)->Read({0}, &batch).ok());
  EXPECT_EQ(batch.count("desirable"), 0u);
}

TEST(UnpairedTest, TheMismatchedAnswerIsTheSameInEachPart) {
  Config config = Unpaired(kAnswers);
  config.set_validation_fraction(0.4);
  const std::vector<std::string> whole = Texts(Unpaired(kAnswers));
  const std::vector<std::string> part = Texts(config);
  ASSERT_EQ(part.size(), 4u);
  for (size_t i = 0; i < part.size(); i += 2) {
    const auto same = std::find(whole.begin(), whole.end(), part[i]);
    ASSERT_NE(same, whole.end());
    EXPECT_EQ(part[i + 1], *(same + 1));
  }
}

// As tables have them.
TEST(UnpairedTest, LabelsMayBeNumbersOrTexts) {
  std::string rows;
  for (const char* label :
       {"1", "0", "\"1\"", "\"False\"", "1.0", "0.0", "\"1.0\""}) {
    absl::StrAppend(&rows, "{\"prompt\": \"p\", \"completion\": \"a\", ",
                    "\"label\": ", label, "}\n");
  }
  const auto chat = Make(Unpaired(rows));
  ASSERT_TRUE(chat.ok()) << chat.status();
  Batch batch;
  ASSERT_TRUE((*chat)->Read({0, 1, 2, 3, 4, 5, 6}, &batch).ok());
  EXPECT_TRUE(
      batch.at(kDesirable).equal(at::tensor({1, 0, 1, 0, 1, 0, 1}, at::kLong)));
  EXPECT_THAT(ErrorOf(Unpaired("{\"prompt\": \"p\", \"completion\": \"a\", "
                               "\"label\": 2}")),
              HasSubstr("\"label\" is a number, not true or false, or 1 or 0"));
}

TEST(UnpairedTest, MessagesAndWrongRows) {
  const std::string row =
      absl::StrCat("{\"prompt\": [", kUser, "], \"completion\": [", kGood,
                   "], \"label\": false}\n");
  EXPECT_THAT(Texts(Unpaired(row))[0],
              HasSubstr("assistant\n[Hello<|im_end|>\n]"));
  EXPECT_THAT(ErrorOf(Unpaired("{\"prompt\": \"p\", \"completion\": \"a\"}")),
              AllOf(HasSubstr("pairs.jsonl:1"), HasSubstr("has no \"label\"")));
  EXPECT_THAT(ErrorOf(Unpaired("{\"prompt\": \"p\", \"completion\": \"a\", "
                               "\"label\": \"yes\"}")),
              HasSubstr("not true or false"));
}

TEST(PreferenceTest, SomeAreHeldBack) {
  std::string rows;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"p", i,
                    "\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
  }
  Config config = Of(rows);
  config.set_validation_fraction(0.25);
  auto chat = Make(config);
  ASSERT_TRUE(chat.ok()) << chat.status();
  auto held = (*chat)->Validation();
  ASSERT_TRUE(held.ok() && *held != nullptr);
  EXPECT_EQ((*chat)->size(), 15);
  EXPECT_EQ((*held)->size(), 5);
  Batch batch;
  ASSERT_TRUE((*held)->Read({4, 0}, &batch).ok());
  EXPECT_EQ(batch.at(kInputIds).size(0), 4);
}

}  // namespace
}  // namespace capstan::chat
