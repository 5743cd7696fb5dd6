// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

class BlameTest : public ::testing::Test {
 protected:
  // A run's folder with these lines of digests.
  std::string Run(const std::string& name, const std::string& lines) {
    const std::string folder = absl::StrCat(::testing::TempDir(), "/", name);
    EXPECT_TRUE(RemoveTree(folder).ok());
    EXPECT_TRUE(MakeFolder(folder + "/digests").ok());
    EXPECT_TRUE(WriteWholeFile(folder + "/digests.jsonl", lines).ok());
    return folder;
  }

  static void Keep(const std::string& folder, const std::string& file,
                   const std::vector<float>& values) {
    EXPECT_TRUE(WriteWholeFile(absl::StrCat(folder, "/digests/", file),
                               absl::string_view(
                                   reinterpret_cast<const char*>(values.data()),
                                   values.size() * sizeof(float)))
                    .ok());
  }
};

constexpr char kStart[] = R"({"step":0,"weight":{"a":"1","b":"2"}})"
                          "\n";
constexpr char kFirst[] =
    R"({"step":1,"weight":{"a":"3","b":"4"},"m":{"a":"5","b":"6"},)"
    R"("gradient":{"a":"7","b":"8"}})"
    "\n";

TEST_F(BlameTest, EqualDigests) {
  const std::string one = Run("one", absl::StrCat(kStart, kFirst));
  const std::string two = Run("two", absl::StrCat(kStart, kFirst));
  const auto found = FindFirstDifference(one, two);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST_F(BlameTest, GradientsComeFirstAndOfTheseTheLast) {
  const std::string want = Run("want", absl::StrCat(kStart, kFirst));
  const auto first = [&](const std::string& line) {
    const std::string got = Run("got", absl::StrCat(kStart, line, "\n"));
    const auto found = FindFirstDifference(got, want);
    EXPECT_TRUE(found.ok() && found->has_value()) << found.status();
    return absl::StrCat((*found)->step, " ", (*found)->kind, " ",
                        (*found)->parameter, " ", (*found)->tensors);
  };
  EXPECT_EQ(first(R"({"step":1,"weight":{"a":"0","b":"0"},)"
                  R"("m":{"a":"0","b":"0"},"gradient":{"a":"0","b":"0"}})"),
            "1 gradient b 2");
  EXPECT_EQ(first(R"({"step":1,"weight":{"a":"0","b":"4"},)"
                  R"("m":{"a":"5","b":"0"},"gradient":{"a":"7","b":"8"}})"),
            "1 m b 1");
  EXPECT_EQ(first(R"({"step":1,"weight":{"a":"0","b":"0"},)"
                  R"("m":{"a":"5","b":"6"},"gradient":{"a":"7","b":"8"}})"),
            "1 weight a 2");
}

TEST_F(BlameTest, TheStartIsAStepToo) {
  const std::string want = Run("want", absl::StrCat(kStart, kFirst));
  const std::string got = Run(
      "got",
      absl::StrCat(R"({"step":0,"weight":{"a":"1","b":"9"}})", "\n", kFirst));
  const auto found = FindFirstDifference(got, want);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_EQ((*found)->step, 0);
  EXPECT_EQ((*found)->parameter, "b");
}

TEST_F(BlameTest, ARepeatedStepCountsOnce) {
  const std::string want = Run("want", absl::StrCat(kStart, kFirst));
  const std::string got = Run(
      "got",
      absl::StrCat(kStart, R"({"step":1,"weight":{"a":"0"}})", "\n", kFirst));
  const auto found = FindFirstDifference(got, want);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

// A run that went on from step 1 has no gradients of it, or those of the run
// that made it.
TEST_F(BlameTest, AStepThatWasGoneOnFrom) {
  constexpr char kOn[] =
      R"({"step":1,"weight":{"a":"3","b":"4"},"m":{"a":"5","b":"6"}})"
      "\n";
  const std::string want = Run("want", absl::StrCat(kStart, kFirst));
  for (const std::string& lines :
       {absl::StrCat(kStart, kOn), absl::StrCat(kStart, kFirst, kOn)}) {
    const std::string got = Run("got", lines);
    for (const auto& [one, two] :
         {std::pair<std::string, std::string>{got, want}, {want, got}}) {
      const auto found = FindFirstDifference(one, two);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_FALSE(found->has_value()) << one << (*found)->kind;
    }
  }
  // What it went on with counts, and the gradients before.
  constexpr char kOther[] =
      R"({"step":1,"weight":{"a":"3","b":"9"},"m":{"a":"5","b":"6"}})"
      "\n";
  auto found = FindFirstDifference(
      Run("got", absl::StrCat(kStart, kFirst, kOther)), want);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_EQ((*found)->kind, "weight");
  constexpr char kGradient[] =
      R"({"step":1,"weight":{"a":"3","b":"4"},"m":{"a":"5","b":"6"},)"
      R"("gradient":{"a":"7","b":"0"}})"
      "\n";
  found = FindFirstDifference(Run("got", absl::StrCat(kStart, kGradient, kOn)),
                              want);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_EQ((*found)->kind, "gradient");
}

// Of a run that was killed while it wrote, or writes it now.
TEST_F(BlameTest, AHalfLastLineIsPassedOver) {
  const std::string want = Run("want", absl::StrCat(kStart, kFirst));
  const std::string half(kFirst, sizeof(kFirst) / 2);
  const auto found =
      FindFirstDifference(Run("got", absl::StrCat(kStart, half)), want);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST_F(BlameTest, DamageIsNamed) {
  const std::string want = Run("want", kStart);
  const auto found = FindFirstDifference(Run("got", "{\"step\":\n"), want);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("got/digests.jsonl: line 1"));
  EXPECT_THAT(
      std::string(FindFirstDifference(
                      Run("got", absl::StrCat(kStart, kStart, "{\n")), want)
                      .status()
                      .message()),
      HasSubstr("got/digests.jsonl: line 3"));
}

// Each run's ranks have other pieces.
TEST_F(BlameTest, NamesTheElement) {
  const std::string one = Run("one", "");
  const std::string two = Run("two", "");
  const FirstDifference where = {7, "gradient", "lm_head", 1};
  Keep(one, "7.gradient.lm_head.0.Float", {1.0f, 2.0f, 0.0f});
  Keep(one, "7.gradient.lm_head.3.Float", {-1.0f, 5.0f});
  Keep(one, "7.gradient.lm_head.bias.0.Float", {9.0f});
  const float above = 2.0f + 2.0f * 1.1920929e-7f;
  Keep(two, "7.gradient.lm_head.0.Float", {1.0f, above, -0.0f, -1.0f, 5.0f});
  const auto found = CompareKept(one, two, where);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->numel, 5);
  EXPECT_EQ(found->different, 2);
  ASSERT_EQ(found->first.size(), 2);
  EXPECT_EQ(found->first[0].index, 1);
  EXPECT_EQ(found->first[0].ulps, 1);
  EXPECT_EQ(found->first[0].reference, above);
  EXPECT_EQ(found->first[1].index, 2);
  EXPECT_EQ(found->first[1].ulps, 0) << "the sign of zero";
  EXPECT_THAT(BlameText("mine", "theirs", where, *found),
              HasSubstr("mine parts from theirs in step 7: the gradient of "
                        "'lm_head' differs at element 1, 2 instead of "
                        "2.00000024 (1 ulp); 2 of its 5 elements differ"));
}

TEST_F(BlameTest, RunsOfOtherModels) {
  const std::string other =
      Run("other", R"({"step":0,"weight":{"a":"1","b":"2","c":"3"}})");
  const std::string want = Run("want", kStart);
  for (const auto& [one, two] :
       {std::pair<std::string, std::string>{other, want}, {want, other}}) {
    EXPECT_EQ(FindFirstDifference(one, two).status().message(),
              absl::StrCat(other, " trains 'c', but ", want,
                           " doesn't: compare runs of one model"));
  }
}

TEST_F(BlameTest, ATensorThatWasNotKept) {
  const FirstDifference where = {1, "weight", "a", 3};
  EXPECT_EQ(BlameText("mine", "theirs", where),
            "mine parts from theirs in step 1: the weight of 'a' differs; 3 "
            "tensors of its kind do\nTo see its elements, train both once "
            "more, in other folders, with --set train.digests.write=true --set "
            "train.digests.keep_step=1 --set "
            "'train.digests.keep=\"weight/a\"'\n");
  const auto found = CompareKept(Run("one", ""), Run("two", ""), where);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("one/digests has no weight of a in step 1"));
}

// Both kept a tensor, but of a step before the one in which they part.
TEST_F(BlameTest, WhatWasKeptOfAnotherStep) {
  const std::string one = Run("one", "");
  const std::string two = Run("two", "");
  Keep(one, "5.gradient.a.0.Float", {1.0f});
  Keep(two, "5.gradient.a.0.Float", {2.0f});
  const auto found = CompareKept(one, two, {7, "gradient", "a", 1});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  Keep(one, "7.gradient.a.0.Float", {3.0f});
  Keep(two, "7.gradient.a.0.Float", {4.0f});
  EXPECT_EQ(CompareKept(one, two, {7, "gradient", "a", 1})->first[0].value,
            3.0);
}

// As when a run was repeated in the same folder on another number of ranks.
TEST_F(BlameTest, PiecesThatDoNotFollow) {
  const std::string two = Run("two", "");
  Keep(two, "1.weight.a.0.Float", {1.0f, 2.0f, 3.0f, 4.0f});
  const auto error = [&](const std::vector<std::string>& files) {
    const std::string one = Run("one", "");
    for (const std::string& file : files) Keep(one, file, {1.0f, 2.0f});
    return std::string(
        CompareKept(one, two, {1, "weight", "a", 1}).status().message());
  };
  EXPECT_EQ(error({"1.weight.a.0.Float", "1.weight.a.2.Float"}), "");
  EXPECT_THAT(error({"1.weight.a.0.Float", "1.weight.a.1.Float"}),
              HasSubstr("one/digests/1.weight.a.1.Float doesn't follow the "
                        "pieces before it, 2 elements of Float: one is "
                        "missing, or another run's are among them; remove "));
  EXPECT_THAT(error({"1.weight.a.0.Float", "1.weight.a.3.Float"}),
              HasSubstr("1.weight.a.3.Float doesn't follow"));
  EXPECT_THAT(
      error({"1.weight.a.2.Float"}),
      HasSubstr("1.weight.a.2.Float doesn't follow the pieces before it, "
                "0 elements"));
  EXPECT_THAT(error({"1.weight.a.0.Float", "1.weight.a.2.Half"}),
              HasSubstr("1.weight.a.2.Half doesn't follow"));
}

}  // namespace
}  // namespace capstan
