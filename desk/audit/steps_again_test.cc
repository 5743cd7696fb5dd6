// SPDX-License-Identifier: Apache-2.0
//
// Whoever changes a receipt and chains all behind it anew is found by the steps
// that are run again, whatever it was.
#include "desk/audit/steps_again.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Line = ReceiptChain::Line;

constexpr int kSteps = 20;

std::vector<Line> Lines(int from) {
  std::vector<Line> lines = {
      {{"begin", from},
       {"run", {{"train_data", "capstan.text, 12 bytes"}, {"seed", "1"}}},
       {"how", {{"world_size", 2}}},
       {"weights", absl::StrCat("w", from)},
       {"state", absl::StrCat("s", from)}}};
  for (int step = from + 1; step <= kSteps; ++step) {
    Line line = {{"step", step}};
    for (const char* key : {"samples", "rows", "loss", "grad_norm", "lr"}) {
      line[key] = absl::StrCat(key, step);
    }
    line["weights"] = absl::StrCat("w", step);
    line["state"] = absl::StrCat("s", step);
    lines.push_back(std::move(line));
  }
  return lines;
}

Receipts Chained(std::vector<Line> lines) {
  Receipts receipts;
  for (Line& line : lines) {
    const absl::Status added = receipts.chain.Add(&line);
    EXPECT_TRUE(added.ok()) << added;
    receipts.lines.push_back(std::move(line));
  }
  return receipts;
}

TEST(FindReceiptDifferenceTest, HowAndWhenARunBeganAreNone) {
  std::vector<Line> twice = Lines(0);
  for (Line& line : Lines(15)) twice.push_back(std::move(line));
  twice[kSteps + 1]["how"] = {{"world_size", 4}};
  EXPECT_FALSE(
      FindReceiptDifference(Chained(twice), Chained(Lines(0))).has_value());
  EXPECT_FALSE(
      FindReceiptDifference(Chained(Lines(0)), Chained(Lines(7))).has_value());
}

TEST(FindReceiptDifferenceTest, EachForgeryIsNamedByItsStepAndKey) {
  int forged = 0;
  for (size_t at = 1; at <= kSteps; ++at) {
    for (const char* key :
         {"samples", "rows", "loss", "grad_norm", "lr", "weights", "state"}) {
      for (const bool removed : {false, true}) {
        std::vector<Line> lines = Lines(0);
        if (removed) {
          lines[at].erase(key);
        } else {
          lines[at][key] = "another";
        }
        const auto found =
            FindReceiptDifference(Chained(lines), Chained(Lines(0)));
        ASSERT_TRUE(found.has_value()) << at << key;
        EXPECT_EQ(found->step, static_cast<int64_t>(at));
        EXPECT_EQ(found->key, key);
        EXPECT_EQ(found->recorded, removed ? "" : "another");
        ++forged;
      }
    }
  }
  EXPECT_EQ(forged, 280);
}

TEST(OtherLibrariesTest, AreToldBySlot) {
  const auto with = [](const char* sha256, int from) {
    std::vector<Line> lines = Lines(from);
    lines[0]["how"]["libraries"] = {
        {"core", {{"file", "core.so"}, {"sha256", "c0"}}},
        {"optimizer", {{"file", "mine.so"}, {"sha256", sha256}}}};
    return Chained(lines);
  };
  EXPECT_THAT(OtherLibraries(with("a", 0), with("a", 0), {}), IsEmpty());
  EXPECT_THAT(OtherLibraries(with("a", 0), with("b", 7), {}),
              ElementsAre("optimizer"));
  EXPECT_THAT(
      OtherLibraries(with("a", 0), with("b", 7), {"optimizer=you.other"}),
      IsEmpty());
  EXPECT_THAT(OtherLibraries(Chained(Lines(0)), with("b", 0), {}), IsEmpty());
  EXPECT_THAT(OtherLibraries(with("a", 0), Receipts(), {}), IsEmpty());
}

TEST(FindReceiptDifferenceTest, WhatTheRunIsAndBeganWithIsCompared) {
  std::vector<Line> lines = Lines(0);
  lines[0]["run"]["train_data"] = "capstan.text, 13 bytes";
  auto found = FindReceiptDifference(Chained(lines), Chained(Lines(4)));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->key, "run train_data");
  // Another setting is the cause of what differs behind it; of other data a
  // step says which of its rows.
  lines = Lines(0);
  lines[0]["run"]["seed"] = "2";
  lines[0]["run"]["train_data"] = "capstan.text, 13 bytes";
  lines[0]["weights"] = "another";
  found = FindReceiptDifference(Chained(lines), Chained(Lines(0)));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->key, "run seed");
  EXPECT_EQ(found->recorded, "2");
  EXPECT_EQ(found->again, "1");
  // What follows from a --set isn't named, but the field.
  lines[0]["run"]["derived"] = "8";
  found = FindReceiptDifference(Chained(lines), Chained(Lines(0)),
                                {"strategy=capstan.fsdp", "seed=1"});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->key, "run seed");
  lines = Lines(0);
  lines[0]["run"]["train_data"] = "capstan.text, 13 bytes";
  lines[6]["rows"] = "others";
  found = FindReceiptDifference(Chained(lines), Chained(Lines(0)));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->key, "rows");
  EXPECT_EQ(found->step, 6);
  lines = Lines(0);
  lines[4]["weights"] = "another";
  found = FindReceiptDifference(Chained(lines), Chained(Lines(4)));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 4);
  EXPECT_EQ(found->key, kBeginning);
  // They were replaced after the step: those are what a checkpoint has.
  lines = Lines(0);
  lines[4]["weights"] = "before";
  lines.insert(lines.begin() + 5,
               Line{{"begin", 4}, {"why", "back"}, {"weights", "w4"}});
  EXPECT_FALSE(
      FindReceiptDifference(Chained(lines), Chained(Lines(4))).has_value());
}

}  // namespace
}  // namespace capstan
