// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/config_that_ran.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"

namespace capstan {
namespace {

using Line = ReceiptChain::Line;

constexpr char kConfig[] = R"(name: "a"
model {
  [plugin/capstan.llama.Config] {
    hidden_size: 64
    rms_norm_eps: 1e-05
    vocab_size: AUTO
  }
}
train_data {
  [plugin/capstan.text.Config] {
    path: "corpus.txt"
    sequence_length: 32
  }
}
optimizer {
  [plugin/capstan.adamw.Config] {
    learning_rate: 0.003
  }
}
schedule {
  kind: COSINE
}
train {
  max_steps: 6
  log_every: 2
}
)";

// As a run with kConfig has it, after a process with another rate.
Receipts RunOfReceipts() {
  Receipts receipts;
  receipts.lines.push_back(
      Line{{"begin", 0}, {"run", {{"optimizer.learning_rate", "0.1"}}}});
  receipts.lines.push_back(Line{{"step", 1}});
  receipts.lines.push_back(
      Line{{"begin", 1},
           {"run",
            {{"model", "capstan.llama"},
             {"model.hidden_act", "\"silu\""},
             {"model.hidden_size", "64"},
             {"model.rms_norm_eps", "9.99999974e-06"},
             {"model.rope_theta", "10000.0"},
             {"model.vocab_size", "259"},
             {"optimizer", "capstan.adamw"},
             {"optimizer.learning_rate", "0.003"},
             {"precision", "capstan.auto (float32)"},
             {"train_data", "capstan.text, 7040 bytes, crc32c e66a2cce"},
             {"train_data.sequence_length", "32"}}}});
  receipts.lines.push_back(Line{{"begin", 1}, {"why", "back"}});
  return receipts;
}

TEST(ConfigDifferenceTest, TheConfigThatRanHasNone) {
  EXPECT_EQ(ConfigDifference(kConfig, RunOfReceipts()), "");
  EXPECT_EQ(ConfigDifference(kConfig, Receipts()), "");
}

TEST(ConfigDifferenceTest, WhatIdentifiesNoRunMayDiffer) {
  for (const auto& [before, after] :
       {std::pair<const char*, const char*>{"max_steps: 6", "max_steps: 9"},
        {"log_every: 2", "log_every: 1"},
        {"kind: COSINE", "kind: LINEAR"},
        {"corpus.txt", "/moved/corpus.txt"}}) {
    const std::string config = absl::StrReplaceAll(kConfig, {{before, after}});
    ASSERT_NE(config, kConfig);
    EXPECT_EQ(ConfigDifference(config, RunOfReceipts()), "") << after;
  }
}

struct Change {
  std::string before, after, told;
};

TEST(ConfigDifferenceTest, AChangedFieldIsNamed) {
  for (const auto& [before, after, told] : std::vector<Change>{
           {"rate: 0.003", "rate: 0.004",
            "optimizer.learning_rate: 0.004, the run had 0.003"},
           {"    learning_rate: 0.003\n", "",
            "optimizer.learning_rate: unset, the run had 0.003"},
           {"adamw", "muon",
            "optimizer: capstan.muon, the run had capstan.adamw"},
           {"hidden_size: 64", "hidden_size: 32",
            "model.hidden_size: 32, the run had 64"},
           {"capstan.text", "capstan.chat",
            "train_data: capstan.chat, the run had capstan.text"}}) {
    EXPECT_EQ(ConfigDifference(absl::StrReplaceAll(kConfig, {{before, after}}),
                               RunOfReceipts()),
              told);
  }
}

}  // namespace
}  // namespace capstan
