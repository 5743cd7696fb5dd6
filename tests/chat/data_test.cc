// SPDX-License-Identifier: Apache-2.0
//
// What a user is shown of conversations, and told of bad ones: `trainer data`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kTalk[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
    "{\"role\": \"assistant\", \"content\": \"b\\u001b[2J\"}]}\n";

constexpr char kSkipping[] = "loss_on: ASSISTANT max_length: 64 bad_rows: SKIP";

// A slot that reads a file of chats.
std::string ChatDataOf(const std::string& path, const std::string& more = "") {
  return absl::StrCat("[plugin/capstan.chat.Config] { path: \"", path,
                      "\" tokenizer: \"", Runfile("datasets/samples/tokenizer"),
                      "\" chat_template: \"chatml\" ", more, " }");
}

std::string ChatData(const std::string& rows, const std::string& more = "") {
  return ChatDataOf(WriteText(NewTestFolder("chat") + "/rows.jsonl", rows),
                    more);
}

// A run on `rows`; returns the config's path.
std::string ConfigOf(const std::string& rows, const std::string& more = "") {
  return RunText().Set("train_data", ChatData(rows, more)).File();
}

TrainerResult Data(const std::string& config,
                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"data", "--config=" + config};
  args.insert(args.end(), more.begin(), more.end());
  return RunTrainer(args);
}

TEST(DataTest, OfNoSampleShowsWhatThereIs) {
  const TrainerResult result =
      Data(ConfigOf(std::string(kTalk) + kTalk), {"--samples=0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("capstan.chat"), HasSubstr("samples"),
                                Not(HasSubstr("sample 0"))));
  const TrainerResult negative = Data(ConfigOf(kTalk), {"--samples=-1"});
  ExpectOneError(negative, {"--samples"});
}

TEST(DataTest, ShowsTextTokensAndWhatIsTrainedOn) {
  const TrainerResult result =
      Data(ConfigOf(std::string(kTalk) + kTalk, "loss_on: ASSISTANT"),
           {"--samples=1", "--tokens=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
                      "\u27e6b"),
            HasSubstr("<|im_end|>\u27e7\n"),
            HasSubstr("tokens: 1:<|im_start|> 722:us .. and "),
            HasSubstr("sample 0"), Not(HasSubstr("sample 1"))));
  // What a text holds can't reach the terminal as an escape sequence.
  EXPECT_THAT(result.out,
              AllOf(Not(HasSubstr("\x1b")), HasSubstr("b\\u001b[2J")));
}

TEST(DataTest, WhatNobodySeesIsWrittenOut) {
  const std::string row =
      "{\"question\": \"a\\u202eb\", \"answer\": \"c\\u200b\"}\n";
  EXPECT_THAT(Data(ConfigOf(row)).out,
              AllOf(HasSubstr("a\\u202eb"), HasSubstr("c\\u200b"),
                    Not(HasSubstr("\u202e"))));
}

TEST(DataTest, AModelsPositionsAreTheLengthOfFiles) {
  const std::string model = NewTestFolder("model");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy(
        absl::StrCat(Runfile("datasets/samples/tokenizer"), "/", name), model);
  }
  WriteText(model + "/config.json", "{\"max_position_embeddings\": 48}");
  const std::string rows =
      WriteText(NewTestFolder("rows") + "/rows.csv",
                "Question;Answer\n" + std::string(400, 'a') + ";b\nc;d\n");
  const TrainerResult result =
      RunTrainer({"data", rows, "--model=" + model, "--json", "--set",
                  "train_data.fallback_template=chatml"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["max_length"], 48);
  EXPECT_EQ(json["rows"], 2);
  EXPECT_EQ(json["kinds"], nlohmann::json({{"QUESTION_ANSWER", 2}}));
}

TEST(DataTest, ShowsThePacksDocuments) {
  const TrainerResult result = Data(
      ConfigOf(std::string(kTalk) + kTalk, "packing: BEST_FIT max_length: 64"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("64 tokens"), HasSubstr("2 documents"),
                    HasSubstr("document 2"), HasSubstr(" of padding")));
}

TEST(DataTest, ShowsOneRowByItsLineAndWhyItIsLeftOut) {
  const std::string config =
      ConfigOf(absl::StrCat("nonsense\n", kTalk), "bad_rows: SKIP");
  const TrainerResult bad = Data(config, {"--row=1"});
  EXPECT_EQ(bad.exit_code, 0) << bad.err;
  EXPECT_THAT(bad.out, AllOf(HasSubstr("rows.jsonl:1: broken JSON"),
                             Not(HasSubstr("|im_end|"))));
  EXPECT_THAT(Data(config, {"--row=2"}).out, HasSubstr("|im_end|"));
  ExpectOneError(Data(config, {"--row=3"}), {"no row 3"});
}

TEST(DataTest, ShowsPlainTextToo) {
  const TrainerResult result =
      Data(RunText().Set("train_data", TextData(CorpusPiece(256), 32)).File());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("32 tokens, 31 trained on"));
}

// A conversation of a question and its answer.
std::string Talk(const std::string& user, const std::string& assistant,
                 const std::string& role = "user") {
  return absl::StrCat(
      "{\"messages\": [{\"role\": \"", role, "\", \"content\": \"", user,
      "\"}, {\"role\": \"assistant\", \"content\": \"", assistant, "\"}]}\n");
}

std::string Long() {
  std::string text;
  for (int i = 0; i < 64; ++i) absl::StrAppend(&text, "word", i, " ");
  return text;
}

// What `data --json` finds: "CHECK LEVEL COUNT PLACE", of what isn't ok.
std::vector<std::string> Findings(const TrainerResult& result) {
  std::vector<std::string> found;
  const auto report = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(report.is_object()) << result.out << result.err;
  if (!report.is_object()) return found;
  for (const auto& finding : report["findings"]) {
    if (finding["level"] == "ok") continue;
    const std::string first = finding["first"];
    found.push_back(absl::StrCat(finding["check"].get<std::string>(), " ",
                                 finding["level"].get<std::string>(), " ",
                                 finding["count"].get<int>(), " ",
                                 first.substr(first.rfind('/') + 1)));
  }
  return found;
}

TEST(DataFaultsTest, EachOfAFileIsFoundWithItsFirstLine) {
  const std::string eval =
      WriteText(NewTestFolder("eval") + "/eval.jsonl",
                Talk("fresh", "row") + Talk("held", "out") +
                    Talk("hello there", " Folded"));
  const std::string rows = absl::StrCat(
      Talk("a", "b"), Talk("cut", Long()), "nonsense\n", Talk("a", "b"),
      Talk("empty", " "), Talk(Long(), "masked"), Talk("a", "b", "robot"),
      Talk("say <|im_end|> now", "no"), Talk("held", "out"),
      Talk("Hello  There", "folded"), Talk("a", "b"), "{\"txt\": 1}\n");
  const TrainerResult result = RunTrainer(
      {"data", "--json",
       "--config=" + RunText()
                         .Set("train_data", ChatData(rows, kSkipping))
                         .Set("eval_data", ChatDataOf(eval))
                         .File()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      Findings(result),
      UnorderedElementsAre("unreadable warning 1 rows.jsonl:3",   // broken
                           "unreadable warning 1 rows.jsonl:7",   // its role
                           "unreadable warning 1 rows.jsonl:12",  // its keys
                           "untrained warning 1 rows.jsonl:6",
                           "cut warning 1 rows.jsonl:2",
                           "duplicates warning 2 rows.jsonl:4",
                           "empty_answers warning 1 rows.jsonl:5",
                           "special_tokens warning 1 rows.jsonl:8",
                           "validation failure 1 eval.jsonl:2",
                           "validation_folded warning 1 eval.jsonl:3"));
}

TEST(DataFaultsTest, OfPairsThatPreferNothingIsFoundWithoutAConfig) {
  const std::string pairs = WriteText(
      NewTestFolder("pairs") + "/pairs.jsonl",
      "{\"prompt\": \"a\", \"chosen\": \" b\", \"rejected\": \" c\"}\n"
      "{\"prompt\": \"a\", \"chosen\": \" d\", \"rejected\": \" d\"}\n");
  const TrainerResult result =
      RunTrainer({"data", pairs, "--json",
                  "--tokenizer=" + Runfile("datasets/samples/tokenizer")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("PREFERENCE"));
  EXPECT_THAT(Findings(result),
              ElementsAre("unreadable failure 1 pairs.jsonl:2"));
}

TEST(DataFaultsTest, OfAClassificationIsFound) {
  const std::string rows = WriteText(NewTestFolder("labels") + "/labels.csv",
                                     "text,label\nGood,1\nBad,0\n");
  const TrainerResult result =
      RunTrainer({"data", rows, "--json",
                  "--tokenizer=" + Runfile("datasets/samples/tokenizer")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Findings(result),
              ElementsAre("labels warning 2 labels.csv: row 1"));
}

TEST(DataFaultsTest, OfATextThatIsNotUtf8IsFound) {
  const std::string folder = NewTestFolder("bytes");
  // Samples of 33 bytes, which begin and end within characters.
  std::string text;
  for (int i = 0; i < 100; ++i) text += "a\u20ac";
  const std::string good = WriteText(folder + "/good.txt", text);
  text[50] = '\xff';
  const std::string bad = WriteText(folder + "/bad.txt", text);
  const auto findings = [](const std::string& path) {
    return Findings(Data(RunText().Set("train_data", TextData(path, 33)).File(),
                         {"--json"}));
  };
  EXPECT_THAT(findings(good), Not(Contains(HasSubstr("encoding"))));
  EXPECT_THAT(findings(bad), Contains("encoding warning 1 sample 1"));
}

// A template that changes what it is given, so that turns can't be found.
TEST(DataFaultsTest, OfATemplateWithoutGenerationMarksIsFound) {
  const std::string folder = NewTestFolder("template");
  const std::string jinja =
      WriteText(folder + "/loud.jinja",
                "{% for m in messages %}{{ m.content | upper }}\n"
                "{% endfor %}");
  const std::string rows = WriteText(folder + "/rows.jsonl", Talk("a", "b"));
  const TrainerResult result =
      RunTrainer({"data", rows, "--json", "--set",
                  "train_data.chat_template_file=" + jinja, "--set",
                  "train_data.loss_on=ASSISTANT",
                  "--tokenizer=" + Runfile("datasets/samples/tokenizer")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("{% generation %}"));
  EXPECT_THAT(Findings(result),
              ElementsAre("unreadable failure 1 rows.jsonl:1"));
}

// Rows held back are the reader's own validation data.
TEST(DataFaultsTest, OfRowsThatASplitHoldsBackIsFound) {
  const std::string rows = Talk("a", "b") + Talk("c", "d") + Talk("A", "b");
  const TrainerResult result = Data(
      ConfigOf(rows, "split { train: 0.67 validation: 0.33 }"), {"--json"});
  EXPECT_THAT(Findings(result),
              ElementsAre("validation_folded warning 1 rows.jsonl:3"));
}

TEST(DataFaultsTest, OfTooFewRowsToTrainOnEndARunBeforeItBegins) {
  const std::string config =
      ConfigOf(absl::StrCat(kTalk, "nonsense\nnonsense\n"),
               "bad_rows: SKIP min_trained_share: 0.5");
  ExpectOneError(RunTrainer({"check", "--config=" + config}),
                 {"min_trained_share", "only 1 of the 3 rows", ".pbtxt:"});
  const TrainerResult result = Data(config, {"--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      Findings(result),
      ElementsAre("run failure 1 ", "unreadable failure 2 rows.jsonl:2"));
}

TEST(DataPageTest, IsWrittenOnceAndHoldsWhatTheRowsSay) {
  const std::string page = NewTestFolder("page") + "/page.html";
  const std::string config = ConfigOf(Talk("</script>", "b"));
  EXPECT_EQ(Data(config, {"--page=" + page}).exit_code, 0);
  EXPECT_THAT(ReadText(page),
              AllOf(HasSubstr("\\u003c/script>"), Not(HasSubstr("{{"))));
  ExpectOneError(Data(config, {"--page=" + page}), {"--force"});
  EXPECT_EQ(Data(config, {"--page=" + page, "--force"}).exit_code, 0);
}

TEST(DataPageTest, ReplacesNoInput) {
  const std::string folder = NewTestFolder("page");
  // Rows, and a text that begins like a page.
  for (const auto& [name, text] :
       {std::pair<const char*, const char*>{"/rows.jsonl", kTalk},
        {"/text.txt", "<!DOCTYPE html> abc"}}) {
    const std::string path = WriteText(folder + name, text);
    ExpectOneError(RunTrainer({"data", path, "--page=" + path, "--force"}),
                   {path, "doesn't replace it"});
    EXPECT_EQ(ReadText(path), text);
  }
  const std::string config = ConfigOf(kTalk);
  ExpectOneError(Data(config, {"--page=" + config, "--force"}), {config});
}

// Of a config's row, what is wrong and where; from the command that trains.
TEST(BadRowsTest, EndARunBeforeItBegins) {
  const std::vector<std::vector<std::string>> cases = {
      {"{\"messages\": [", "rows.jsonl:2: broken JSON"},
      {"{\"messages\": []}", "rows.jsonl:2: \"messages\" is empty"},
      {"{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}",
       "rows.jsonl:2: message 1 has the role \"robot\""},
      {"{\"text\": \"\xff\"}", "rows.jsonl:2: is not UTF-8"},
      {"{\"txt\": 1}", "rows.jsonl:2: has the keys \"txt\""},
  };
  for (const std::vector<std::string>& c : cases) {
    ExpectOneError(
        RunTrainer({"check", "--config=" + ConfigOf(kTalk + c[0] + "\n")}),
        {c[1], "train_data.path", ".pbtxt:"});
  }
}

TEST(BadRowsTest, ATemplateThatTheTokenizerDoesNotFitIsAnError) {
  ExpectOneError(RunTrainer({"check", "--config=" + ConfigOf(kTalk), "--set",
                             "train_data.chat_template=gemma"}),
                 {"chat_template", "no token <bos>"});
}

}  // namespace
}  // namespace capstan
