// SPDX-License-Identifier: Apache-2.0
//
// trainer who: the rows it names are those that a run's step was computed from,
// since by them and the weights from before the step it gets the step's loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSaves[] =
    "max_steps: 5 eval_every: 0 save_every: 1 keep_checkpoints: 9";

nlohmann::json Who(const std::string& folder, int step,
                   std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"who", folder, absl::StrCat("--step=", step)});
  more.push_back("--json");
  const TrainerResult result = RunTrainer(more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  nlohmann::json json =
      nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << result.out;
  return json;
}

// Rank and micro-batch of each row, in order.
std::vector<std::string> Places(const nlohmann::json& who) {
  std::vector<std::string> places;
  for (const nlohmann::json& row : who["rows"]) {
    places.push_back(absl::StrCat(
        int{row["rank"]}, ".", int{row["micro_batch"]}, ".", int{row["row"]}));
  }
  return places;
}

std::vector<int64_t> Samples(const nlohmann::json& who) {
  std::vector<int64_t> samples;
  for (const nlohmann::json& row : who["rows"]) {
    samples.push_back(row["sample"]);
  }
  return samples;
}

// The loss of the micro-batches together is the step's to the last bit; that of
// the rows alone, which are padded less, adds up to it but for rounding, and so
// do the tokens' to their rows'.
void ExpectRight(const nlohmann::json& who, double recorded) {
  EXPECT_EQ(who["weights_are_the_steps"], true);
  EXPECT_EQ(who["recorded_loss"], recorded);
  EXPECT_EQ(who["loss"], recorded);
  double sum = 0.0, targets = 0.0;
  for (const nlohmann::json& row : who["rows"]) {
    sum += double{row["loss_sum"]};
    targets += double{row["targets"]};
    double tokens = 0.0;
    int trained = 0;
    for (const nlohmann::json& token : row["texts"][0]["tokens"]) {
      if (token["loss"].is_null()) continue;
      tokens += double{token["loss"]};
      ++trained;
    }
    EXPECT_EQ(row["trained_tokens"], trained);
    EXPECT_NEAR(tokens, row["loss_sum"],
                1e-5 * std::fabs(double{row["loss_sum"]}));
  }
  EXPECT_EQ(who["targets"], targets);
  EXPECT_NEAR(sum / targets, recorded, 1e-6 * recorded);
}

TEST(WhoTest, RowsOfPackedText) {
  const RunText run = RunText()
                          .Set("train_data", TextData(CorpusPiece(8 << 10), 32,
                                                      "shuffle: true"))
                          .Train(kSaves);
  for (const RunText& one :
       {RunText(run).Batch(4, 8), RunText(run).Ddp(2).Batch(2, 8),
        RunText(run).Fsdp(3).Batch(2, 8).Train("deterministic: true")}) {
    const std::string folder = MustTrain(one);
    const std::vector<double> losses = ReadMetrics(folder).losses();
    for (const int step : {1, 4}) {
      const nlohmann::json who = Who(folder, step);
      ExpectRight(who, losses[step - 1]);
      EXPECT_EQ(who["rows"].size(), 8);
    }
  }
}

TEST(WhoTest, SaysWhichRankHadWhichRow) {
  const std::string folder =
      MustTrain(RunText().Ddp(2).Batch(2, 8).Train(kSaves));
  const nlohmann::json who = Who(folder, 2);
  EXPECT_THAT(Places(who),
              ::testing::ElementsAre("0.0.0", "0.0.1", "0.1.0", "0.1.1",
                                     "1.0.0", "1.0.1", "1.1.0", "1.1.1"));
  // Neighbours in the run's order are a micro-step of all ranks.
  EXPECT_EQ(who["rows"][0]["position"], 8);
  EXPECT_EQ(who["rows"][2]["position"], 12);
  EXPECT_EQ(who["rows"][4]["position"], 10);
  // A folder's name is no terminal's command.
  const std::string renamed = folder + "\x1b[2Jb";
  std::filesystem::rename(folder, renamed);
  const TrainerResult shown = RunTrainer({"who", renamed, "--step=2"});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("[2Jb"), HasSubstr("  loss "),
                               ::testing::Not(HasSubstr("\x1b"))))
      << shown.err;
}

// The step's rows as conversations, packed, or in groups of one length.
TEST(WhoTest, ChatRows) {
  std::vector<std::string> lines =
      absl::StrSplit(ReadText(Runfile("datasets/samples/chats.jsonl")), '\n');
  lines.resize(200);
  const std::string path = WriteText(NewTestFolder("chats") + "/chats.jsonl",
                                     absl::StrJoin(lines, "\n") + "\n");
  const auto run = [&](const std::string& more) {
    return RunText()
        .Set("model",
             "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
             "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: "
             "4 num_key_value_heads: 2 max_position_embeddings: 128 }")
        .Set("train_data",
             absl::StrCat("[plugin/capstan.chat.Config] { path: \"", path,
                          "\" tokenizer: \"",
                          Runfile("datasets/samples/tokenizer"),
                          "\" max_length: 96 shuffle: true ", more, " }"))
        .Ddp(2)
        .Batch(2, 8)
        .Train(kSaves);
  };
  RunText grouped = run("");
  grouped.Set("batch",
              "micro_batch_size: 2 global_batch_size: 8 group_by_length: true");
  for (const RunText& one : {run("packing: BEST_FIT"), grouped}) {
    const std::string folder = MustTrain(one);
    const nlohmann::json who = Who(folder, 3);
    ExpectRight(who, ReadMetrics(folder).losses()[2]);
    const nlohmann::json& text = who["rows"][0]["texts"][0];
    EXPECT_THAT(text["text"].get<std::string>(), HasSubstr("<|im_start|>"));
    // What the user says isn't trained on.
    EXPECT_TRUE(text["tokens"][0]["loss"].is_null());
    EXPECT_LT(who["rows"][0]["trained_tokens"], who["rows"][0]["tokens"]);
  }
}

// What each row adds to the gradient: one row is the whole of it.
TEST(WhoTest, GradientNorms) {
  const std::string folder = MustTrain(
      RunText().Batch(1, 1).Train(absl::StrCat(kSaves, " max_grad_norm: 0")));
  const nlohmann::json who = Who(folder, 4, {"--gradients"});
  EXPECT_NEAR(who["rows"][0]["gradient_norm"], who["recorded_grad_norm"],
              1e-5 * double{who["recorded_grad_norm"]});
  EXPECT_FALSE(Who(folder, 4)["rows"][0].contains("gradient_norm"));
}

// Steps from before and after a run went on with other ranks.
TEST(WhoTest, OfARunThatWasResumedOnOtherRanks) {
  const RunText run =
      RunText().Batch(2, 8).Train(absl::StrCat(kSaves, " resume: AUTO"));
  const std::string folder =
      MustTrain(RunText(run).Ddp(2).Train("max_steps: 3"));
  MustTrain(RunText(run).Ddp(4).Output(folder));
  const std::vector<double> losses = ReadMetrics(folder).losses();
  const nlohmann::json before = Who(folder, 2), after = Who(folder, 5);
  EXPECT_EQ(before["world_size"], 2);
  EXPECT_EQ(after["world_size"], 4);
  ExpectRight(before, losses[1]);
  ExpectRight(after, losses[4]);
}

// Its steps from before it went on with another batch are no longer saved.
TEST(WhoTest, CountsBackWhereTheBatchChanged) {
  const RunText run = RunText().Train(absl::StrCat(kSaves, " resume: AUTO"));
  const std::string folder =
      MustTrain(RunText(run).Batch(4, 8).Train("max_steps: 3"));
  MustTrain(RunText(run).Batch(4, 4).Output(folder));
  const nlohmann::json whole = Who(folder, 5);
  EXPECT_EQ(whole["rows"][0]["position"], 28);
  EXPECT_TRUE(whole["notes"].empty());
  for (int step = 0; step < 5; ++step) {
    std::filesystem::remove_all(
        absl::StrCat(folder, "/checkpoints/step-0000000", step));
  }
  const nlohmann::json pruned = Who(folder, 5);
  EXPECT_EQ(Samples(pruned), Samples(whole));
  EXPECT_THAT(pruned["notes"].dump(), HasSubstr("batch changed"));
}

TEST(WhoTest, KnowsWhatAutoCameTo) {
  RunText run = RunText().Ddp(2).Train(kSaves);
  run.Set("batch", "micro_batch_size: AUTO global_batch_size: 8");
  const std::string folder = MustTrain(run);
  const nlohmann::json who = Who(folder, 3);
  EXPECT_EQ(who["micro_batch_size"], 4);
  EXPECT_TRUE(who["notes"].empty()) << who["notes"].dump();
  ExpectRight(who, ReadMetrics(folder).losses()[2]);
}

// A checkpoint that is older than the step, or a model of the user's choice.
TEST(WhoTest, OtherWeightsAreNamed) {
  const std::string folder =
      MustTrain(RunText().Train("max_steps: 6 eval_every: 0 save_every: 3"));
  const nlohmann::json older = Who(folder, 6);
  EXPECT_EQ(older["weights_are_the_steps"], false);
  EXPECT_THAT(older["weights"].get<std::string>(), HasSubstr("00000003"));
  EXPECT_THAT(older["notes"][0].get<std::string>(),
              HasSubstr("2 steps older than the step's own"));
  EXPECT_GT(older["loss"], older["recorded_loss"]);
  const nlohmann::json end = Who(folder, 6, {"--model=" + folder + "/final"});
  EXPECT_EQ(end["weights"], folder + "/final");
  EXPECT_LT(end["loss"], older["recorded_loss"]);
  EXPECT_EQ(Places(end), Places(older));
}

TEST(WhoTest, ForPeople) {
  const std::string folder = MustTrain(RunText().Batch(4, 8).Train(kSaves));
  const auto before = Snapshot(folder);
  const TrainerResult result =
      RunTrainer({"who", folder, "--step=3", "--top=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("those after step 2"), HasSubstr("0e+00 apart"),
                    HasSubstr("rank 0, micro-batch "),
                    HasSubstr("31 of 32 tokens trained")));
  EXPECT_EQ(result.out.find('\033'), std::string::npos) << "not a terminal";
  EXPECT_EQ(Who(folder, 3, {"--top=2"})["rows"].size(), 2);
  EXPECT_EQ(Snapshot(folder), before);
  ExpectOneError(RunTrainer({"who", folder + "/final", "--step=3"}),
                 {"no run's folder"});
  // Data that has changed can't be told from what it was.
  ExpectOneError(RunTrainer({"who", folder, "--step=3", "--set",
                             "train_data.path=" + CorpusPiece(1 << 10)}),
                 {"samples", "have changed since"});
}

}  // namespace
}  // namespace capstan
