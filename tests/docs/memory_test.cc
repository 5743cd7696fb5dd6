// SPDX-License-Identifier: Apache-2.0
//
// docs/llada.md's table of memory is what `plan` says today.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

// By strategy: "24.2 GiB", of LLaDA-8B's sizes on this many GPUs.
std::map<std::string, std::string> Planned(const std::string& gpus) {
  const std::string text = NewTestFolder("text") + "/my.txt";
  std::string lines;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&lines, "line ", i, "\n");
  WriteText(text, lines);
  std::vector<std::string> words = {
      "plan", "--config=" + Runfile("configs/llada_8b.pbtxt"),
      "--gpus=" + gpus};
  for (const std::string& set :
       {"launch.processes=" + gpus, std::string("model.pretrained="),
        std::string("model.d_model=4096"), std::string("model.n_heads=32"),
        std::string("model.n_layers=32"),
        std::string("model.mlp_hidden_size=12288"),
        std::string("model.vocab_size=126464"),
        std::string("train_data.tokenizer.folder="),
        "train_data.path=" + text}) {
    words.push_back("--set");
    words.push_back(set);
  }
  const TrainerResult result = RunTrainer(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> names, values;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    std::vector<std::string> cells =
        absl::StrSplit(line, absl::ByString("  "), absl::SkipWhitespace());
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (names.empty() && cells.size() > 2 &&
        absl::StartsWith(cells[0], "capstan.")) {
      names = cells;
    }
    if (!cells.empty() && cells[0] == "all tensors") {
      values.assign(cells.begin() + 1, cells.end());
    }
  }
  EXPECT_EQ(names.size(), values.size()) << result.out;
  std::map<std::string, std::string> planned;
  for (size_t i = 0; i < names.size() && i < values.size(); ++i) {
    planned[std::string(absl::StripPrefix(names[i], "capstan."))] = values[i];
  }
  return planned;
}

TEST(MemoryTest, LladaTableIsWhatPlanSays) {
  int rows = 0;
  for (const absl::string_view line :
       absl::StrSplit(ReadText(Runfile("docs/llada.md")), '\n')) {
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (cells.size() != 8 || !absl::EndsWith(cells[2], " GiB")) continue;
    ++rows;
    std::map<std::string, std::string> planned = Planned(cells[1]);
    EXPECT_EQ(planned["fsdp"], cells[2]) << line;
    EXPECT_EQ(planned["zero2"], cells[3]) << line;
    EXPECT_EQ(planned["ddp"], cells[4]) << line;
  }
  EXPECT_EQ(rows, 3);
}

}  // namespace
}  // namespace capstan
