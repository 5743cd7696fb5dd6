// SPDX-License-Identifier: Apache-2.0
//
// Fine-tuning on conversations, as a user does it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
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
using ::testing::Contains;
using ::testing::HasSubstr;

// A Llama of 144,000 parameters over the sample tokenizer.
constexpr char kModel[] =
    "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
    "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
    "num_key_value_heads: 2 max_position_embeddings: 128 }";

// So many of the build's sample chats, from that row on.
std::string SampleChats(int first, int rows) {
  std::vector<std::string> lines =
      absl::StrSplit(ReadText(Runfile("datasets/samples/chats.jsonl")), '\n');
  EXPECT_GE(lines.size(), first + rows);
  lines.assign(lines.begin() + first, lines.begin() + first + rows);
  return WriteText(NewTestFolder("chats") + "/chats.jsonl",
                   absl::StrJoin(lines, "\n") + "\n");
}

std::string ChatData(const std::string& path, const std::string& more = "") {
  return absl::StrCat("[plugin/capstan.chat.Config] { path: \"", path,
                      "\" tokenizer: \"", Runfile("datasets/samples/tokenizer"),
                      "\" max_length: 96 ", more, " }");
}

RunText SftRun(const std::string& data, const std::string& data_fields) {
  return RunText()
      .Set("model", kModel)
      .Set("train_data", ChatData(data, data_fields));
}

double LowestEval(const Metrics& metrics) {
  double lowest = metrics.evals.at(0)["eval_loss"];
  for (const nlohmann::json& line : metrics.evals) {
    lowest = std::min<double>(lowest, line["eval_loss"]);
  }
  return lowest;
}

// Few rows, learnt by heart: on others it gets better, then worse.
TEST(SftTest, EvaluationLossFallsAndTheBestIsKept) {
  const std::string held_out =
      ChatData(SampleChats(100, 24), "loss_on: ASSISTANT");
  const std::string folder = MustTrain(
      SftRun(SampleChats(0, 16), "shuffle: true loss_on: ASSISTANT")
          .Set("eval_data", held_out)
          .Set("optimizer",
               "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
          .Ddp(2)
          .Batch(4, 8)
          .Train("max_steps: 42 eval_every: 6 save_every: 6 "
                 "keep_best: true keep_checkpoints: 1"));
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.evals.size(), 7);
  const double best = LowestEval(metrics);
  EXPECT_LT(best, 0.9 * metrics.evals.front()["eval_loss"].get<double>());
  EXPECT_LT(best, 0.95 * metrics.evals.back()["eval_loss"].get<double>());

  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["best_eval_loss"], best);
  const int64_t best_step = summary["best_step"];
  EXPECT_LT(best_step, 42);
  EXPECT_THAT(CheckpointSteps(folder), Contains(best_step));
  EXPECT_EQ(CheckpointSteps(folder).back(), 42);

  // What final/ holds gives that loss again. A step of nearly nothing.
  const std::string again = MustTrain(
      SftRun(SampleChats(0, 16), "")
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     folder, "/final\" }"))
          .Set("eval_data", held_out)
          .Set("optimizer",
               "[plugin/capstan.sgd.Config] { learning_rate: 1e-12 }")
          .Train("max_steps: 1"));
  EXPECT_NEAR(ReadMetrics(again).evals.at(0)["eval_loss"], best, 1e-5 * best);
}

// How rows become samples.
struct Layout {
  std::string name;
  std::string data_fields;
  std::string batch_fields;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class SftLayoutTest : public ::testing::TestWithParam<Layout> {
 protected:
  static constexpr int kSteps = 12;
  static constexpr int kGlobalBatch = 4;

  // 22 rows, so that epochs end within a step.
  static RunText Run(int ranks, int micro, int steps) {
    return SftRun(SampleChats(0, 22), GetParam().data_fields)
        .Strategy(ranks == 1 ? "single" : "ddp", ranks)
        .Set("batch", absl::StrCat("micro_batch_size: ", micro,
                                   " global_batch_size: ", kGlobalBatch, " ",
                                   GetParam().batch_fields))
        .Set("schedule", absl::StrCat("kind: LINEAR warmup_steps: 3 "
                                      "total_steps: ",
                                      kSteps))
        .Train(absl::StrCat("max_steps: ", steps));
  }

  static void ExpectSameCurve(const std::string& folder,
                              const std::string& reference) {
    const Metrics got = ReadMetrics(folder);
    const Metrics want = ReadMetrics(reference);
    ASSERT_EQ(got.steps.size(), kSteps);
    EXPECT_EQ(got.Values("lr"), want.Values("lr"));
    // Of rows, however much padding a split needs.
    EXPECT_EQ(got.Values("tokens"), want.Values("tokens"));
    EXPECT_EQ(got.Values("trained_tokens"), want.Values("trained_tokens"));
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(got.losses()[i], want.losses()[i], 1e-6 * want.losses()[i])
          << "step " << i + 1;
      EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                  1e-4 * want.grad_norms()[i])
          << "step " << i + 1;
    }
  }
};

// The loss is a mean over the trained tokens of all ranks and micro-batches,
// of which each has another number.
TEST_P(SftLayoutTest, AnySplitIsOneBigBatch) {
  const std::string reference = MustTrain(Run(1, kGlobalBatch, kSteps));
  for (const auto& [ranks, micro] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {4, 1}}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks, micro ", micro));
    ExpectSameCurve(MustTrain(Run(ranks, micro, kSteps)), reference);
  }
}

TEST_P(SftLayoutTest, ResumedWithinAnEpochOnOtherRanks) {
  const std::string straight = MustTrain(Run(2, 2, kSteps));
  const std::string folder = NewTestFolder("run") + "/out";
  MustTrain(Run(2, 2, 3).Output(folder));
  MustTrain(Run(4, 1, 7).Train("resume: AUTO").Output(folder));
  MustTrain(Run(1, 2, kSteps).Train("resume: AUTO").Output(folder));
  ExpectSameCurve(folder, straight);

  // On as many ranks, bit for bit.
  const std::string same = NewTestFolder("run") + "/out";
  MustTrain(Run(2, 2, 5).Output(same));
  MustTrain(Run(2, 2, kSteps).Train("resume: AUTO").Output(same));
  EXPECT_EQ(ReadMetrics(same).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(same + "/final/model.safetensors") ==
              ReadText(straight + "/final/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    All, SftLayoutTest,
    ::testing::Values(Layout{"Packed", "packing: BEST_FIT shuffle: true", ""},
                      Layout{"Padded", "loss_on: ASSISTANT shuffle: true", ""},
                      Layout{"GroupedByLength", "shuffle: true",
                             "group_by_length: true"}),
    [](const auto& info) { return info.param.name; });

// Its own folder has no config.json, nor has a checkpoint.
TEST(SftTest, AnAdapterIsEvaluatedAtTheLengthThatItsBaseTakes) {
  const std::string chats = SampleChats(0, 16);
  const std::string base = MustTrain(SftRun(chats, "").Train("max_steps: 1"));
  const std::string adapter = MustTrain(
      RunText()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     base, "/final\" }"))
          .Set("adapter", "lora { rank: 2 }")
          .Set("train_data", absl::StrCat("[plugin/capstan.chat.Config] { "
                                          "path: \"",
                                          chats, "\" }"))
          .Train("max_steps: 1"));
  for (const char* folder : {"", "/checkpoints/step-00000001"}) {
    const TrainerResult result =
        RunTrainer({"eval", "--model=" + adapter + folder, "--data=" + chats,
                    "--loss_only"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("max_length is 128"));
  }
}

TEST(SftTest, TokensArePaddingsNeighbours) {
  const std::string chats = SampleChats(0, 16);
  const auto train = [&](int micro, const std::string& fields) {
    return MustTrain(SftRun(chats, fields)
                         .Set("batch", absl::StrCat("micro_batch_size: ", micro,
                                                    " global_batch_size: 16"))
                         .Train("max_steps: 1"));
  };
  // A row alone needs no padding.
  const nlohmann::json alone = ReadJson(train(1, "") + "/summary.json");
  EXPECT_EQ(alone["padding"], 0.0);
  EXPECT_GT(alone["tokens"], alone["trained_tokens"]);
  const std::string folder = train(16, "");
  const nlohmann::json together = ReadJson(folder + "/summary.json");
  EXPECT_EQ(together["tokens"], alone["tokens"]);
  EXPECT_EQ(together["trained_tokens"], alone["trained_tokens"]);
  EXPECT_GT(together["padding"], 0.0);
  const nlohmann::json step = ReadMetrics(folder).steps.at(0);
  EXPECT_EQ(step["tokens"], alone["tokens"]);
  EXPECT_EQ(step["padding"], together["padding"]);
  EXPECT_NEAR(step["tokens_per_second"].get<double>() *
                  step["step_seconds"].get<double>(),
              alone["tokens"].get<double>(), 1.0);
  EXPECT_THAT(ReadText(folder + "/final/README.md"),
              HasSubstr("| padding beside them | "));
  // In one pack the rest of the row is padding.
  const nlohmann::json packed =
      ReadJson(train(16, "packing: BEST_FIT") + "/summary.json");
  EXPECT_GT(packed["padding"], 0.0);
}

// The shipped config, with a smaller model, cut short.
TEST(SftQuickstartTest, LearnsAndSpeaksBeforeAndAfter) {
  const std::string folder = NewTestFolder("run") + "/out";
  TrainerOptions options;
  options.timeout = 120;
  const TrainerResult result = RunTrainer(
      {"--config=" + Runfile("configs/sft_quickstart.pbtxt"), "--set",
       "output_dir=" + folder, "--set", "model.hidden_size=64", "--set",
       "model.intermediate_size=176", "--set", "model.num_hidden_layers=2",
       "--set", "train.max_steps=60", "--set", "train.eval_every=20", "--set",
       "schedule.warmup_steps=10", "--set", "objective.max_new_tokens=20"},
      options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.evals.size(), 3);
  double before = 8.5;  // log 4096 and a little
  for (const nlohmann::json& line : metrics.evals) {
    EXPECT_LT(line["eval_loss"], before);
    before = line["eval_loss"];
  }
  EXPECT_LT(before, 5.0);

  // Four prompts, before and after training.
  std::ifstream lines(folder + "/generations.jsonl");
  std::vector<int64_t> steps;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json generation = nlohmann::json::parse(line);
    steps.push_back(generation["step"]);
    EXPECT_NE(generation["prompt"], "");
  }
  EXPECT_EQ(std::count(steps.begin(), steps.end(), 0), 4);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), 60), 4);

  for (const char* file :
       {"config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "README.md"}) {
    EXPECT_TRUE(fs::exists(absl::StrCat(folder, "/final/", file))) << file;
  }
  const TrainerResult generated =
      RunTrainer({"generate", "--model=" + folder, "--prompt=Hello",
                  "--max_new_tokens=5", "--greedy"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_THAT(generated.out, HasSubstr("Hello"));
}

}  // namespace
}  // namespace capstan
