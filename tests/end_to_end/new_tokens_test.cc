// SPDX-License-Identifier: Apache-2.0
//
// ChatML on a base model that has never seen it: the tokenizer, the model and
// the adapter that come out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 2048;  // of the tokenizer and the base

std::string Tokenizer() {
  return Runfile("tests/golden/testdata/tokenizer_gemma");
}

// Text, read with that tokenizer or the model's own.
std::string CorpusIn(const std::string& tokenizer) {
  return absl::StrCat("[plugin/capstan.text.Config] { path: \"",
                      Runfile("tests/testdata/corpus.txt"),
                      "\" sequence_length: 32 ", tokenizer, " }");
}

// A model of `rows` rows and a tokenizer without ChatML.
std::string MakeBase(bool tied, int64_t rows = kRows) {
  const RunText run =
      RunText()
          .Set(
              "model",
              absl::StrCat("[plugin/capstan.llama.Config] { vocab_size: ", rows,
                           " hidden_size: 32 intermediate_size: 48 "
                           "num_hidden_layers: 2 num_attention_heads: 4 "
                           "max_position_embeddings: 128 tie_word_embeddings: ",
                           tied ? "true" : "false", " }"))
          .Set("train_data", CorpusIn(absl::StrCat("tokenizer { folder: \"",
                                                   Tokenizer(), "\" }")))
          .Train("max_steps: 1");
  return MustTrain(run) + "/final";
}

std::string Base(bool tied) {
  static const std::string folders[] = {MakeBase(false), MakeBase(true)};
  return folders[tied ? 1 : 0];
}

std::string Chats() {
  std::string rows;
  for (int i = 0; i < 16; ++i) {
    absl::StrAppend(
        &rows, "{\"messages\": [{\"role\": \"user\", \"content\": \"Count ", i,
        "\"}, {\"role\": \"assistant\", \"content\": \"Yes ", i * i, "\"}]}\n");
  }
  return WriteText(NewTestFolder("chats") + "/chats.jsonl", rows);
}

// The config says nothing of ChatML.
RunText ChatRun(const std::string& base) {
  static const auto* const chats = new std::string(Chats());
  RunText run;
  run.Set("model",
          absl::StrCat("[plugin/capstan.llama.Config] { pretrained: \"", base,
                       "\" }"))
      .Set("train_data", absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                                      *chats, "\" max_length: 64 }"))
      .Train("max_steps: 4 log_every: 1 save_every: 2");
  return run;
}

RunText LoraRun(const std::string& base) {
  return ChatRun(base).Set("adapter", "lora { rank: 4 }");
}

// With the one line that adds it.
TrainerResult RunWithChatMl(RunText* run, std::vector<std::string> words = {}) {
  if (run->output().empty()) run->Output(NewTestFolder("run") + "/out");
  words.insert(words.begin(),
               {"--config=" + run->File(), "--set", "chat_format=CHATML"});
  return RunTrainer(words);
}

std::string MustRun(RunText run) {
  const TrainerResult result = RunWithChatMl(&run);
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  return run.output();
}

std::vector<double> Losses(const std::string& folder) {
  return ReadMetrics(folder).losses();
}

void ExpectChatMl(const std::string& folder) {
  const auto config = ReadJson(folder + "/tokenizer_config.json");
  EXPECT_EQ(config["bos_token"], "<|im_start|>");
  EXPECT_EQ(config["eos_token"], "<|im_end|>");
  EXPECT_EQ(config["pad_token"], "<|im_end|>");
  EXPECT_THAT(ReadText(folder + "/chat_template.jinja"),
              HasSubstr("<|im_start|>"));
  const auto tokens = ReadJson(folder + "/tokenizer.json")["added_tokens"];
  const auto& last = tokens[tokens.size() - 1];
  EXPECT_EQ(last["content"], "<|im_end|>");
  EXPECT_EQ(last["id"], kRows + 1);
  EXPECT_EQ(last["special"], true);
}

std::vector<int64_t> ShapeOf(const std::string& file, const std::string& name) {
  const nlohmann::json header = SafetensorsHeader(file);
  if (!header.contains(name)) return {};
  return header[name]["shape"].get<std::vector<int64_t>>();
}

const std::vector<int64_t>& Grown() {
  static const auto* const shape = new std::vector<int64_t>{kRows + 2, 32};
  return *shape;
}

std::string Greedy(const std::vector<std::string>& where) {
  std::vector<std::string> args = {"generate", "--prompt_ids=2048,5,2049,7",
                                   "--max_new_tokens=12", "--greedy"};
  args.insert(args.end(), where.begin(), where.end());
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(NewTokensTest, AWholeModelIsTrainedAndSaved) {
  const std::string folder = MustRun(ChatRun(Base(false)));
  const std::string final = folder + "/final";
  ExpectChatMl(final);
  const auto config = ReadJson(final + "/config.json");
  EXPECT_EQ(config["vocab_size"], kRows + 2);
  EXPECT_EQ(config["bos_token_id"], kRows);
  EXPECT_EQ(config["eos_token_id"], kRows + 1);
  EXPECT_EQ(config["pad_token_id"], kRows + 1);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_EQ(ShapeOf(final + "/model.safetensors", name), Grown());
  }
  EXPECT_EQ(Greedy({"--model=" + final}),
            Greedy({"--model=" + folder + "/checkpoints/step-00000004"}));
  // New rows are the same wherever they lie.
  const std::vector<double> want = Losses(folder);
  ASSERT_EQ(want.size(), 4u);
  for (const RunText& other : {ChatRun(Base(false)).Ddp(2).Batch(2, 8),
                               ChatRun(Base(false)).Fsdp(2).Batch(2, 8)}) {
    const std::vector<double> got = Losses(MustRun(other));
    ASSERT_EQ(got.size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], want[i], 2e-5);
  }
}

TEST(NewTokensTest, ResumesAsTheRunThatItWas) {
  const std::string straight = MustRun(LoraRun(Base(true)).Ddp(2));
  RunText half = LoraRun(Base(true)).Ddp(2).Train("max_steps: 2");
  const std::string folder = MustRun(half);
  half.Train("max_steps: 4 resume: AUTO").Output(folder);
  // With other tokens it would be another run.
  ExpectOneError(RunWithChatMl(&half, {"--set", "add_tokens=[\"<step>\"]"}),
                 {"made by another model", "[2050, 32]", "[2051, 32]"});
  ASSERT_EQ(RunWithChatMl(&half).exit_code, 0);
  EXPECT_EQ(Losses(folder), Losses(straight));
  const std::string file = "/final/adapter_model.safetensors";
  EXPECT_EQ(ReadText(folder + file), ReadText(straight + file));
}

TEST(NewTokensTest, AnAdapterBringsItsEmbedding) {
  for (const bool tied : {false, true}) {
    RunText run = LoraRun(Base(tied));
    const TrainerResult trained = RunWithChatMl(&run);
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("grow from 2048 to 2050"));
    EXPECT_THAT(trained.out, HasSubstr("adapter.lora.modules_to_save"));
    const std::string final = run.output() + "/final";
    ExpectChatMl(final);
    for (const char* name : {"base_model.model.model.embed_tokens.weight",
                             "base_model.model.lm_head.weight"}) {
      EXPECT_EQ(ShapeOf(final + "/adapter_model.safetensors", name), Grown());
    }
    const auto config = ReadJson(final + "/adapter_config.json");
    EXPECT_EQ(config["modules_to_save"],
              tied ? nlohmann::json({"embed_tokens"})
                   : nlohmann::json({"embed_tokens", "lm_head"}));
    EXPECT_EQ(config.value("ensure_weight_tying", false), tied);
    const std::string text = Greedy({"--model=" + final});
    EXPECT_EQ(
        Greedy({"--model=" + run.output() + "/checkpoints/step-00000004"}),
        text);

    const std::string merged = NewTestFolder("merged") + "/model";
    const TrainerResult merge =
        RunTrainer({"merge", "--model=" + Base(tied), "--adapter=" + final,
                    "--output=" + merged});
    ASSERT_EQ(merge.exit_code, 0) << merge.err;
    ExpectChatMl(merged);
    EXPECT_EQ(ReadJson(merged + "/config.json")["vocab_size"], kRows + 2);
    EXPECT_EQ(ReadJson(merged + "/config.json")["eos_token_id"], kRows + 1);
    EXPECT_EQ(Greedy({"--model=" + merged}), text);

    // Goes on from the adapter with all that it brings.
    const std::string second =
        MustRun(LoraRun(Base(tied))
                    .Set("adapter",
                         absl::StrCat("lora { pretrained: \"", final, "\" }"))
                    .Train("max_steps: 1"));
    EXPECT_LT(Losses(second)[0], Losses(run.output())[0]);
    EXPECT_EQ(
        ReadJson(second + "/final/adapter_config.json")["modules_to_save"],
        config["modules_to_save"]);
  }
}

TEST(NewTokensTest, SpareRowsAreUsed) {
  RunText run = ChatRun(MakeBase(true, kRows + 16));
  const TrainerResult trained = RunWithChatMl(&run);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("2064 rows have room for that"));
  EXPECT_EQ(ReadJson(run.output() + "/final/config.json")["vocab_size"],
            kRows + 16);
  // With other tokens, which the model has room for, it isn't the same run.
  run.Train("max_steps: 6 resume: AUTO");
  ExpectOneError(RunWithChatMl(&run, {"--set", "add_tokens=[\"<step>\"]"}),
                 {"isn't this one", "tokenizer"});
}

TEST(NewTokensTest, ReadersThatNameTheBasesTokenizerGetThem) {
  RunText run = ChatRun(Base(true));
  run.Output(NewTestFolder("run") + "/out");
  const TrainerResult shown = RunTrainer(
      {"data", "--config=" + run.File(), "--set", "chat_format=CHATML", "--set",
       "train_data.tokenizer=" + Base(true), "--set",
       "add_tokens=[\"Count\"]"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("2048:<|im_start|>"));
  EXPECT_THAT(shown.out, HasSubstr("2050:Count"));
}

TEST(NewTokensTest, Mistakes) {
  const auto error = [](RunText run, const std::vector<std::string>& sets,
                        const std::vector<std::string>& words) {
    std::vector<std::string> command = {"check", "--config=" + run.File()};
    for (const std::string& set : sets) {
      command.insert(command.end(), {"--set", set});
    }
    ExpectOneError(RunTrainer(command), words);
  };
  error(ChatRun(Base(true)), {"chat_format=CHATML", "replace_tokenizer=true"},
        {"chat_format", "replace_tokenizer"});
  error(RunText(), {"add_tokens=[\"<x>\"]"},
        {"add_tokens", "the model brings none"});
  error(ChatRun(Base(true)), {"add_special_tokens=[\"\"]"},
        {"add_special_tokens", "empty token"});
  error(LoraRun(Base(true)), {"adapter.lora.modules_to_save=[\"nothing\"]"},
        {"adapter.lora.modules_to_save", "'nothing' is none of"});
  // An adapter without the tokens doesn't get them afterwards.
  const std::string plain = MustTrain(LoraRun(Base(true))
                                          .Set("train_data", CorpusIn(""))
                                          .Train("max_steps: 1"));
  error(ChatRun(Base(true))
            .Set("adapter",
                 absl::StrCat("lora { pretrained: \"", plain, "/final\" }")),
        {"chat_format=CHATML"}, {"adapter.lora.pretrained", "merge it"});
}

}  // namespace
}  // namespace capstan
