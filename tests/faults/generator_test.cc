// SPDX-License-Identifier: Apache-2.0
//
// A short run fails once in every place in turn: each call of a plugin, each
// collective, file access and allocation (testing/faults), on each rank. It
// must end soon, with one error that names the rank and the cause, or go on
// where a failure is survived; and what it has saved must do to go on with.
//
//     CAPSTAN_FAULTS=N|all    cases of each strategy (default: one of each
//     place) CAPSTAN_FAULTS_SEED=N   which (default: 1)
//     CAPSTAN_FAULTS_ONLY=RANK:SITE:N:KIND    that case only
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/launcher.h"
#include "testing/faults/fault_point.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "trainer/commands/prepare.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
// Who takes that long hangs, on a busy machine, too.
constexpr double kMostSeconds = 90.0;

struct Fault {
  int rank;
  std::string site;
  int64_t pass;
  std::string kind;
  std::string Text() const {
    return absl::StrCat(rank, ":", site, ":", pass, ":", kind);
  }
};

struct Outcome {
  int exit_code = -1;  // -1: killed, as it took too long
  double seconds = 0.0;
  int left = 0;  // processes
  std::string err;
  std::string out;
};

std::string EnvironmentOr(const char* name, const std::string& otherwise) {
  const char* const value = getenv(name);
  return value == nullptr ? otherwise : value;
}

// Processes of a session: none of an ended run's, or its shared memory stays.
int ProcessesOf(pid_t session) {
  int count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid) &&
        getsid(pid) == session) {
      ++count;
    }
  }
  return count;
}

// Ranks that divide a micro-batch's rows; an objective with rollouts and a
// state.
constexpr char kRows[] = "rows";
constexpr char kRollouts[] = "rollouts";

class GeneratorTest : public testing::TestWithParam<std::string> {
 protected:
  // Loads the plugins once, for all runs that are forked from here.
  void SetUp() override {
    const bool rows = GetParam() == kRows, rollouts = GetParam() == kRollouts;
    RunText run;
    run.Set("model",
            "[plugin/capstan.llama.Config] { vocab_size: 256 hidden_size: 16 "
            "intermediate_size: 16 num_hidden_layers: 2 num_attention_heads: 2 "
            "num_key_value_heads: 2 max_position_embeddings: 32 }");
    const std::string data = TextData(CorpusPiece(2000), 16);
    run.Set("train_data", data).Set("eval_data", data);
    run.Strategy(rows || rollouts ? "fsdp" : GetParam(), kRanks);
    if (rows) run.Train("sequence_parallel: 2");
    run.Train(
        "max_steps: 3 eval_every: 2 eval_batches: 3 save_every: 1 "
        "keep_checkpoints: 1 resume: AUTO sample_max_new_tokens: 2");
    run.Set("batch", "micro_batch_size: AUTO global_batch_size: 4");
    std::string text = run.Text();
    if (rollouts) {
      run.Set("objective", "[plugin/acme.replay.Config] { new_tokens: 2 }");
      text = run.Batch(1, 4).Text();
    } else {
      text = absl::StrReplaceAll(
          text, {{"\ntrain {", "\ntrain { sample_prompts { prompt: \"ab\" }"}});
    }
    RunOptions options;
    options.config_text = text;
    options.plugin_path = {Runfile("trainer/plugins"),
                           Runfile("tests/plugins/acme")};
    auto prepared = Prepare(options);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    prepared_ = *std::move(prepared);
    root_ = NewTestFolder("faults");
  }

  Outcome Run(const std::string& fault, const std::string& folder) {
    const std::string err = folder + ".err";
    const std::string out = folder + ".out";
    const Clock::time_point begin = Clock::now();
    const pid_t pid = fork();
    if (pid == 0) Launch(fault, folder, err, out);
    Outcome outcome;
    int status = 0;
    const auto seconds = [begin] {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (seconds() > kMostSeconds) {
        // Its ranks die with it.
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        break;
      }
      // sleeps: polls
      usleep(2000);
    }
    outcome.seconds = seconds();
    outcome.left = ProcessesOf(pid);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    outcome.err = ReadText(err);
    outcome.out = ReadText(out);
    return outcome;
  }

  [[noreturn]] void Launch(const std::string& fault, const std::string& folder,
                           const std::string& err, const std::string& out) {
    const auto redirect = [](const std::string& path, int to) {
      const int fd =
          open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
      dup2(fd, to);
      close(fd);
    };
    setsid();
    redirect(err, STDERR_FILENO);
    redirect(out, STDOUT_FILENO);
    TrainJob& job = prepared_->job;
    job.loaded.config.set_output_dir(folder);
    const auto made = PrepareOutputFolder(job.loaded.config, "");
    if (!made.ok()) {
      fprintf(stderr, "%s\n", made.status().ToString().c_str());
      _exit(3);
    }
    job.folder = *made;
    const int code =
        LaunchRanks(prepared_->place, [&job, &fault](const RankInfo& rank) {
          const FaultPoint::Counts counts = FaultPoint::Arm(fault, rank.rank);
          return RunTraining(&job, rank);
        });
    fflush(nullptr);
    _exit(code);
  }

  // All of the undisturbed run's.
  std::vector<Fault> AllFaults();
  // "" if all is as it should be.
  std::string WhatIsWrong(const Fault& fault, const Outcome& outcome) const;
  std::string Try(const Fault& fault, int number);

  std::unique_ptr<Prepared> prepared_;
  std::string root_;
  std::vector<double> losses_;  // undisturbed
  std::map<std::string, int> survived_;
};

std::vector<Fault> GeneratorTest::AllFaults() {
  const std::string counts = root_ + "/counts";
  const Outcome outcome = Run("count:" + counts, root_ + "/undisturbed");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.err, "");
  losses_ = ReadMetrics(root_ + "/undisturbed").losses();
  std::vector<Fault> faults;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const absl::string_view line :
         absl::StrSplit(ReadText(absl::StrCat(counts, ".", rank)), '\n',
                        absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      int64_t passes = 0;
      EXPECT_TRUE(words.size() == 3 && absl::SimpleAtoi(words[1], &passes));
      const std::string& site = words[0];
      std::vector<std::string> kinds = {"oom"};
      if (words[2] == "1") kinds.push_back("status");
      // Nothing else is thrown there.
      if (site != "allocation" && !absl::StartsWith(site, "file.")) {
        kinds.push_back("throw");
      }
      for (int64_t pass = 1; pass <= passes; ++pass) {
        for (const std::string& kind : kinds) {
          faults.push_back({rank, site, pass, kind});
        }
      }
    }
  }
  return faults;
}

std::string GeneratorTest::WhatIsWrong(const Fault& fault,
                                       const Outcome& outcome) const {
  if (outcome.exit_code < 0) return "it hangs, or crashes";
  if (outcome.left > 0) return "it leaves processes behind";
  if (outcome.exit_code == 0) {
    // A failed sample or trial, an old checkpoint that can't be removed.
    const bool may = fault.kind == "oom" ||
                     absl::StartsWith(fault.site, "file.") ||
                     // Of a batch that was read ahead, but not trained on.
                     fault.site == "dataset.Read" ||
                     absl::StrContains(outcome.out, "no sample ");
    return may ? "" : "it goes on as if nothing had happened";
  }
  if (outcome.exit_code != 1) {
    return absl::StrCat("exit code ", outcome.exit_code);
  }
  std::vector<std::string> errors;
  for (const absl::string_view line : absl::StrSplit(outcome.err, '\n')) {
    if (absl::StrContains(line, "ERROR")) errors.emplace_back(line);
  }
  if (errors.size() != 1) return absl::StrCat(errors.size(), " errors");
  if (!absl::StrContains(errors[0], absl::StrCat("rank ", fault.rank))) {
    return "it doesn't name the rank";
  }
  const std::string cause =
      fault.kind == "oom" ? "out of memory" : "a fault at";
  if (!absl::StrContains(errors[0], cause)) return "it doesn't name the cause";
  for (const char* not_it : {"lost the connection", "has left", "terminate"}) {
    if (absl::StrContains(outcome.err, not_it)) return "it names another cause";
  }
  return "";
}

std::string GeneratorTest::Try(const Fault& fault, int number) {
  const std::string folder = absl::StrCat(root_, "/", number);
  Outcome outcome = Run(fault.Text(), folder);
  std::string wrong = WhatIsWrong(fault, outcome);
  if (wrong.empty() && outcome.exit_code == 0) {
    ++survived_[fault.site];
    if (fault.kind != "oom" && ReadMetrics(folder).losses() != losses_) {
      wrong = "it goes on to other losses";
    }
  }
  // What it has left is good for the rest of the run.
  if (wrong.empty() && outcome.exit_code == 1 &&
      (absl::StartsWith(fault.site, "file.") || number % 8 == 0)) {
    outcome = Run("none", folder);
    if (outcome.exit_code != 0) wrong = "it can't be resumed";
  }
  if (!wrong.empty()) {
    absl::StrAppend(&wrong, " after ", outcome.seconds, " s\n", outcome.err);
  }
  std::filesystem::remove_all(folder);
  return wrong;
}

TEST_P(GeneratorTest, EachFaultEndsTheRunWithItsName) {
  std::vector<Fault> faults = AllFaults();
  std::map<std::string, int> passes;
  for (const Fault& fault : faults) ++passes[fault.site];
  // Those of testing/faults/interposed.cc, unless the core has inlined one.
  for (const char* site :
       {"allocation", "collective", "file.close", "file.make_folder",
        "file.open", "file.read", "file.remove", "file.replace_folder",
        "file.sync", "file.write", "objective.Compute"}) {
    EXPECT_EQ(passes.count(site), 1) << site;
  }
  const size_t all = faults.size();
  const std::string only = EnvironmentOr("CAPSTAN_FAULTS_ONLY", "");
  const std::string wanted = EnvironmentOr("CAPSTAN_FAULTS", "");
  int seed = 1;
  EXPECT_TRUE(
      absl::SimpleAtoi(EnvironmentOr("CAPSTAN_FAULTS_SEED", "1"), &seed));
  std::mt19937 random(seed);
  std::shuffle(faults.begin(), faults.end(), random);
  size_t count = faults.size();
  if (!only.empty()) {
    faults.erase(std::remove_if(
                     faults.begin(), faults.end(),
                     [&](const Fault& fault) { return fault.Text() != only; }),
                 faults.end());
    count = faults.size();
  } else if (wanted.empty()) {
    // The first of each site.
    std::set<std::string> seen;
    std::stable_partition(faults.begin(), faults.end(), [&](const Fault& f) {
      return seen.insert(f.site).second;
    });
    count = passes.size();
  } else if (wanted != "all") {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &count));
  }
  int wrong = 0;
  double longest = 0.0;
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < std::min(count, faults.size()); ++i) {
    const Clock::time_point one = Clock::now();
    const std::string what = Try(faults[i], static_cast<int>(i));
    longest = std::max(
        longest, std::chrono::duration<double>(Clock::now() - one).count());
    if (what.empty()) continue;
    ++wrong;
    ADD_FAILURE() << faults[i].Text() << ": " << what;
  }
  printf(
      "%zu of %zu cases at %zu sites in %.0f s, the longest %.1f s; %d "
      "wrong\n",
      std::min(count, faults.size()), all, passes.size(),
      std::chrono::duration<double>(Clock::now() - begin).count(), longest,
      wrong);
  for (const auto& [site, number] : passes) {
    printf("  %s: %d cases, %d survived\n", site.c_str(), number,
           survived_[site]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, GeneratorTest,
    testing::Values("ddp", "zero2", "fsdp",
                    "[plugin/capstan.fsdp.Config] { shard_group_size: 1 }",
                    kRows, kRollouts),
    [](const testing::TestParamInfo<std::string>& info) {
      return std::string(absl::StartsWith(info.param, "[") ? "hybrid"
                                                           : info.param);
    });

}  // namespace
}  // namespace capstan
