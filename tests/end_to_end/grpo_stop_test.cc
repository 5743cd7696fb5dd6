// SPDX-License-Identifier: Apache-2.0
//
// A signal in the midst of a rollout: all ranks leave it, what has been trained
// is saved, and the run that goes on is the one without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tests/end_to_end/grpo_runs.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// What a run says and leaves that was stopped soon in the midst of a rollout.
void ExpectStopped(const TrainerResult& result, const std::string& folder,
                   int64_t step) {
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_LT(result.seconds, 100.0);
  EXPECT_EQ(NewestStep(folder), step);
  EXPECT_THAT(result.err, HasSubstr("go on with: "));
}

// One rank waits for its program, the other for it.
TEST(GrpoStopTest, IsStoppedWhileARewardIsWaitedFor) {
  for (const bool asked : {false, true}) {
    SCOPED_TRACE(asked);
    const std::string hung = NewTestFolder("hung") + "/hung";
    const RunText run =
        GrpoRun(absl::StrCat("reward { name: 'judge' ",
                             HangingProgram(hung, "len(line) % 3"), " }"))
            .Fsdp(2)
            .Train("max_steps: 5 control: true")
            .Output(NewTestFolder("run") + "/out");
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitForFile(hung)) << process.Wait().err;
    const std::string control = run.output() + "/control.jsonl";
    if (asked) {
      WriteText(control, "{\"id\": \"me\", \"do\": \"stop\"}\n");
    } else {
      process.Signal(SIGTERM);
    }
    ExpectStopped(process.Wait(), run.output(), 2);
    if (asked) {
      EXPECT_THAT(ReadText(run.output() + "/events.jsonl"),
                  HasSubstr("\"id\":\"me\""));
    }
    // It hangs once only.
    MustTrain(RunText(run).Train("resume: AUTO"));
    ExpectSameRun(
        run.output(),
        MustTrain(RunText(run).Output(NewTestFolder("straight") + "/out")));
  }
}

// Neither by a run that leaves its rollout, nor by one that is killed.
TEST(GrpoStopTest, CodeThatIsJudgedLeavesNothingBehind) {
  // Children of a process that has ended become this one's.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const std::string rows =
      WriteText(NewTestFolder("data") + "/rows.jsonl",
                "{\"prompt\": \"1+1=\", \"tests\": \"hang\"}\n"
                "{\"prompt\": \"2+2=\", \"tests\": \"hang\"}\n"
                "{\"prompt\": \"3+3=\", \"tests\": \"hang\"}\n"
                "{\"prompt\": \"4+4=\", \"tests\": \"hang\"}\n");
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string scratch = NewTestFolder("scratch");
    RunText run = GrpoRun(
        "reward { code { cpu_seconds: 1000 interpreter: '/usr/bin/python3' "
        "interpreter: '-c' interpreter: 'import sys, signal; "
        "text = open(sys.argv[1]).read(); \"hang\" in text and "
        "(open(\"hung\", \"w\"), signal.pause()); exec(text)' } }");
    run.Set("train_data", Data(rows)).Output(NewTestFolder("run") + "/out");
    TrainerOptions options;
    options.environment["TMPDIR"] = scratch;
    TrainerProcess process({"--config=" + run.File()}, options);
    const auto hangs = [&scratch] {
      namespace fs = std::filesystem;
      std::error_code error;
      for (fs::recursive_directory_iterator it(scratch, error), end;
           !error && it != end; it.increment(error)) {
        if (it->path().filename() == "hung") return true;
      }
      return false;
    };
    ASSERT_TRUE(process.WaitUntil(hangs)) << process.Wait().err;
    process.Signal(signal);
    EXPECT_TRUE(process.Wait().all_gone);
    while (wait(nullptr) > 0) {  // the shell that sweeps
    }
    EXPECT_TRUE(std::filesystem::is_empty(scratch)) << signal;
  }
}

// Answers of hours.
TEST(GrpoStopTest, IsStoppedWhileItSamples) {
  for (const int ranks : {1, 2}) {
    RunText run = GrpoRun();
    run.Set("model",
            "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
            "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
            "num_key_value_heads: 2 max_position_embeddings: 40000 "
            "bos_token_id: 1 eos_token_id: 2 }")
        .Set("objective",
             absl::StrCat("[plugin/capstan.grpo.Config] { num_generations: 4 "
                          "max_new_tokens: 39000 ",
                          kReward, " }"))
        .Strategy(ranks == 1 ? "single" : "fsdp", ranks)
        .Output(NewTestFolder("run") + "/out");
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitForFile(run.output() + "/config.pbtxt"));
    usleep(2000000);  // sleeps: it is to be at its first rollout
    process.Signal(SIGINT);
    const TrainerResult result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped before the first step"));
    EXPECT_LT(result.seconds, 60.0);
  }
}

}  // namespace
}  // namespace capstan
