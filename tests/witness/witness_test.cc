// SPDX-License-Identifier: Apache-2.0
//
// Runs with train.witness, in each of whose steps a bit of a rank is flipped:
// in a product as it comes out of the registers, in memory, in a message. What
// is trained must be what it is without flips, to the bit, but for those that
// change a number by less than rounding does, which the test puts right itself.
//
//     CAPSTAN_WITNESS_FLIPS=N    flips in float32 by ddp (default: 300), and
//                                fewer in the other cases
//     CAPSTAN_WITNESS_EACH=N     flips in each case instead
//     CAPSTAN_WITNESS_SEED=N     which (default: 1)
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cluster/launch/launcher.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/witness/flips.h"
#include "trainer/commands/prepare.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = getenv(name);
  int64_t value = otherwise;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name;
  }
  return value;
}

RunText SmallRun(int64_t steps) {
  RunText run;
  run.Set("model",
          "[plugin/capstan.llama.Config] { vocab_size: 256 hidden_size: 64 "
          "intermediate_size: 96 num_hidden_layers: 2 num_attention_heads: 4 "
          "num_key_value_heads: 2 max_position_embeddings: 32 }");
  run.Set("train_data", TextData(CorpusPiece(100000), 32));
  run.Batch(2, 4).Ddp(2);
  run.Train(absl::StrCat("receipts: true max_steps: ", steps));
  return run;
}

// Rollouts come before the step that may be done again.
RunText RolloutRun(int64_t steps) {
  std::string prompts;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&prompts, "{\"prompt\": \"", i, "+", i * 7 % 50,
                    "=\", \"answer\": \"", i + i * 7 % 50, "\"}\n");
  }
  const std::string path =
      WriteText(NewTestFolder("data") + "/prompts.jsonl", prompts);
  RunText run;
  run.Set("model",
          "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
          "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
          "num_key_value_heads: 2 max_position_embeddings: 128 "
          "bos_token_id: 1 eos_token_id: 2 }");
  run.Set("train_data",
          absl::StrCat("[plugin/capstan.chat.Config] { path: '", path,
                       "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                       "' chat_template: 'chatml' kind: PROMPT "
                       "max_length: 32 shuffle: true }"));
  run.Set("objective",
          "[plugin/capstan.grpo.Config] { num_generations: 4 "
          "max_new_tokens: 6 updates_per_rollout: 2 "
          "reward { name: 'vowels' regex { pattern: '[a-e]{2}' } } }");
  run.Batch(2, 8).Ddp(2);
  run.Train(absl::StrCat("receipts: true max_steps: ", steps));
  return run;
}

struct Ended {
  int code = -1;
  std::string folder, out, err;
  // The receipts' lines of steps.
  std::vector<std::string> weights, states;
  // Of events.jsonl, those of the witness.
  std::vector<std::string> told;
};

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  for (const absl::string_view line :
       absl::StrSplit(ReadText(path), '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line.begin(), line.end()));
  }
  return lines;
}

Ended RunToEnd(const RunText& text, const FlipOptions& flips = {}) {
  Ended ended;
  RunOptions options;
  options.config_text = text.Text();
  options.plugin_path = {Runfile("trainer/plugins")};
  auto prepared = Prepare(options);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  if (!prepared.ok()) return ended;
  ended.folder = NewTestFolder("witness") + "/run";
  const pid_t pid = fork();
  if (pid == 0) {
    const auto redirect = [](const std::string& path, int to) {
      const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      dup2(fd, to);
      close(fd);
    };
    redirect(ended.folder + ".err", STDERR_FILENO);
    redirect(ended.folder + ".out", STDOUT_FILENO);
    TrainJob& job = (*prepared)->job;
    job.loaded.config.set_output_dir(ended.folder);
    const auto made = PrepareOutputFolder(job.loaded.config, "");
    if (!made.ok()) _exit(3);
    job.folder = *made;
    const int code = LaunchRanks((*prepared)->place, [&](const RankInfo& rank) {
      BeginFlips(flips, rank.rank);
      return RunTraining(&job, rank);
    });
    fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ended.err = ReadText(ended.folder + ".err");
  ended.out = ReadText(ended.folder + ".out");
  for (const Json& line : Lines(ended.folder + "/events.jsonl")) {
    if (line["kind"] == "witness") ended.told.push_back(line["text"]);
  }
  if (ended.code != 0) return ended;
  for (const Json& line : Lines(ended.folder + "/receipts.jsonl")) {
    if (!line.contains("step")) continue;
    ended.weights.push_back(line["weights"]);
    ended.states.push_back(line["state"]);
  }
  return ended;
}

// What a run's flips came to, by their kind and outcome.
struct Campaign {
  std::map<std::string, std::map<std::string, int>> table;
  std::map<std::string, std::map<int, int>> below;  // by bit
  double largest_below = 0.0;
  std::vector<std::string> wrong;
};

Campaign Judge(const FlipOptions& flips, const Ended& clean,
               const Ended& flipped, int64_t steps) {
  Campaign campaign;
  std::set<std::string> named;
  for (const std::string& text : flipped.told) {
    // "witness: step 7, rank 1 on host .."
    named.insert(text.substr(0, text.find(" on host ")));
  }
  std::map<int64_t, std::vector<std::string>> lines;
  for (int rank = 0; rank < flips.ranks; ++rank) {
    for (const absl::string_view line :
         absl::StrSplit(ReadText(absl::StrCat(flips.log, ".", rank)), '\n',
                        absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      int64_t step = 0;
      EXPECT_TRUE(words.size() == 6 && absl::SimpleAtoi(words[0], &step));
      lines[step] = words;
    }
  }
  bool same = true;
  for (int64_t step = 1; step <= steps; ++step) {
    const bool was_same = same;
    // A weight is flipped before the receipts of the step before are made.
    if (step == steps || FlipOf(flips, step + 1).kind != FlipKind::kWeights) {
      same = clean.weights[step - 1] == flipped.weights[step - 1] &&
             clean.states[step - 1] == flipped.states[step - 1];
    }
    if (lines.count(step) == 0) continue;
    const std::vector<std::string>& words = lines[step];
    const std::string& kind = words[2];
    std::string outcome = words[4];
    int bit = 0;
    double detail = 0.0;
    EXPECT_TRUE(absl::SimpleAtoi(words[3], &bit) &&
                absl::SimpleAtod(words[5], &detail));
    const auto told_by = [&named, step](const std::string& rank) {
      return named.count(
                 absl::StrCat("witness: step ", step, ", rank ", rank)) > 0;
    };
    // A message is seen by all, or by the one that got it.
    bool is_named = told_by(words[1]);
    for (int rank = 0; rank < flips.ranks && kind == "sent"; ++rank) {
      is_named = is_named || told_by(absl::StrCat(rank));
    }
    const bool message = absl::StartsWith(words[4], "mended") &&
                         (kind == "sent" || kind == "received");
    if (outcome == "missed") {
      campaign.largest_below = std::max(campaign.largest_below, detail);
    } else if (message && !is_named && (same || !was_same)) {
      outcome = "nothing";  // rounded away in the sum
    } else if (outcome == "below") {
      ++campaign.below[kind][bit];
      campaign.largest_below = std::max(campaign.largest_below, detail);
      if (is_named) outcome = "missed";
    } else if (!is_named || (was_same && !same)) {
      outcome = "missed";
    } else {
      outcome = "mended";
    }
    if (outcome == "missed") {
      campaign.wrong.push_back(absl::StrCat("step ", step, ": ", kind, " bit ",
                                            bit, is_named ? "" : ", not named",
                                            same ? "" : ", other weights"));
    }
    ++campaign.table[kind][outcome];
  }
  if (!same) campaign.wrong.push_back("the last step's weights are others");
  return campaign;
}

void Print(const Campaign& campaign) {
  absl::PrintF("%-10s %8s %8s %8s %8s\n", "", "mended", "nothing", "below",
               "missed");
  std::map<std::string, int> all;
  const auto print = [](const std::string& kind,
                        std::map<std::string, int> outcomes) {
    absl::PrintF("%-10s %8d %8d %8d %8d\n", kind, outcomes["mended"],
                 outcomes["nothing"], outcomes["below"], outcomes["missed"]);
  };
  for (const auto& [kind, outcomes] : campaign.table) {
    print(kind, outcomes);
    for (const auto& [outcome, count] : outcomes) all[outcome] += count;
  }
  print("all", all);
  for (const auto& [kind, bits] : campaign.below) {
    absl::PrintF("below, %s, by bit:", kind);
    for (const auto& [bit, count] : bits) absl::PrintF(" %d:%d", bit, count);
    absl::PrintF("\n");
  }
  absl::PrintF("the largest that wasn't told is %.2f of its bound\n",
               campaign.largest_below);
}

struct Kind {
  const char* name;
  const char* strategy;
  const char* precision;
};

struct FlipCase {
  Kind kind;
  int64_t flips;  // of 300
  bool rollouts;
  bool twice = false;  // train.witness.twice
};

class FlipsTest : public testing::TestWithParam<FlipCase> {};

TEST_P(FlipsTest, AreNamedAndMendedInTheirStep) {
  const FlipCase& with = GetParam();
  const int64_t count = FromEnvironment(
      "CAPSTAN_WITNESS_EACH",
      FromEnvironment("CAPSTAN_WITNESS_FLIPS", 300) * with.flips / 300);
  const int64_t steps = count + 3;
  FlipOptions flips;
  flips.seed = FromEnvironment("CAPSTAN_WITNESS_SEED", 1);
  flips.log = NewTestFolder("flips") + "/log";
  // Twice is for sums.
  flips.gathers = std::string(with.kind.strategy) != "ddp" && !with.twice;
  RunText run = with.rollouts ? RolloutRun(steps) : SmallRun(steps);
  run.Strategy(with.kind.strategy, 2).Precision(with.kind.precision);
  const Ended clean = RunToEnd(run);
  ASSERT_EQ(clean.code, 0) << clean.err << clean.out;
  run.Train(with.twice ? "witness: {check:true,twice:true}"
                       : "witness: {check:true}");
  flips.first_step = 4;
  flips.last_step = steps;
  const Ended flipped = RunToEnd(run, flips);
  ASSERT_EQ(flipped.code, 0) << flipped.err << flipped.out;
  ASSERT_EQ(flipped.weights.size(), steps);
  Campaign campaign = Judge(flips, clean, flipped, steps);
  Print(campaign);
  EXPECT_THAT(campaign.wrong, testing::IsEmpty());
  int64_t all = 0;
  for (auto& [kind, outcomes] : campaign.table) {
    SCOPED_TRACE(kind);
    int64_t of_kind = 0;
    for (const auto& [outcome, n] : outcomes) of_kind += n;
    all += of_kind;
    const bool half = std::string(with.kind.precision) == "bf16";
    const bool summed =
        !flips.gathers && (kind == "sent" || kind == "received");
    if (with.twice) {
      EXPECT_EQ(outcomes["mended"] + outcomes["nothing"], of_kind);
      EXPECT_LE(outcomes["nothing"], summed ? 1 + of_kind / 10 : 0);
    } else if (kind != "product" && !summed) {
      EXPECT_EQ(outcomes["mended"], of_kind);
    } else if (of_kind >= 20) {
      // Of 32 bits those of a few units of a row's sum are beyond what can be
      // told from rounding; rollouts' gradients are nought for most of the
      // vocabulary, and stay next to it by most flips.
      EXPECT_GT(outcomes["mended"],
                with.rollouts ? 0 : of_kind / (half ? 5 : 3));
    }
  }
  // One in each step; but a step without a rollout has fewer products, and may
  // not come to the one that was to be flipped.
  EXPECT_LE(all, count);
  EXPECT_GE(all, with.rollouts ? count * 9 / 10 : count);
  // Some steps were done again.
  EXPECT_THAT(flipped.told,
              testing::Contains(testing::HasSubstr("are computed again")));
}

INSTANTIATE_TEST_SUITE_P(
    All, FlipsTest,
    testing::Values(FlipCase{{"Ddp", "ddp", "fp32"}, 300, false},
                    FlipCase{{"DdpBf16", "ddp", "bf16"}, 100, false},
                    FlipCase{{"Fsdp", "fsdp", "fp32"}, 100, false},
                    FlipCase{{"FsdpBf16", "fsdp", "bf16"}, 60, false},
                    FlipCase{{"Zero2", "zero2", "fp32"}, 60, false},
                    FlipCase{{"Rollouts", "ddp", "fp32"}, 40, true},
                    FlipCase{{"DdpTwice", "ddp", "fp32"}, 100, false, true},
                    FlipCase{{"DdpBf16Twice", "ddp", "bf16"}, 60, false, true},
                    FlipCase{{"Zero2Twice", "zero2", "fp32"}, 40, false, true}),
    [](const testing::TestParamInfo<FlipCase>& info) {
      return info.param.kind.name;
    });

class SameBitsTest : public testing::TestWithParam<Kind> {};

TEST_P(SameBitsTest, WithAndWithoutTheWitness) {
  RunText run = SmallRun(6);
  run.Strategy(GetParam().strategy, 2).Batch(2, 8);
  run.Precision(GetParam().precision);
  const Ended without = RunToEnd(run);
  ASSERT_EQ(without.code, 0) << without.err << without.out;
  EXPECT_THAT(without.told, testing::IsEmpty());
  for (const char* const witness :
       {"witness: {check:true}", "witness: {check:true,twice:true}",
        "witness: {check:true,every_steps:4}"}) {
    run.Train(witness);
    const Ended with = RunToEnd(run);
    ASSERT_EQ(with.code, 0) << with.err << with.out;
    EXPECT_EQ(with.weights, without.weights);
    EXPECT_EQ(with.states, without.states);
    // No alarm, and one line about the run.
    ASSERT_THAT(with.told, testing::SizeIs(1));
    EXPECT_THAT(with.told[0], testing::EndsWith(": 0 failures"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SameBitsTest,
                         testing::Values(Kind{"Ddp", "ddp", "fp32"},
                                         Kind{"Fsdp", "fsdp", "fp32"},
                                         Kind{"Zero2", "zero2", "fp32"},
                                         Kind{"DdpBf16", "ddp", "bf16"},
                                         Kind{"FsdpBf16", "fsdp", "bf16"}),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return info.param.name;
                         });

int64_t ProductsChecked(const Ended& ended) {
  // The last line is of the run: ".. checked 1234 products (..".
  const std::string& text = ended.told.back();
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (size_t i = 1; i < words.size(); ++i) {
    int64_t number = 0;
    if (words[i] == "products" && absl::SimpleAtoi(words[i - 1], &number)) {
      return number;
    }
  }
  ADD_FAILURE() << text;
  return 0;
}

// Flips only in steps that are due, and of weights behind them, of which the
// step behind knows: they are found as where all steps are.
TEST(WitnessTest, OneStepInSoManyIsChecked) {
  constexpr int64_t kSteps = 240;
  FlipOptions flips;
  flips.log = NewTestFolder("flips") + "/log";
  flips.first_step = 5;  // products are counted in step 4
  flips.last_step = kSteps;
  flips.period = 4;
  RunText run = SmallRun(kSteps);
  const Ended clean = RunToEnd(run);
  ASSERT_EQ(clean.code, 0) << clean.err << clean.out;
  run.Train("witness: {check:true}");
  const Ended all = RunToEnd(run);
  ASSERT_EQ(all.code, 0) << all.err << all.out;
  run.Train("witness: {check:true,every_steps:4}");
  const Ended flipped = RunToEnd(run, flips);
  ASSERT_EQ(flipped.code, 0) << flipped.err << flipped.out;
  Campaign campaign = Judge(flips, clean, flipped, kSteps);
  Print(campaign);
  EXPECT_THAT(campaign.wrong, testing::IsEmpty());
  EXPECT_GT(campaign.table["product"]["mended"], 5);
  EXPECT_GT(campaign.table["weights"]["mended"], 0);
  EXPECT_THAT(flipped.told.back(), testing::HasSubstr("in one step of 4"));
  const int64_t checked = ProductsChecked(flipped);
  EXPECT_GE(checked, ProductsChecked(all) / 4);
  EXPECT_LT(checked, ProductsChecked(all) / 3);
}

// Rank 1's weights have changed before rank 0 gathers them, which can't compute
// the loss with them: a number of theirs has become 1e38 times as large.
TEST(WitnessTest, AForwardThatFailsOfWrongWeightsIsComputedAgain) {
  constexpr int64_t kStep = 342;
  FlipOptions flips;
  flips.seed = 2;
  flips.log = NewTestFolder("flips") + "/log";
  flips.first_step = flips.last_step = kStep;
  flips.gathers = true;
  ASSERT_EQ(FlipOf(flips, kStep).kind, FlipKind::kWeights);
  RunText run = SmallRun(kStep + 1);
  run.Strategy("zero2", 2);
  const Ended clean = RunToEnd(run);
  ASSERT_EQ(clean.code, 0) << clean.err << clean.out;
  run.Train("witness: {check:true}");
  const Ended flipped = RunToEnd(run, flips);
  ASSERT_EQ(flipped.code, 0) << flipped.err << flipped.out;
  EXPECT_THAT(flipped.told,
              testing::Contains(testing::HasSubstr("are computed again")));
  EXPECT_EQ(flipped.weights.back(), clean.weights.back());
}

// Under fsdp each rank writes its own part of the weights.
TEST(WitnessTest, TheBestCheckpointIsOfWeightsThatWereChecked) {
  RunText run = SmallRun(6);
  run.Strategy("fsdp", 2);
  run.Set("train_data",
          TextData(CorpusPiece(100000), 32, "validation_fraction: 0.02"));
  run.Train("eval_every: 3 keep_best: true");
  const Ended clean = RunToEnd(run);
  ASSERT_EQ(clean.code, 0) << clean.err << clean.out;
  ASSERT_THAT(CheckpointSteps(clean.folder), testing::Contains(3));
  FlipOptions flips;
  flips.in_evaluation = true;
  run.Train("witness: {check:true}");
  const Ended flipped = RunToEnd(run, flips);
  ASSERT_EQ(flipped.code, 0) << flipped.err << flipped.out;
  EXPECT_THAT(flipped.told,
              testing::Contains(testing::HasSubstr("has changed in memory")));
  const auto weights = [](const Ended& ended) {
    std::map<std::string, std::string> files =
        Snapshot(ended.folder + "/checkpoints/step-00000003");
    files.erase("manifest.json");  // with the time
    return files;
  };
  EXPECT_TRUE(weights(clean) == weights(flipped));
  EXPECT_EQ(clean.weights, flipped.weights);
}

// By rule a host that fails often ends the run, with its name.
TEST(WitnessTest, AHostThatFailsOftenEndsTheRun) {
  FlipOptions flips;
  flips.log = NewTestFolder("flips") + "/log";
  flips.first_step = 4;
  flips.last_step = 100;
  RunText run = SmallRun(100);
  run.Train("witness: {check:true,most_failures:3,within_steps:50}");
  const Ended ended = RunToEnd(run, flips);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              testing::HasSubstr("has had 3 failures or more that the witness "
                                 "saw (train.witness.most_failures)"));
  // Within so many steps that are checked.
  run.Train(
      "witness: {check:true,most_failures:3,within_steps:4,"
      "every_steps:4}");
  flips.log += "4";
  flips.period = 4;
  const Ended seldom = RunToEnd(run, flips);
  EXPECT_EQ(seldom.code, 1);
  EXPECT_THAT(seldom.err, testing::HasSubstr("has had 3 failures or more"));
}

// Each of them has the ranks started again, which mustn't forget it.
TEST(WitnessTest, FailuresThatCannotBeMendedCountAcrossRestarts) {
  FlipOptions flips;
  flips.log = NewTestFolder("flips") + "/log";
  flips.first_step = 4;
  flips.last_step = 100;
  flips.period = 5;  // thrice in the same step would end the run, too
  flips.two_words = true;
  RunText run = SmallRun(100);
  run.Set("launch", "processes: 2 max_restarts: 10");
  run.Train("witness: {check:true,most_failures:3,within_steps:50}");
  const Ended ended = RunToEnd(run, flips);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, testing::HasSubstr("(2 of 10)"));
  EXPECT_THAT(ended.err, testing::HasSubstr("has had 3 failures or more"));
  // The block that they are in, since it isn't known which words they are.
  EXPECT_THAT(ended.told,
              testing::Contains(testing::HasSubstr(" or one up to ")));
}

}  // namespace
}  // namespace capstan
