// SPDX-License-Identifier: Apache-2.0
//
// A run goes on as the run that it was: what it reads and what its loss depends
// on is as before, or named in train.resume_with_changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLlama[] =
    "vocab_size: 256 hidden_size: 32 intermediate_size: 88 "
    "num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 "
    "max_position_embeddings: 128 ";

std::string Plugin(const std::string& package, const std::string& fields) {
  return absl::StrCat("[plugin/capstan.", package, ".Config] { ", fields, " }");
}

// Conversations by the byte: with a tokenizer of the golden files.
std::string ChatData(const std::string& path, const std::string& tokenizer) {
  return Plugin("chat", absl::StrCat("path: \"", path, "\" tokenizer: \"",
                                     tokenizer, "\" max_length: 48"));
}

std::string Rows(const std::vector<std::string>& texts) {
  std::string rows;
  for (const std::string& text : texts) {
    absl::StrAppend(&rows, "{\"text\": \"", text, "\"}\n");
  }
  return rows;
}

// A run of two steps in a folder, with data and a model of its own, that is
// then changed.
struct Changing {
  RunText run;
  std::string data;   // a text
  std::string model;  // a Hugging Face folder
};

struct Change {
  std::string name;
  std::function<void(Changing*)> make;
  std::string refused;  // the name in the error
};

void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }

void SetKey(const std::string& path, const std::string& key,
            const nlohmann::json& value) {
  nlohmann::json json = ReadJson(path);
  json[key] = value;
  WriteText(path, json.dump());
}

std::vector<Change> Changes() {
  return {
      {"Data",
       [](Changing* c) {
         std::string text = ReadText(c->data);
         text[text.size() / 2] ^= 1;
         WriteText(c->data, text);
       },
       "train_data"},
      {"RopeTheta",
       [](Changing* c) {
         SetKey(c->model + "/config.json", "rope_theta", 20000.0);
       },
       "model.rope_theta"},
      {"RmsNormEps",
       [](Changing* c) {
         SetKey(c->model + "/config.json", "rms_norm_eps", 0.125);
       },
       "model.rms_norm_eps"},
      {"LearningRate",
       [](Changing* c) {
         c->run.Set("optimizer", Plugin("adamw", "learning_rate: 9e-3"));
       },
       "optimizer.learning_rate"},
      {"Precision", [](Changing* c) { c->run.Precision("bf16"); }, "precision"},
      {"Schedule",
       [](Changing* c) { c->run.Set("schedule", "warmup_steps: 2"); },
       "schedule"},
      {"Clipping", [](Changing* c) { c->run.Train("max_grad_norm: 0.5"); },
       "train.max_grad_norm"},
      {"Seed", [](Changing* c) { c->run.Train("seed: 7"); }, "train.seed"},
  };
}

class ChangedRunTest : public ::testing::TestWithParam<Change> {};

TEST_P(ChangedRunTest, IsRefusedUnlessTheChangeIsNamed) {
  Changing changing;
  changing.data = CorpusPiece(40 * 32);
  changing.model = CopyFolder(Runfile("tests/golden/testdata/llama"), "model");
  changing.run =
      RunText()
          .Set("train_data", TextData(changing.data, 32))
          .Set("model", Plugin("llama", absl::StrCat("pretrained: \"",
                                                     changing.model, "\"")))
          .Set("optimizer", Plugin("adamw", "learning_rate: 3e-3"))
          .Train("max_steps: 2");
  const std::string folder = MustTrain(changing.run);
  changing.run.Output(folder).Train("resume: AUTO max_steps: 3");
  GetParam().make(&changing);
  const auto before = Snapshot(folder);
  ExpectOneError(RunTrainer({"--config=" + changing.run.File()}),
                 {GetParam().refused});
  EXPECT_EQ(Snapshot(folder), before);
  // By a name above it, too.
  const std::string& name = GetParam().refused;
  changing.run.Train(
      absl::StrCat("resume_with_changes: [\"objective\", \"", name, "\"]"));
  const TrainerResult result = RunTrainer({"--config=" + changing.run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("goes on with another " + name + ": "));
  EXPECT_EQ(ReadMetrics(folder).steps.size(), 3);
}

INSTANTIATE_TEST_SUITE_P(All, ChangedRunTest, ::testing::ValuesIn(Changes()),
                         [](const auto& info) { return info.param.name; });

// What a position counts on is told in the same words.
TEST(SameRunTest, TextThatHasGrownIsRefusedUnlessItIsNamed) {
  const std::string data = CorpusPiece(40 * 32);
  RunText run = RunText().Set("train_data", TextData(data, 32));
  const std::string folder = MustTrain(run.Train("max_steps: 2"));
  WriteText(data, ReadText(data) + std::string(64, 'a'));
  run.Output(folder).Train("resume: AUTO max_steps: 3");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"train_data", " samples, ",
                  "train.resume_with_changes: [\"train_data\"]"});
  run.Train("resume_with_changes: \"train_data\"");
  EXPECT_EQ(RunTrainer({"--config=" + run.File()}).exit_code, 0);
}

// `ls` says what the checkpoints were trained on, and where that changed.
TEST(SameRunTest, LsSaysWhatItReadAndSinceWhen) {
  const std::string data = CorpusPiece(40 * 32);
  const auto run = [](const std::string& text) {
    return RunText().Set("train_data", TextData(text, 32));
  };
  const std::string folder =
      MustTrain(run(data).Train("max_steps: 2 save_every: 1"));
  const auto list = [&folder] {
    const TrainerResult listed = RunTrainer({"ls", folder});
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
    return listed.out;
  };
  const std::string one = list();
  EXPECT_THAT(
      one, ContainsRegex("\nstep-00000001:\n"
                         "  train_data +capstan.text, .*crc32c [0-9a-f]{8}"));
  EXPECT_THAT(one,
              ContainsRegex("\n  tokenizer +[0-9]+ bytes, crc32c [0-9a-f]{8}"));
  EXPECT_THAT(one, ContainsRegex("\n  model +capstan.llama\n"));
  EXPECT_THAT(one, Not(HasSubstr("step-00000002:"))) << "the same";
  WriteText(data, "?" + ReadText(data).substr(1));
  MustTrain(run(data)
                .Train("max_steps: 3 resume: AUTO keep_checkpoints: 3 "
                       "resume_with_changes: \"train_data\"")
                .Output(folder));
  EXPECT_THAT(list(), AllOf(HasSubstr("\nstep-00000003, changed:\n"),
                            HasSubstr("train_data")));
}

// Data and model may lie elsewhere, and what changes nothing may change.
TEST(SameRunTest, GoesOnWithoutAWordWhereverItsFilesAre) {
  const std::string data = CorpusPiece(40 * 32);
  const std::string golden = Runfile("tests/golden/testdata/llama");
  const auto run = [&](const std::string& text, const std::string& model) {
    return RunText()
        .Set("train_data", TextData(text, 32))
        .Set("model",
             Plugin("llama", absl::StrCat("pretrained: \"", model, "\"")));
  };
  const std::string folder = MustTrain(run(data, golden).Train("max_steps: 2"));
  const std::string moved =
      WriteText(NewTestFolder("moved") + "/other_name.txt", ReadText(data));
  const TrainerResult result = RunTrainer(
      {"--config=" +
       run(moved, CopyFolder(golden, "model"))
           .Ddp(2)
           .Batch(2, 8)
           .Set("objective", Plugin("causal_lm", "max_new_tokens: 3"))
           .Train("resume: AUTO max_steps: 4 save_every: 1 "
                  "log_every: 1 deterministic: true")
           .Output(folder)
           .File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("another")));
  EXPECT_EQ(ReadMetrics(folder).steps.size(), 4);
}

TEST(SameRunTest, DefaultsMayBeWrittenOut) {
  const auto run = [](const std::string& fields) {
    return RunText().Set("optimizer",
                         Plugin("adamw", "learning_rate: 1e-3 " + fields));
  };
  const std::string folder =
      MustTrain(run("weight_decay: 0.01").Train("max_steps: 1"));
  const auto resume = [&](const std::string& fields, int steps) {
    return RunTrainer({"--config=" + run(fields)
                                         .Train(absl::StrCat(
                                             "resume: AUTO max_steps: ", steps))
                                         .Output(folder)
                                         .File()});
  };
  for (const char* fields : {"", "beta1: 0.9 beta2: 0.999 epsilon: 1e-8"}) {
    const TrainerResult result = resume(fields, *fields == 0 ? 2 : 3);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("another optimizer")));
  }
  ExpectOneError(resume("beta1: 0.8", 4), {"optimizer.beta1: 0.9 -> 0.8"});
}

// Of whatever slot and type; where it isn't the default, that is told.
TEST(SameRunTest, OfReadersToo) {
  const std::string data = WriteText(NewTestFolder("rows") + "/rows.jsonl",
                                     Rows({"one", "two", "three", "four"}));
  const auto run = [&](const std::string& fields, int steps) {
    return RunText()
        .Set("model",
             Plugin("llama",
                    absl::StrReplaceAll(
                        kLlama, {{"vocab_size: 256 ", "vocab_size: 4200 "},
                                 {"embeddings: 128", "embeddings: 1024"}})))
        .Set("train_data",
             Plugin(
                 "chat",
                 absl::StrCat("path: \"", data, "\" tokenizer: \"",
                              Runfile("tests/golden/testdata/tokenizer_smollm"),
                              "\" ", fields)))
        .Train(absl::StrCat("resume: AUTO max_steps: ", steps));
  };
  const std::string folder = MustTrain(run("", 1));
  const auto resume = [&](RunText text) {
    return RunTrainer({"--config=" + text.Output(folder).File()});
  };
  const TrainerResult same =
      resume(run("loss_on: BY_KIND packing: NONE bad_rows: ERROR", 2)
                 .Train("tf32: false"));
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, Not(HasSubstr("another train_data")));
  ExpectOneError(
      resume(run("max_length: 1024 loss_on: ALL", 3)
                 .Train("tf32: true "
                        "resume_with_changes: \"train.dta\"")),
      {"train.tf32: false -> true", "train_data.loss_on: BY_KIND -> ALL",
       // What is meant without it is the model's.
       "train_data.max_length: 0 -> 1024",
       "\"train.dta\" is nothing that a resumed run compares",
       "did you mean \"train_data\"?"});
}

TEST(SameRunTest, ACheckpointOfAnotherRunIsRefused) {
  const auto run = [](const std::string& rate) {
    return RunText()
        .Set("optimizer", Plugin("adamw", "learning_rate: " + rate))
        .Train("max_steps: 2");
  };
  const std::string folder = MustTrain(run("1e-3"));
  const std::string other = MustTrain(run("2e-3"));
  const std::string step = "/checkpoints/step-00000002";
  fs::remove_all(folder + step);
  fs::copy(other + step, folder + step, fs::copy_options::recursive);
  ExpectOneError(
      RunTrainer({"--config=" + run("1e-3")
                                    .Train("resume: AUTO max_steps: 3")
                                    .Output(folder)
                                    .File()}),
      {folder + step, "optimizer.learning_rate: 0.002 -> 0.001"});
}

TEST(SameRunTest, RowsInAnotherOrderAndAnotherTokenizerAreNoticed) {
  std::vector<std::string> texts;
  for (int i = 0; i < 24; ++i) {
    texts.push_back(absl::StrCat("row number ", i, " of a few"));
  }
  const std::string rows =
      WriteText(NewTestFolder("rows") + "/rows.jsonl", Rows(texts));
  const std::string tokenizer = CopyFolder(
      Runfile("tests/golden/testdata/tokenizer_smollm"), "tokenizer");
  const auto run = [&](const std::string& path, int steps) {
    return RunText()
        .Set("model",
             Plugin("llama",
                    absl::StrReplaceAll(
                        kLlama, {{"vocab_size: 256 ", "vocab_size: 4200 "}})))
        .Set("train_data", ChatData(path, tokenizer))
        .Train(absl::StrCat("max_steps: ", steps));
  };
  const std::string folder = MustTrain(run(rows, 1));
  std::swap(texts[3], texts[17]);
  const std::string shuffled =
      WriteText(NewTestFolder("shuffled") + "/rows.jsonl", Rows(texts));
  ExpectOneError(
      RunTrainer(
          {"--config=" +
           run(shuffled, 2).Train("resume: AUTO").Output(folder).File()}),
      {"train_data: capstan.chat, 24 rows", "\"train_data\""});
  SetKey(tokenizer + "/tokenizer_config.json", "unknown", 1);
  ExpectOneError(
      RunTrainer({"--config=" +
                  run(rows, 2).Train("resume: AUTO").Output(folder).File()}),
      {"tokenizer: ", "[\"tokenizer\"]"});
}

}  // namespace
}  // namespace capstan
