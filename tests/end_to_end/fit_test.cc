// SPDX-License-Identifier: Apache-2.0
//
// fit as a user runs it, and the runs that it chooses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// Activations of some 60 MiB in one micro-batch of a rank.
RunText Layers() {
  return RunText()
      .Set("model",
           "[plugin/capstan.llama.Config] { hidden_size: 128 "
           "intermediate_size: 344 num_attention_heads: 4 "
           "num_key_value_heads: 2 max_position_embeddings: 128 "
           "num_hidden_layers: 8 vocab_size: 256 }")
      .Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 128))
      .Ddp(2)
      .Batch(2, 16)
      .Train("max_steps: 3");
}

// Each test measures for itself.
TrainerOptions Options() {
  TrainerOptions options;
  options.environment["XDG_CACHE_HOME"] = NewTestFolder("cache");
  return options;
}

TEST(FitTest, ItsChoiceRunsWithTheSameGlobalBatch) {
  // What it chooses takes the config's recomputation back.
  const std::string config =
      RunText()
          .Ddp(2)
          .Batch(1, 8)
          .Train(
              "max_steps: 6 activation_checkpointing: EVERY_N "
              "activation_checkpointing_n: 2")
          .File();
  const std::string chosen = NewTestFolder("chosen") + "/fit.pbtxt";
  const TrainerOptions options = Options();
  const TrainerResult fit =
      RunTrainer({"fit", config, "--trials=1", "--write=" + chosen}, options);
  ASSERT_EQ(fit.exit_code, 0) << fit.out << fit.err;
  EXPECT_THAT(fit.out, HasSubstr("global batch 8 x 32 tokens, 6 steps"));
  EXPECT_THAT(fit.out, HasSubstr("capstan.diloco: it has a curve of its own"));
  EXPECT_THAT(fit.err, HasSubstr("measuring (1): "));
  EXPECT_TRUE(fit.all_gone);

  const std::string output = NewTestFolder("run");
  const TrainerResult run =
      RunTrainer({"--config=" + config, "--config=" + chosen, "--set",
                  "output_dir=" + output});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Metrics metrics = ReadMetrics(output);
  ASSERT_FALSE(metrics.steps.empty());
  EXPECT_EQ(metrics.steps[0]["tokens"], 8 * 32);

  // What was measured is kept.
  const TrainerResult again =
      RunTrainer({"fit", config, "--trials=1"}, options);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("measuring")));
  // And with it that it was disturbed.
  const std::string cache = options.environment.at("XDG_CACHE_HOME");
  for (const auto& entry :
       std::filesystem::directory_iterator(cache + "/capstan/fit")) {
    Json kept = ReadJson(entry.path().string());
    for (Json& step : kept) step["others"] = 1.25;
    WriteText(entry.path().string(), kept.dump());
  }
  EXPECT_THAT(RunTrainer({"fit", config, "--trials=0"}, options).out,
              HasSubstr("other programs kept 1.2 cores busy"));
  const TrainerResult exists =
      RunTrainer({"fit", config, "--trials=0", "--write=" + chosen}, options);
  EXPECT_THAT(exists.err, HasSubstr("fit.pbtxt exists"));
  EXPECT_EQ(exists.out, "") << "said before anything is asked";
}

TEST(FitTest, JsonHasEachWay) {
  const std::string config = RunText().Ddp(2).Batch(1, 4).File();
  const TrainerResult fit =
      RunTrainer({"fit", config, "--trials=0", "--json"}, Options());
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const Json json = Json::parse(fit.out);
  EXPECT_EQ(json["global_batch_size"], 4);
  EXPECT_EQ(json["wish"], "time");
  EXPECT_EQ(json["fits"], true);
  EXPECT_THAT(json["config"].get<std::string>(), HasSubstr("micro_batch_size"));
  EXPECT_FALSE(json["machine"]["measured"].empty());
  ASSERT_GT(json["ways"].size(), 3);
  for (const Json& way : json["ways"]) {
    EXPECT_EQ(way["micro_batch_size"].get<int64_t>() *
                  way["accumulation"].get<int64_t>() *
                  way["ranks"].get<int64_t>(),
              4);
    EXPECT_GT(way["seconds"], 0);
    EXPECT_LE(way["seconds_low"], way["seconds"]);
    EXPECT_GE(way["seconds_high"], way["seconds"]);
    EXPECT_GT(way["memory"], 50 << 20);
    EXPECT_GT(way["total_seconds"], way["seconds"]);
    EXPECT_FALSE(way["set"].empty());
  }
}

// What is chosen for a host of so much memory stays below it, and what is
// refused for need of more would not.
TEST(FitTest, AMemoryLimitIsKept) {
  const std::string config = Layers().File();
  const std::string machine =
      WriteText(NewTestFolder("machine") + "/m.json",
                R"({"hosts": 1, "ranks": 2, "memory": "240MiB"})");
  const TrainerResult fit =
      RunTrainer({"fit", config, "--machine=" + machine, "--json"}, Options());
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const Json json = Json::parse(fit.out);
  const int64_t limit = int64_t{240} << 20;
  const auto peak_of = [&config](const Json& way) {
    const std::string output = NewTestFolder("run");
    std::vector<std::string> words = {"--config=" + config, "--set",
                                      "output_dir=" + output};
    for (const Json& set : way["set"]) {
      words.insert(words.end(), {"--set", set.get<std::string>()});
    }
    const TrainerResult run = RunTrainer(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const Json summary = ReadJson(output + "/summary.json");
    int64_t sum = 0;
    for (const Json& peak : summary["peak_memory_bytes"]) {
      sum += peak.get<int64_t>();
    }
    EXPECT_GT(sum, 0);
    return sum;
  };
  const Json& best = json["ways"][0];
  EXPECT_FALSE(best.contains("refused"));
  // Each of the two counts what they share.
  const int64_t shared = int64_t{110} << 20;
  EXPECT_LE(peak_of(best) - shared, limit * 1.05) << best;
  const Json& worst = json["ways"].back();
  ASSERT_TRUE(worst.contains("refused")) << "all fit";
  EXPECT_THAT(worst["refused"].get<std::string>(),
              HasSubstr("of the 240 MiB of a host"));
  EXPECT_GT(peak_of(worst), limit * 0.95) << worst;

  WriteText(machine, R"({"hosts": 1, "ranks": 2, "memory": "64MiB"})");
  const TrainerResult none =
      RunTrainer({"fit", config, "--machine=" + machine}, Options());
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("nothing fits on "));
}

TEST(FitTest, WishesDiffer) {
  const std::string config = Layers().File();
  const std::string machine =
      WriteText(NewTestFolder("machine") + "/m.json",
                R"({"hosts": 4, "ranks": 1, "tflops": 0.01, "price_per_hour": 2,
          "link": {"gbit": 0.1, "latency_us": 100}})");
  const auto best = [&](const std::string& wish) {
    const TrainerResult fit = RunTrainer(
        {"fit", config, "--machine=" + machine, "--wish=" + wish, "--json"},
        Options());
    EXPECT_EQ(fit.exit_code, 0) << fit.err;
    EXPECT_THAT(fit.err, Not(HasSubstr("measuring"))) << "all is described";
    return Json::parse(fit.out)["ways"][0];
  };
  const Json time = best("time");
  const Json memory = best("memory");
  const Json cost = best("cost");
  EXPECT_LT(time["seconds"], cost["seconds"]);
  EXPECT_LT(cost["cost"], time["cost"]);
  EXPECT_EQ(cost["hosts"], 1) << "links are slow";
  EXPECT_LT(memory["memory"], time["memory"]);
}

// A way of which nothing is known isn't played as if it took no time.
TEST(FitTest, UnknownComputationIsSaid) {
  const std::string config = RunText().Ddp(2).Batch(1, 8).File();
  const std::string machine =
      WriteText(NewTestFolder("machine") + "/m.json",
                R"({"hosts": 1, "ranks": 2, "measured": [{"ranks": 4,
          "micro_batch_size": 1, "accumulation": 1, "seconds": 0.1}]})");
  ExpectOneError(RunTrainer({"fit", config, "--machine=" + machine}, Options()),
                 {"nothing is known of 2 ranks of a host"});
  WriteText(machine, R"({"hosts": 1, "ranks": 4096})");
  ExpectOneError(RunTrainer({"fit", config, "--machine=" + machine, "--set",
                             "batch.global_batch_size=4096"},
                            Options()),
                 {"nothing is known of 4096 ranks of a host", "tflops"});
  WriteText(machine, R"({"hosts": 1, "ranks": 2, "measured": [{"ranks": 2,
          "micro_batch_size": 1, "accumulation": 1, "seconds": 0.1}]})");
  const TrainerResult known =
      RunTrainer({"fit", config, "--machine=" + machine, "--json"}, Options());
  ASSERT_EQ(known.exit_code, 0) << known.err;
  EXPECT_GT(Json::parse(known.out)["ways"][0]["seconds"], 0.05);
}

// No table is made up where no step could be taken.
TEST(FitTest, NothingMeasuredIsAnError) {
  const std::string config = RunText().Ddp(2).Batch(1, 8).File();
  const std::string chosen = NewTestFolder("chosen") + "/fit.pbtxt";
  TrainerOptions options = Options();
  options.environment["TMPDIR"] = "/nonexistent";
  const TrainerResult fit =
      RunTrainer({"fit", config, "--write=" + chosen}, options);
  EXPECT_EQ(fit.exit_code, 1) << fit.out;
  EXPECT_THAT(fit.err, HasSubstr("TMPDIR"));
  EXPECT_EQ(fit.out, "");
}

Json Described(const std::string& config, const std::string& machine,
               const std::vector<std::string>& more) {
  const std::string file =
      WriteText(NewTestFolder("machine") + "/m.json", machine);
  std::vector<std::string> words = {"fit", config, "--machine=" + file,
                                    "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const TrainerResult fit = RunTrainer(words, Options());
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  return Json::parse(fit.out);
}

constexpr char kCluster[] = R"({"hosts": 4, "ranks": 2, "tflops": 0.01,
    "link": {"gbit": 1, "latency_us": 100}})";

TEST(FitTest, DeterministicRunsKeepTheirMicroBatch) {
  const Json json = Described(RunText().Ddp(2).Batch(2, 16).File(), kCluster,
                              {"--set", "train.deterministic=true"});
  ASSERT_FALSE(json["ways"].empty());
  for (const Json& way : json["ways"]) EXPECT_EQ(way["micro_batch_size"], 2);
}

// Ranks of a host whose replicas are on others send at the same time: by its
// link goes as much as if all ranks were replicas.
TEST(FitTest, GroupsShareTheirHostsLink) {
  const Json json = Described(Layers().File(), R"({"hosts": 2, "ranks": 2,
      "tflops": 1, "link": {"gbit": 0.01, "latency_us": 1}})",
                              {});
  double groups = 0.0;
  double replicas = 0.0;
  for (const Json& way : json["ways"]) {
    if (way["hosts"] != 2 || way["accumulation"] != 1) continue;
    const double seconds = way["seconds"];
    if (way["strategy_settings"].dump() == R"(["shard_group_size=2"])") {
      groups = groups == 0.0 ? seconds : std::min(groups, seconds);
    }
    if (way["strategy"] == "capstan.ddp") {
      replicas = replicas == 0.0 ? seconds : std::min(replicas, seconds);
    }
  }
  EXPECT_GT(groups, 0.0);
  EXPECT_NEAR(groups, replicas, 0.15 * replicas);
}

TEST(FitTest, ASmallGlobalBatchTakesFewerHosts) {
  const Json json =
      Described(RunText().Ddp(2).Batch(1, 4).File(), kCluster, {});
  EXPECT_EQ(json["ways"][0]["hosts"].get<int>() * 2 <= 4, true);
  EXPECT_THAT(json["left_out"].dump(), HasSubstr("4 hosts of 2 ranks"));
}

TEST(FitTest, StepsOfAnotherModelAreRefused) {
  const std::string config = RunText().Ddp(2).Batch(1, 8).File();
  const Json json =
      Described(config,
                R"({"hosts": 1, "ranks": 2, "measured": [{"ranks": 2,
          "micro_batch_size": 1, "accumulation": 1, "seconds": 0.1}]})",
                {});
  const std::string machine =
      WriteText(NewTestFolder("told") + "/m.json", json.dump());
  const TrainerResult same =
      RunTrainer({"fit", config, "--machine=" + machine}, Options());
  EXPECT_EQ(same.exit_code, 0) << same.err;
  ExpectOneError(
      RunTrainer({"fit", Layers().File(), "--machine=" + machine}, Options()),
      {"its measured steps are of another run"});
}

TEST(FitTest, ACurveOfItsOwnIsNotAnswered) {
  const std::string config = RunText().Ddp(2).Batch(1, 8).File();
  ExpectOneError(
      RunTrainer({"fit", config, "--set", "strategy=capstan.diloco"}),
      {"capstan.diloco has a curve of its own"});
}

TEST(FitTest, WrongDescriptionsAreOneSentence) {
  const std::string config = RunText().Ddp(2).File();
  const std::string machine =
      WriteText(NewTestFolder("machine") + "/m.json", R"({"hots": 2})");
  ExpectOneError(RunTrainer({"fit", config, "--machine=" + machine}),
                 {"m.json: hots isn't known"});
  WriteText(machine, R"({"hosts": 2, "ranks": 1})");
  ExpectOneError(RunTrainer({"fit", config, "--machine=" + machine}),
                 {"link is missing"});
  ExpectOneError(RunTrainer({"fit", config, "--wish=joy"}),
                 {"--wish must be time, memory or cost, is 'joy'"});
  ExpectOneError(RunTrainer({"fit", config, "--trials=-3"}),
                 {"--trials must be 0 or more, is -3"});
}

}  // namespace
}  // namespace capstan
