// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/digests.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class RunDigestsTest : public ::testing::Test {
 protected:
  using OneRank = std::function<absl::Status(FakeRun&, RunDigests&)>;

  // A run whose ranks have the flat model between `bounds` each, in folder_;
  // returns the ranks' statuses.
  std::vector<absl::Status> Run(const std::vector<int64_t>& bounds,
                                const OneRank& fn) {
    const int ranks = static_cast<int>(bounds.size()) - 1;
    ThreadMeeting meeting(ranks);
    std::vector<absl::Status> statuses(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeRun run(rank, bounds);
        run.SetValues();
        ThreadGroup group(&meeting, rank);
        RunDigests digests(config_, folder_, [&] { return run.Parts(group); });
        statuses[rank] = fn(run, digests);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  // From `step` on, which is there: one more, as step.cc has it.
  static OneRank OneStepAfter(int64_t step) {
    return [step](FakeRun& run, RunDigests& digests) -> absl::Status {
      CAPSTAN_RETURN_IF_ERROR(digests.Begin(step));
      run.shards_[0].gradient.copy_(run.shards_[0].master * 0.5);
      digests.Gradients(step + 1);
      run.SetValues(/*shift=*/1.0f);
      return digests.Write(step + 1);
    };
  }

  std::string Text() const { return *ReadWholeFile(file_); }
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    for (const auto& line : absl::StrSplit(Text(), '\n', absl::SkipEmpty())) {
      lines.push_back(Json::parse(std::string(line)));
    }
    return lines;
  }

  const std::string folder_ = NewFolder();
  const std::string file_ = folder_ + "/digests.jsonl";
  Digests config_;
};

TEST_F(RunDigestsTest, NoRankOwnsATensorAlone) {
  ASSERT_TRUE(FirstError(Run({0, FakeRun::kFlat}, OneStepAfter(0))).ok());
  const std::string one = Text();
  fs::remove(file_);
  ASSERT_TRUE(FirstError(Run({0, 9, FakeRun::kFlat}, OneStepAfter(0))).ok());
  EXPECT_EQ(Text(), one);
}

// Zeros would be taken for a difference to the run that went through the step.
TEST_F(RunDigestsTest, ABeginningHasNoGradients) {
  ASSERT_TRUE(FirstError(Run({0, 9, FakeRun::kFlat}, OneStepAfter(2))).ok());
  const std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 2);
  EXPECT_FALSE(lines[0].contains("gradient"));
  EXPECT_EQ(lines[1]["step"], 3);
  for (const char* kind : {"gradient", "weight", "exp_avg", "exp_avg_sq"}) {
    ASSERT_TRUE(lines[1].contains(kind)) << kind;
    for (const char* parameter : {"a.weight", "b"}) {
      EXPECT_NE(lines[1][kind][parameter], "0000000000000000");
    }
  }
  EXPECT_NE(lines[0]["weight"], lines[1]["weight"]);
}

// What a killed run leaves, of any length.
TEST_F(RunDigestsTest, ALineThatWasTornIsCut) {
  ASSERT_TRUE(FirstError(Run({0, FakeRun::kFlat}, OneStepAfter(0))).ok());
  const std::string whole = Text();
  for (const std::string& before : {whole, std::string()}) {
    for (const size_t length : {1, 50, 200000}) {
      ASSERT_TRUE(
          WriteWholeFile(file_, before + std::string(length, '{')).ok());
      ASSERT_TRUE(FirstError(Run({0, FakeRun::kFlat}, OneStepAfter(0))).ok());
      EXPECT_EQ(Text(), before + whole) << length;
    }
  }
}

TEST_F(RunDigestsTest, WhatIsKeptIsNamedByItsStep) {
  config_.set_keep_step(3);
  config_.add_keep("gradient/b");
  ASSERT_TRUE(FirstError(Run({0, 25, FakeRun::kFlat}, OneStepAfter(2))).ok());
  EXPECT_EQ(
      Names(folder_ + "/digests"),
      (std::set<std::string>{"3.gradient.b.0.Float", "3.gradient.b.3.Float"}));
}

// The others, which have a line to write, learn of it, and don't.
TEST_F(RunDigestsTest, AnErrorOfOneRankIsAgreedOn) {
  config_.set_keep_step(3);
  config_.add_keep("gradient/b");
  // In the place of rank 1's file.
  fs::create_directories(folder_ + "/digests/3.gradient.b.3.Float/full");
  const std::vector<absl::Status> statuses =
      Run({0, 25, FakeRun::kFlat}, OneStepAfter(2));
  EXPECT_TRUE(IsLostPeer(statuses[0])) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("rank 1 could not write digests"));
  EXPECT_FALSE(IsLostPeer(statuses[1]));
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("3.gradient.b.3.Float can't be written: "));
  EXPECT_EQ(Lines().size(), 1u) << "a line without a rank's digests";
}

TEST_F(RunDigestsTest, AFullDisk) {
  fs::create_symlink("/dev/full", file_);
  const std::vector<absl::Status> statuses =
      Run({0, 9, FakeRun::kFlat}, OneStepAfter(0));
  EXPECT_TRUE(absl::IsResourceExhausted(statuses[0]));
  EXPECT_EQ(statuses[0].message(),
            absl::StrCat(file_, " can't be written: No space left on device"));
  EXPECT_TRUE(IsLostPeer(statuses[1])) << statuses[1];
}

// By definition, whatever instructions add it up, from any element on.
TEST(DigestOfTest, IsTheSumOfProductsWithOddKeys) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  const auto check = [&](const at::Tensor& numbers, auto bits) {
    const auto* const data =
        static_cast<const decltype(bits)*>(numbers.const_data_ptr());
    for (const int64_t first : {0, 1, 1000, 123456}) {
      uint64_t sum = 0;
      for (int64_t i = 0; i < numbers.numel(); ++i) {
        const auto index = static_cast<uint64_t>(first + i);
        sum += (mix(index / 1024) | 1) *
               (mix((index % 1024 + 1) * 0x9E3779B97F4A7C15u) | 1) * data[i];
      }
      EXPECT_EQ(DigestOf(numbers, first), sum) << numbers.numel() << first;
    }
  };
  for (const int64_t count : {1, 31, 32, 33, 1023, 2500}) {
    const at::Tensor numbers = at::randn({count});
    check(numbers, uint32_t{});
    check(numbers.to(at::kBFloat16), uint16_t{});
    check(numbers.to(at::kDouble), uint64_t{});
    check(at::randint(256, {count}, at::kByte), uint8_t{});
  }
}

}  // namespace
}  // namespace capstan
