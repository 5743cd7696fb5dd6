// SPDX-License-Identifier: Apache-2.0
//
// What `plan` says of a run, and what the run then measures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Llama(const std::string& sizes) {
  return absl::StrCat("[plugin/capstan.llama.Config] { ", sizes, " }");
}

constexpr char kSizes[] =
    "hidden_size: 128 intermediate_size: 344 num_attention_heads: 4 "
    "num_key_value_heads: 2 max_position_embeddings: 512 ";

// 1.4 million parameters and as many bytes of activations.
RunText Layers() {
  return RunText()
      .Set("model",
           Llama(absl::StrCat(kSizes, "num_hidden_layers: 8 vocab_size: 256")))
      .Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 128))
      // The first has no optimizer state before its end, the second has all.
      .Train("max_steps: 2");
}

struct Variant {
  const char* name;
  int accumulation;
  void (*change)(RunText* run);
  // How well what is there from set-up to the end is known: to the byte, but
  // for alignment.
  double state = 0.001;
};

constexpr Variant kVariants[] = {
    {"Plain", 1, [](RunText*) {}},
    {"Accumulation", 2, [](RunText*) {}},
    {"Checkpointing", 1,
     [](RunText* run) { run->Train("activation_checkpointing: EVERY_UNIT"); }},
    {"RecomputedMlp", 2,
     [](RunText* run) { run->Train("activation_checkpointing: MLP"); }},
    {"EverySecond", 2,
     [](RunText* run) {
       run->Train(
           "activation_checkpointing: EVERY_N activation_checkpointing_n: 2");
     }},
    {"Bf16", 2, [](RunText* run) { run->Precision("bf16"); }},
    {"Bf16Checkpointing", 1,
     [](RunText* run) {
       run->Precision("bf16").Train("activation_checkpointing: EVERY_UNIT");
     }},
    // The embedding is most of the model.
    {"Vocabulary", 1,
     [](RunText* run) {
       run->Set("model", Llama(absl::StrCat(kSizes,
                                            "num_hidden_layers: 2 "
                                            "vocab_size: 30000")));
     }},
    {"UntiedVocabulary", 1,
     [](RunText* run) {
       run->Set("model",
                Llama(absl::StrCat(kSizes,
                                   "num_hidden_layers: 2 vocab_size: 30000 "
                                   "tie_word_embeddings: false")));
     }},
    {"Lora", 2,
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 dropout: 0.1 }");
     }},
    {"LoraBf16Checkpointing", 1,
     [](RunText* run) {
       run->Set("adapter",
                "lora { rank: 16 target_modules: \"q_proj\" "
                "target_modules: \"v_proj\" }");
       run->Precision("bf16").Train("activation_checkpointing: EVERY_UNIT");
     }},
    {"Qlora", 2,
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 quantize: NF4_DOUBLE }");
     }},
    {"QloraBf16Checkpointing", 1,
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 dropout: 0.1 quantize: NF4 }");
       run->Precision("bf16").Train("activation_checkpointing: EVERY_UNIT");
     }},
    // Wide, nearly square matrices and few tokens: a fifth of the peak is what
    // the update holds. A rank's state depends on which matrices it has.
    {"Muon", 1,
     [](RunText* run) {
       run->Set("model", Llama("hidden_size: 768 intermediate_size: 800 "
                               "num_attention_heads: 4 num_key_value_heads: 4 "
                               "num_hidden_layers: 1 vocab_size: 256"));
       run->Set("optimizer",
                "[plugin/capstan.muon.Config] { learning_rate: 0.02 adamw { "
                "learning_rate: 1e-3 } }");
       run->Set("train_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 16));
     },
     0.01},
    // Hardly any activations: what strategies hold is all.
    {"FewTokens", 1,
     [](RunText* run) {
       run->Set("train_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 16));
     }},
    {"FewTokensBf16Sums", 1,
     [](RunText* run) {
       run->Set("train_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 16));
       run->Set("precision",
                "[plugin/capstan.bf16.Config] { reduce_dtype: BFLOAT16 }");
     }},
};

struct Ranks {
  const char* strategy;
  int ranks;
};

constexpr Ranks kStrategies[] = {
    {"single", 1}, {"ddp", 2}, {"zero2", 2}, {"fsdp", 2}};

class PlanTest : public ::testing::TestWithParam<std::tuple<Ranks, Variant>> {};

TEST_P(PlanTest, IsWithinTenPercentOfTheRun) {
  const auto& [ranks, variant] = GetParam();
  RunText run = Layers()
                    .Strategy(ranks.strategy, ranks.ranks)
                    .Batch(2, 2 * ranks.ranks * variant.accumulation);
  variant.change(&run);
  const std::string folder = MustTrain(run);
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  const nlohmann::json& memory = summary["memory"];
  const double measured = memory["total"]["measured"];
  EXPECT_NEAR(memory["total"]["predicted"].get<double>(), measured,
              0.1 * measured)
      << memory.dump(2);
  double predicted_state = 0.0, measured_state = 0.0;
  for (const char* category :
       {"parameters", "gradients", "masters", "optimizer_state"}) {
    predicted_state += memory[category]["predicted"].get<double>();
    measured_state += memory[category]["measured"].get<double>();
  }
  EXPECT_NEAR(predicted_state, measured_state, variant.state * measured_state)
      << memory.dump(2);
}

// All variants under the strategies that divide what a rank holds. single and
// ddp, whose plans differ by the buckets alone, take the variants in turn.
std::vector<std::tuple<Ranks, Variant>> Cases() {
  std::vector<std::tuple<Ranks, Variant>> cases;
  for (size_t i = 0; i < std::size(kVariants); ++i) {
    cases.emplace_back(kStrategies[i % 2], kVariants[i]);
    for (const size_t divides : {2, 3}) {
      cases.emplace_back(kStrategies[divides], kVariants[i]);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PlanTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).strategy,
                                               std::get<1>(info.param).name);
                         });

// A frozen weight takes 0.52 bytes in place of 4, and of 2 in bf16, planned and
// measured.
TEST(QloraPlanTest, ABaseInHalfAByteAWeight) {
  // Of the linear layers of Layers().
  constexpr double kWeights =
      8 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 344 * 128);
  for (const auto& [precision, bytes] :
       {std::pair<const char*, int>{"fp32", 4}, {"bf16", 2}}) {
    const auto parameters = [&, name = precision](const char* quantize) {
      const std::string folder =
          MustTrain(Layers()
                        .Ddp(2)
                        .Precision(name)
                        .Set("adapter", absl::StrCat("lora { ", quantize, " }"))
                        .Train("max_steps: 1"));
      return ReadJson(folder + "/summary.json")["memory"]["parameters"];
    };
    const nlohmann::json dense = parameters("");
    const nlohmann::json packed = parameters("quantize: NF4_DOUBLE");
    for (const char* kind : {"predicted", "measured"}) {
      const double saved =
          dense[kind].get<double>() - packed[kind].get<double>();
      EXPECT_NEAR(bytes - saved / kWeights, 0.518, 0.002)
          << precision << " " << kind;
    }
  }
}

// Batches with rows that are cut, which hold most, are planned for.
TEST(MaskedDiffusionPlanTest, IsWithinFivePercentOfTheRun) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    RunText run;
    run.Set("model",
            "[plugin/capstan.llada.Config] { vocab_size: 257 d_model: 128 "
            "mlp_hidden_size: 344 n_layers: 4 n_heads: 4 n_kv_heads: 2 "
            "max_sequence_length: 128 }")
        .Set("objective",
             "[plugin/capstan.masked_diffusion.Config] { random_length_ratio: "
             "1 }")
        .Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 128))
        .Batch(8, 8)
        .Precision(precision)
        .Train("max_steps: 2");
    const nlohmann::json summary = ReadJson(MustTrain(run) + "/summary.json");
    const nlohmann::json& memory = summary["memory"];
    const double measured = memory["total"]["measured"];
    EXPECT_NEAR(memory["total"]["predicted"].get<double>(), measured,
                0.05 * measured)
        << precision << memory.dump(2);
  }
}

struct ProcessVariant {
  const char* name;
  void (*change)(RunText* run);
};

// Of these small runs tensors are the smaller part. The libraries' share, a
// third, depends on how the page cache holds them.
constexpr ProcessVariant kProcesses[] = {
    {"Full", [](RunText*) {}},
    {"FullOnTwoRanks", [](RunText* run) { run->Ddp(2).Batch(2, 4); }},
    {"FullWithCopies",
     [](RunText* run) {
       run->Train("save_every: 1");
       run->Set("launch", "processes: 1 max_restarts: 1");
     }},
    {"FullEvaluatesLongerRows",
     [](RunText* run) {
       run->Set("eval_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 512));
       run->Train("eval_every: 1 eval_batches: 2");
     }},
    {"Lora", [](RunText* run) { run->Set("adapter", "lora { rank: 8 }"); }},
    {"LoraOnTwoRanks",
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 }").Ddp(2).Batch(2, 4);
     }},
    {"LoraEvaluates",
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 }");
       run->Set("eval_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 128));
       run->Train("eval_every: 1 eval_batches: 2");
     }},
    {"LoraEvaluatesLongerRows",
     [](RunText* run) {
       run->Set("adapter", "lora { rank: 8 }");
       run->Set("eval_data",
                TextData(Runfile("tests/testdata/corpus.txt"), 512));
       run->Train("eval_every: 1 eval_batches: 2");
     }},
};

class ProcessPlanTest : public ::testing::TestWithParam<ProcessVariant> {};

TEST_P(ProcessPlanTest, IsWithinAFifthOfTheRun) {
  RunText run = Layers().Batch(4, 4);
  GetParam().change(&run);
  const nlohmann::json summary = ReadJson(MustTrain(run) + "/summary.json");
  const nlohmann::json& process = summary["process_memory"];
  const double measured = process["measured"];
  EXPECT_NEAR(process["predicted"].get<double>(), measured, 0.2 * measured);
  // An evaluation's plan is an upper bound.
  const nlohmann::json& tensors = summary["memory"]["total"];
  const double held = tensors["measured"];
  EXPECT_GT(measured, held);
  EXPECT_GT(tensors["predicted"].get<double>(), 0.95 * held)
      << summary["memory"].dump(2);
  EXPECT_LT(tensors["predicted"].get<double>(), 1.25 * held)
      << summary["memory"].dump(2);
}

INSTANTIATE_TEST_SUITE_P(All, ProcessPlanTest, ::testing::ValuesIn(kProcesses),
                         [](const auto& info) { return info.param.name; });

// An evaluation of rows that are longer than training's is the peak.
TEST(PlanCommandTest, SaysWhatAnEvaluationAndTheMachineHold) {
  RunText run = Layers().Ddp(2).Batch(2, 4);
  run.Set("eval_data", TextData(Runfile("tests/testdata/corpus.txt"), 512));
  const TrainerResult result = RunTrainer({"plan", "--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ContainsRegex("\n  in an evaluation, at most +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  processes of 2 ranks +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  the launcher +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  files that are mapped +[1-9]"));
}

TEST(SummaryTest, SaysWhatCommunicationCost) {
  const std::string folder = MustTrain(Layers().Ddp(2).Batch(2, 4));
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  const double gradients = summary["memory"]["gradients"]["measured"];
  EXPECT_NEAR(summary["bytes_sent_per_step"].get<double>(), gradients,
              0.01 * gradients)
      << "2 (n - 1) / n of the gradients, with two ranks";
  EXPECT_GT(summary["communication_seconds"], 0.0);
  EXPECT_GT(summary["exposed_communication_seconds"], 0.0);
  EXPECT_LT(summary["exposed_communication_seconds"],
            summary["step_seconds_median"]);
  ASSERT_EQ(summary["memory_growth_bytes"].size(), 2);
  for (const nlohmann::json& bytes : summary["memory_growth_bytes"]) {
    EXPECT_GT(bytes, summary["memory"]["total"]["measured"]);
  }
  for (const nlohmann::json& step : ReadMetrics(folder).steps) {
    EXPECT_NEAR(step["bytes_sent"].get<double>(), gradients, 0.01 * gradients);
    EXPECT_GT(step["communication_seconds"], 0.0);
    EXPECT_GT(step["exposed_seconds"], 0.0);
  }
}

TEST(SummaryTest, OneRankSendsNothing) {
  const nlohmann::json summary =
      ReadJson(MustTrain(RunText()) + "/summary.json");
  EXPECT_EQ(summary["bytes_sent_per_step"], 0);
  EXPECT_EQ(summary["communication_seconds"], 0.0);
}

TEST(PlanCommandTest, HasAColumnForEachStrategy) {
  const RunText run = Layers().Ddp(2).Batch(2, 4);
  const TrainerResult result = RunTrainer({"plan", "--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const Ranks& other : kStrategies) {
    EXPECT_THAT(result.out,
                HasSubstr(absl::StrCat("capstan.", other.strategy)));
  }
  EXPECT_THAT(result.out,
              ContainsRegex("\n +capstan.ddp +capstan.diloco +capstan.fsdp"));
  EXPECT_THAT(result.out, ContainsRegex("\nmemory of a rank +this run +def"));
  EXPECT_THAT(result.out, ContainsRegex("\n  optimizer state +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  all tensors +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  the process, roughly +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\nsent in a step +[1-9]"));
  EXPECT_THAT(result.out,
              ContainsRegex("Not for this run: capstan.single runs on one"));
  EXPECT_THAT(result.out, Not(HasSubstr("?")));
}

TEST(PlanCommandTest, SeventyBillionParametersTakeNoTimeAndNoMemory) {
  const RunText run =
      Layers()
          .Set("model", Llama("hidden_size: 8192 intermediate_size: 28672 "
                              "num_hidden_layers: 80 num_attention_heads: 64 "
                              "num_key_value_heads: 8 vocab_size: 128256 "
                              "tie_word_embeddings: false"))
          .Precision("bf16")
          .Fsdp(8)
          .Batch(1, 8);
  const TrainerResult result = RunTrainer({"plan", "--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("70.6 B\n"));
  // 12 bytes a parameter under fsdp: float32 masters and two moments, on eight
  // ranks.
  EXPECT_THAT(result.out, ContainsRegex("\n  masters +32.9 GiB"));
  EXPECT_LT(result.seconds, 30.0) << "0.3 s on a machine that has nothing else "
                                     "to do";
}

TEST(PlanCommandTest, FindsWhatFits) {
  const RunText run =
      Layers()
          .Set("model", Llama("hidden_size: 4096 intermediate_size: 14336 "
                              "num_hidden_layers: 32 num_attention_heads: 32 "
                              "num_key_value_heads: 8 vocab_size: 128256 "
                              "tie_word_embeddings: false"))
          .Precision("bf16")
          .Train("save_every: 2")
          .Batch(1, 8);
  const std::string config = "--config=" + run.File();
  const TrainerResult roomy =
      RunTrainer({"plan", "--fit", "--gpus=8", "--gpu_memory=80GiB", config});
  EXPECT_EQ(roomy.exit_code, 0) << roomy.err;
  // A third of the card: nothing needs to be gathered.
  EXPECT_THAT(roomy.out, HasSubstr("strategy { [plugin/capstan.zero2.Config]"));
  EXPECT_THAT(roomy.out, ContainsRegex("\n  left +[1-9]"));
  EXPECT_THAT(roomy.out, ContainsRegex("\n  copies being saved +[1-9]"));
  const TrainerResult full =
      RunTrainer({"plan", "--fit", "--gpus=1", "--gpu_memory=2GiB", config});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("nothing fits: "));
  ExpectOneError(RunTrainer({"plan", "--fit", config}),
                 {"--fit needs --gpu_memory"});
}

// What isn't here isn't asked, and the global batch stays what it is.
TEST(PlanCommandTest, ForGpusThatArentHere) {
  const RunText run = Layers().Ddp(4).Batch(8, 0);
  const std::string config = "--config=" + run.File();
  const TrainerResult by_config =
      RunTrainer({"plan", "--gpu_memory=24GiB", config});
  EXPECT_EQ(by_config.exit_code, 0) << by_config.err;
  EXPECT_THAT(by_config.out, HasSubstr("Each of 4 GPUs of 24.0 GiB\n"));
  EXPECT_THAT(by_config.out, ContainsRegex("\n  NCCL's buffers +[1-9]"));
  const TrainerResult by_flag = RunTrainer({"plan", "--gpus=2", config});
  EXPECT_EQ(by_flag.exit_code, 0) << by_flag.err;
  EXPECT_THAT(by_flag.out, HasSubstr("2 x GPU\n"));
  const TrainerResult fit =
      RunTrainer({"plan", "--fit", "--gpu_memory=24GiB", "--gpus=2", config});
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  EXPECT_THAT(fit.out, ContainsRegex("\n  global batch +16 x "));
  EXPECT_THAT(fit.out,
              HasSubstr("batch { micro_batch_size: 8 global_batch_size: 16 }"));
  for (const char* gpus : {"--gpus=-1", "--gpus=0"}) {
    const TrainerResult wrong = RunTrainer({"plan", gpus, config});
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.err,
                HasSubstr("--gpus: must be a number greater than 0"));
  }
  ExpectOneError(RunTrainer({"plan", "--gpus=2", "--gpu_memory=80", config}),
                 {"'80' lacks a unit: write 80GB"});
}

// Only a base that isn't in few bits yet is quantised.
TEST(PlanCommandTest, FitsABaseInFewBits) {
  RunText run = Layers()
                    .Set("model", Llama("hidden_size: 4096 intermediate_size: "
                                        "14336 num_hidden_layers: 32 "
                                        "num_attention_heads: 32 "
                                        "num_key_value_heads: 8 "
                                        "vocab_size: 32000"))
                    .Precision("bf16")
                    .Batch(1, 8);
  const auto fit = [](const RunText& text) {
    const TrainerResult result =
        RunTrainer({"plan", "--fit", "--gpus=1", "--gpu_memory=12GiB",
                    "--config=" + text.File()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string lines = "adapter { lora { quantize: NF4_DOUBLE } }\n";
  EXPECT_THAT(fit(RunText(run).Set("adapter", "lora { rank: 8 }")),
              HasSubstr(lines));
  EXPECT_THAT(
      fit(RunText(run).Set("adapter", "lora { rank: 8 quantize: NF4 }")),
      Not(HasSubstr("quantize")));
}

TEST(PlanCommandTest, StateIsOffloadedOnce) {
  const auto plan = [](const RunText& run) {
    return RunTrainer({"plan", "--gpus=2", "--config=" + run.File(), "--set",
                       "train.offload.optimizer_state=true"});
  };
  const RunText run = Layers().Batch(2, 4);
  for (const RunText& twice :
       {RunText(run).Fsdp(2, "cpu_offload: true"),
        RunText(run).Zero2(2, "offload_optimizer { device: CPU }")}) {
    ExpectOneError(plan(twice),
                   {"train.offload.optimizer_state: doesn't go with the "
                    "offload of capstan."});
  }
  const TrainerResult once = plan(RunText(run).Fsdp(2));
  EXPECT_EQ(once.exit_code, 0) << once.err;
}

// 12 bytes a parameter for the copy, by two ranks, and twice that for the
// mirror.
TEST(PlanCommandTest, CountsCopiesOfTheState) {
  const RunText run = Layers().Ddp(2).Batch(2, 4).Train(
      "save_every: 1 max_steps: 3 mirror_every: 1");
  const TrainerResult result = RunTrainer(
      {"plan", "--config=" + run.File(), "--set", "launch.max_restarts=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ContainsRegex("\n  copy being saved, on the host +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("\n  mirror, on the host +[1-9]"));
}

TEST(PlanCommandTest, OffloadWithoutTheMemoryForItIsRefused) {
  const RunText run =
      Layers()
          .Set("model", Llama("hidden_size: 8192 intermediate_size: 28672 "
                              "num_hidden_layers: 800 num_attention_heads: 64 "
                              "num_key_value_heads: 8 vocab_size: 256"))
          .Zero2(2, "offload_optimizer { device: CPU }")
          .Batch(1, 2);
  for (const char* command : {"plan", "check", "train"}) {
    ExpectOneError(RunTrainer({command, "--config=" + run.File()}),
                   {"run.pbtxt:", "strategy: offload needs ",
                    " of host memory for 2 ranks, this machine has "});
  }
}

nlohmann::json PlanOf(const std::string& config) {
  const TrainerResult result =
      RunTrainer({"plan", "--json", "--config=" + config});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(PlanTest, JsonHasWhatIsPrinted) {
  const nlohmann::json plan = PlanOf(Layers().Ddp(2).File());
  EXPECT_EQ(plan["ranks"], 2);
  const nlohmann::json& own = plan["strategies"][0];
  EXPECT_EQ(own["strategy"], "capstan.ddp");
  EXPECT_EQ(own["at_peak"]["parameters"],
            4 * plan["parameters"].get<int64_t>());
  EXPECT_GT(own["total"], own["at_peak"]["optimizer_state"]);
  bool fsdp = false;
  for (const nlohmann::json& other : plan["strategies"]) {
    fsdp = fsdp || (other["strategy"] == "capstan.fsdp" &&
                    other["total"] < own["total"]);
  }
  EXPECT_TRUE(fsdp);
}

// A run of `ranks` replicas, each of which takes `part` of this machine's
// memory for float32 weights, gradients and AdamW's state.
RunText Replicas(int ranks, double part) {
  const auto available = PlanOf(Layers().File())["available"].get<double>();
  constexpr double kLayer = 16.0 * (4 * 1024 * 1024 + 3 * 1024 * 2816);
  const auto layers = static_cast<int>(part * available / kLayer);
  return Layers()
      .Ddp(ranks)
      .Batch(1, ranks)
      .Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 16))
      .Set("model",
           Llama(absl::StrCat("hidden_size: 1024 intermediate_size: 2816 "
                              "num_attention_heads: 8 vocab_size: 256 "
                              "max_position_embeddings: 512 "
                              "num_hidden_layers: ",
                              layers)));
}

// A model whose replica doesn't fit four times into this machine, and once
// does.
TEST(PlanTest, AStrategyThatDoesntFitGivesWayToOneThatDoes) {
  RunText run = Replicas(4, 0.58);
  // The user's own strategy is told of, and --apply replaces it.
  const std::string config = run.File();
  const TrainerResult told = RunTrainer({"check", "--config=" + config});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr(" fits: write strategy { [plugin/capstan."));
  EXPECT_THAT(told.out, HasSubstr(", capstan.ddp, "));
  const TrainerResult applied =
      RunTrainer({"check", "--config=" + config, "--apply"});
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
  EXPECT_THAT(ReadText(config), Not(HasSubstr("capstan.ddp")));
  EXPECT_THAT(applied.out, HasSubstr("\n-"));
  // One with fields of its own, which may be on other lines, is the user's to
  // change.
  const std::string fields =
      "[plugin/capstan.ddp.Config] {\nbucket_cap_mib: 25\n}";
  run.Set("strategy", fields);
  const std::string own = run.File();
  const TrainerResult left =
      RunTrainer({"check", "--config=" + own, "--apply"});
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_THAT(left.out, HasSubstr(" fits: write strategy { [plugin/capstan."));
  EXPECT_EQ(ReadText(own), run.Text());
  // The default chooses.
  const std::string unsaid =
      WriteText(NewTestFolder("unsaid") + "/run.pbtxt",
                absl::StrReplaceAll(run.Set("strategy", "").Text(),
                                    {{"complete: true", ""}}));
  const TrainerResult chosen = RunTrainer({"check", unsaid});
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_THAT(chosen.out,
              HasSubstr("as the default, capstan.ddp, doesn't fit"));
}

// It fits into the machine, though maybe not beside what is in it now.
TEST(PlanTest, AStrategyThatMayWorkIsNotReplaced) {
  const RunText run = Replicas(2, 0.43);
  const std::string config = run.File();
  const TrainerResult checked =
      RunTrainer({"check", "--config=" + config, "--apply"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(ReadText(config), run.Text());
}

TEST(PlanRowsTest, AnswersAreAsLongAsPromptsAndNewTokens) {
  const std::string rows =
      WriteText(NewTestFolder("data") + "/rows.jsonl",
                "{\"prompt\": \"7+5=\", \"answer\": \"12\"}\n");
  const auto plan = [&rows](const char* fields) {
    const RunText run =
        Layers()
            .Set("model",
                 Llama(absl::StrCat(kSizes,
                                    "num_hidden_layers: 8 vocab_size: 4096 "
                                    "bos_token_id: 1 eos_token_id: 2")))
            .Set("train_data",
                 absl::StrCat("[plugin/capstan.chat.Config] { path: '", rows,
                              "' tokenizer: '",
                              Runfile("datasets/samples/tokenizer"),
                              "' max_length: 64 kind: PROMPT }"))
            .Set("objective",
                 absl::StrCat("[plugin/capstan.grpo.Config] { reward { "
                              "exact_match {} } num_generations: 4 ",
                              fields, " }"))
            .Batch(4, 8)
            .Output(NewTestFolder("run") + "/out");
    const TrainerResult result =
        RunTrainer({"plan", "--config=" + run.File(), "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json some = plan("max_new_tokens: 64"), most = plan("");
  EXPECT_EQ(some["sequence_length"], 64 + 64);
  EXPECT_EQ(most["sequence_length"], 64 + 256);
  const auto activations = [](const nlohmann::json& json) {
    return json["strategies"][0]["at_peak"]["activations"].get<double>();
  };
  EXPECT_NEAR(activations(most) / activations(some), 320.0 / 128.0, 0.1);
}

}  // namespace
}  // namespace capstan
