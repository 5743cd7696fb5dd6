// SPDX-License-Identifier: Apache-2.0
//
// `trainer compare` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSingle[] = "strategy { [plugin/capstan.single.Config] {} }\n";
constexpr char kDdp[] = "strategy { [plugin/capstan.ddp.Config] {} }\n";

// A compare config over `run`, in a folder of its own, and where it writes.
struct CompareText {
  explicit CompareText(const std::string& axes, const RunText& run = RunText())
      : folder(NewTestFolder("compare")), output(folder + "/out") {
    WriteText(folder + "/run.pbtxt", run.Text());
    WriteText(
        folder + "/mine.pbtxt",
        absl::StrCat("config: \"run.pbtxt\"\noutput_dir: \"out\"\n", axes));
  }

  TrainerResult Run(std::vector<std::string> more = {},
                    const TrainerOptions& options = {}) const {
    more.insert(more.begin(),
                {"compare", "--config=" + folder + "/mine.pbtxt"});
    return RunTrainer(more, options);
  }

  const std::string folder;
  const std::string output;
};

TEST(CompareTest, OneCurveAndAReportOfIt) {
  const CompareText compare(
      absl::StrCat(kSingle, kDdp,
                   "precision { [plugin/capstan.fp32.Config] {} }\n"
                   "precision { [plugin/capstan.bf16.Config] {} }\n"
                   "processes: [1, 2]\n"));
  const TrainerResult result = compare.Run({"--set", "train.max_steps=4"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("left out: single fp32 on 2 ranks"),
                    HasSubstr("6/6  ddp bf16 on 2 ranks"), HasSubstr("PASSED"),
                    HasSubstr(compare.output + "/report.html")));
  EXPECT_EQ(result.out.find('\033'), std::string::npos) << "not a terminal";

  const nlohmann::json report = ReadJson(compare.output + "/report.json");
  EXPECT_EQ(report["name"], "mine");
  EXPECT_EQ(report["passed"], true);
  EXPECT_EQ(report["max_steps"], 4);
  EXPECT_EQ(report["global_batch_size"], 8);
  ASSERT_EQ(report["precisions"].size(), 2);
  EXPECT_EQ(report["precisions"][1]["reference"], "05-single-bf16-1");
  EXPECT_GT(report["precisions"][1]["from_first"]["loss"]["max"], 0.0);
  ASSERT_EQ(report["runs"].size(), 8);
  int completed = 0;
  for (const nlohmann::json& run : report["runs"]) {
    if (run["status"] == "skipped") {
      EXPECT_EQ(run["strategy"], "single");
      EXPECT_EQ(run["processes"], 2);
      EXPECT_THAT(run["reason"].get<std::string>(), HasSubstr("one rank"));
      continue;
    }
    ++completed;
    EXPECT_EQ(run["status"], "completed");
    EXPECT_EQ(run["loss"].size(), 4);
    EXPECT_EQ(run["accumulation"].get<int>() * run["processes"].get<int>(), 2);
    const std::string folder =
        absl::StrCat(compare.output, "/", run["folder"].get<std::string>());
    EXPECT_EQ(run["loss"], nlohmann::json(ReadMetrics(folder).losses()));
    EXPECT_EQ(ReadJson(folder + "/summary.json")["precision"],
              absl::StrCat("capstan.", run["precision"].get<std::string>()));
  }
  EXPECT_EQ(completed, 6);
  EXPECT_THAT(ReadText(compare.output + "/report.md"), HasSubstr("**PASSED**"));
  EXPECT_THAT(ReadText(compare.output + "/report.html"),
              AllOf(HasSubstr("Chart.js v"), HasSubstr("</html>")));
}

// Two micro-batches in another order of summation: never bit-equal norms.
TEST(CompareTest, ABoundThatIsPassedFails) {
  const CompareText compare(
      absl::StrCat(kDdp, "processes: [1, 2]\n",
                   "bound { precision: \"capstan.fp32\" grad_norm: 1e-300 }"));
  const TrainerResult result = compare.Run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("FAILED"));
  ExpectOneError(result, {"ddp fp32 on 2 ranks", "gradient norm",
                          "ddp fp32 on 1 rank", "1e-300"});
  const nlohmann::json report = ReadJson(compare.output + "/report.json");
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["problems"].size(), 1);
  EXPECT_GT(report["runs"][1]["grad_norm_delta"]["max"], 0.0);
  EXPECT_THAT(ReadText(compare.output + "/report.md"),
              HasSubstr("**too far**"));
}

// A precision's reference is its first strategy; an ulp, which no loss shows.
TEST(CompareTest, AStrategyHasABoundOfItsOwn) {
  const std::string plugins = NewTestFolder("plugins");
  WriteText(plugins + "/libacme_one_ulp.so",
            ReadText(Runfile("tests/plugins/acme/libacme_one_ulp.so")));
  const std::string axes = absl::StrCat(
      kSingle, kDdp,
      "strategy { [plugin/acme.one_ulp.Config] { step: 2 parameter: "
      "\"model.layers.0.input_layernorm.weight\" element: 3 } }\n"
      "processes: 1\nbound { bit_identical: true }\n");
  const RunText run = RunText().Train("deterministic: true max_steps: 3");
  const CompareText exact(axes, run);
  const TrainerResult failed = exact.Run({"--plugin_path=" + plugins});
  EXPECT_EQ(failed.exit_code, 1) << failed.out;
  ExpectOneError(failed, {"one_ulp fp32 on 1 rank: the bound is bit_identical, "
                          "but it parts from single fp32 on 1 rank in step 2: "
                          "the gradient of 'model.layers.0.input_layernorm"});
  EXPECT_THAT(ReadText(exact.output + "/junit.xml"),
              AllOf(HasSubstr("failures=\"1\""),
                    HasSubstr("<failure message=\"one_ulp fp32 on 1 rank: the "
                              "bound is bit_identical")));
  const CompareText loose(
      axes + "bound { strategy: \"one_ulp\" bit_identical: false }", run);
  const TrainerResult passed = loose.Run({"--plugin_path=" + plugins});
  EXPECT_EQ(passed.exit_code, 0) << passed.err;
}

// An ulp in a gradient, which no loss shows.
TEST(CompareTest, BlamesTheElementThatDiffers) {
  const std::string plugins = NewTestFolder("plugins");
  WriteText(plugins + "/libacme_one_ulp.so",
            ReadText(Runfile("tests/plugins/acme/libacme_one_ulp.so")));
  constexpr char kNorm[] = "model.layers.0.input_layernorm.weight";
  const CompareText compare(
      absl::StrCat(
          kSingle, "strategy { [plugin/capstan.fsdp.Config] {} }\n",
          "strategy { [plugin/acme.one_ulp.Config] { step: 7 from_ranks: 2 "
          "parameter: \"",
          kNorm, "\" element: 3 } }\nprocesses: [1, 2]\n"),
      RunText().Batch(2, 8).Train("deterministic: true max_steps: 8"));
  const TrainerResult result =
      compare.Run({"--blame", "--plugin_path=" + plugins});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  for (const char* same : {"fsdp fp32 on 1 rank", "fsdp fp32 on 2 ranks",
                           "one_ulp fp32 on 1 rank"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat(
                                same, ": identical to single fp32 on 1 rank")));
  }
  EXPECT_THAT(
      ReadText(compare.output + "/blame.txt"),
      AllOf(HasSubstr(absl::StrCat(
                "one_ulp fp32 on 2 ranks parts from single fp32 on 1 rank in "
                "step 7: the gradient of '",
                kNorm, "' differs at element 3, ")),
            HasSubstr("(1 ulp); 1 of its "),
            HasSubstr("and no other tensor of its kind does")));

  // The same of folders that are there now.
  const auto blame = [&](const char* run, const char* reference) {
    const std::string runs = absl::StrCat("--run=", compare.output, "/runs/");
    return RunTrainer({"compare", "--blame", runs + run, runs + reference});
  };
  const TrainerResult equal = blame("04-fsdp-fp32-2", "01-single-fp32-1");
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("04-fsdp-fp32-2: identical to "));
  const TrainerResult other = blame("06-one_ulp-fp32-2", "01-single-fp32-1");
  EXPECT_EQ(other.exit_code, 1) << other.err;
  EXPECT_THAT(
      other.out,
      AllOf(HasSubstr("in step 7: the gradient of"),
            HasSubstr(absl::StrCat("--set train.digests.keep_step=7 --set "
                                   "'train.digests.keep=\"gradient/",
                                   kNorm, "\"'"))));
  EXPECT_THAT(blame("06-one_ulp-fp32-2-blame",
                    "01-single-fp32-1-blame-06-one_ulp-fp32-2")
                  .out,
              HasSubstr("differs at element 3, "));
}

// Neither the line of the step that a run goes on from, nor one that was torn
// when it was killed, is taken for a difference.
TEST(CompareTest, BlamesNoRunThatWentOn) {
  const auto run = [](const char* more) {
    return RunText().Train("digests: {write:true}").Train(more);
  };
  const auto expect_same = [](const std::string& one,
                              const std::string& other) {
    const TrainerResult result =
        RunTrainer({"compare", "--blame", "--run=" + one, "--run=" + other});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(one + ": identical to "));
  };
  const std::string straight = MustTrain(run("max_steps: 4"));
  for (const char* digests : {"digests: {write:true}", "digests: {}"}) {
    const std::string folder = MustTrain(run("max_steps: 2").Train(digests));
    const std::string file = folder + "/digests.jsonl";
    if (fs::exists(file)) {
      WriteText(file, ReadText(file) + "{\"step\":3,\"weight\":{\"mod");
    }
    MustTrain(run("max_steps: 4 resume: AUTO").Output(folder));
    expect_same(folder, straight);
    expect_same(straight, folder);
  }
}

TEST(CompareTest, ARunThatFailsDoesNotStopTheOthers) {
  const std::string plugins = NewTestFolder("plugins");
  WriteText(plugins + "/libacme_faulty.so",
            ReadText(Runfile("tests/plugins/acme/libacme_faulty.so")));
  // At its second step a global batch of 9 reads sample 9.
  const CompareText compare(
      absl::StrCat(kSingle, kDdp, "processes: [1, 3]"),
      RunText().Batch(3, 9).Set(
          "train_data", "[plugin/acme.faulty.Config] { broken_sample: 9 }"));
  const TrainerResult result = compare.Run({"--plugin_path=" + plugins});
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<std::string> runs = {
      "single fp32 on 1 rank", "ddp fp32 on 1 rank", "ddp fp32 on 3 ranks"};
  for (const std::string& run : runs) {
    EXPECT_THAT(result.err, HasSubstr("ERROR: " + run + " failed: "));
  }
  EXPECT_THAT(result.err, AllOf(HasSubstr("sample 9 is damaged"),
                                Not(HasSubstr("ERROR: ERROR"))));
  const nlohmann::json report = ReadJson(compare.output + "/report.json");
  EXPECT_EQ(report["problems"].size(), 3);
  EXPECT_EQ(report["runs"][0]["status"], "failed");
  EXPECT_THAT(ReadText(compare.output + "/runs/01-single-fp32-1/output.txt"),
              HasSubstr("sample 9 is damaged"));
}

TEST(CompareTest, Refusals) {
  const auto error_of = [](const std::string& axes,
                           const std::vector<std::string>& words) {
    const CompareText compare(axes);
    ExpectOneError(compare.Run(), words);
    EXPECT_FALSE(fs::exists(compare.output)) << "nothing may be made";
  };
  error_of("set: \"launch.processes=AUTO\"", {"processes: list the numbers"});
  error_of(absl::StrCat(kSingle, "processes: 2"),
           {"mine.pbtxt:3:", "nothing to compare", "one rank"});
  error_of("strategy { [plugin/capstan.ddq.Config] {} } processes: 1",
           {"mine.pbtxt:3:", "did you mean \"capstan.ddp\""});
  error_of("processes: 1 set: \"model.hidden_size=33\"", {"hidden_size"});
  error_of("processes: 1", {"nothing to compare", "is the only run"});
  for (const auto& [set, instead] :
       {std::pair<const char*, const char*>{"output_dir=elsewhere",
                                            "--output_dir"},
        {"strategy.bucket_cap_mib=7", "lists some"},
        {"launch={processes: 1}", "lists some"}}) {
    ExpectOneError(
        CompareText(absl::StrCat(kSingle, kDdp, "processes: 1"))
            .Run({"--set", set}),
        {absl::StrCat("--set ", set, ": no run would get this"), instead});
  }
  ExpectOneError(RunTrainer({"compare", "--config=nowhere.pbtxt"}),
                 {"--config=nowhere.pbtxt", "no such file"});
  TrainerOptions options;
  options.environment = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}};
  ExpectOneError(CompareText("processes: 1").Run({}, options), {"WORLD_SIZE"});
  ExpectOneError(RunTrainer({"compare"}), {"--config is required", "--run"});
  ExpectOneError(RunTrainer({"compare", "--blame", "--run=one"}),
                 {"--blame --run=FOLDER --run=REFERENCE"});
  ExpectOneError(RunTrainer({"compare", "--blame", "--run=one", "--run=two"}),
                 {"one has no digests.jsonl", "train.digests.write=true"});
}

TEST(CompareTest, FoldersOfReports) {
  const std::string axes = absl::StrCat(kSingle, kDdp, "processes: 1");
  const CompareText compare(axes);
  const std::vector<std::string> short_run = {"--set", "train.max_steps=1"};
  EXPECT_EQ(compare.Run(short_run).exit_code, 0);
  const std::string before = ReadText(compare.output + "/report.json");
  ExpectOneError(compare.Run(short_run),
                 {compare.output, "already holds a comparison"});
  EXPECT_EQ(ReadText(compare.output + "/report.json"), before);

  TrainerOptions options;
  options.folder = NewTestFolder("workspace");
  WriteText(options.folder + "/WORKSPACE", "");
  const TrainerResult elsewhere = compare.Run(
      {"--set", "train.max_steps=1", "--output_dir=elsewhere"}, options);
  EXPECT_EQ(elsewhere.exit_code, 0) << elsewhere.err;
  EXPECT_TRUE(fs::exists(options.folder + "/elsewhere/report.html"));

  WriteText(compare.folder + "/mine.pbtxt",
            absl::StrCat("config: \"run.pbtxt\"\n", axes));
  EXPECT_EQ(compare.Run(short_run, options).exit_code, 0);
  EXPECT_TRUE(
      fs::exists(LatestRun(options.folder + "/runs/mine") + "/report.html"));
}

TEST(CompareTest, CtrlCEndsTheRunsToo) {
  const CompareText compare(absl::StrCat(kDdp, "processes: [2, 1]"),
                            RunText().Train("max_steps: 1000000"));
  TrainerProcess process(
      {"compare", "--config=" + compare.folder + "/mine.pbtxt"});
  ASSERT_TRUE(process.WaitForFile(compare.output +
                                  "/runs/01-ddp-fp32-2/metrics.jsonl"));
  const double before = process.Seconds();
  process.Signal(SIGINT);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_TRUE(result.all_gone);
  EXPECT_LT(result.seconds - before, 30.0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("SIGINT: stopped during ddp fp32"),
                                HasSubstr("go on with: "),
                                HasSubstr("--resume --output_dir="),
                                Not(HasSubstr("ERROR"))));
  EXPECT_FALSE(fs::exists(compare.output + "/report.json"));
}

TEST(CompareTest, ResumedItKeepsTheRunsThatAreDone) {
  const CompareText compare(absl::StrCat(kSingle, kDdp, "processes: 1"));
  const std::vector<std::string> steps = {"--set", "train.max_steps=2"};
  ASSERT_EQ(compare.Run(steps).exit_code, 0);
  const std::string runs = compare.output + "/runs/";
  const auto done = Snapshot(runs + "01-single-fp32-1");
  fs::remove(compare.output + "/report.json");
  fs::remove(runs + "02-ddp-fp32-1/summary.json");
  ExpectOneError(compare.Run(steps), {"already holds", "--resume"});
  std::vector<std::string> resume = steps;
  resume.insert(resume.end(), {"--resume", "--output_dir=" + compare.output});
  // With other settings the run that is done isn't thrown away.
  std::vector<std::string> other = resume;
  other.insert(other.end(), {"--set", "train.seed=2"});
  ExpectOneError(compare.Run(other), {"01-single-fp32-1", "other settings"});
  EXPECT_EQ(Snapshot(runs + "01-single-fp32-1"), done);
  const TrainerResult result = compare.Run(resume);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Snapshot(runs + "01-single-fp32-1"), done);
  EXPECT_TRUE(fs::exists(runs + "02-ddp-fp32-1/summary.json"));
  EXPECT_EQ(ReadJson(compare.output + "/report.json")["runs"].size(), 2);
}

TEST(CompareTest, KilledItTakesTheRunsWithIt) {
  const CompareText compare(absl::StrCat(kDdp, "processes: [2, 1]"),
                            RunText().Train("max_steps: 1000000"));
  TrainerProcess process(
      {"compare", "--config=" + compare.folder + "/mine.pbtxt"});
  ASSERT_TRUE(process.WaitForFile(compare.output +
                                  "/runs/01-ddp-fp32-2/metrics.jsonl"));
  process.Signal(SIGKILL);
  EXPECT_TRUE(process.Wait().all_gone);
}

// The config that comes with the trainer, as far as its first run.
TEST(CompareTest, TheConfigOfTheReadme) {
  TrainerOptions options;
  options.folder = NewTestFolder("workspace");
  const std::string output = options.folder + "/out";
  TrainerProcess process(
      {"compare", "--config=" + Runfile("configs/compare_strategies.pbtxt"),
       "--output_dir=" + output},
      options);
  EXPECT_TRUE(
      process.WaitForFile(output + "/runs/01-single-fp32-1/metrics.jsonl"));
  process.Signal(SIGTERM);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  for (const char* strategy : {"single", "ddp", "zero2", "fsdp"}) {
    EXPECT_THAT(ReadText(Runfile("configs/compare_strategies.pbtxt")),
                HasSubstr(absl::StrCat("capstan.", strategy, ".Config")));
  }
}

}  // namespace
}  // namespace capstan
