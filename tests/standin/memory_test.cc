// SPDX-License-Identifier: Apache-2.0
//
// What GPUs tell of memory: the plan is near the peak of LibTorch's allocator,
// which is the real one here; a run that is out of memory leaves a snapshot.
// And of utilisation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// "33.8 MiB".
double Bytes(const std::string& text) {
  const double number = std::stod(text);
  if (text.find("KiB") != std::string::npos) return number * (1 << 10);
  if (text.find("MiB") != std::string::npos) return number * (1 << 20);
  return number * (1 << 30);
}

void ExpectPlanned(int gpus, const std::string& strategy,
                   const std::string& precision) {
  SCOPED_TRACE(strategy + " in " + precision);
  const StandinRun run =
      RunOn(gpus, ShortRun(gpus, {"strategy=capstan." + strategy,
                                  "precision=capstan." + precision,
                                  "batch.micro_batch_size=16",
                                  "batch.global_batch_size=32"}));
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      run.result.out, found,
      std::regex("all tensors +planned +(\\S+ .iB) +measured +(\\S+ .iB)")))
      << run.result.out;
  const double measured = Bytes(found[2]);
  EXPECT_NEAR(Bytes(found[1]), measured, 0.1 * measured) << found[0];
}

TEST(StandinMemoryTest, SingleBFloat16) { ExpectPlanned(1, "single", "bf16"); }
TEST(StandinMemoryTest, Single) { ExpectPlanned(1, "single", "fp32"); }
TEST(StandinMemoryTest, DdpBFloat16) { ExpectPlanned(2, "ddp", "bf16"); }
TEST(StandinMemoryTest, Zero2) { ExpectPlanned(2, "zero2", "fp32"); }
TEST(StandinMemoryTest, FsdpBFloat16) { ExpectPlanned(2, "fsdp", "bf16"); }

TEST(StandinMemoryTest, LogAndMetrics) {
  const StandinRun run =
      RunOn(1, ShortRun(1, {"strategy=capstan.single"}), "gpu=h100");
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(run.result.out,
              ContainsRegex("MFU [0-9.]+ %  GPU [0-9.]+ MiB of [0-9.]+ MiB"));
  EXPECT_THAT(run.result.out, ContainsRegex("MiB in tensors, .* reserved"));
}

// PyTorch's viewer looks for these keys.
TEST(StandinMemoryTest, SnapshotWhenMemoryRunsOut) {
  const StandinRun run = RunOn(
      1,
      ShortRun(1,
               {"strategy=capstan.single", "train.memory_snapshot_at_oom=true",
                "batch.micro_batch_size=64", "batch.global_batch_size=64"}),
      "memory=96M");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      run.result.err, found,
      std::regex("; (\\S+memory_snapshot_rank0\\.pickle) shows")))
      << run.result.err;
  std::ifstream file(found[1], std::ios::binary);
  const std::string pickle{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(pickle.substr(0, 2), "\x80\x02");
  for (const char* key : {"segments", "device_traces", "oom", "active_alloc"}) {
    EXPECT_THAT(pickle, HasSubstr(key));
  }
}

}  // namespace
}  // namespace capstan
