// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint belongs to no strategy and no number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kWeights[] = "/final/model.safetensors";

// Where a run goes on, and until which step.
struct Leg {
  std::string strategy;
  int ranks;
  int micro_batch;  // ranks and accumulation make it 24
  int last_step;
};

// 4 ranks of ZeRO-2, 3 of FSDP, 1, 2 of DDP, hybrid FSDP, and ZeRO-2 again.
std::vector<Leg> Legs() {
  return {{"zero2", 4, 3, 3},
          {"fsdp", 3, 8, 5},
          {"single", 1, 12, 7},
          {"ddp", 2, 6, 9},
          {"[plugin/capstan.fsdp.Config] { shard_group_size: 2 }", 4, 6, 11},
          {"zero2", 4, 3, 13}};
}
constexpr int kSteps = 13;

// Shuffled, with an epoch (80 sequences) that ends within steps, and sizes
// that neither 3 nor 4 divide.
RunText SmallRun() {
  return RunText()
      .Set("model",
           "[plugin/capstan.llama.Config] { vocab_size: 257 hidden_size: 20 "
           "intermediate_size: 37 num_hidden_layers: 2 num_attention_heads: 2 "
           "num_key_value_heads: 1 max_position_embeddings: 32 }")
      .Set("train_data", TextData(CorpusPiece(80 * 16), 16, "shuffle: true"))
      .Set("schedule",
           absl::StrCat("kind: COSINE warmup_steps: 3 total_steps: ", kSteps))
      .Batch(12, 24)
      .Train(absl::StrCat("max_steps: ", kSteps));
}

struct Numerics {
  std::string precision;
  std::string fields;
  int micro_batch;  // 0: as Legs() say
  std::string name;
  std::string optimizer;  // "": as SmallRun's
};

void PrintTo(const Numerics& numerics, std::ostream* out) {
  *out << numerics.precision;
}

class ReshardTest : public ::testing::TestWithParam<Numerics> {
 protected:
  RunText RunHere(int micro_batch) const {
    const Numerics& numerics = GetParam();
    RunText run = SmallRun();
    if (!numerics.optimizer.empty()) run.Set("optimizer", numerics.optimizer);
    return run
        .Set("precision", absl::StrCat("[plugin/capstan.", numerics.precision,
                                       ".Config] { ", numerics.fields, " }"))
        .Batch(numerics.micro_batch > 0 ? numerics.micro_batch : micro_batch,
               24);
  }
};

TEST_P(ReshardTest, TheCurveOfAnUndisturbedRun) {
  const std::string straight = MustTrain(RunHere(12));
  const std::vector<double> want = ReadMetrics(straight).losses();
  ASSERT_EQ(want.size(), kSteps);
  const std::string folder = NewTestFolder("run") + "/out";
  for (const Leg& leg : Legs()) {
    MustTrain(
        RunHere(leg.micro_batch)
            .Strategy(leg.strategy, leg.ranks)
            .Train(absl::StrCat("resume: AUTO max_steps: ", leg.last_step))
            .Output(folder));
    EXPECT_EQ(CheckpointSteps(folder).back(), leg.last_step);
  }
  const Metrics got = ReadMetrics(folder);
  ASSERT_EQ(got.steps.size(), kSteps);
  for (const char* key : {"lr", "tokens"}) {
    EXPECT_EQ(got.Values(key), ReadMetrics(straight).Values(key)) << key;
  }
  for (int i = 0; i < kSteps; ++i) {
    // The last place of a sum may decide which of two codes a moment gets, or
    // which of two numbers of 16 bits a weight (docs/strategies.md).
    const bool half = GetParam().precision != "fp32";
    const double bound = !GetParam().optimizer.empty() ? 1e-4
                         : half                        ? 1e-5
                                                       : 1e-6;
    EXPECT_NEAR(got.losses()[i], want[i], bound * want[i]) << "step " << i + 1;
  }
  if (GetParam().precision == "fp16") {
    const std::vector<double> scales = got.Values("loss_scale");
    EXPECT_EQ(scales, ReadMetrics(straight).Values("loss_scale"));
    EXPECT_LT(scales[2], scales[0]) << "it is moved before the first change";
  }
}

// What differs is the order of sums in fp32. In the 16-bit precisions the
// gradient of a micro-batch is rounded, and its largest value decides on the
// loss scale, so that all have the same micro-batches there.
INSTANTIATE_TEST_SUITE_P(
    All, ReshardTest,
    ::testing::Values(
        Numerics{"fp32", "", 0, "fp32"}, Numerics{"bf16", "", 2, "bf16"},
        Numerics{"fp16", "initial_scale: 16777216 growth_interval: 3", 2,
                 "fp16"},
        Numerics{"bf16", "", 2, "State8Bit",
                 "[plugin/capstan.adamw.Config] { learning_rate: 3e-3 state: "
                 "EIGHT_BIT }"},
        Numerics{"bf16", "", 2, "StateBf16",
                 "[plugin/capstan.adamw.Config] { learning_rate: 3e-3 state: "
                 "BFLOAT16 }"},
        Numerics{"fp32", "", 0, "Adafactor",
                 "[plugin/capstan.adafactor.Config] { learning_rate: 3e-3 }"},
        Numerics{"fp32", "", 0, "NorMuon",
                 "[plugin/capstan.muon.Config] { learning_rate: 3e-3 "
                 "adjust_lr: MATCH_RMS_ADAMW normuon: true }"}),
    [](const auto& info) { return info.param.name; });

// What a checkpoint holds is what any other layout makes of it, bit for bit:
// with no step left to do, only the weights are written.
TEST(ReshardWeightsTest, AreTheSameBits) {
  const RunText run = SmallRun().Precision("bf16").Train("max_steps: 2");
  const std::string folder =
      MustTrain(RunText(run).Strategy("fsdp", 3).Batch(8, 24));
  const std::string want = ReadText(folder + kWeights);
  for (const Leg& leg : Legs()) {
    fs::remove_all(folder + "/final");
    MustTrain(RunText(run)
                  .Strategy(leg.strategy, leg.ranks)
                  .Batch(leg.micro_batch, 24)
                  .Train("resume: AUTO")
                  .Output(folder));
    EXPECT_TRUE(ReadText(folder + kWeights) == want) << leg.strategy;
  }
}

// A run whose global batch follows from its 2 ranks, 12.
RunText OpenBatch(bool by_length) {
  return SmallRun()
      .Set("batch", absl::StrCat("micro_batch_size: 6 group_by_length: ",
                                 by_length ? "true" : "false"))
      .Strategy("zero2", 2);
}

// 1.9 times the 80 sequences: 13 steps.
TrainerResult TrainEpochs(const RunText& run) {
  return RunTrainer(
      {"--config=" + run.File(), "--set", "train.max_epochs=1.9"});
}

class ReshardBatchTest : public ::testing::TestWithParam<bool> {};

// Its own: by ranks that need to accumulate, that can't share it evenly, and
// that cut it differently.
TEST_P(ReshardBatchTest, ARunKeepsItsGlobalBatch) {
  const std::string straight = NewTestFolder("run") + "/out";
  TrainerResult result = TrainEpochs(OpenBatch(GetParam()).Output(straight));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Metrics want = ReadMetrics(straight);
  ASSERT_EQ(want.steps.size(), kSteps);
  const std::string folder = NewTestFolder("run") + "/out";
  const auto leg = [&](int ranks, const std::string& more) {
    return OpenBatch(GetParam())
        .Strategy("zero2", ranks)
        .Train("resume: AUTO " + more)
        .Output(folder);
  };
  MustTrain(leg(2, "max_steps: 4"));
  result = RunTrainer({"--config=" + leg(1, "max_steps: 9").File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ::testing::HasSubstr("goes on with the run's global batch of 12 "
                                   "= micro 6 x 1 rank x accumulation 2"));
  result = RunTrainer({"--config=" + leg(5, "max_steps: 11").File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ::testing::AllOf(
                  ::testing::HasSubstr(
                      "12, at most micro 3 x 5 ranks x accumulation 1"),
                  ::testing::HasSubstr("1 of 5 ranks is idle, as a step has 4 "
                                       "micro-batches")));
  result = TrainEpochs(leg(3, ""));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ::testing::HasSubstr("12 = micro 4 x 3 ranks x accumulation 1"));
  const Metrics got = ReadMetrics(folder);
  ASSERT_EQ(got.steps.size(), kSteps) << "as many steps in an epoch";
  for (const char* key : {"lr", "tokens"}) {
    EXPECT_EQ(got.Values(key), want.Values(key)) << key;
  }
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses()[i], want.losses()[i], 1e-6 * want.losses()[i])
        << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReshardBatchTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "ByLength" : "AsItComes";
                         });

TEST(ReshardGlobalBatchTest, AnotherOneThatIsSet) {
  for (const bool by_length : {false, true}) {
    const std::string folder =
        MustTrain(OpenBatch(by_length).Train("max_steps: 2"));
    const RunText run =
        OpenBatch(by_length)
            .Set("batch",
                 absl::StrCat("micro_batch_size: 2 global_batch_size: 4 "
                              "group_by_length: ",
                              by_length ? "true" : "false"))
            .Train("max_steps: 4 resume: AUTO")
            .Output(folder);
    const TrainerResult result = RunTrainer({"--config=" + run.File()});
    if (by_length) {
      // Other samples would come together.
      ExpectOneError(result, {"batch.global_batch_size", "is 4", "has 12",
                              "group_by_length", "leave it out"});
    } else {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.out,
                  ::testing::HasSubstr("goes on with batch.global_batch_size "
                                       "4; the run in"));
    }
  }
}

// Each rank's file holds its share, about.
TEST(ReshardFilesTest, ARankWritesItsShare) {
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    const std::string folder = MustTrain(
        SmallRun().Strategy(strategy, 4).Batch(6, 24).Train("max_steps: 1"));
    const std::string checkpoint = folder + "/checkpoints/step-00000001/";
    int64_t all = 0;
    std::vector<int64_t> bytes;
    const nlohmann::json manifest = ReadJson(checkpoint + "manifest.json");
    for (const auto& file : manifest["files"]) {
      bytes.push_back(0);
      for (const auto& range : file["ranges"]) {
        bytes.back() += 4 * range["length"].get<int64_t>();
      }
      all += bytes.back();
    }
    ASSERT_EQ(bytes.size(), 4);
    for (const int64_t b : bytes) {
      EXPECT_NEAR(b, all / 4, 0.02 * all) << strategy;
    }
  }
}

// On four ranks the micro-batch shrinks from 8 to 2; the evaluation's first
// three stay what they were, or its losses could not be compared.
TEST(ReshardEvaluationTest, IsOfTheSameSamples) {
  const auto run = [](int ranks, int steps) {
    return RunText()
        .Set("train_data",
             TextData(CorpusPiece(16 << 10), 32, "validation_fraction: 0.5"))
        .Set("batch", "micro_batch_size: 8")
        .Strategy("ddp", ranks)
        .Train(absl::StrCat("eval_batches: 3 max_steps: ", steps));
  };
  const std::string straight = MustTrain(run(1, 3));
  const std::string folder = MustTrain(run(1, 2));
  MustTrain(run(4, 3).Train("resume: AUTO").Output(folder));
  EXPECT_NEAR(ReadMetrics(folder).evals.back()["eval_loss"],
              ReadMetrics(straight).evals.back()["eval_loss"], 1e-5);
}

}  // namespace
}  // namespace capstan
