// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/run_text.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

constexpr char kCorpus[] = "tests/testdata/corpus.txt";

std::string Plugin(const std::string& package, const std::string& fields = "") {
  return absl::StrCat("[plugin/capstan.", package, ".Config] { ", fields, " }");
}

}  // namespace

RunText::RunText() {
  Set("model", Plugin("llama",
                      "vocab_size: 256 hidden_size: 32 intermediate_size: 88 "
                      "num_hidden_layers: 2 num_attention_heads: 4 "
                      "num_key_value_heads: 2 max_position_embeddings: 128"));
  Set("objective", Plugin("causal_lm"));
  Set("optimizer", Plugin("adamw", "learning_rate: 3e-3 weight_decay: 0.01"));
  Set("train_data", TextData(Runfile(kCorpus), 32));
  Set("precision", Plugin("fp32"));
  Batch(4, 8);
  Single();
  train_ = "max_steps: 6 seed: 1 max_grad_norm: 1.0";
}

RunText RunText::Golden() {
  RunText run;
  run.Set("model",
          Plugin("llama",
                 absl::StrCat("pretrained: \"",
                              Runfile("tests/golden/testdata/llama"), "\"")));
  run.Set("optimizer",
          Plugin("adamw", "learning_rate: 1e-3 weight_decay: 0.01"));
  run.Set("train_data", TextData(Runfile(kCorpus), 64));
  run.train_ = "max_steps: 10 seed: 1 max_grad_norm: 1.0";
  return run;
}

RunText& RunText::Set(const std::string& slot, const std::string& text) {
  slots_[slot] = text;
  return *this;
}

RunText& RunText::Train(const std::string& more) {
  // proto3's text format refuses a field that is set twice, so that the last
  // value is the one kept here.
  std::map<std::string, std::string> fields;
  for (const std::string& text : {train_, more}) {
    std::string name;
    for (absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      if (absl::EndsWith(word, ":")) {
        name = std::string(word);
        fields[name].clear();
      } else {
        absl::StrAppend(&fields[name], " ", word);
      }
    }
  }
  // The two exclude each other; 0 is none.
  for (const auto& [set, other] :
       {std::pair<const char*, const char*>{"max_epochs:", "max_steps:"},
        {"max_steps:", "max_epochs:"}}) {
    if (absl::StrContains(more, set) && fields[set] != " 0") {
      fields.erase(other);
    }
  }
  train_.clear();
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&train_, " ", name, value);
  }
  return *this;
}

RunText& RunText::Batch(int micro, int global) {
  return Set("batch", absl::StrCat("micro_batch_size: ", micro,
                                   " global_batch_size: ", global));
}

RunText& RunText::Strategy(const std::string& text, int ranks) {
  Set("launch", absl::StrCat("processes: ", ranks));
  return Set("strategy", absl::StartsWith(text, "[") ? text : Plugin(text));
}

RunText& RunText::Single() { return Strategy("single", 1); }

RunText& RunText::Ddp(int ranks, const std::string& fields) {
  return Strategy(Plugin("ddp", fields), ranks);
}

RunText& RunText::Zero2(int ranks, const std::string& fields) {
  return Strategy(Plugin("zero2", fields), ranks);
}

RunText& RunText::Fsdp(int ranks, const std::string& fields) {
  return Strategy(Plugin("fsdp", fields), ranks);
}

RunText& RunText::Precision(const std::string& plugin) {
  return Set("precision", Plugin(plugin));
}

RunText& RunText::Output(const std::string& folder) {
  output_ = folder;
  return *this;
}

std::string RunText::Text() const {
  std::string text;
  if (!output_.empty()) {
    absl::StrAppend(&text, "output_dir: \"", output_, "\"\n");
  }
  for (const auto& [slot, value] : slots_) {
    if (!value.empty()) absl::StrAppend(&text, slot, " { ", value, " }\n");
  }
  // What a test doesn't say isn't filled in.
  absl::StrAppend(&text, "train { ", train_, " }\ncomplete: true\n");
  return text;
}

std::string RunText::File() const {
  return WriteText(NewTestFolder("config") + "/run.pbtxt", Text());
}

std::string TextData(const std::string& path, int sequence_length,
                     const std::string& more) {
  return Plugin("text", absl::StrCat("path: \"", path,
                                     "\" tokenizer { bytes {} } "
                                     "sequence_length: ",
                                     sequence_length, " ", more));
}

std::string CorpusPiece(size_t bytes) {
  return WriteText(NewTestFolder("data") + "/text.txt",
                   ReadText(Runfile(kCorpus)).substr(0, bytes));
}

std::string MustTrain(RunText run, const TrainerOptions& options) {
  if (run.output().empty()) run.Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_FALSE(result.timed_out);
  EXPECT_TRUE(result.all_gone);
  EXPECT_EQ(result.err, "");
  return run.output();
}

void ExpectOneError(const TrainerResult& result,
                    const std::vector<std::string>& words) {
  EXPECT_GT(result.exit_code, 0) << "signal " << result.term_signal;
  EXPECT_FALSE(result.timed_out);
  EXPECT_TRUE(result.all_gone);
  std::vector<std::string> lines;
  for (const absl::string_view line :
       absl::StrSplit(result.err, '\n', absl::SkipEmpty())) {
    // What a rank says of the machine isn't an error.
    if (!absl::StrContains(line, "] NOTE: ")) lines.emplace_back(line);
  }
  ASSERT_EQ(lines.size(), 1) << result.err;
  EXPECT_TRUE(absl::StartsWith(lines[0], "ERROR: ")) << result.err;
  for (const std::string& word : words) {
    EXPECT_THAT(result.err, ::testing::HasSubstr(word));
  }
  for (const char* trace : {"frame #", " at 0x", "@     0x", "terminate",
                            "Check failure", "Exception raised"}) {
    EXPECT_THAT(result.err, ::testing::Not(::testing::HasSubstr(trace)));
    EXPECT_THAT(result.out, ::testing::Not(::testing::HasSubstr(trace)));
  }
}

}  // namespace capstan
