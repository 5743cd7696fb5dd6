// SPDX-License-Identifier: Apache-2.0
//
// train.cuda_graphs changes how often the host launches, and no bit of a curve.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

using ::testing::TempDir;

// Launches by step of the rank that launched most.
std::map<int, int> Launches(const StandinRun& run) {
  std::map<int, int> launches;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("works")) continue;
    int& most = launches[line["step"]];
    most = std::max(most, line["launches"].get<int>());
  }
  return launches;
}

struct Pair {
  StandinRun without, with;
};

Pair RunBoth(int gpus, const std::vector<std::string>& args) {
  std::vector<std::string> graphs = args;
  graphs.insert(graphs.end(), {"--set", "train.cuda_graphs=true"});
  return {RunOn(gpus, args), RunOn(gpus, graphs)};
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], bound * want[i]) << "step " << i + 1;
  }
}

// Bit for bit, unless without graphs the head leaves out rows that have no
// target: then other sums are rounded.
void ExpectSameCurve(const Pair& runs, bool same_rows = true) {
  for (const StandinRun* run : {&runs.without, &runs.with}) {
    ASSERT_EQ(run->result.exit_code, 0) << run->result.err;
    EXPECT_TRUE(run->findings.empty()) << run->findings[0];
  }
  ASSERT_FALSE(runs.with.metrics.steps.empty());
  const Metrics &got = runs.with.metrics, &want = runs.without.metrics;
  ExpectNear(got.losses(), want.losses(), same_rows ? 0.0 : 1e-6);
  ExpectNear(got.grad_norms(), want.grad_norms(), same_rows ? 0.0 : 1e-5);
}

// Whether a micro-step ran without a graph, or all did from some step on: each
// such note begins so.
bool FellBack(const StandinRun& run) {
  return (run.result.out + run.result.err).find("train.cuda_graphs:") !=
         std::string::npos;
}

// The pool that only repeated work uses is part of what the run tells.
void ExpectTheirMemoryInTheSummary(const StandinRun& run) {
  const nlohmann::json summary = ReadJson(run.folder + "/summary.json");
  const double last = run.metrics.steps.back()["gpu_peak_bytes"];
  EXPECT_GE(summary["gpu_memory"]["peak_allocated_bytes"].get<double>(), last);
  EXPECT_GE(summary["memory"]["total"]["measured"].get<double>(), last);
}

// The same curve, and in the last step less than a fifth of the launches, with
// no wait.
void ExpectGraphs(int gpus, const std::vector<std::string>& args,
                  bool same_rows = true) {
  const Pair runs = RunBoth(gpus, args);
  ExpectSameCurve(runs, same_rows);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  const std::map<int, int> before = Launches(runs.without);
  const std::map<int, int> after = Launches(runs.with);
  ASSERT_FALSE(before.empty());
  ASSERT_EQ(before.size(), after.size());
  EXPECT_LT(5 * after.rbegin()->second, before.rbegin()->second);
  // The last step's line has what follows, too: evaluation and saving.
  const int steady = before.rbegin()->first - 1;
  for (const nlohmann::json& line : runs.with.report) {
    if (!line.contains("works") || line["step"] != steady) continue;
    EXPECT_EQ(line["waits"], 0) << line;
    EXPECT_EQ(line["mallocs"], 0) << line;
  }
  ExpectTheirMemoryInTheSummary(runs.with);
}

// Of several micro-steps in a step: one kind that writes gradients, one that
// adds.
std::vector<std::string> Steps(int gpus, const std::vector<std::string>& more) {
  std::vector<std::string> fields = {
      "batch.micro_batch_size=1", "batch.global_batch_size=4",
      "train.max_steps=7", "strategy=capstan.single"};
  fields.insert(fields.end(), more.begin(), more.end());
  return ShortRun(gpus, fields);
}

std::vector<std::string> Quickstart(const std::string& config,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> args = {"--config=" +
                                   Runfile("configs/" + config + ".pbtxt")};
  std::vector<std::string> fields = Small(config + ".pbtxt");
  fields.insert(fields.end(),
                {"train.eval_every=0", "train.eval_batches=1",
                 "train.sample_prompts=", "schedule.warmup_steps=1",
                 "launch.processes=1", "strategy=capstan.single"});
  fields.insert(fields.end(), more.begin(), more.end());
  for (const std::string& field : fields) {
    args.insert(args.end(), {"--set", field});
  }
  return args;
}

TEST(StandinGraphsTest, Single) { ExpectGraphs(1, Steps(1, {})); }
TEST(StandinGraphsTest, SingleInBFloat16) {
  ExpectGraphs(1, Steps(1, {"precision=capstan.bf16"}));
}
TEST(StandinGraphsTest, Ddp) {
  ExpectGraphs(2, Steps(2, {"strategy=capstan.ddp"}));
}
TEST(StandinGraphsTest, Zero2) {
  ExpectGraphs(2, Steps(2, {"strategy=capstan.zero2"}));
}
TEST(StandinGraphsTest, Zero2ThatReducesOnce) {
  ExpectGraphs(2, Steps(2, {"strategy=capstan.zero2",
                            "strategy.accumulation=REDUCE_ONCE"}));
}
TEST(StandinGraphsTest, RecomputedUnits) {
  ExpectGraphs(1, Steps(1, {"train.activation_checkpointing=EVERY_UNIT"}));
}
TEST(StandinGraphsTest, SmoothingAndNoise) {
  ExpectGraphs(1, Steps(1, {"objective.label_smoothing=0.1",
                            "objective.noise_alpha=5"}));
}
// Its factor changes, and is part of no graph.
TEST(StandinGraphsTest, LossScaling) {
  const Pair runs =
      RunBoth(1, Steps(1, {"train.max_steps=8", "precision=capstan.fp16",
                           "precision.initial_scale=1024",
                           "precision.growth_interval=2"}));
  ExpectSameCurve(runs);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
}
// Evaluations and samples between steps have longer rows, for which the tables
// of rotations are made anew.
TEST(StandinGraphsTest, EvaluationsBetween) {
  ExpectSameCurve(
      RunBoth(1, Steps(1, {"train.max_steps=8", "train.eval_every=2",
                           "train.sample_prompts=prompt: \"a\"",
                           "train_data.sequence_length=32"})));
}

// What was recorded ends with the process: a resumed run records anew.
TEST(StandinGraphsTest, Resumed) {
  const auto args = [](const char* steps, const char* graphs) {
    return Steps(1, {steps, graphs, "train.resume=AUTO",
                     "schedule.total_steps=12", "strategy=capstan.single"});
  };
  Pair runs;
  runs.without =
      RunOn(1, args("train.max_steps=12", "train.cuda_graphs=false"));
  const StandinRun half =
      RunOn(1, args("train.max_steps=4", "train.cuda_graphs=true"));
  runs.with = RunOn(1, args("train.max_steps=12", "train.cuda_graphs=true"), "",
                    half.folder);
  ExpectSameCurve(runs);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  EXPECT_LT(5 * Launches(runs.with).at(11), Launches(runs.without).at(11));
  const std::string weights = "/final/model.safetensors";
  EXPECT_TRUE(ReadText(runs.with.folder + weights) ==
              ReadText(runs.without.folder + weights));
}

// At this rate losses differ by their batches, on every processor alike: some
// are above the mean. Weights are then written from outside, where the recorded
// work reads them.
TEST(StandinGraphsTest, BackToACheckpoint) {
  const Pair runs = RunBoth(
      1,
      Steps(1, {"train.max_steps=16", "train.save_every=2",
                "optimizer.learning_rate=1e-7", "train.loss_spikes.z_score=0.1",
                "train.loss_spikes.window=8",
                "train.loss_spikes.action=GO_BACK"}));
  ExpectSameCurve(runs);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  const std::string text = runs.with.result.out + runs.with.result.err;
  EXPECT_NE(text.find("back to the weights of step"), std::string::npos)
      << text;
}

TEST(StandinGraphsTest, AProfiledStep) {
  const Pair runs =
      RunBoth(1, Steps(1, {"train.max_steps=8", "profile.steps=[2, 7]"}));
  ExpectSameCurve(runs);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  EXPECT_FALSE(ReadText(runs.with.folder + "/trace.json").empty());
}

// Rows of packed documents: the counts of documents differ.
TEST(StandinGraphsTest, Sft) {
  const std::vector<std::string> more = {
      "train.max_steps=16", "model.num_hidden_layers=8",
      "batch.micro_batch_size=2", "batch.global_batch_size=2"};
  const Pair runs = RunBoth(1, Quickstart("sft_quickstart", more));
  ExpectSameCurve(runs, /*same_rows=*/false);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  EXPECT_LT(Launches(runs.with).at(16), Launches(runs.without).at(16) / 5);
}
TEST(StandinGraphsTest, MaskedDiffusion) {
  ExpectGraphs(
      1,
      Quickstart("llada_quickstart",
                 {"train.max_steps=9", "model.n_layers=8",
                  "batch.micro_batch_size=1", "batch.global_batch_size=1"}),
      /*same_rows=*/false);
}
TEST(StandinGraphsTest, AlgorithmDistillation) {
  const Pair runs = RunBoth(
      1, Quickstart("ad_darkroom_quickstart",
                    {"train.max_steps=8", "collect.streams=5",
                     "collect.steps=1000", "train_data.steps=200",
                     "train_data.path=" + TempDir() + "/histories.hdf5",
                     "batch.micro_batch_size=2", "batch.global_batch_size=2",
                     "objective.evaluation.final_episodes=1",
                     "objective.evaluation.episodes=1",
                     "objective.evaluation.streams=1"}));
  ExpectSameCurve(runs);
  EXPECT_FALSE(FellBack(runs.with)) << runs.with.result.out;
  // The sums of its metrics are outside.
  EXPECT_LT(Launches(runs.with).at(8), Launches(runs.without).at(8) / 3);
}

TEST(StandinGraphsTest, WhatCantBeIsRefusedAtOnce) {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> fields = {"train.cuda_graphs=true"};
    fields.insert(fields.end(), more.begin(), more.end());
    const StandinRun run = RunOn(1, ShortRun(1, fields));
    EXPECT_NE(run.result.exit_code, 0);
    EXPECT_TRUE(run.metrics.steps.empty());
    return run.result.err;
  };
  EXPECT_NE(refused({"strategy=capstan.fsdp"})
                .find("train.cuda_graphs: doesn't go with capstan.fsdp, which "
                      "gathers parameters within the micro-step"),
            std::string::npos);
  EXPECT_NE(refused({"strategy=capstan.single",
                     "train.activation_checkpointing=EVERY_UNIT",
                     "train.offload.activations=true"})
                .find("doesn't go with offload.activations"),
            std::string::npos);
}

}  // namespace
}  // namespace capstan
