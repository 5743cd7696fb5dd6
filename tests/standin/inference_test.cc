// SPDX-License-Identifier: Apache-2.0
//
// generate and eval on stand-in CUDA devices: what the CPU says, and what the
// host asks of the device for each token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/standin/standin_run.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Golden(const std::string& name) {
  return Runfile("tests/golden/testdata/" + name);
}

std::vector<std::string> Greedy(const std::string& model, int tokens,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"generate", "--model=" + Golden(model),
                                   "--prompt_ids=5,9,2,14,3", "--greedy",
                                   absl::StrCat("--max_new_tokens=", tokens)};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void ExpectAsOnCpu(const std::vector<std::string>& args) {
  SCOPED_TRACE(absl::StrJoin(args, " "));
  const StandinRun cpu = RunOn(0, args), gpu = RunOn(1, args);
  ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
  ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
  EXPECT_EQ(gpu.result.out, cpu.result.out);
  EXPECT_THAT(gpu.findings, IsEmpty());
  EXPECT_THAT(gpu.report, ::testing::Not(IsEmpty())) << "it ran on the CPU";
}

TEST(StandinInferenceTest, WritesWhatTheCpuWrites) {
  for (const char* model : {"llama", "gemma3", "qwen3", "qwen3_moe"}) {
    ExpectAsOnCpu(Greedy(model, 20));
  }
}

TEST(StandinInferenceTest, Adapters) {
  ExpectAsOnCpu(Greedy("llama", 12, {"--adapter=" + Golden("llama_lora")}));
  ExpectAsOnCpu(Greedy("llama", 12, {"--adapter=" + Golden("llama_dora")}));
}

// Several at a time: of one prompt, by beams, of a file's prompts.
TEST(StandinInferenceTest, SeveralTexts) {
  const std::string model =
      MustTrain(RunText().Train("max_steps: 2")) + "/final";
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--sequences=3", "--seed=7"},
        {"--beams=3", "--sequences=2"}}) {
    std::vector<std::string> args = {"generate", "--model=" + model,
                                     "--prompt=To be", "--max_new_tokens=10"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectAsOnCpu(args);
  }
  const std::string prompts = WriteText(NewTestFolder("prompts") + "/p.txt",
                                        "To be\nMy lord, the king\nNo\n");
  std::vector<std::string> texts;
  for (const int gpus : {0, 1}) {
    const std::string output =
        absl::StrCat(NewTestFolder("texts"), "/", gpus, ".jsonl");
    const StandinRun run =
        RunOn(gpus, {"generate", "--model=" + model, "--input=" + prompts,
                     "--output=" + output, "--batch_size=2", "--greedy",
                     "--max_new_tokens=12"});
    ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
    EXPECT_THAT(run.findings, IsEmpty());
    texts.push_back(ReadText(output));
  }
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(StandinInferenceTest, AGpuThatFailsIsAnError) {
  ExpectOneError(RunOn(1, Greedy("llama", 30), "fault=launch:150").result,
                 {"the GPU has failed", "unspecified launch failure"});
}

TEST(StandinInferenceTest, MaskedDiffusion) {
  ExpectAsOnCpu({"generate", "--model=" + Golden("llada"), "--prompt_ids=5,9,2",
                 "--max_new_tokens=8", "--set", "objective.steps=8", "--set",
                 "objective.block_length=8"});
}

// The folder with its weights rounded to bfloat16.
std::string Rounded(const std::string& folder) {
  const std::string made = CopyFolder(folder, "rounded");
  const std::string path = made + "/model.safetensors";
  const std::string all = ReadText(path);
  uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof(length));
  nlohmann::json header =
      nlohmann::json::parse(all.substr(sizeof(length), length));
  const char* const data = all.data() + sizeof(length) + length;
  std::string halves;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = tensor["data_offsets"][0];
    const size_t end = tensor["data_offsets"][1];
    const size_t to = halves.size();
    for (size_t at = begin; at < end; at += sizeof(float)) {
      uint32_t bits = 0;
      std::memcpy(&bits, data + at, sizeof(bits));
      // To nearest, ties to even.
      const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
      halves.append(
          {static_cast<char>(rounded >> 16), static_cast<char>(rounded >> 24)});
    }
    tensor["dtype"] = "BF16";
    tensor["data_offsets"] = {to, halves.size()};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligned, as others write it
  length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  WriteText(path, bytes + text + halves);
  return made;
}

// What a folder has in 16 bits is computed in them, whatever is added to it: an
// adapter, a router.
TEST(StandinInferenceTest, AFoldersOwnDtype) {
  struct Case {
    const char* model;
    std::vector<std::string> more;
  };
  for (const Case& one :
       {Case{"llama", {}},
        Case{"llama", {"--other_base", "--adapter=" + Golden("llama_lora")}},
        Case{"qwen3_moe", {}}}) {
    SCOPED_TRACE(one.model);
    std::vector<std::string> own = Greedy(one.model, 16, one.more);
    own[1] = "--model=" + Rounded(Golden(one.model));
    std::vector<std::string> forced = Greedy(one.model, 16, one.more);
    forced.push_back("--weights=bfloat16");
    const StandinRun run = RunOn(1, own);
    EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
    EXPECT_EQ(run.result.out, RunOn(1, forced).result.out);
    EXPECT_THAT(run.findings, IsEmpty());
  }
}

TEST(StandinInferenceTest, InBfloat16) {
  const StandinRun run = RunOn(1, Greedy("llama", 12, {"--weights=bfloat16"}));
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(run.findings, IsEmpty());
  ExpectOneError(RunOn(1, Greedy("llama", 12, {"--weights=int8"})).result,
                 {"--weights", "int8 is computed with on CPUs alone"});
}

TEST(StandinInferenceTest, WeightsThatDoNotFitAreToldBefore) {
  ExpectOneError(
      RunOn(1, Greedy("gemma3", 12), "memory=8G,occupied=8191M").result,
      {"the model's weights take", "--weights=bfloat16"});
}

// Keys and values of a batch, before the first of its texts; of the largest
// batch, before the first of all.
TEST(StandinInferenceTest, CachesThatDoNotFitAreToldBefore) {
  const std::string folder = MustTrain(RunText().Train("max_steps: 1"));
  const std::string prompts = WriteText(
      NewTestFolder("prompts") + "/prompts.txt", "To be\nMy lord, the king\n");
  const auto write = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        "generate", "--model=" + folder, "--input=" + prompts,
        "--output=" + NewTestFolder("texts") + "/texts.jsonl",
        "--max_new_tokens=12"};
    args.insert(args.end(), more.begin(), more.end());
    return RunOn(1, args, "memory=8G,occupied=8000M");
  };
  ExpectOneError(write({"--sequences=100000", "--batch_size=100000"}).result,
                 {"the keys and values of 100000 texts of 29 tokens, ",
                  " bytes a token, take ", "--batch_size", "--max_new_tokens"});
  const StandinRun fits = write({"--batch_size=2"});
  EXPECT_EQ(fits.result.exit_code, 0) << fits.result.err;
  EXPECT_THAT(fits.findings, IsEmpty());
}

// Of a text that may take all of a model's positions, the cache grows.
TEST(StandinInferenceTest, ALongPrompt) {
  const std::string folder = CopyFolder(Golden("llama"), "long");
  nlohmann::json config = ReadJson(folder + "/config.json");
  config["max_position_embeddings"] = 2100;
  WriteText(folder + "/config.json", config.dump());
  std::vector<std::string> ids;
  for (int i = 0; i < 2090; ++i) ids.push_back(std::to_string(2 + i % 50));
  ExpectAsOnCpu({"generate", "--model=" + folder,
                 "--prompt_ids=" + absl::StrJoin(ids, ","), "--greedy",
                 "--max_new_tokens=10"});
}

struct Asked {
  int waits = 0;     // of the host for the device
  int launches = 0;  // of kernels, up to the last wait of the trace: a process
                     // that ends leaves what comes after to chance
  int traced_waits = 0;
};

Asked AskedBy(const std::string& model, int tokens) {
  const std::string trace = NewTestFolder("trace");
  const StandinRun run = RunOn(1, Greedy(model, tokens), "trace=" + trace);
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  Asked asked;
  for (const nlohmann::json& line : run.report) {
    asked.waits += line.contains("wait") ? 1 : 0;
  }
  for (const auto& entry : std::filesystem::directory_iterator(trace)) {
    std::ifstream file(entry.path());
    int since_wait = 0;
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json one = nlohmann::json::parse(line);
      if (one.contains("work")) since_wait += one.value("launches", 0);
      if (one.contains("host_wait")) {
        asked.launches += std::exchange(since_wait, 0);
        ++asked.traced_waits;
      }
    }
  }
  return asked;
}

// The host waits for a token's logits, and for nothing else.
TEST(StandinInferenceTest, WaitsAndLaunchesOfAToken) {
  constexpr int kFew = 4, kMany = 24;
  struct Case {
    const char* model;
    int launches;  // a token's, at most
  };
  for (const Case& one : {Case{"llama", 72}, Case{"gemma3", 213}}) {
    SCOPED_TRACE(one.model);
    const Asked few = AskedBy(one.model, kFew);
    const Asked many = AskedBy(one.model, kMany);
    EXPECT_EQ(many.waits - few.waits, kMany - kFew);
    const double launches =
        (many.launches - few.launches) /
        static_cast<double>(many.traced_waits - few.traced_waits);
    EXPECT_LE(launches, one.launches);
    RecordProperty(absl::StrCat(one.model, "_launches"),
                   static_cast<int>(launches));
    EXPECT_GT(launches, 1) << "they aren't counted";
  }
}

// A step of masked diffusion: for the tokens that it chooses.
TEST(StandinInferenceTest, WaitsOfADiffusionStep) {
  const auto waits = [](int steps) {
    const StandinRun run =
        RunOn(1, {"generate", "--model=" + Golden("llada"),
                  "--prompt_ids=5,9,2", "--max_new_tokens=16", "--set",
                  absl::StrCat("objective.steps=", steps), "--set",
                  "objective.block_length=16"});
    EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
    int count = 0;
    for (const nlohmann::json& line : run.report) {
      count += line.contains("wait") ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(waits(16) - waits(4), 12);
}

nlohmann::json Eval(int gpus, const std::string& folder,
                    const std::vector<std::string>& more) {
  std::vector<std::string> args = {"eval", "--model=" + folder, "--json"};
  args.insert(args.end(), more.begin(), more.end());
  const StandinRun run = RunOn(gpus, args);
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(run.findings, IsEmpty());
  return nlohmann::json::parse(run.result.out, nullptr,
                               /*allow_exceptions=*/false);
}

TEST(StandinInferenceTest, EvaluatesOnEachGpu) {
  const std::string folder =
      MustTrain(RunText()
                    .Set("train_data", TextData(CorpusPiece(8 << 10), 32,
                                                "validation_fraction: 0.25"))
                    .Train("max_steps: 2"));
  const nlohmann::json cpu = Eval(0, folder, {});
  EXPECT_EQ(cpu["arithmetic"], "float32 on CPUs");
  for (const int gpus : {1, 2}) {
    const nlohmann::json gpu = Eval(gpus, folder, {});
    EXPECT_EQ(gpu["arithmetic"], "float32 on GPUs");
    EXPECT_NEAR(gpu["eval_loss"], cpu["eval_loss"], 1e-5);
    EXPECT_EQ(gpu["eval_accuracy"], cpu["eval_accuracy"]);
    EXPECT_EQ(gpu["targets"], cpu["targets"]);
  }
  const nlohmann::json half =
      Eval(2, Rounded(folder + "/final"), {"--data=" + CorpusPiece(40 * 32)});
  EXPECT_EQ(half["arithmetic"], "bfloat16 on GPUs");
  EXPECT_NEAR(half["eval_loss"], cpu["eval_loss"], 0.1);
}

// A task's answers are scored, and others written, several at a time.
TEST(StandinInferenceTest, Tasks) {
  const std::string folder = MustTrain(RunText().Train("max_steps: 2"));
  const std::string rows = WriteText(
      NewTestFolder("task") + "/rows.jsonl",
      "{\"q\": \"To be\", \"c\": [\" or not\", \" and be\"], \"a\": 0}\n"
      "{\"q\": \"My lord, the\", \"c\": [\" king\", \" of\"], \"a\": 1}\n");
  const std::string choices = WriteText(
      NewTestFolder("task") + "/choices.yaml",
      absl::StrCat("task: choices\noutput_type: multiple_choice\n"
                   "dataset_path: json\ndataset_kwargs: {data_files: ",
                   rows,
                   "}\ntest_split: train\ndoc_to_text: \"{{q}}\"\n"
                   "doc_to_choice: \"{{c}}\"\ndoc_to_target: \"{{a}}\"\n"));
  const std::string written = WriteText(
      NewTestFolder("task") + "/written.yaml",
      absl::StrCat("task: written\noutput_type: generate_until\n"
                   "dataset_path: json\ndataset_kwargs: {data_files: ",
                   rows,
                   "}\ntest_split: train\ndoc_to_text: \"{{q}}\"\n"
                   "doc_to_target: \"{{c[0]}}\"\n"
                   "generation_kwargs: {max_gen_toks: 8, do_sample: false}\n"
                   "metric_list: [{metric: exact_match}]\n"));
  const std::vector<std::string> tasks = {"--task=" + choices,
                                          "--task=" + written};
  EXPECT_EQ(Eval(1, folder, tasks)["tasks"], Eval(0, folder, tasks)["tasks"]);
}

}  // namespace
}  // namespace capstan
