// SPDX-License-Identifier: Apache-2.0
//
// Runs that learn from rewards: one curve however they are divided, log-ratios
// that are exactly 0, and what is lost when they are killed: nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/end_to_end/grpo_runs.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

// Groups are divided among micro-batches and ranks.
TEST(GrpoRunTest, OneBitPatternHoweverItIsDivided) {
  const std::string straight = MustTrain(GrpoRun());
  const Metrics metrics = ReadMetrics(straight);
  ASSERT_EQ(metrics.losses().size(), 6);
  EXPECT_THAT(metrics.Values("log_ratio_max"), Each(0.0));
  EXPECT_EQ(metrics.Values("log_ratio_max").size(), 6);
  EXPECT_THAT(metrics.Values("ratio_mean"), Each(1.0));
  // What the updates are made of.
  EXPECT_GT(metrics.Values("reward_std")[0], 0.0);
  EXPECT_GT(metrics.grad_norms()[0], 0.0);
  for (const char* rows : {"rollout_batch: 4 ", "rollout_batch: 8 "}) {
    ExpectSameRun(MustTrain(GrpoRun(absl::StrCat(rows, kReward))), straight);
  }
  for (const int ranks : {2, 4}) {
    for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
      SCOPED_TRACE(absl::StrCat(strategy, " ", ranks));
      ExpectSameRun(MustTrain(GrpoRun().Strategy(strategy, ranks)), straight);
    }
  }
}

// Each of the ranks that share rows samples a part of the answers.
TEST(GrpoRunTest, RanksMayDivideRows) {
  for (const bool again : {false, true}) {
    const std::string fields =
        absl::StrCat(again ? "updates_per_rollout: 2 beta: 0.1 " : "", kReward);
    const RunText run = GrpoRun(fields);
    const std::string straight = MustTrain(run);
    for (const auto& [strategy, ranks] :
         {std::pair<const char*, int>{"ddp", 2}, {"fsdp", 4}}) {
      SCOPED_TRACE(absl::StrCat(strategy, " ", ranks));
      const RunText divided =
          RunText(run).Strategy(strategy, ranks).Train("sequence_parallel: 2");
      ExpectSameRun(MustTrain(divided), straight);
      const Metrics got = ReadMetrics(
          MustTrain(RunText(divided).Train("deterministic: false")));
      const Metrics want = ReadMetrics(straight);
      // Answers are sampled by what updates have rounded.
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_NEAR(got.losses()[i], want.losses()[i], 1e-5);
        EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                    1e-3 * want.grad_norms()[i]);
      }
    }
  }
}

TEST(GrpoRunTest, ResumesInTheMidstOfARollout) {
  const std::string fields = absl::StrCat("updates_per_rollout: 3 ", kReward);
  const std::string straight = MustTrain(GrpoRun(fields));
  // The first of each three updates is by the weights that wrote the answers.
  const std::vector<double> ratios =
      ReadMetrics(straight).Values("log_ratio_max");
  ASSERT_EQ(ratios.size(), 6);
  for (const int first : {0, 3}) {
    EXPECT_EQ(ratios[first], 0.0);
    EXPECT_GT(ratios[first + 1], 0.0);
    EXPECT_GT(ratios[first + 2], ratios[first + 1]);
  }
  const std::vector<double> rewards = ReadMetrics(straight).Values("reward");
  EXPECT_EQ(rewards[0], rewards[2]);
  for (const int stop : {1, 2, 4}) {
    SCOPED_TRACE(stop);
    RunText run = GrpoRun(fields).Zero2(2);
    run.Output(
        MustTrain(RunText(run).Train(absl::StrCat("max_steps: ", stop))));
    run.Ddp(4).Train("max_steps: 6 resume: AUTO");
    ExpectSameRun(MustTrain(run), straight);
  }
  // Ranks that share rows have all of the rollout.
  RunText run = GrpoRun(fields).Fsdp(4);
  run.Output(
      MustTrain(RunText(run).Train("max_steps: 2 sequence_parallel: 2")));
  ExpectSameRun(MustTrain(run.Train("max_steps: 6 resume: AUTO")), straight);
}

TEST(GrpoRunTest, AKilledRankGoesOnFromTheMirror) {
  const RunText base =
      GrpoRun(absl::StrCat("updates_per_rollout: 2 ", kReward)).Ddp(2);
  const RunText run = RunText(base)
                          .Train(kUntilTold)
                          .Set("launch", "processes: 2 max_restarts: 3")
                          .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitUntil([&] {
    return CountLines(run.output() + "/metrics.jsonl") >= 5;
  })) << process.Wait().err;
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2);
  kill(ranks[1], SIGKILL);
  ASSERT_TRUE(process.WaitUntil([&] {
    return absl::StrContains(process.Out(), "restarted from step ");
  })) << process.Wait().err;
  const int64_t end = EndAfter(30, run.output(), &process);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ExpectSameRun(
      run.output(),
      MustTrain(RunText(base).Train(absl::StrCat("max_steps: ", end))));
}

// The reference is the model without its adapter.
TEST(GrpoRunTest, AnAdapterIsComparedWithItsBase) {
  const std::string folder = MustTrain(
      GrpoRun(absl::StrCat("beta: 0.1 ", kReward))
          .Set("adapter",
               "lora { rank: 4 alpha: 8 target_modules: 'all-linear' }")
          .Set("optimizer",
               "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
          .Fsdp(2));
  const Metrics metrics = ReadMetrics(folder);
  EXPECT_THAT(metrics.Values("log_ratio_max"), Each(0.0));
  const std::vector<double> kl = metrics.Values("kl");
  ASSERT_EQ(kl.size(), 6);
  EXPECT_EQ(kl[0], 0.0);
  EXPECT_GT(kl[5], 0.0);
}

// And without one, that with the weights with which the run began.
TEST(GrpoRunTest, ARunIsComparedWithItsStart) {
  const auto compared = [] {
    return GrpoRun(absl::StrCat("beta: 0.1 ", kReward))
        .Set("optimizer",
             "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }");
  };
  const std::string straight = MustTrain(compared());
  const std::vector<double> kl = ReadMetrics(straight).Values("kl");
  ASSERT_EQ(kl.size(), 6);
  EXPECT_EQ(kl[0], 0.0);
  EXPECT_GT(kl[5], 0.0);
  EXPECT_THAT(ReadMetrics(straight).Values("log_ratio_max"), Each(0.0));
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    ExpectSameRun(MustTrain(compared().Strategy(strategy, 2)), straight);
  }
  // What it has gathered for one set of weights isn't taken for the other.
  ExpectSameRun(MustTrain(compared().Fsdp(2, "reshard_after_forward: false")),
                straight);
  const std::string resumed =
      MustTrain(compared().Fsdp(2).Train("max_steps: 3"));
  ExpectSameRun(MustTrain(compared().Zero2(4).Output(resumed).Train(
                    "max_steps: 6 resume: AUTO")),
                straight);
  // In bfloat16 working copies are beside the masters.
  const std::vector<double> mixed =
      ReadMetrics(
          MustTrain(compared()
                        .Set("precision", "[plugin/capstan.bf16.Config] {}")
                        .Zero2(2)))
          .Values("kl");
  EXPECT_EQ(mixed[0], 0.0);
  EXPECT_GT(mixed[5], 0.0);
}

TEST(GrpoRunTest, WeightsThatStayAreGatheredOnceForAllTokens) {
  const std::string freed = MustTrain(GrpoRun().Fsdp(2));
  const std::string kept =
      MustTrain(GrpoRun().Fsdp(2, "reshard_after_forward: false"));
  ExpectSameRun(kept, freed);
  const std::vector<double> few = ReadMetrics(kept).Values("bytes_sent");
  const std::vector<double> many = ReadMetrics(freed).Values("bytes_sent");
  ASSERT_EQ(few.size(), 6);
  ASSERT_EQ(many.size(), 6);
  EXPECT_LT(2 * few[1], many[1]);
}

TEST(GrpoRunTest, AnotherStartIsNamed) {
  const auto made = [](int seed) {
    return MustTrain(
               GrpoRun().Train(absl::StrCat("max_steps: 1 seed: ", seed))) +
           kWeights;
  };
  const std::string first = made(1), other = made(2);
  const std::string start = fs::path(first).parent_path();
  RunText run = GrpoRun(absl::StrCat("beta: 0.1 ", kReward));
  run.Set("model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: '",
                                start, "' }"));
  run.Output(MustTrain(RunText(run).Train("max_steps: 2")));
  fs::copy_file(other, first, fs::copy_options::overwrite_existing);
  run.Train("resume: AUTO");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"its initial weights"});
}

// Be it in its place, while the run reads it for each rollout.
TEST(GrpoRunTest, AStartThatIsReplacedMeanwhileIsNamed) {
  const std::string start =
      MustTrain(GrpoRun().Train("max_steps: 1")) + "/final";
  RunText run = GrpoRun(absl::StrCat("beta: 0.1 ", kReward));
  run.Set("model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: '",
                                start, "' }"))
      .Train("max_steps: 1000000 save_every: 1")
      .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(run.output()) >= 2; }))
      << process.Wait().err;
  const std::string weights = start + "/model.safetensors";
  fs::last_write_time(weights,
                      fs::last_write_time(weights) + std::chrono::hours(1));
  ExpectOneError(process.Wait(), {"the weights in ", "have been replaced"});
}

TEST(GrpoRunTest, EvaluatesWithAnAnswerToEachPrompt) {
  double want = -1.0;
  for (const int ranks : {1, 2, 4}) {
    const std::string folder =
        MustTrain(GrpoRun()
                      .Set("eval_data", Data(Prompts()))
                      .Strategy(ranks == 1 ? "single" : "fsdp", ranks)
                      .Batch(2, 16)
                      .Train("max_steps: 1 eval_every: 1"));
    double reward = -1.0;
    for (const nlohmann::json& line : ReadMetrics(folder).others) {
      reward = line.value("eval_reward", reward);
    }
    EXPECT_GE(reward, 0.0);
    EXPECT_LE(reward, 1.0);
    if (want < 0.0) want = reward;
    EXPECT_EQ(reward, want) << ranks;
  }
}

TEST(GrpoRunTest, ALyingRewardProgramIsNamedAndNothingIsLost) {
  const std::string script =
      WriteText(NewTestFolder("reward") + "/lies.py",
                "import sys\n"
                "for n, line in enumerate(sys.stdin):\n"
                "    print('nan' if n == 40 else n % 2, flush=True)\n");
  RunText run = GrpoRun(absl::StrCat(
      "reward { name: 'judge' program { command: 'python3' command: '", script,
      "' } }"));
  run.Train("save_every: 1").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {"step 3", "judge", "nan"});
  EXPECT_EQ(CheckpointSteps(run.output()).back(), 2);
}

// The same answers, made again from the weights before the step.
TEST(GrpoRunTest, WhoShowsTheAnswersOfAStep) {
  const std::string fields = absl::StrCat("updates_per_rollout: 2 ", kReward);
  for (const RunText& run :
       {GrpoRun(), GrpoRun().Fsdp(2), GrpoRun(fields).Zero2(2)}) {
    const std::string folder =
        MustTrain(RunText(run).Train("save_every: 1 keep_checkpoints: 9"));
    const Metrics metrics = ReadMetrics(folder);
    for (const int step : {1, 4}) {
      const TrainerResult result =
          RunTrainer({"who", folder, absl::StrCat("--step=", step), "--json"});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const nlohmann::json who = nlohmann::json::parse(result.out);
      EXPECT_EQ(who["loss"], metrics.losses()[step - 1]);
      ASSERT_EQ(who["rows"].size(), 16);
      double reward = 0.0, vowels = 0.0, advantages = 0.0, loss = 0.0;
      for (const nlohmann::json& row : who["rows"]) {
        reward += double{row["metrics"]["reward"]};
        vowels += double{row["metrics"]["rewards_vowels_mean"]};
        advantages += double{row["made"]["advantages"]};
        loss += double{row["loss_sum"]};
        int64_t trained = 0;
        for (const nlohmann::json& token : row["texts"][0]["tokens"]) {
          trained += token["loss"].is_null() ? 0 : 1;
        }
        EXPECT_EQ(row["trained_tokens"], trained);
        EXPECT_THAT(row["texts"][0]["text"].get<std::string>(), HasSubstr("="));
      }
      EXPECT_NEAR(reward / 16, metrics.Values("reward")[step - 1], 1e-9);
      EXPECT_EQ(reward, vowels);
      EXPECT_NEAR(advantages, 0.0, 1e-5);
      EXPECT_NEAR(loss / double{who["targets"]}, who["loss"], 1e-6);
    }
  }
}

// Of a pair no answer has a loss of its own.
TEST(GrpoRunTest, WhoShowsRoles) {
  const std::string folder = MustTrain(
      GrpoRun(absl::StrCat("kind: ONLINE_DPO ", kReward))
          .Set("adapter",
               "lora { rank: 4 alpha: 8 target_modules: 'all-linear' }")
          .Batch(4, 16)
          .Train("max_steps: 1"));
  const TrainerResult result =
      RunTrainer({"who", folder, "--step=1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json who = nlohmann::json::parse(result.out);
  const Metrics metrics = ReadMetrics(folder);
  EXPECT_EQ(who["loss"], metrics.losses()[0]);
  double reward = 0.0, deviation = 0.0;
  for (const nlohmann::json& row : who["rows"]) {
    EXPECT_TRUE(row["loss"].is_null());
    EXPECT_TRUE(row["made"].contains("advantages"));
    reward += double{row["metrics"]["reward"]};
    deviation += double{row["metrics"]["reward_std"]};
    EXPECT_EQ(row["metrics"]["reward"], row["metrics"]["rewards_vowels_mean"]);
    // Of pairs.
    EXPECT_FALSE(row["metrics"].contains("rewards_accuracies"));
  }
  ASSERT_EQ(who["rows"].size(), 16);
  EXPECT_NEAR(reward / 16, metrics.Values("reward")[0], 1e-9);
  EXPECT_NEAR(deviation / 16, metrics.Values("reward_std")[0], 1e-9);
}

// Who answers "N+M=" with a digit or two, and then ends the turn.
std::string Taught() {
  static const std::string* const model = [] {
    std::string lessons;
    for (int i = 0; i < 500; ++i) {
      absl::StrAppend(&lessons, "{\"prompt\": \"", i * 3 % 50, "+", i * 7 % 50,
                      "=\", \"completion\": \"", i % 13, "\"}\n");
    }
    const std::string path =
        WriteText(NewTestFolder("data") + "/lessons.jsonl", lessons);
    RunText run = GrpoRun();
    run.Set(
           "train_data",
           absl::StrCat("[plugin/capstan.chat.Config] { path: '", path,
                        "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                        "' chat_template: 'chatml' max_length: 32 }"))
        .Set("objective", "[plugin/capstan.causal_lm.Config] {}")
        .Set("optimizer",
             "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
        .Batch(32, 32)
        .Train("max_steps: 60");
    return new std::string(MustTrain(run) + "/final");
  }();
  return *model;
}

// 16 answers a step of up to three turns, to texts or, in `chat`, to users.
// Between turns a program says how long the last one was.
RunText ToolRun(const std::string& fields, bool chat = false) {
  const std::string script =
      WriteText(NewTestFolder("tools") + "/tool.py",
                "import json, sys\n"
                "for line in sys.stdin:\n"
                "    a = json.loads(line)\n"
                "    print(json.dumps({'content': '%d+%d=' % (a['turn'], "
                "len(a['text'])), 'failed': a['turn'] == 2}), flush=True)\n");
  std::string data = Data(Prompts());
  if (chat) {
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      absl::StrAppend(
          &rows, "{\"messages\": [{\"role\": \"user\", \"content\": \"", i,
          "+1=\"}], \"tools\": [{\"type\": \"function\", \"function\": "
          "{\"name\": \"sum\"}}]}\n");
    }
    data = Data(WriteText(NewTestFolder("data") + "/chats.jsonl", rows));
    const std::string length = "max_length: 32";
    data.replace(data.find(length), length.size(), "max_length: 90");
  }
  RunText run = GrpoRun();
  run.Set(
      "objective",
      absl::StrCat("[plugin/capstan.grpo.Config] { num_generations: 4 "
                   "max_new_tokens: 30 tools { program { command: "
                   "'python3' command: '",
                   script, "' } max_turns: 3 } ", fields,
                   " reward { name: 'low' regex { pattern: '[0-5]$' } } }"));
  run.Set("model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: '",
                                Taught(), "' }"))
      .Set("train_data", data)
      .Set("optimizer",
           "[plugin/capstan.adamw.Config] { learning_rate: 1e-3 }");
  return run;
}

TEST(GrpoRunTest, WithToolsItIsOneBitPattern) {
  for (const bool chat : {false, true}) {
    SCOPED_TRACE(chat);
    const RunText run = ToolRun("", chat);
    const std::string straight = MustTrain(run);
    const Metrics metrics = ReadMetrics(straight);
    EXPECT_EQ(metrics.Values("log_ratio_max").size(), 6);
    EXPECT_THAT(metrics.Values("log_ratio_max"), Each(0.0));
    EXPECT_GT(metrics.grad_norms()[0], 0.0);
    const std::vector<double> calls = metrics.Values("tools_call_frequency");
    ASSERT_EQ(calls.size(), 6);
    EXPECT_GT(calls[0], 1.0);
    EXPECT_LE(calls[0], 2.0);
    EXPECT_GT(metrics.Values("tools_failure_frequency")[0], 0.2);
    ExpectSameRun(MustTrain(RunText(run).Fsdp(2)), straight);
    ExpectSameRun(MustTrain(RunText(run).Zero2(4)), straight);
  }
}

TEST(GrpoRunTest, WithToolsItResumesInTheMidstOfARollout) {
  const RunText base = ToolRun("updates_per_rollout: 3");
  const std::string straight = MustTrain(base);
  for (const int stop : {1, 5}) {
    SCOPED_TRACE(stop);
    RunText run = RunText(base).Zero2(2);
    run.Output(
        MustTrain(RunText(run).Train(absl::StrCat("max_steps: ", stop))));
    run.Single().Train("max_steps: 6 resume: AUTO");
    ExpectSameRun(MustTrain(run), straight);
  }
}

TEST(GrpoRunTest, EvaluationsUseTools) {
  double want = -1.0;
  for (const int ranks : {1, 2}) {
    const std::string folder =
        MustTrain(ToolRun("")
                      .Set("eval_data", Data(Prompts()))
                      .Strategy(ranks == 1 ? "single" : "ddp", ranks)
                      .Train("max_steps: 1 eval_every: 1"));
    double calls = -1.0;
    for (const nlohmann::json& line : ReadMetrics(folder).others) {
      calls = line.value("eval_tools_call_frequency", calls);
    }
    EXPECT_GT(calls, 1.0);
    if (want < 0.0) want = calls;
    EXPECT_EQ(calls, want);
  }
}

TEST(GrpoRunTest, LyingToolsAreNamedAndNothingIsLost) {
  RunText run = ToolRun("");
  const std::string script =
      WriteText(NewTestFolder("tools") + "/lies.py",
                "import sys\n"
                "for n, line in enumerate(sys.stdin):\n"
                "    print('lies' if n == 60 else '\"+\"', flush=True)\n");
  run.Set("objective",
          absl::StrCat("[plugin/capstan.grpo.Config] { num_generations: 4 "
                       "max_new_tokens: 30 tools { program { command: "
                       "'python3' command: '",
                       script, "' } max_turns: 3 } ", kReward, " }"));
  run.Train("save_every: 1").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {"the tools", "lies"});
  EXPECT_GE(CheckpointSteps(run.output()).back(), 1);
}

TEST(GrpoRunTest, IsStoppedWhileToolsAreWaitedFor) {
  const std::string hung = NewTestFolder("hung") + "/hung";
  RunText run = ToolRun("");
  run.Set(
         "objective",
         absl::StrCat("[plugin/capstan.grpo.Config] { num_generations: 4 "
                      "max_new_tokens: 30 tools { ",
                      HangingProgram(hung, "'\"1+1=\"'"), " } ", kReward, " }"))
      .Fsdp(2)
      .Train("save_every: 1")
      .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(hung)) << process.Wait().err;
  const int64_t before = NewestStep(run.output());
  process.Signal(SIGTERM);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_LT(result.seconds, 100.0);
  EXPECT_GE(NewestStep(run.output()), before);
}

TEST(GrpoRunTest, TheBestIsFoundByWhatEvaluationsMeasure) {
  const auto best = [](const std::string& train) {
    return GrpoRun()
        .Set("eval_data", Data(Prompts()))
        .Train(
            absl::StrCat("max_steps: 2 eval_every: 1 keep_best: true ", train))
        .Output(NewTestFolder("run") + "/out");
  };
  ExpectOneError(RunTrainer({"--config=" + best("").File()}),
                 {"train.best_metric", "rollouts", "eval_reward"});
  const RunText run = best("best_metric: 'eval_reward'");
  MustTrain(run);
  EXPECT_TRUE(
      ReadJson(run.output() + "/summary.json")["best_eval_reward"].is_number());
}

TEST(GrpoRunTest, ARowThatLacksAFieldIsToldBeforeTraining) {
  const std::string prompts = Prompts();
  WriteText(prompts, ReadText(prompts) + "{\"prompt\": \"last=\"}\n");
  RunText run = GrpoRun("reward { exact_match {} }");
  run.Set("train_data", Data(prompts)).Output(NewTestFolder("run") + "/out");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"prompt 41 of 41", "last=", "answer"});
  EXPECT_FALSE(fs::exists(run.output()));
}

TEST(GrpoRunTest, WrongConfigsAreNamed) {
  const auto expect = [](RunText run, const std::string& words) {
    run.Output(NewTestFolder("run") + "/out");
    const TrainerResult result = RunTrainer({"--config=" + run.File()});
    EXPECT_NE(result.exit_code, 0) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  expect(GrpoRun().Batch(2, 18), "global_batch_size: is 18");
  expect(GrpoRun().Ddp(3), "which an objective with rollouts needs");
  expect(
      GrpoRun().Set("objective", absl::StrCat("[plugin/capstan.grpo.Config] { "
                                              "max_new_tokens: 100 ",
                                              kReward, " }")),
      "max_new_tokens: is 100");
  expect(GrpoRun(absl::StrCat("temperature: 0 ", kReward)),
         "temperature: must be greater than 0");
  expect(GrpoRun().Set("train_data", TextData(CorpusPiece(4096), 16)),
         "kind: PROMPT");
  expect(GrpoRun("reward { exact_match { field: 'solution' } }"), "solution");
  expect(GrpoRun(absl::StrCat("tools { max_turns: 2 } ", kReward)),
         "tools.program.command: must be set");
}

}  // namespace
}  // namespace capstan
