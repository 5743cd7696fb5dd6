// SPDX-License-Identifier: Apache-2.0
//
// A call of the device that fails, wherever it is, ends the run with an error
// or is overcome: the run never hangs, and saves nothing wrong. In CI a sample
// of the calls; --seed=N picks another one, and --every lets one call after the
// other fail, until all have: with `bazel test`, --test_arg=--every,
// --test_arg=--gtest_filter=*Collectives*, --test_timeout=36000.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

int seed = 1;
bool every = false;

// Runs of which a call fails.
struct Scenario {
  const char* kind;  // of the calls
  int gpus;
  const char* strategy;
  int sample;  // how many of the calls fail, one in a run
};

std::vector<std::string> Args(const Scenario& scenario) {
  // In a small model's run, more of the calls come while a tensor is freed. The
  // error of such a call names no step (OnTerminate, trainer/commands/main.cc).
  return ShortRun(
      scenario.gpus,
      {std::string("strategy=capstan.") + scenario.strategy,
       "model.hidden_size=128", "model.intermediate_size=344",
       "model.num_hidden_layers=5", "train_data.sequence_length=128",
       "train.save_every=1", "batch.micro_batch_size=1",
       "batch.global_batch_size=" + std::to_string(scenario.gpus)});
}

StandinRun RunWithFault(const Scenario& scenario, int call) {
  return RunOn(
      scenario.gpus, Args(scenario),
      std::string("fault=") + scenario.kind + ":" + std::to_string(call));
}

int Faults(const StandinRun& run) {
  return static_cast<int>(
      std::count_if(run.report.begin(), run.report.end(),
                    [](const auto& line) { return line.contains("fault"); }));
}

// Of a run that has ended; from the first one, if ranks have several. 0: none.
double SecondsSinceFault(const StandinRun& run) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
  int64_t at_ms = now_ms;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("fault")) continue;
    at_ms = std::min(at_ms, line["at_ms"].get<int64_t>());
  }
  return 1e-3 * static_cast<double>(now_ms - at_ms);
}

// Bytes of the states in the run's whole checkpoints, by path.
std::map<std::string, std::string> States(const StandinRun& run) {
  std::map<std::string, std::string> states;
  for (const int64_t step : CheckpointSteps(run.folder)) {
    char folder[32];
    snprintf(folder, sizeof(folder), "step-%08d", static_cast<int>(step));
    const std::string path = run.folder + "/checkpoints/" + folder;
    for (const auto& [name, bytes] : Snapshot(path)) {
      if (name.find(".safetensors") == std::string::npos) continue;
      states.emplace(std::string(folder) + "/" + name, bytes);
    }
  }
  return states;
}

// A run without a fault: what the others are compared with.
struct Reference {
  std::map<std::string, std::string> states;
  std::vector<double> losses;
  int calls = 0;  // of the kind, of the process with the fewest
};

Reference RunReference(const Scenario& scenario) {
  Reference reference;
  const StandinRun run = RunWithFault(scenario, 0);
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_EQ(Faults(run), 0);
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("fault_calls") || line["step"] != 2) continue;
    const int calls = line["fault_calls"];
    reference.calls =
        reference.calls == 0 ? calls : std::min(reference.calls, calls);
  }
  EXPECT_GT(reference.calls, 0) << "no call of the kind was counted";
  reference.states = States(run);
  EXPECT_FALSE(reference.states.empty());
  reference.losses = run.metrics.losses();
  return reference;
}

// What the error of each kind must say, if there is one.
bool NamesTheFault(const std::string& kind, const std::string& error) {
  const auto says = [&error](const char* text) {
    return error.find(text) != std::string::npos;
  };
  if (!says("ERROR: ")) return false;
  if (kind == "malloc") return says("out of memory") || says("no memory left");
  if (kind == "launch") {
    return says("unspecified launch failure") && says("compute-sanitizer") &&
           (says("has failed in step ") || says("has failed at set-up") ||
            says("has failed after step "));
  }
  return says("rank");
}

void ExpectEnds(const Scenario& scenario, const Reference& reference,
                int call) {
  SCOPED_TRACE(std::string(scenario.kind) + ":" + std::to_string(call) +
               " of " + std::to_string(reference.calls) + " under " +
               scenario.strategy);
  const StandinRun run = RunWithFault(scenario, call);
  if (run.result.exit_code != 0) {
    // LibTorch by itself waits a minute for NCCL.
    EXPECT_LT(SecondsSinceFault(run), 50) << run.result.err;
  }
  EXPECT_FALSE(run.result.timed_out) << run.result.err;
  EXPECT_EQ(run.result.term_signal, 0) << run.result.err;
  EXPECT_EQ(run.result.err.find("SIGABRT"), std::string::npos)
      << run.result.err;
  EXPECT_TRUE(run.result.all_gone);
  EXPECT_GE(Faults(run), 1) << "nothing failed\n" << run.result.err;
  if (run.result.exit_code == 0) {
    EXPECT_EQ(run.metrics.losses(), reference.losses);
  } else {
    EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
    EXPECT_TRUE(NamesTheFault(scenario.kind, run.result.err)) << run.result.err;
  }
  for (const auto& [path, bytes] : States(run)) {
    const auto same = reference.states.find(path);
    ASSERT_NE(same, reference.states.end()) << path;
    EXPECT_TRUE(bytes == same->second) << path << " isn't what it should be";
  }
}

void ExpectAllEnd(const Scenario& scenario) {
  const Reference reference = RunReference(scenario);
  if (reference.calls == 0) return;
  if (every) {
    for (int call = 1; call <= reference.calls; ++call) {
      std::cout << scenario.kind << " " << call << " of " << reference.calls
                << std::endl;
      ExpectEnds(scenario, reference, call);
    }
    return;
  }
  std::seed_seq sequence = {seed, scenario.gpus, int{scenario.kind[0]}};
  std::mt19937 random(sequence);
  for (int i = 0; i < scenario.sample; ++i) {
    ExpectEnds(scenario, reference,
               1 + static_cast<int>(random() % reference.calls));
  }
}

// A single allocation that fails is overcome by LibTorch's allocator, if it can
// free what it keeps and ask again.
TEST(StandinFailuresTest, OutOfMemory) {
  ExpectAllEnd({"malloc", 1, "single", 2});
  ExpectAllEnd({"malloc", 2, "fsdp", 1});
}
TEST(StandinFailuresTest, Launches) {
  ExpectAllEnd({"launch", 1, "single", 2});
  ExpectAllEnd({"launch", 2, "ddp", 1});
}
// Its rank and the others, whose collectives are aborted, say so at once.
TEST(StandinFailuresTest, Collectives) {
  ExpectAllEnd({"collective", 2, "ddp", 2});
  ExpectAllEnd({"collective", 2, "fsdp", 1});
}

// NCCL connects the groups of a split after that of all ranks.
TEST(StandinFailuresTest, ASplitWithoutMemoryIsToldAsThat) {
  const StandinRun run = RunOn(
      4, ShortRun(4, {"strategy=capstan.fsdp", "strategy.shard_group_size=2"}),
      "fault=malloc:2");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_GE(Faults(run), 1);
  EXPECT_NE(run.result.err.find("has no memory left for NCCL's buffers"),
            std::string::npos)
      << run.result.err;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      capstan::seed = std::atoi(argv[i] + 7);
    } else if (std::strcmp(argv[i], "--every") == 0) {
      capstan::every = true;
    } else {
      std::cerr << "arguments: --seed=N, --every; not " << argv[i] << "\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
