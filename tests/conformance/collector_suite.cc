// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "tests/conformance/collector.h"

namespace capstan {
namespace conformance {
namespace {

namespace fs = std::filesystem;

constexpr char kOlder[] = "what was there before";

std::string BytesOf(const fs::path& path) {
  return ReadWholeFile(path.string()).value_or("");
}

// For messages: paths and sizes.
std::string Describe(const std::map<std::string, std::string>& files) {
  std::string text;
  for (const auto& [path, bytes] : files) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", path, " (", bytes.size(),
                    " bytes)");
  }
  return text.empty() ? "nothing" : text;
}

TEST_P(CollectorConformance, CreatingDoesNoWork) {
  EXPECT_TRUE(Found().empty())
      << "a collector has written before Collect: " << Describe(Found());
}

TEST_P(CollectorConformance, TheOutputIsConstant) {
  const std::string before = collector().output();
  EXPECT_EQ(New()->output(), before) << "output() of another instance";
  MustCollect(collector());
  EXPECT_EQ(collector().output(), before) << "output() after Collect";
  EXPECT_TRUE(PathExists(before)) << "Collect has not written output()";
}

TEST_P(CollectorConformance, NothingButTheOutputIsLeft) {
  MustCollect(collector());
  EXPECT_TRUE(Found() == FoundOfOutput())
      << "something is left beside output(): " << Describe(Found());
}

TEST_P(CollectorConformance, TheSameConfigGivesTheSameBytes) {
  MustCollect(collector());
  const Files first = Found();
  MustCollect(collector());
  EXPECT_TRUE(Found() == first) << "collected again by the same instance";
  MustCollect(*New());
  EXPECT_TRUE(Found() == first) << "collected again by another instance";
}

TEST_P(CollectorConformance, ReplacesWhatWasThere) {
  MustCollect(collector());
  const Files want = Found();
  Spoil();
  MustCollect(collector());
  EXPECT_TRUE(Found() == want)
      << "something of the older output is left: " << Describe(Found())
      << ", not " << Describe(want);
}

// As progress, and so any other process, sees it.
TEST_P(CollectorConformance, TheOutputIsThereWholeOrNotAtAll) {
  for (const bool older : {false, true}) {
    if (older) Spoil();
    std::vector<Files> seen = {FoundOfOutput()};
    const absl::Status status =
        collector().Collect([&](double, absl::string_view) {
          const Files now = FoundOfOutput();
          if (now != seen.back()) seen.push_back(now);
          return true;
        });
    ASSERT_TRUE(status.ok()) << status.message();
    const Files after = FoundOfOutput();
    for (const Files& files : seen) {
      EXPECT_TRUE(files == seen.front() || files == after)
          << "while Collect ran output() was neither what was there before nor "
             "what is there now: "
          << Describe(files);
    }
  }
}

TEST_P(CollectorConformance, ProgressIsAFractionToldByTheCallingThread) {
  const std::thread::id caller = std::this_thread::get_id();
  int calls = 0, elsewhere = 0;
  const absl::Time start = absl::Now();
  const absl::Status status =
      collector().Collect([&](double done, absl::string_view) {
        ++calls;
        elsewhere += std::this_thread::get_id() == caller ? 0 : 1;
        EXPECT_TRUE(done >= 0.0 && done <= 1.0)
            << "progress of " << done << " is not in [0, 1]";
        return true;
      });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GT(calls, 0) << "progress was never called, and nobody could cancel";
  EXPECT_EQ(elsewhere, 0) << "progress was called by another thread";
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  EXPECT_LE(calls, 20 + 20 * seconds)
      << "progress is to be called a few times a second, not " << calls
      << " times in " << seconds << " s";
}

TEST_P(CollectorConformance, CancellingLeavesWhatWasThere) {
  for (const bool older : {false, true}) {
    if (older) Spoil();
    const Files before = Found();
    const absl::Status status =
        collector().Collect([](double, absl::string_view) { return false; });
    EXPECT_TRUE(absl::IsCancelled(status))
        << "progress returned false, and Collect " << status.ToString();
    EXPECT_TRUE(Found() == before)
        << "a cancelled Collect has left " << Describe(Found()) << ", not "
        << Describe(before);
  }
  MustCollect(collector());
}

TEST_P(CollectorConformance, WhatCantBeWrittenIsAnError) {
  const std::string file = folder() + "/a_file";
  std::ofstream(file) << kOlder;
  absl::StatusOr<LoadedPluginUnderTest> below = LoadedPluginUnderTest::Load(
      WithOutput(GetParam(), file + "/output"), PluginCategory::kCollector);
  ASSERT_TRUE(below.ok()) << below.status().message();
  absl::StatusOr<std::unique_ptr<Collector>> made = below->Create<Collector>();
  const absl::Status status =
      made.ok()
          ? (*made)->Collect([](double, absl::string_view) { return true; })
          : made.status();
  EXPECT_FALSE(status.ok()) << "nothing can be written below a file, and "
                               "Collect says that it has";
  EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), file))
      << "the error doesn't name the path: " << status.message();
  EXPECT_EQ(BytesOf(file), kOlder);
}

TEST_P(CollectorConformance, ItsOutputFitsItsConfig) {
  MustCollect(collector());
  const absl::Status status = New()->CheckOutput();
  EXPECT_TRUE(status.ok()) << "CheckOutput refuses what the same config made: "
                           << status.message();
}

TEST_P(CollectorConformance, ErrorsNameAField) {
  for (const auto& [set, config] : plugin().DoubtfulConfigs()) {
    const absl::Status error = plugin().CreateFrom<Collector>(config).status();
    if (!error.ok()) plugin().ExpectAField(error, set);
  }
}

}  // namespace

CollectorConformance::Files CollectorConformance::Found() const {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    files[entry.path().lexically_relative(folder()).string()] =
        entry.is_regular_file() ? BytesOf(entry.path()) : "";
  }
  return files;
}

CollectorConformance::Files CollectorConformance::FoundOfOutput() const {
  Files files = Found();
  const std::string output =
      fs::path(collector().output()).lexically_relative(folder()).string();
  for (auto it = files.begin(); it != files.end();) {
    const bool is_it =
        it->first == output || absl::StartsWith(it->first, output + "/");
    it = is_it ? std::next(it) : files.erase(it);
  }
  return files;
}

void CollectorConformance::Spoil() const {
  const fs::path path = collector().output();
  std::ofstream(fs::is_directory(path) ? path / "older" : path,
                std::ios::binary | std::ios::app)
      << kOlder;
}

void CollectorConformance::MustCollect(Collector& collector) {
  const absl::Status status =
      collector.Collect([](double, absl::string_view) { return true; });
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace conformance
}  // namespace capstan
