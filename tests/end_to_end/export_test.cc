// SPDX-License-Identifier: Apache-2.0
//
// What a run has trained, as other programs read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A run's folder.
const std::string& Trained() {
  static const auto* const folder = new std::string(MustTrain(RunText()));
  return *folder;
}

const std::string& TrainedAdapter() {
  static const auto* const folder = new std::string(MustTrain(
      RunText::Golden()
          .Set("adapter", "lora { rank: 4 target_modules: \"all-linear\" }")
          .Set("optimizer",
               "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
          .Train("max_steps: 4")));
  return *folder;
}

std::string NewOutput() {
  static int count = 0;
  return NewTestFolder(absl::StrCat("export", count++)) + "/it";
}

// Python is left out: what it has differs from machine to machine.
TrainerResult Export(const std::string& model, const std::string& output,
                     std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"export", model, "--output=" + output});
  TrainerOptions options;
  options.environment = {{"PATH", "/nowhere"}};
  return RunTrainer(flags, options);
}

void ExpectNothingAt(const std::string& output) {
  EXPECT_TRUE(fs::is_empty(fs::path(output).parent_path())) << output;
}

TEST(ExportTest, AFolderHasTheSameLogits) {
  const std::string output = NewOutput();
  const TrainerResult result = Export(Trained(), output, {});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("tokens equal"));
  EXPECT_EQ(ReadText(output + "/model.safetensors"),
            ReadText(Trained() + "/final/model.safetensors"));
  EXPECT_TRUE(fs::exists(output + "/tokenizer.json"));
}

TEST(ExportTest, AnAdapterIsMergedOrStaysApart) {
  const std::string whole = NewOutput(), apart = NewOutput();
  const TrainerResult merged = Export(TrainedAdapter(), whole, {});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_TRUE(fs::exists(whole + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(whole + "/adapter_config.json"));
  const TrainerResult kept =
      Export(TrainedAdapter(), apart, {"--format=adapter"});
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("tokens equal"));
  EXPECT_TRUE(fs::exists(apart + "/adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(apart + "/model.safetensors"));
}

TEST(ExportTest, AGgufFileIsReadAgain) {
  for (const std::string type :
       {"F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0"}) {
    const std::string output = NewOutput();
    const TrainerResult result =
        Export(Trained(), output, {"--format=gguf", "--type=" + type});
    ASSERT_EQ(result.exit_code, 0) << type << result.err;
    EXPECT_THAT(result.out,
                AllOf(ContainsRegex("divergence +[0-9.e+-]+ nats a token"),
                      HasSubstr("llama_cpp isn't importable")))
        << type;
    if (type == "F32") {
      EXPECT_THAT(result.out,
                  AllOf(HasSubstr("all values equal"),
                        ContainsRegex("divergence +0.00e\\+00 nats")));
    }
    EXPECT_EQ(ReadText(output + "/model.gguf").substr(0, 4), "GGUF");
    EXPECT_EQ(ReadText(output + "/Modelfile"), "FROM ./model.gguf\n");
  }
}

TEST(ExportTest, TellsProgramsTheFacts) {
  const std::string output = NewOutput();
  const TrainerResult result =
      Export(Trained(), output, {"--format=gguf", "--type=Q8_0", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto facts = nlohmann::json::parse(result.out);
  EXPECT_EQ(facts["type"], "Q8_0");
  EXPECT_EQ(facts["files"]["model.gguf"],
            fs::file_size(output + "/model.gguf"));
  EXPECT_EQ(facts["bytes"], fs::file_size(output + "/model.gguf") +
                                fs::file_size(output + "/Modelfile"));
  EXPECT_GT(facts["tensors"]["Q8_0"], 0);
  EXPECT_EQ(facts["read_again"]["compared"], true);
  EXPECT_GT(facts["divergence"]["kl"], 0.0);
  EXPECT_EQ(facts["llama.cpp"]["compared"], false);
}

TEST(ExportTest, SaysWhatAFolderIsInPlaceOfAModel) {
  const std::string output = NewOutput();
  const auto checkpoint = [](const std::string& run) {
    return fs::directory_iterator(run + "/checkpoints")->path().string();
  };
  const std::string adapter = checkpoint(TrainedAdapter());
  ExpectOneError(
      Export(checkpoint(Trained()), output, {}),
      {"is a checkpoint", "name the run, " + Trained(), "[model/checkpoint]"});
  ExpectOneError(Export(Trained(), output, {"--adapter=" + adapter}),
                 {adapter, "name the run, " + TrainedAdapter()});
  ExpectOneError(
      Export(TrainedAdapter(), output, {"--adapter=" + TrainedAdapter()}),
      {TrainedAdapter() + " is an adapter itself", "leave --adapter out"});
  ExpectNothingAt(output);
}

// Of the folder that is to appear, not of the one that is gone by then.
TEST(ExportTest, TheSystemsErrorIsTold) {
  const std::string output = NewOutput();
  TrainerOptions options;
  options.limits[RLIMIT_FSIZE] = 1000;  // as a full disk, but for its name
  const auto expect = [&](const std::string& model, const std::string& format) {
    ExpectOneError(RunTrainer({"export", model, "--output=" + output,
                               "--format=" + format},
                              options),
                   {": " + output + "/", " can't be written: File too large"});
    ExpectNothingAt(output);
  };
  expect(Trained(), "hf");
  expect(TrainedAdapter(), "adapter");
}

TEST(ExportTest, AnAdapterBecomesOneFile) {
  const std::string output = NewOutput();
  const TrainerResult result =
      Export(TrainedAdapter(), output, {"--format=gguf", "--type=F32"});
  // The golden model has no tokenizer of its own; the run's is the adapter's.
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("all values equal"));
}

TEST(ExportTest, LeavesNothingWhereItCant) {
  const std::string golden = "tests/golden/testdata/";
  const std::string output = NewOutput();
  ExpectOneError(Export(Runfile(golden + "llama"), output, {"--format=gguf"}),
                 {"has no tokenizer", "[export/tokenizer]"});
  // Its scores are scaled by 24 ^ -0.5, with heads of 32.
  const std::string gemma = CopyFolder(Runfile(golden + "gemma3"), "gemma3");
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"}) {
    WriteText(gemma + "/" + name, ReadText(Trained() + "/final/" + name));
  }
  ExpectOneError(Export(gemma, output, {"--format=gguf"}),
                 {"query_pre_attn_scalar 24", "[export/architecture]"});
  ExpectNothingAt(output);
}

// Rope's factors are tensors, which this architecture has no place for.
TEST(ExportTest, RefusesRopeThatLlamaCppDoesNotRead) {
  const std::string qwen =
      CopyFolder(Runfile("tests/golden/testdata/qwen3"), "qwen3");
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"}) {
    WriteText(qwen + "/" + name, ReadText(Trained() + "/final/" + name));
  }
  nlohmann::json config =
      nlohmann::json::parse(ReadText(qwen + "/config.json"));
  config["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 10000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  WriteText(qwen + "/config.json", config.dump());
  const std::string output = NewOutput();
  ExpectOneError(Export(qwen, output, {"--format=gguf"}),
                 {"rope of type \"llama3\" of a \"qwen3\""});
  ExpectNothingAt(output);
}

TEST(ExportTest, TellsWhatItDoesNotCopy) {
  const std::string folder = CopyFolder(Trained() + "/final", "more_files");
  WriteText(folder + "/pytorch_model.bin", "x");
  fs::create_directories(folder + "/onnx");
  fs::create_directories(folder + "/additional_chat_templates");
  WriteText(folder + "/additional_chat_templates/rag.jinja", "x");
  const std::string output = NewOutput();
  const TrainerResult result = Export(folder, output, {});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("not copied: onnx, pytorch_model.bin"));
  EXPECT_TRUE(fs::exists(output + "/additional_chat_templates/rag.jinja"));
  EXPECT_FALSE(fs::exists(output + "/pytorch_model.bin"));
}

TEST(ExportTest, RefusesFlagsThatDoNothing) {
  const std::string output = NewOutput();
  ExpectOneError(Export(Trained(), output, {"--type=F16"}),
                 {"--type", "--format=gguf", "[command/flag]"});
  ExpectOneError(Export(Trained(), output, {"--format=adapter"}),
                 {"no adapter"});
  ExpectOneError(
      Export(Trained(), output, {"--format=gguf", "--text=/not/there"}),
      {"/not/there"});
  const std::string empty = NewTestFolder("no_text") + "/empty.txt";
  WriteText(empty, "");
  ExpectOneError(
      Export(Trained(), output, {"--format=gguf", "--text=" + empty}),
      {"--text", "empty.txt is empty", "leave --text out"});
  ExpectNothingAt(output);
}

TEST(ExportTest, ReplacesNothing) {
  const std::string output = NewOutput();
  fs::create_directories(output);
  WriteText(output + "/mine", "mine");
  ExpectOneError(Export(Trained(), output, {"--format=gguf"}),
                 {"is there already"});
  EXPECT_EQ(Snapshot(output).size(), 1);
}

}  // namespace
}  // namespace capstan
