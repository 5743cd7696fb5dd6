// SPDX-License-Identifier: Apache-2.0
//
// A LLaDA is trained, writes and chats; what doesn't go together is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Llada(int vocab_size, int mask) {
  return absl::StrCat(
      "[plugin/capstan.llada.Config] { vocab_size: ", vocab_size,
      " d_model: 32 mlp_hidden_size: 88 n_layers: 2 n_heads: 4 "
      "max_sequence_length: 128 mask_token_id: ",
      mask, " }");
}

std::string Objective(const std::string& fields) {
  return absl::StrCat("[plugin/capstan.masked_diffusion.Config] { ", fields,
                      " }");
}

RunText BytesRun() {
  return RunText()
      .Set("model", Llada(257, 256))
      .Set("objective", Objective("max_new_tokens: 24 steps: 8"));
}

// Without a config, by what the folder's model says of itself; as the reference
// samples.
TEST(MaskedDiffusionTest, AFolderIsSampledAsTheReferenceDoes) {
  const std::string folder = Runfile("tests/golden/testdata/llada");
  const nlohmann::json golden = ReadJson(folder + "/golden.json");
  for (const nlohmann::json& run : golden["sampler"]) {
    const std::vector<int64_t> prompt = run["prompt"];
    const auto field = [&](const char* name, const char* key) {
      return absl::StrCat("--set=objective.", name, "=", run[key].dump());
    };
    const TrainerResult result =
        RunTrainer({"generate", "--model=" + folder,
                    "--prompt_ids=" + absl::StrJoin(prompt, ","),
                    "--max_new_tokens=" + run["gen_length"].dump(),
                    field("block_length", "block_length"),
                    field("steps", "steps"), field("cfg_scale", "cfg_scale")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(
        result.out,
        absl::StrJoin(run["output"].get<std::vector<int64_t>>(), ",") + "\n");
  }
}

TEST(MaskedDiffusionTest, ARunWritesWhileItTrainsAndAfterwards) {
  const std::string folder =
      MustTrain(BytesRun()
                    .Set("eval_data", TextData(CorpusPiece(600), 64))
                    .Train("eval_every: 3 sample_prompts: {prompt:\"ab\"} "
                           "sample_max_new_tokens: 16"));
  EXPECT_THAT(ReadText(folder + "/generations.jsonl"), HasSubstr("\"ab\""));
  const auto write = [&folder](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"generate", "--model=" + folder,
                                     "--prompt=ab", "--max_new_tokens=24"};
    args.insert(args.end(), more.begin(), more.end());
    return RunTrainer(args);
  };
  const TrainerResult first = write({});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  // The text alone where there is no terminal.
  EXPECT_THAT(first.out, StartsWith("ab"));
  EXPECT_THAT(first.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(write({}).out, first.out);
  for (const char* change :
       {"objective.steps=3", "objective.remasking=RANDOM",
        "objective.block_length=6", "objective.cfg_scale=0.5"}) {
    const TrainerResult other = write({"--temperature=1", "--set", change});
    EXPECT_EQ(other.exit_code, 0) << change << other.err;
    EXPECT_NE(other.out, first.out);
  }
  // What doesn't exist, or isn't for this sampler.
  ExpectOneError(write({"--top_k=3"}), {"top_k"});
  ExpectOneError(write({"--set", "objective.block_length=7"}),
                 {"block_length", "24"});
  ExpectOneError(write({"--set", "objective.stepz=7"}),
                 {"stepz", "did you mean \"steps\""});
}

// Conversations: prompts are labelled -100, rows are padded, or packed.
TEST(MaskedDiffusionTest, ChatsWithWhatItHasLearned) {
  for (const char* packing : {"NONE", "BEST_FIT"}) {
    const std::string folder = MustTrain(
        RunText()
            .Set("model", Llada(4100, 4099))
            .Set("objective", Objective("loss: SFT max_new_tokens: 8 steps: 4"))
            .Set("train_data",
                 absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                              Runfile("datasets/samples/chats.jsonl"),
                              "\" tokenizer: \"",
                              Runfile("datasets/samples/tokenizer"),
                              "\" chat_template: \"chatml\" max_length: 96 "
                              "loss_on: ASSISTANT packing: ",
                              packing, " }"))
            .Train("max_steps: 3"));
    EXPECT_THAT(ReadMetrics(folder).losses(), Each(testing::Gt(1.0)));
    const std::string input =
        WriteText(NewTestFolder("chat") + "/input", "Hello!\nAnd now?\n");
    TrainerOptions options;
    options.binary = "/bin/sh";
    const TrainerResult chat = RunTrainer(
        {"-c", absl::StrCat("exec '", Runfile("trainer/trainer"),
                            "' chat --model='", folder, "' < ", input)},
        options);
    EXPECT_EQ(chat.exit_code, 0) << chat.err;
    EXPECT_EQ(chat.err, "");
    EXPECT_FALSE(chat.out.empty());
  }
}

// What config.json's auto_map points to, and the licence.
TEST(MaskedDiffusionTest, AFoldersOwnCodeGoesAlong) {
  const std::string base =
      CopyFolder(Runfile("tests/golden/testdata/llada"), "own_code");
  nlohmann::json config = ReadJson(base + "/config.json");
  config["auto_map"] = {{"AutoConfig", "configuration_llada.LLaDAConfig"},
                        {"AutoModel", "modeling_llada.LLaDAModelLM"}};
  WriteText(base + "/config.json", config.dump());
  WriteText(base + "/configuration_llada.py", "import configuration");
  WriteText(base + "/modeling_llada.py", "import modeling");
  WriteText(base + "/LICENSE", "free");
  WriteText(base + "/optimizer.pt", "no");
  RunText run;
  run.Set("model", absl::StrCat("[plugin/capstan.llada.Config] { pretrained: "
                                "\"",
                                base, "\" }"))
      .Set("objective", Objective(""))
      .Train("max_steps: 1")
      .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string final = run.output() + "/final";
  EXPECT_EQ(ReadText(final + "/modeling_llada.py"), "import modeling");
  EXPECT_EQ(ReadText(final + "/configuration_llada.py"),
            "import configuration");
  EXPECT_EQ(ReadText(final + "/LICENSE"), "free");
  EXPECT_EQ(ReadJson(final + "/config.json")["auto_map"], config["auto_map"]);
  EXPECT_FALSE(fs::exists(final + "/optimizer.pt"));
  EXPECT_THAT(result.out,
              HasSubstr("also has LICENSE, configuration_llada.py, "));
  EXPECT_THAT(ReadText(final + "/README.md"),
              HasSubstr("AutoModel.from_pretrained(\".\", "
                        "trust_remote_code=True)"));
}

TEST(MaskedDiffusionTest, WhatDoesNotGoTogetherIsSaid) {
  const auto run = [](RunText text) {
    return RunTrainer({"check", "--config=" + text.File()});
  };
  ExpectOneError(
      run(BytesRun().Set("objective", "[plugin/capstan.causal_lm.Config] {}")),
      {"objective", "use capstan.masked_diffusion"});
  ExpectOneError(run(RunText().Set("objective", Objective(""))),
                 {"objective", "use capstan.causal_lm"});
  ExpectOneError(
      run(BytesRun().Set("objective", Objective("mask_token_id: 126336"))),
      {"mask_token_id", "126336", "vocab_size is 257"});
  ExpectOneError(
      run(BytesRun().Set("objective", Objective("mask_token_id: 97"))),
      {"mask_token_id", "97", "\"a\""});
  ExpectOneError(run(BytesRun().Set("objective", Objective("block_length: 7"))),
                 {"block_length", "128"});
}

}  // namespace
}  // namespace capstan
