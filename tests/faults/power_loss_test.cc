// SPDX-License-Identifier: Apache-2.0
//
// A machine that loses its power: what was reported as saved is there, and what
// is there is whole, whatever the disk has kept of the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/disk_model.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kStrace[] = "/usr/bin/strace";
constexpr int kSteps = 6;

// The step of ".../checkpoints/step-NNNNNNNN", else -1.
int64_t StepOf(const std::string& path) {
  const size_t at = path.rfind("/step-");
  int64_t step = -1;
  if (at == std::string::npos ||
      !absl::SimpleAtoi(path.substr(at + 6), &step)) {
    return -1;
  }
  return step;
}

class PowerLossTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PowerLossTest, WhatWasSavedIsThereAndWhole) {
  if (access(kStrace, X_OK) != 0) GTEST_SKIP() << "no strace";
  const std::string root = NewTestFolder("disk");
  const std::string trace = NewTestFolder("trace") + "/calls";
  const std::string out = root + "/runs/one";
  DiskModel disk(root);
  // A run that was killed may have made these, and flushed none of their names.
  if (GetParam() == "FOREGROUND") {
    for (const std::string& folder :
         {root + "/runs", out, out + "/checkpoints"}) {
      fs::create_directory(folder);
      disk.Apply({0.0, "mkdir", {folder, "0777"}, "0"});
    }
  }
  std::vector<std::string> args = StraceArguments(trace);
  args.push_back(Runfile("trainer/trainer"));
  args.push_back("--config=" +
                 RunText()
                     .Ddp(2)
                     .Batch(4, 8)
                     .Train(absl::StrCat("max_steps: ", kSteps,
                                         " save_every: 2 keep_checkpoints: 1 "
                                         "receipts: true resume: AUTO "
                                         "saving: ",
                                         GetParam()))
                     .Output(out)
                     .File());
  TrainerOptions options;
  options.binary = kStrace;
  options.timeout = 240.0;
  const TrainerResult result = RunTrainer(args, options);
  if (absl::StrContains(result.err, "ptrace")) {
    GTEST_SKIP() << "strace may not trace here";
  }
  ASSERT_EQ(result.exit_code, 0) << result.err;

  int64_t renamed = -1;   // the newest that has its name
  int64_t reported = -1;  // and is flushed: from here on it counts as saved
  int saved = 0;
  int looked = 0;
  for (const SystemCall& call : ReadTrace(trace)) {
    if (!disk.Apply(call)) continue;
    if (absl::StartsWith(call.name, "rename")) {
      const std::string& to = call.arguments[call.name == "rename" ? 1 : 3];
      if (StepOf(to) >= 0 && StepOf(to) > renamed) renamed = StepOf(to);
    } else if (call.name == "fsync" &&
               absl::EndsWith(call.arguments[0], "/checkpoints") &&
               reported < renamed) {
      reported = renamed;
      ++saved;
    }
    // Opened files change names alone.
    if (call.name == "openat") continue;
    for (const bool all_names : {false, true}) {
      const std::string left = NewTestFolder("left");
      disk.Restore(left, all_names);
      const std::string newest = NewestCheckpoint(left + "/runs/one");
      const std::string where =
          absl::StrCat("after ", call.name, " of ", call.arguments[0],
                       all_names ? ", all names" : "");
      if (!newest.empty()) {
        const absl::Status whole = VerifyCheckpoint(newest);
        EXPECT_TRUE(whole.ok()) << where << ": " << whole;
        // With the receipts that lead to it.
        const auto chain = ReadReceipts(left + "/runs/one", nullptr);
        EXPECT_TRUE(chain.ok() && chain->Find(StepOf(newest)) != nullptr)
            << where << ": " << chain.status();
      }
      EXPECT_GE(newest.empty() ? -1 : StepOf(newest), reported) << where;
      fs::remove_all(left);
      ++looked;
    }
    if (HasFailure()) return;
  }
  EXPECT_EQ(saved, kSteps / 2);
  EXPECT_GT(looked, 50);
  // At the end nothing is missing that was announced.
  const std::string left = NewTestFolder("end");
  disk.Restore(left, /*all_names=*/false);
  EXPECT_EQ(ReadText(left + "/runs/one/final/model.safetensors"),
            ReadText(out + "/final/model.safetensors"));
  EXPECT_EQ(StepOf(NewestCheckpoint(left + "/runs/one")), kSteps);
}

INSTANTIATE_TEST_SUITE_P(All, PowerLossTest,
                         ::testing::Values("BACKGROUND", "FOREGROUND"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace capstan
