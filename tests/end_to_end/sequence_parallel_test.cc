// SPDX-License-Identifier: Apache-2.0
//
// train.sequence_parallel: ranks that divide the rows of one micro-batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr char kWeights[] = "/final/model.safetensors";

std::string Plugin(const std::string& name, const std::string& fields) {
  return absl::StrCat("[plugin/capstan.", name, ".Config] { ", fields, " }");
}

RunText Divided(RunText run, const std::string& strategy, int ranks,
                int sequence) {
  return run.Strategy(strategy, ranks)
      .Train(absl::StrCat("sequence_parallel: ", sequence));
}

// Rows whose length no number of ranks divides.
RunText OddRows() {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(20000), 31))
      .Set("eval_data", TextData(CorpusPiece(2000), 31))
      .Batch(2, 8);
}

RunText Chats(const std::string& packing) {
  return RunText()
      .Set("model",
           Plugin("llama",
                  "vocab_size: 4100 hidden_size: 32 intermediate_size: 88 "
                  "num_hidden_layers: 2 num_attention_heads: 4 "
                  "num_key_value_heads: 4 max_position_embeddings: 128"))
      .Set("train_data",
           Plugin("chat",
                  absl::StrCat(
                      "path: \"", Runfile("datasets/samples/chats.jsonl"),
                      "\" tokenizer: \"", Runfile("datasets/samples/tokenizer"),
                      "\" chat_template: \"chatml\" max_length: 96 "
                      "loss_on: ASSISTANT packing: ",
                      packing)))
      .Batch(2, 8);
}

// A model that sees the whole row.
RunText Masked(const std::string& packing) {
  return Chats(packing)
      .Set("model", Plugin("llada",
                           "vocab_size: 4100 d_model: 32 mlp_hidden_size: 88 "
                           "n_layers: 2 n_heads: 4 max_sequence_length: 128 "
                           "mask_token_id: 4099"))
      .Set("objective", Plugin("masked_diffusion", "loss: SFT"));
}

void ExpectSameCurve(const std::string& folder, const std::string& reference,
                     double bound) {
  const Metrics got = ReadMetrics(folder), want = ReadMetrics(reference);
  ASSERT_EQ(got.losses().size(), want.losses().size());
  for (size_t i = 0; i < want.losses().size(); ++i) {
    EXPECT_NEAR(got.losses()[i], want.losses()[i], bound * want.losses()[i])
        << "step " << i + 1;
    EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                20 * bound * want.grad_norms()[i])
        << "step " << i + 1;
  }
  EXPECT_EQ(got.Values("tokens"), want.Values("tokens"));
  ASSERT_EQ(got.evals.size(), want.evals.size());
  for (size_t i = 0; i < want.evals.size(); ++i) {
    const double loss = want.evals[i]["eval_loss"];
    EXPECT_NEAR(got.evals[i]["eval_loss"], loss, bound * loss);
  }
}

TEST(SequenceParallelTest, TheCurveIsThatOfOneRank) {
  const std::string one = MustTrain(OddRows());
  for (const auto& [strategy, ranks] :
       {std::pair<const char*, int>{"ddp", 2}, {"zero2", 4}, {"fsdp", 4}}) {
    SCOPED_TRACE(strategy);
    ExpectSameCurve(MustTrain(Divided(OddRows(), strategy, ranks, 2)), one,
                    2e-6);
  }
}

TEST(SequenceParallelTest, InSixteenBits) {
  const auto run = [] { return OddRows().Precision("bf16"); };
  ExpectSameCurve(MustTrain(Divided(run(), "fsdp", 2, 2)), MustTrain(run()),
                  2e-3);
}

TEST(SequenceParallelTest, ManyDocumentsInARow) {
  for (const char* packing : {"NONE", "BEST_FIT"}) {
    SCOPED_TRACE(packing);
    ExpectSameCurve(MustTrain(Divided(Chats(packing), "ddp", 4, 4)),
                    MustTrain(Chats(packing)), 2e-6);
    ExpectSameCurve(MustTrain(Divided(Masked(packing), "ddp", 2, 2)),
                    MustTrain(Masked(packing)), 2e-6);
  }
}

TEST(SequenceParallelTest, LayersAreRecomputed) {
  const auto run = [] {
    return OddRows().Train("activation_checkpointing: EVERY_UNIT");
  };
  ExpectSameCurve(MustTrain(Divided(run(), "fsdp", 2, 2)), MustTrain(run()),
                  2e-6);
}

TEST(SequenceParallelTest, AnAdapterAloneIsTrained) {
  const auto run = [] {
    return OddRows().Set(
        "adapter",
        "lora { rank: 4 dropout: 0.2 target_modules: \"all-linear\" }");
  };
  ExpectSameCurve(MustTrain(Divided(run(), "zero2", 2, 2)), MustTrain(run()),
                  2e-6);
}

std::string Decoder(const std::string& config) {
  return Plugin(
      "decoder",
      absl::StrCat("config: \"",
                   WriteText(NewTestFolder("model") + "/config.json", config),
                   "\""));
}

// One head of keys, a layer with a window and one without.
std::string OneHeadOfKeys() {
  return Decoder(R"({
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
    "vocab_size": 4100, "hidden_size": 32, "intermediate_size": 88,
    "num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 16,
    "num_key_value_heads": 1, "max_position_embeddings": 128,
    "query_pre_attn_scalar": 16, "sliding_window": 10,
    "layer_types": ["sliding_attention", "full_attention"]})");
}

// Ranks that don't divide the heads have a part of the queries each.
TEST(SequenceParallelTest, TheHeadsMayBeFew) {
  const auto run = [](const std::string& packing) {
    return Chats(packing).Set("model", OneHeadOfKeys());
  };
  for (const char* packing : {"NONE", "BEST_FIT"}) {
    SCOPED_TRACE(packing);
    const std::string one = MustTrain(run(packing));
    ExpectSameCurve(MustTrain(Divided(run(packing), "fsdp", 2, 2)), one, 2e-6);
    ExpectSameCurve(MustTrain(Divided(run(packing), "zero2", 4, 4)), one, 2e-6);
  }
  const auto masked = [] {
    return Masked("BEST_FIT")
        .Set("model", Plugin("llada",
                             "vocab_size: 4100 d_model: 36 mlp_hidden_size: 88 "
                             "n_layers: 2 n_heads: 3 max_sequence_length: 128 "
                             "mask_token_id: 4099"));
  };
  ExpectSameCurve(MustTrain(Divided(masked(), "ddp", 2, 2)),
                  MustTrain(masked()), 2e-6);
}

TEST(SequenceParallelTest, FewHeadsWithAllElse) {
  const auto run = [] {
    return OddRows()
        .Train("activation_checkpointing: EVERY_UNIT")
        .Set("adapter",
             "lora { rank: 4 dropout: 0.2 target_modules: \"all-linear\" }")
        .Set("objective", Plugin("causal_lm", "noise_alpha: 5"));
  };
  // Two heads of keys.
  ExpectSameCurve(MustTrain(Divided(run(), "ddp", 4, 4)), MustTrain(run()),
                  2e-6);
  const auto half = [] { return OddRows().Precision("bf16"); };
  ExpectSameCurve(MustTrain(Divided(half(), "fsdp", 4, 4)), MustTrain(half()),
                  2e-3);
}

// Positions that are added to a row's end don't count in the router's loss.
TEST(SequenceParallelTest, AMixtureOfExperts) {
  const auto run = [](const std::string& packing) {
    RunText made =
        packing.empty() ? OddRows() : Chats(packing).Train("max_steps: 3");
    return made.Set("model", Decoder(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "vocab_size": 4100, "hidden_size": 32, "intermediate_size": 88,
    "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "norm_topk_prob": true, "output_router_logits": true,
    "router_aux_loss_coef": 0.5})"));
  };
  for (const char* packing : {"", "BEST_FIT"}) {
    SCOPED_TRACE(packing);
    const std::string one = MustTrain(run(packing));
    ExpectSameCurve(MustTrain(Divided(run(packing), "fsdp", 2, 2)), one, 4e-6);
    ExpectSameCurve(MustTrain(Divided(run(packing), "zero2", 4, 4)), one, 4e-6);
  }
  const RunText exact = run("").Train("deterministic: true");
  const std::string divided = MustTrain(Divided(exact, "ddp", 2, 2));
  EXPECT_TRUE(ReadText(divided + kWeights) ==
              ReadText(MustTrain(exact) + kWeights));
}

TEST(SequenceParallelTest, MemoryIsPlanned) {
  const RunText whole =
      RunText()
          .Set("model",
               Plugin("llama",
                      "hidden_size: 128 intermediate_size: 344 "
                      "num_attention_heads: 4 num_key_value_heads: 2 "
                      "max_position_embeddings: 1024 num_hidden_layers: 6 "
                      "vocab_size: 256"))
          .Set("train_data",
               TextData(Runfile("tests/testdata/corpus.txt"), 1024))
          .Batch(1, 1)
          .Train("max_steps: 2");
  const auto memory_of = [](const RunText& run) {
    return ReadJson(MustTrain(run) + "/summary.json")["memory"];
  };
  for (const char* precision : {"fp32", "bf16"}) {
    const double undivided = memory_of(
        RunText(whole).Precision(precision))["activations"]["measured"];
    // Ranks that divide the heads of keys, and that don't.
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(testing::Message() << precision << ", " << ranks);
      const nlohmann::json memory = memory_of(
          Divided(RunText(whole).Precision(precision), "ddp", ranks, ranks));
      const double measured = memory["total"]["measured"];
      EXPECT_NEAR(memory["total"]["predicted"].get<double>(), measured,
                  0.1 * measured)
          << memory.dump(2);
      EXPECT_LT(memory["activations"]["measured"].get<double>(),
                0.8 * undivided);
    }
  }
}

// Deterministic runs have one bit pattern, whoever divides what; three groups
// don't divide a step's four micro-batches.
TEST(SequenceParallelTest, ADeterministicRunHasTheBitsOfOneRank) {
  const std::vector<RunText> runs = {
      OddRows(), OddRows().Precision("bf16"), Chats("BEST_FIT").Batch(2, 8),
      Masked("BEST_FIT"), OddRows().Set("model", OneHeadOfKeys())};
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const RunText run = RunText(runs[i]).Train("deterministic: true");
    const std::string one = MustTrain(run);
    for (const auto& [strategy, ranks] :
         {std::pair<const char*, int>{"ddp", 2}, {"fsdp", 6}}) {
      SCOPED_TRACE(strategy);
      const std::string folder = MustTrain(Divided(run, strategy, ranks, 2));
      EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(one).losses());
      EXPECT_EQ(ReadMetrics(folder).grad_norms(),
                ReadMetrics(one).grad_norms());
      EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(one + kWeights));
    }
  }
}

// Beyond what the model was trained for, rope depends on the row's length.
TEST(SequenceParallelTest, RowsThatArePaddedAreNoLonger) {
  const auto run = [] {
    return OddRows().Set("model", Decoder(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 88,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 31,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}})"));
  };
  ExpectSameCurve(MustTrain(Divided(run(), "ddp", 4, 4)), MustTrain(run()),
                  2e-6);
}

TEST(SequenceParallelTest, TheMicroBatchMayBeChosen) {
  const RunText run =
      Divided(OddRows(), "ddp", 4, 2)
          .Set("batch", "micro_batch_size: AUTO global_batch_size: 8");
  const std::string folder = MustTrain(run);
  ExpectSameCurve(folder, MustTrain(OddRows()), 2e-6);
  const TrainerResult result =
      RunTrainer({"--config=" + Divided(OddRows(), "ddp", 4, 2)
                                    .Output(NewTestFolder("run") + "/out")
                                    .File()});
  EXPECT_THAT(result.out,
              testing::HasSubstr("8 = micro 2 x 4 ranks / 2 x accumulation 2"));
}

// Rows may be divided from a checkpoint on, and no longer be.
TEST(SequenceParallelTest, ARunGoesOnWithAnotherDivision) {
  const RunText run = OddRows().Train("deterministic: true save_every: 3");
  const std::string straight = MustTrain(run);
  const std::string folder = NewTestFolder("run") + "/out";
  MustTrain(Divided(run, "zero2", 4, 2).Train("max_steps: 3").Output(folder));
  MustTrain(RunText(run).Train("resume: AUTO").Output(folder));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

TEST(SequenceParallelTest, WhatDoesNotGoIsSaid) {
  const auto error = [](const RunText& run) {
    RunText with = run;
    return RunTrainer(
        {"--config=" + with.Output(NewTestFolder("run") + "/out").File()});
  };
  const std::string field = "train.sequence_parallel: ";
  ExpectOneError(error(Divided(RunText(), "ddp", 2, 3)),
                 {field, "3 doesn't divide the run's 2 ranks"});
  ExpectOneError(error(Divided(RunText(), "ddp", 2, -2)), {field, "-2"});
  ExpectOneError(
      error(Divided(RunText(), Plugin("diloco", "local_steps: 2"), 2, 2)),
      {field, "capstan.diloco"});
  ExpectOneError(
      error(Divided(RunText().Train("deterministic: true"), "ddp", 3, 3)
                .Batch(1, 3)),
      {field, "power of two"});
  ExpectOneError(error(Divided(RunText(), "ddp", 2, 2)
                           .Precision("fp16")
                           .Train("deterministic: true")),
                 {field, "fp16"});
  ExpectOneError(
      error(Divided(RunText().Train("skip_bad_samples: 3"), "ddp", 2, 2)),
      {field, "skip_bad_samples"});
  ExpectOneError(error(Divided(RunText(), "ddp", 4, 2)
                           .Batch(1, 8)
                           .Set("launch",
                                "processes: 4 min_processes: 3 "
                                "max_restarts: 1")),
                 {"launch.min_processes: ", "sequence_parallel, 2"});
  TrainerOptions gloo;
  gloo.environment = {{"CAPSTAN_CPU_COLLECTIVES", "gloo"}};
  ExpectOneError(
      RunTrainer({"--config=" + Divided(RunText(), "ddp", 2, 2)
                                    .Output(NewTestFolder("run") + "/out")
                                    .File()},
                 gloo),
      {field, "CAPSTAN_CPU_COLLECTIVES=gloo"});
}

}  // namespace
}  // namespace capstan
