// SPDX-License-Identifier: Apache-2.0
//
// Configs of two or three lines, and how they are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Sixteen() {
  std::vector<std::string> lines =
      absl::StrSplit(ReadText(Runfile("datasets/samples/chats.jsonl")), '\n');
  lines.resize(16);
  return WriteText(NewTestFolder("chats") + "/chats.jsonl",
                   absl::StrJoin(lines, "\n") + "\n");
}

// A model's folder as of a base model: its tokenizer has no chat template.
std::string BaseModel(const std::string& chats) {
  const std::string made = MustTrain(
      RunText()
          .Set("model",
               "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: "
               "32 intermediate_size: 88 num_hidden_layers: 1 "
               "num_attention_heads: 4 max_position_embeddings: 1024 }")
          .Set("train_data",
               absl::StrCat("[plugin/capstan.chat.Config] { path: \"", chats,
                            "\" tokenizer: \"",
                            Runfile("datasets/samples/tokenizer"),
                            "\" chat_template: \"chatml\" }"))
          .Train("max_steps: 1"));
  const std::string folder = CopyFolder(made + "/final", "base");
  fs::remove(folder + "/chat_template.jinja");
  nlohmann::json config = ReadJson(folder + "/tokenizer_config.json");
  config.erase("chat_template");
  WriteText(folder + "/tokenizer_config.json", config.dump());
  return folder;
}

TEST(DefaultsTest, TwoLinesFineTuneAModel) {
  const std::string chats = Sixteen();
  const std::string base = BaseModel(chats);
  const std::string config = WriteText(
      NewTestFolder("config") + "/mine.pbtxt",
      absl::StrCat("model { [plugin/capstan.decoder.Config] { pretrained: \"",
                   base,
                   "\" } }\n"
                   "train_data { [plugin/capstan.chat.Config] { path: \"",
                   chats, "\" } }\n"));
  const std::string out = NewTestFolder("run") + "/out";
  const TrainerResult result =
      RunTrainer({config, "--set", absl::StrCat("output_dir=", out)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("defaults of capstan.chat: "),
                    HasSubstr("train (max_epochs 3)"), HasSubstr("step 3/3")));
  const Metrics metrics = ReadMetrics(out);
  // Sixteen rows are one step of eight samples for each of two ranks.
  ASSERT_EQ(metrics.losses().size(), 3);
  EXPECT_DOUBLE_EQ(metrics.Values("lr")[0], 2e-5);
  // `latest` is the run's own folder, whose tokenizer has a template now.
  EXPECT_EQ(RunTrainer({"eval", absl::StrCat("--model=", out, "/latest"),
                        absl::StrCat("--data=", chats)})
                .exit_code,
            0);
  EXPECT_THAT(ReadText(out + "/final/tokenizer_config.json"),
              HasSubstr("<|im_start|>"));
  // A default that is written out is no change.
  const TrainerResult more = RunTrainer(
      {"train", config, "--set", absl::StrCat("output_dir=", out), "--set",
       "train.resume=AUTO", "--set", "train.max_epochs=4", "--set",
       "train.max_grad_norm=1", "--set", "optimizer.learning_rate=2e-5"});
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(ReadMetrics(out).losses().size(), 4);
}

TEST(DefaultsTest, ATextTrainsAModelOfGivenSizes) {
  const std::string config = WriteText(
      NewTestFolder("config") + "/mine.pbtxt",
      absl::StrCat("model { [plugin/capstan.llama.Config] { vocab_size: 256 "
                   "hidden_size: 16 intermediate_size: 32 num_hidden_layers: 1 "
                   "num_attention_heads: 2 } }\n"
                   "train_data { [plugin/capstan.text.Config] { path: \"",
                   Runfile("tests/testdata/corpus.txt"), "\" } }\n"));
  const TrainerResult checked = RunTrainer({"check", config});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out,
              AllOf(HasSubstr("5000 steps"), HasSubstr("capstan.ddp"),
                    HasSubstr("optimizer capstan.adamw (learning_rate 0.001")));
}

TEST(DefaultsTest, WhatToWriteIsSaidAtOnce) {
  const std::string config =
      WriteText(NewTestFolder("config") + "/mine.pbtxt", "");
  const TrainerResult empty = RunTrainer({config});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.err, AllOf(HasSubstr("ERROR: the config mine lacks model"),
                               HasSubstr("\n  model { [plugin/capstan."),
                               HasSubstr("\n  train_data { [plugin/capstan.")));
  // A mistyped command isn't a config.
  EXPECT_EQ(RunTrainer({"evaluate"}).exit_code, 2);
  const TrainerResult version = RunTrainer({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, HasSubstr("Capstan "));
}

}  // namespace
}  // namespace capstan
