// SPDX-License-Identifier: Apache-2.0
//
// Training an adapter on a base that is kept in NF4 (QLoRA), and what becomes
// of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/golden/qlora_folder.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTwice[] = "quantize: NF4_DOUBLE";
constexpr char kFp8[] = "quantize: FP8";

std::string Base() { return Runfile("tests/golden/testdata/llama"); }

// Trains an adapter of all linear layers; 8 sequences a step.
RunText Adapted(const std::string& quantize) {
  return RunText::Golden()
      .Set("adapter", absl::StrCat("lora { rank: 4 alpha: 16 ", quantize, " }"))
      .Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
      .Batch(4, 8)
      .Train("max_steps: 6");
}

RunText OnFolder(const std::string& folder, RunText run) {
  return run.Set("model", absl::StrCat("[plugin/capstan.decoder.Config] { "
                                       "pretrained: \"",
                                       folder, "\" }"));
}

std::vector<double> Losses(const std::string& folder) {
  return ReadMetrics(folder).losses();
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                double most) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], most);
}

TEST(QloraTest, LearnsAndLeavesAnAdapter) {
  const std::string folder = MustTrain(Adapted(kTwice));
  const std::vector<double> losses = Losses(folder);
  EXPECT_LT(losses.back(), losses.front() - 0.01);
  // Before the first update only the base makes a difference.
  const double once = Losses(MustTrain(Adapted("quantize: NF4")))[0];
  const double dense = Losses(MustTrain(Adapted("")))[0];
  EXPECT_NE(losses[0], once);
  EXPECT_NE(losses[0], dense);
  EXPECT_NEAR(losses[0], dense, 0.1);

  const std::string final = folder + "/final";
  EXPECT_FALSE(fs::exists(final + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(final + "/config.json"));
  const auto config = ReadJson(final + "/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["base_model_name_or_path"], "../llama");
  EXPECT_THAT(ReadText(final + "/capstan.json"), HasSubstr("nf4_double"));
  const nlohmann::json header =
      SafetensorsHeader(final + "/adapter_model.safetensors");
  EXPECT_EQ(header.size(), 1u + 3 * 7 * 2);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_THAT(name, HasSubstr(".lora_"));
    EXPECT_EQ(entry["dtype"], "F32");
  }
}

TEST(QloraTest, OneCurveUnderEveryStrategy) {
  for (const char* quantize : {kTwice, "quantize: NF4"}) {
    const auto run = [&] { return Adapted(quantize); };
    const std::vector<double> want = Losses(MustTrain(run()));
    for (const RunText& other :
         {run().Ddp(2), run().Zero2(2), run().Fsdp(2),
          run().Fsdp(4).Batch(1, 8),
          run().Fsdp(2).Train("activation_checkpointing: EVERY_UNIT")}) {
      SCOPED_TRACE(other.Text());
      ExpectNear(Losses(MustTrain(other)), want, 2e-5);
    }
  }
}

TEST(QloraTest, EightBitsAreNearerAndTheSameUnderAStrategy) {
  const std::string folder = MustTrain(Adapted(kFp8));
  const std::vector<double> want = Losses(folder);
  EXPECT_LT(want.back(), want.front() - 0.01);
  const double dense = Losses(MustTrain(Adapted("")))[0];
  EXPECT_NE(want[0], dense);
  EXPECT_NEAR(want[0], dense, 0.02);
  EXPECT_THAT(ReadText(folder + "/final/capstan.json"), HasSubstr("\"fp8\""));
  for (const RunText& other :
       {Adapted(kFp8).Ddp(2), Adapted(kFp8).Fsdp(4).Batch(1, 8)}) {
    SCOPED_TRACE(other.Text());
    ExpectNear(Losses(MustTrain(other)), want, 2e-5);
  }
}

// The frozen matrices of each format, and products in 8 bits with them.
TEST(QloraTest, ProductsInEightBits) {
  const auto run = [](const std::string& quantize) {
    return Adapted(quantize).Set("precision",
                                 "[plugin/capstan.fp8.Config] { "
                                 "bf16_layers_at_start: 0 scaling: ROW }");
  };
  for (const char* quantize : {"", kTwice, kFp8}) {
    SCOPED_TRACE(quantize);
    const std::vector<double> bf16 =
        Losses(MustTrain(Adapted(quantize).Precision("bf16")));
    const std::vector<double> want = Losses(MustTrain(run(quantize)));
    EXPECT_NE(want, bf16);
    ExpectNear(want, bf16, 0.05);
    const std::vector<double> got = Losses(MustTrain(run(quantize).Fsdp(2)));
    ExpectNear(got, want, 0.01);
  }
}

// The bytes are held as elements of 2 bytes.
TEST(QloraTest, OneCurveInBfloat16) {
  const auto run = [] { return Adapted(kTwice).Precision("bf16"); };
  const std::vector<double> want = Losses(MustTrain(run()));
  for (const RunText& other : {run().Zero2(2), run().Fsdp(2)}) {
    const std::vector<double> got = Losses(MustTrain(other));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i] / want[i], 1.0, 1e-3) << other.Text();
    }
  }
}

TEST(QloraTest, ResumesBitForBitAndOnAnotherNumberOfRanks) {
  const auto run = [] { return Adapted(kTwice).Fsdp(2); };
  const std::string straight = MustTrain(run());
  const std::string folder = MustTrain(run().Train("max_steps: 3"));
  MustTrain(run().Train("resume: AUTO").Output(folder));
  EXPECT_EQ(Losses(folder), Losses(straight));
  const std::string file = "/final/adapter_model.safetensors";
  EXPECT_EQ(ReadText(folder + file), ReadText(straight + file));
  const std::string other = MustTrain(run().Train("max_steps: 3"));
  MustTrain(
      Adapted(kTwice).Ddp(4).Batch(1, 8).Train("resume: AUTO").Output(other));
  ExpectNear(Losses(other), Losses(straight), 2e-5);
}

TEST(QloraTest, AnotherFormatIsAnotherBase) {
  const std::string folder = MustTrain(Adapted(kTwice).Train("max_steps: 2"));
  for (const char* other : {"", "quantize: NF4"}) {
    const RunText run =
        Adapted(other).Train("resume: AUTO max_steps: 4").Output(folder);
    ExpectOneError(RunTrainer({"--config=" + run.File()}),
                   {"run.pbtxt:", "model", "frozen weights"});
  }
}

TEST(QloraTest, GoesOnFromAnAdapterOnTheSameBase) {
  const std::string first = MustTrain(Adapted(kTwice));
  const std::string second =
      MustTrain(Adapted("")
                    .Set("adapter", absl::StrCat("lora { pretrained: \"", first,
                                                 "/final\" }"))
                    .Train("max_steps: 1"));
  EXPECT_LT(Losses(second)[0], Losses(first)[0] - 0.01);
  const auto was = ReadJson(first + "/final/capstan.json");
  const auto is = ReadJson(second + "/final/capstan.json");
  EXPECT_TRUE(was["base_weights"].is_string());
  EXPECT_EQ(is["base_weights"], was["base_weights"]);
}

std::string Greedy(const std::vector<std::string>& where) {
  std::vector<std::string> args = {"generate", "--prompt_ids=1,2,3",
                                   "--max_new_tokens=12", "--greedy"};
  args.insert(args.end(), where.begin(), where.end());
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// The number after `before` in `text`, or -1.
double NumberAfter(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << text;
  double number = -1.0;
  if (at == std::string::npos) return number;
  const size_t begin = at + before.size();
  EXPECT_TRUE(absl::SimpleAtod(
      text.substr(begin,
                  text.find_first_not_of("0123456789.e+-", begin) - begin),
      &number))
      << text;
  return number;
}

// Merges a run's adapter into its base; returns what is printed.
std::string Merged(const std::string& base, const std::string& run,
                   const std::string& output) {
  const TrainerResult result = RunTrainer(
      {"merge", "--model=" + base, "--adapter=" + run, "--output=" + output});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

class QloraMergeTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Formats, QloraMergeTest,
                         ::testing::Values(kTwice, kFp8), [](const auto& info) {
                           return info.index == 0 ? "Nf4Double" : "Fp8";
                         });

TEST_P(QloraMergeTest, GivesTheModelThatWasTrained) {
  const std::string folder = MustTrain(Adapted(GetParam()));
  const std::string output = NewTestFolder("merged") + "/model";
  const std::string out = Merged(Base(), folder, output);
  // The base is in float32, to which nothing is rounded.
  EXPECT_EQ(NumberAfter(out, "moved them by "), 0.0);
  EXPECT_LT(NumberAfter(out, "model's by at most "), 1e-4);
  const std::string merged = Greedy({"--model=" + output});
  EXPECT_EQ(Greedy({"--model=" + folder}), merged);
  EXPECT_EQ(Greedy({"--model=" + folder + "/checkpoints/step-00000006"}),
            merged);
  // The merged model isn't the adapter's base.
  ExpectOneError(
      RunTrainer({"merge", "--model=" + output, "--adapter=" + folder,
                  "--output=" + output + "2"}),
      {"trained on a base", "--other_base"});
}

// A folder as bitsandbytes and transformers write it.
class QuantisedFolderTest : public ::testing::Test {
 protected:
  QuantisedFolderTest() {
    base_ = NewTestFolder("quantised") + "/base";
    WriteQloraFolder(Runfile("tests/golden/testdata/llama_qlora"), base_,
                     "bfloat16");
  }
  RunText Run(const std::string& quantize) const {
    return OnFolder(base_, Adapted(quantize));
  }

  std::string base_;
};

TEST_F(QuantisedFolderTest, IsTrainedOnAsItIs) {
  const std::string folder = MustTrain(Run(""));
  const std::vector<double> want = Losses(folder);
  EXPECT_LT(want.back(), want.front() - 0.01);
  for (const RunText& other :
       {Run(kTwice), Run("").Ddp(2), Run("").Zero2(2), Run("").Fsdp(2)}) {
    SCOPED_TRACE(other.Text());
    ExpectNear(Losses(MustTrain(other)), want, 2e-5);
  }
  // What it was made of, quantised by us: bitsandbytes' scales differ in some
  // blocks.
  const std::string plain = Runfile("tests/golden/testdata/llama_qlora/base");
  EXPECT_NEAR(Losses(MustTrain(OnFolder(plain, Adapted(kTwice))))[0], want[0],
              5e-3);

  const std::string output = NewTestFolder("merged") + "/model";
  const std::string out = Merged(base_, folder, output);
  // bfloat16 rounds by up to 2^-9 of a number.
  EXPECT_GT(NumberAfter(out, "moved them by "), 1e-4);
  EXPECT_LT(NumberAfter(out, "moved them by "), 2e-3);
  EXPECT_FALSE(
      ReadJson(output + "/config.json").contains("quantization_config"));
  const nlohmann::json header =
      SafetensorsHeader(output + "/model.safetensors");
  for (const auto& [name, entry] : header.items()) {
    EXPECT_THAT(name, Not(HasSubstr("absmax")));
    EXPECT_THAT(name, Not(HasSubstr("quant_")));
    if (name == "__metadata__") continue;
    EXPECT_NE(entry["dtype"], "U8") << name;
  }
  EXPECT_NE(Greedy({"--model=" + output}), "");
  EXPECT_NE(Greedy({"--model=" + folder}), "");
}

// Without an adapter its matrices are the values that they stand for.
TEST_F(QuantisedFolderTest, IsAModelOfItsOwn) {
  EXPECT_NE(Greedy({"--model=" + base_}), "");
  const std::string folder =
      MustTrain(Run("").Set("adapter", "").Fsdp(2).Train("max_steps: 1"));
  EXPECT_NEAR(Losses(folder)[0],
              Losses(MustTrain(Run("").Train("max_steps: 1")))[0], 2e-5);
  EXPECT_FALSE(
      ReadJson(folder + "/final/config.json").contains("quantization_config"));
}

TEST_F(QuantisedFolderTest, KeepsItsFormat) {
  const RunText run = Run("quantize: NF4");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"run.pbtxt:", "adapter.lora.quantize", "NF4_DOUBLE already",
                  "leave quantize out"});
}

TEST_F(QuantisedFolderTest, ADamagedOneIsNamed) {
  std::string weights = ReadText(base_ + "/model.safetensors");
  const size_t at = weights.find("\"blocksize\":64");
  ASSERT_NE(at, std::string::npos);
  weights.replace(at, 14, "\"blocksize\":65");
  WriteText(base_ + "/model.safetensors", weights);
  ExpectOneError(RunTrainer({"check", "--config=" + Run("").File()}),
                 {"run.pbtxt:", "model.safetensors", "isn't in NF4"});
}

TEST(QloraMistakesTest, OneErrorEach) {
  const auto error = [](const std::string& adapter,
                        const std::vector<std::string>& words) {
    const RunText run = Adapted("").Set("adapter", adapter);
    ExpectOneError(RunTrainer({"check", "--config=" + run.File()}), words);
  };
  error("quantize: NF4", {"run.pbtxt:", "quantize"});
  error("lora { quantize: INT4 }", {"run.pbtxt:", "INT4", "quantize"});
  error("lora { quantize: 7 }", {"adapter.lora.quantize", "no such value: 7"});
  ExpectOneError(RunTrainer({"check", "--config=" + Adapted("").File(), "--set",
                             "adapter.lora.quantize=INT4"}),
                 {"INT4", "quantize"});
}

}  // namespace
}  // namespace capstan
