// SPDX-License-Identifier: Apache-2.0
//
// What a user is shown of conversations, and told of bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTalk[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
    "{\"role\": \"assistant\", \"content\": \"b\\u001b[2J\"}]}\n";

// A run on `rows`; returns the config's path.
std::string ConfigOf(const std::string& rows, const std::string& more = "") {
  const std::string folder = NewTestFolder("chat");
  const std::string data = WriteText(folder + "/rows.jsonl", rows);
  return RunText()
      .Set("train_data",
           absl::StrCat("[plugin/capstan.chat.Config] { path: \"", data,
                        "\" tokenizer: \"",
                        Runfile("datasets/samples/tokenizer"),
                        "\" chat_template: \"chatml\" ", more, " }"))
      .File();
}

TrainerResult Preview(const std::string& config,
                      const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"preview", "--config=" + config};
  args.insert(args.end(), more.begin(), more.end());
  return RunTrainer(args);
}

TEST(PreviewTest, OfNoSampleShowsWhatThereIs) {
  const TrainerResult result =
      Preview(ConfigOf(std::string(kTalk) + kTalk), {"--samples=0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("capstan.chat"), HasSubstr("samples"),
                                Not(HasSubstr("sample 0"))));
  const TrainerResult negative = Preview(ConfigOf(kTalk), {"--samples=-1"});
  ExpectOneError(negative, {"--samples"});
}

TEST(PreviewTest, ShowsTextTokensAndWhatIsTrainedOn) {
  const TrainerResult result =
      Preview(ConfigOf(std::string(kTalk) + kTalk, "loss_on: ASSISTANT"),
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
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
}

TEST(PreviewTest, ShowsThePacksDocuments) {
  const TrainerResult result = Preview(
      ConfigOf(std::string(kTalk) + kTalk, "packing: BEST_FIT max_length: 64"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("64 tokens"), HasSubstr("3 documents"),
                    HasSubstr("document 2"), HasSubstr("(padding)")));
}

TEST(PreviewTest, TellsOfRowsThatAreLeftOut) {
  const TrainerResult result =
      Preview(ConfigOf(absl::StrCat("nonsense\n", kTalk), "bad_rows: SKIP"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("1 bad row was left out"),
                                HasSubstr("rows.jsonl:1: broken JSON")));
}

TEST(PreviewTest, ShowsPlainTextToo) {
  const TrainerResult result = Preview(
      RunText().Set("train_data", TextData(CorpusPiece(256), 32)).File());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("32 tokens, 31 trained on"));
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
