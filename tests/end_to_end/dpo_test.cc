// SPDX-License-Identifier: Apache-2.0
//
// Training on preferences: one curve however it is spread, and the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Pairs of very different lengths.
std::string Rows(int count, int first = 0) {
  std::string rows;
  for (int i = first; i < first + count; ++i) {
    std::string numbers;
    for (int k = 0; k < 1 + 5 * i % 13; ++k) absl::StrAppend(&numbers, " ", k);
    absl::StrAppend(
        &rows, "{\"prompt\": [{\"role\": \"user\", \"content\": \"Count ", i,
        "\"}], \"chosen\": [{\"role\": \"assistant\", \"content\": \"Yes:",
        numbers,
        "\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"No ", i,
        "\"}]}\n");
  }
  return rows;
}

std::string Data(const std::string& rows) {
  const std::string path = NewTestFolder("pairs") + "/pairs.jsonl";
  WriteText(path, rows);
  return path;
}

// 4 pairs a step.
RunText DpoRun(const std::string& data, const std::string& objective) {
  return RunText()
      .Set("model",
           "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
           "intermediate_size: 48 num_hidden_layers: 2 num_attention_heads: 4 "
           "num_key_value_heads: 2 max_position_embeddings: 128 "
           "bos_token_id: 1 eos_token_id: 2 }")
      .Set("objective",
           absl::StrCat("[plugin/capstan.dpo.Config] { ", objective, " }"))
      .Set("train_data", absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                                      data, "\" tokenizer: \"",
                                      Runfile("datasets/samples/tokenizer"),
                                      "\" kind: PREFERENCE max_length: 96 }"))
      .Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
      .Batch(4, 4)
      .Train("max_steps: 6 log_every: 1");
}

void ExpectOneCurve(const RunText& run,
                    const std::string& metric = "rewards_margins") {
  const Metrics want = ReadMetrics(MustTrain(run));
  ASSERT_EQ(want.steps.size(), 6u);
  const std::vector<RunText> others = {
      RunText(run).Batch(1, 4), RunText(run).Ddp(2).Batch(2, 4),
      RunText(run).Zero2(2).Batch(1, 4), RunText(run).Fsdp(2).Batch(2, 4),
      RunText(run).Fsdp(2).Batch(1, 4).Train(
          "activation_checkpointing: EVERY_UNIT"),
      // Ranks that divide the heads of keys, and that don't.
      RunText(run).Ddp(2).Train("sequence_parallel: 2"),
      RunText(run).Fsdp(4).Train("sequence_parallel: 4"),
      RunText(run).Zero2(2).Train("sequence_parallel: 2"),
      RunText(run).Zero2(2).Train("sequence_parallel: 2 deterministic: true")};
  for (const RunText& other : others) {
    const Metrics got = ReadMetrics(MustTrain(other));
    ASSERT_EQ(got.steps.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(got.losses()[i], want.losses()[i], 2e-5) << other.Text();
      EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                  1e-3 * want.grad_norms()[i])
          << other.Text();
    }
    EXPECT_EQ(got.Values("tokens"), want.Values("tokens"));
    ASSERT_EQ(got.evals.size(), want.evals.size());
    for (size_t i = 0; i < want.evals.size(); ++i) {
      EXPECT_NEAR(got.evals[i]["eval_loss"].get<double>(),
                  want.evals[i]["eval_loss"].get<double>(), 2e-5);
    }
    const std::vector<double> values = got.Values(metric);
    ASSERT_EQ(values.size(), 6u);
    EXPECT_NE(values.back(), 0.0) << metric;
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(values[i], want.Values(metric)[i], 1e-3);
    }
  }
}

TEST(DpoTest, OneCurveWithTheAdapterOffForTheReference) {
  ExpectOneCurve(DpoRun(Data(Rows(22)), "loss: SIGMOID beta: 0.5")
                     .Set("adapter", "lora { rank: 4 alpha: 16 }"));
}

TEST(DpoTest, OneCurveOfOrpo) {
  ExpectOneCurve(DpoRun(Data(Rows(22)), "loss: ORPO beta: 0.5"));
}

TEST(DpoTest, OneCurveOfSimpo) {
  ExpectOneCurve(DpoRun(Data(Rows(22)), "loss: SIMPO beta: 2"));
}

TEST(DpoTest, OneCurveOfKto) {
  std::string rows;
  for (int i = 0; i < 22; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"Count ", i, "\", \"completion\": \"",
                    i % 3 == 0 ? "No" : "Yes: 0 1 2", " ", i,
                    "\", \"label\": ", i % 3 == 0 ? "false" : "true", "}\n");
  }
  ExpectOneCurve(
      DpoRun("", "loss: KTO beta: 0.5")
          .Set("train_data",
               absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                            Data(rows), "\" tokenizer: \"",
                            Runfile("datasets/samples/tokenizer"),
                            "\" kind: UNPAIRED max_length: 96 }"))
          .Set("adapter", "lora { rank: 4 alpha: 16 }"),
      "kl");
}

TEST(RewardTest, OneCurve) {
  ExpectOneCurve(
      DpoRun(Data(Rows(22)), "")
          .Set("model",
               "[plugin/capstan.decoder.Config] { score_head: true config: "
               "\"" +
                   WriteText(NewTestFolder("model") + "/config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0})") +
                   "\" }")
          .Set("objective", "[plugin/capstan.reward.Config] {}"));
}

TEST(DpoTest, LearnsWhatIsPreferred) {
  const std::string data = Data(Rows(24));
  const std::string folder = MustTrain(DpoRun(data, "loss: ORPO beta: 0.5")
                                           .Ddp(2)
                                           .Batch(2, 4)
                                           .Train("max_steps: 30"));
  const Metrics metrics = ReadMetrics(folder);
  EXPECT_LT(metrics.losses().back(), metrics.losses().front());
  // TRL's names, with _ for / as in all keys of these lines.
  EXPECT_THAT(ReadText(folder + "/metrics.jsonl"),
              HasSubstr("rewards_accuracies"));
}

TEST(DpoTest, OtherObjectivesNeedNoReference) {
  const TrainerResult result = RunTrainer({"dpo-reference", RunText().File()});
  ExpectOneError(result, {"another objective than capstan.dpo"});
  EXPECT_THAT(result.err, Not(HasSubstr("--set")));
}

TEST(DpoTest, AReferenceFileComesFromItsCommand) {
  const std::string rows = Rows(16);
  const std::string data = Data(rows);
  // A model to start from.
  const std::string base =
      MustTrain(DpoRun(data, "loss: ORPO").Train("max_steps: 2")) + "/final";
  const std::string file = NewTestFolder("reference") + "/pairs.reference";
  const auto run = [&](const std::string& path) {
    return DpoRun(path, absl::StrCat("loss: IPO reference: \"", file, "\""))
        .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                   "pretrained: \"",
                                   base, "\" }"));
  };
  const std::string config = run(data).File();
  ExpectOneError(
      RunTrainer({"--config=" + config}),
      {"objective.reference", "doesn't exist", "trainer dpo-reference"});
  const TrainerResult made = RunTrainer({"dpo-reference", config});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  ExpectOneCurve(run(data));
  // At the start model and reference are one: (0 - 1 / (2 beta))^2.
  EXPECT_NEAR(ReadMetrics(MustTrain(run(data))).losses()[0], 25.0, 1e-3);
  // Pairs that the file hasn't, and another model.
  ExpectOneError(RunTrainer({"--config=" + run(Data(Rows(8, 50))).File()}),
                 {"has no log-probabilities of pair"});
  ExpectOneError(
      RunTrainer(
          {"--config=" +
           DpoRun(data, absl::StrCat("reference: \"", file, "\"")).File()}),
      {"of another model"});
}

// Its base has no head of scores.
TEST(RewardTest, AnAdapterIsEvaluatedAndMerged) {
  const std::string data = Data(Rows(16));
  const std::string base =
      MustTrain(DpoRun(data, "loss: ORPO").Train("max_steps: 1")) + "/final";
  const RunText run =
      DpoRun(data, "")
          .Set("model", absl::StrCat("[plugin/capstan.decoder.Config] { "
                                     "pretrained: \"",
                                     base, "\" score_head: true }"))
          .Set("objective", "[plugin/capstan.reward.Config] {}")
          .Set("train_data",
               absl::StrCat("[plugin/capstan.chat.Config] { path: \"", data,
                            "\" kind: PREFERENCE max_length: 96 }"))
          .Set("adapter", "lora { rank: 4 modules_to_save: \"score\" }");
  const std::string adapter = MustTrain(run);
  const std::string merged = NewTestFolder("merged") + "/model";
  const TrainerResult result =
      RunTrainer({"merge", "--model=" + base, "--adapter=" + adapter,
                  "--output=" + merged});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadJson(merged + "/config.json")["architectures"][0],
            "LlamaForSequenceClassification");
  const nlohmann::json header =
      SafetensorsHeader(merged + "/model.safetensors");
  EXPECT_TRUE(header.contains("score.weight"));
  EXPECT_FALSE(header.contains("lm_head.weight"));
  const auto margins = [&](const std::string& model) {
    const TrainerResult told =
        RunTrainer({"eval", "--model=" + model, "--config=" + run.File(),
                    "--data=" + data, "--json"});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    return nlohmann::json::parse(told.out)["eval_rewards_margins"]
        .get<double>();
  };
  EXPECT_GT(margins(adapter), 0.0);
  EXPECT_NEAR(margins(merged), margins(adapter), 1e-5);
}

}  // namespace
}  // namespace capstan
