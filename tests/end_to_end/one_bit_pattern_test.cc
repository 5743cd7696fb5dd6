// SPDX-License-Identifier: Apache-2.0
//
// train.deterministic on CPUs: a run has one bit pattern, however its
// micro-batches are divided, and in worlds of any size (docs/strategies.md).
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/placed_ranks.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr int kSteps = 4;

// One way to do the run.
struct Cell {
  std::string strategy;  // as RunText::Strategy takes it
  int ranks;
  bool checkpointing = false;
  int threads = 1;
  // Another strategy and number of ranks do the first half; "": nobody else.
  std::string first;
  int first_ranks = 0;
  // Ranks that torchrun's environment places on so many hosts; 0: our
  // launcher's.
  int hosts = 0;
};

struct Numerics {
  std::string name;
  std::string precision;  // as RunText::Precision takes it, or a slot's text
  std::string optimizer;  // "": AdamW
  std::vector<Cell> cells;
  // Kernels give several threads work only from some size on.
  bool wide = false;

  // 12 micro-batches, which neither 5 nor 8 divides; of the wide model 2.
  int global_batch() const { return wide ? 4 : 24; }
};

void PrintTo(const Numerics& numerics, std::ostream* out) {
  *out << numerics.name;
}

std::string Slot(const std::string& strategy, const std::string& fields) {
  return absl::StrCat("[plugin/capstan.", strategy, ".Config] { ", fields,
                      " }");
}

Cell Threads(int threads, const std::string& strategy, int ranks,
             bool checkpointing = false) {
  return {strategy, ranks, checkpointing, threads};
}

Cell Resumed(const std::string& first, int first_ranks,
             const std::string& strategy, int ranks, int threads = 1) {
  return {strategy, ranks, false, threads, first, first_ranks};
}

Cell OnHosts(int hosts, const std::string& strategy, int ranks) {
  return {strategy, ranks, false, 1, "", 0, hosts};
}

// What is compared with "single on one rank".
std::vector<Cell> AllCells() {
  return {
      {"ddp", 2},
      {"ddp", 3},
      {"ddp", 5},
      {"ddp", 8},
      {Slot("ddp", "bucket_cap_mib: 0.01"), 3},
      {"zero2", 1},
      {"zero2", 3},
      {"zero2", 5},
      {Slot("zero2", "accumulation: REDUCE_ONCE"), 5},
      {Slot("zero2", "offload_optimizer { device: CPU }"), 2},
      {"zero2", 6},
      {"fsdp", 1},
      {"fsdp", 2},
      {"fsdp", 5, /*checkpointing=*/true},
      {"fsdp", 6},
      {Slot("fsdp", "accumulation: REDUCE_ONCE"), 3},
      {Slot("fsdp", "reshard_after_forward: false cpu_offload: true"), 3},
      {Slot("fsdp", "shard_group_size: 2"), 6},
      {Slot("fsdp", "shard_group_size: 3 accumulation: REDUCE_ONCE"), 6},
      {"single", 1, /*checkpointing=*/true},
      Threads(2, "single", 1),
      Resumed("ddp", 4, "fsdp", 3),
      Resumed("zero2", 5, "single", 1, /*threads=*/2),
      Resumed("fsdp", 3, "zero2", 4),
      OnHosts(1, "ddp", 3),
      OnHosts(2, "zero2", 6),
      OnHosts(3, "fsdp", 3),
  };
}

std::vector<Cell> FewCells() {
  return {{"ddp", 5},
          {"zero2", 3, /*checkpointing=*/true},
          Threads(2, "fsdp", 2),
          Resumed("ddp", 4, "fsdp", 3)};
}

// Of a wide model: an uneven number divides work anywhere.
std::vector<Cell> ThreadCells() {
  return {Threads(2, "single", 1),
          Threads(3, "single", 1, /*checkpointing=*/true),
          Threads(2, "fsdp", 2)};
}

RunText RunOf(const Numerics& numerics, const Cell& cell) {
  const int length = numerics.wide ? 128 : 16;
  RunText run;
  if (numerics.wide) {
    run.Set("model",
            Slot("llama",
                 "vocab_size: 256 hidden_size: 256 intermediate_size: 688 "
                 "num_hidden_layers: 2 num_attention_heads: 4 "
                 "num_key_value_heads: 2 max_position_embeddings: 128"));
  }
  run.Set("train_data",
          TextData(CorpusPiece(80 * length), length, "shuffle: true"))
      .Set("eval_data", TextData(CorpusPiece(9 * length), length))
      .Set("schedule", absl::StrCat("kind: COSINE total_steps: ", kSteps))
      .Batch(2, numerics.global_batch())
      .Train(absl::StrCat("deterministic: true max_grad_norm: 0.5 receipts: ",
                          "true eval_every: ", kSteps / 2,
                          " max_steps: ", kSteps));
  if (absl::StartsWith(numerics.precision, "[")) {
    run.Set("precision", numerics.precision);
  } else {
    run.Precision(numerics.precision);
  }
  if (!numerics.optimizer.empty()) run.Set("optimizer", numerics.optimizer);
  if (cell.checkpointing) run.Train("activation_checkpointing: EVERY_UNIT");
  return run;
}

std::string TextOf(const Numerics& numerics, const Cell& cell) {
  std::string text = absl::StrCat(cell.strategy, " on ", cell.ranks,
                                  ", threads ", cell.threads);
  if (cell.checkpointing) text += ", checkpointing";
  if (!cell.first.empty()) {
    absl::StrAppend(&text, ", resumed from ", cell.first, " on ",
                    cell.first_ranks);
  }
  if (cell.hosts > 0) {
    absl::StrAppend(&text, ", placed on hosts: ", cell.hosts);
  }
  return text;
}

// All that must be equal: weights, and losses, gradient norms, tokens and
// receipts (of rows, weights and state: docs/receipts.md) by step.
struct Result {
  std::string weights;
  std::vector<double> losses, norms, tokens, eval_losses;
  std::vector<std::string> chain;
};

std::vector<std::string> Chain(const std::string& folder) {
  std::vector<std::string> steps;
  std::istringstream lines(ReadText(folder + "/receipts.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json receipt = nlohmann::json::parse(line);
    if (receipt.contains("rows")) steps.push_back(receipt["chain"]);
  }
  return steps;
}

void Finish(const RunText& run, const Cell& cell) {
  TrainerOptions options;
  options.environment["OMP_NUM_THREADS"] = absl::StrCat(cell.threads);
  if (cell.hosts == 0) {
    MustTrain(run, options);
    return;
  }
  for (const TrainerResult& rank :
       RunPlacedRanks(cell.ranks, run.File(), options, cell.hosts)) {
    EXPECT_EQ(rank.exit_code, 0) << rank.err;
  }
}

Result Train(const Numerics& numerics, const Cell& cell) {
  const std::string folder = NewTestFolder("run") + "/out";
  if (!cell.first.empty()) {
    MustTrain(RunOf(numerics, cell)
                  .Strategy(cell.first, cell.first_ranks)
                  .Train(absl::StrCat("max_steps: ", kSteps / 2))
                  .Output(folder));
  }
  Finish(RunOf(numerics, cell)
             .Strategy(cell.strategy, cell.ranks)
             .Train("resume: AUTO")
             .Output(folder),
         cell);
  Result result;
  result.weights = ReadText(folder + "/final/model.safetensors");
  const Metrics metrics = ReadMetrics(folder);
  result.losses = metrics.losses();
  result.norms = metrics.grad_norms();
  result.tokens = metrics.Values("tokens");
  result.chain = Chain(folder);
  for (const nlohmann::json& line : metrics.evals) {
    result.eval_losses.push_back(line["eval_loss"]);
  }
  return result;
}

class OneBitPatternTest : public ::testing::TestWithParam<Numerics> {};

TEST_P(OneBitPatternTest, HoweverTheRunIsDivided) {
  const Numerics& numerics = GetParam();
  const Result want = Train(numerics, {"single", 1});
  ASSERT_EQ(want.losses.size(), kSteps);
  ASSERT_NE(want.losses[0], want.losses[1]);
  ASSERT_EQ(want.eval_losses.size(), 2);
  ASSERT_EQ(want.chain.size(), kSteps);
  for (const Cell& cell : numerics.cells) {
    const Result got = Train(numerics, cell);
    const std::string text = TextOf(numerics, cell);
    EXPECT_TRUE(got.weights == want.weights) << text;
    EXPECT_EQ(got.losses, want.losses) << text;
    EXPECT_EQ(got.norms, want.norms) << text;
    EXPECT_EQ(got.tokens, want.tokens) << text;
    EXPECT_EQ(got.chain, want.chain) << text;
    EXPECT_EQ(got.eval_losses, want.eval_losses) << text;
  }
}

// Of all layers.
std::string Fp8(const std::string& more) {
  return Slot("fp8", absl::StrCat("bf16_layers_at_start: 0 ",
                                  "bf16_layers_at_end: 0 ", more));
}

std::string Optimizer(const std::string& name, const std::string& more = "") {
  return Slot(name, absl::StrCat("learning_rate: 3e-3 ", more));
}

INSTANTIATE_TEST_SUITE_P(
    All, OneBitPatternTest,
    ::testing::Values(
        Numerics{"fp32", "fp32", "", AllCells()},
        Numerics{"bf16", "bf16", "", FewCells()},
        Numerics{"fp16", "fp16", "", FewCells()},
        Numerics{"Bf16Sums",
                 Slot("bf16", "reduce_dtype: BFLOAT16"),
                 "",
                 {{"ddp", 5}, {"zero2", 3}, {"fsdp", 2}}},
        Numerics{"Fp8", Fp8(""), "", FewCells()},
        Numerics{"Adafactor", "fp32", Optimizer("adafactor"), FewCells()},
        Numerics{"State8Bit", "fp32", Optimizer("adamw", "state: EIGHT_BIT"),
                 FewCells()},
        Numerics{"Muon", "fp32",
                 Optimizer("muon", "adamw { learning_rate: 3e-3 }"),
                 FewCells()},
        Numerics{"WideFp32", "fp32", "", ThreadCells(), true},
        Numerics{"WideBf16", "bf16", "", ThreadCells(), true},
        Numerics{"WideFp16", "fp16", "", ThreadCells(), true},
        Numerics{"WideFp8", Fp8("scaling: ROW"), "", ThreadCells(), true},
        Numerics{
            "WideMuon", "bf16",
            Optimizer("muon", "normuon: true adamw { learning_rate: 3e-3 }"),
            ThreadCells(), true},
        Numerics{"WideAdafactor", "fp32", Optimizer("adafactor"), ThreadCells(),
                 true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan
