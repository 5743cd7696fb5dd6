// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/paper_group.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cluster/comm/agree.h"
#include "kernels/context/on_paper.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rank 1 of 4, to whom nobody says anything: what it reads is zeros.
class LoneGroup : public IdleGroup {
 public:
  LoneGroup() : IdleGroup(1, 4) {}
  void AllReduceHost(absl::Span<double> values) override {
    std::fill(values.begin(), values.end(), 0.0);
  }
};

TEST(PaperGroup, OthersSayTheSame) {
  const auto group = CreatePaperGroup(std::make_unique<LoneGroup>());
  EXPECT_THAT(FromAllRanks(*group, 7.0), ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(FromAllRanks(*group, std::string("words")), Each("words"));
  EXPECT_THAT(AllGatherHost(*group, std::vector<int>{1, 2}),
              ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
  std::vector<double> sums = {1.5, 2.0, 3.0};
  group->AllReduceHost(absl::MakeSpan(sums));
  EXPECT_THAT(sums, ElementsAre(6, 8, 12));
  const auto any = AnyRank(*group, true);
  ASSERT_TRUE(any.ok());
  EXPECT_TRUE(*any);
  EXPECT_TRUE(Agree(*group, absl::OkStatus(), "start").ok());
}

TEST(PaperGroup, SplitsIntoGroupsThatAreKnown) {
  const auto group = CreatePaperGroup(std::make_unique<LoneGroup>());
  const auto unknown = group->Split(1);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(unknown.status().message(), HasSubstr("call NoteSplit"));
}

// As the core's library calls them.
TEST(PaperGroup, ItsFunctionsTakeThePlaceOfTheCores) {
  EXPECT_FALSE(OnPaper());
  SetOnPaper();
  EXPECT_TRUE(OnPaper());
  const void* const found = dlsym(RTLD_DEFAULT, "_ZN7capstan7OnPaperEv");
  EXPECT_EQ(found, reinterpret_cast<const void*>(&OnPaper));
}

}  // namespace
}  // namespace capstan
