// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/forgotten_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DataOrder Order(int64_t size, bool shuffle) {
  DataOrder order;
  order.size = size;
  order.shuffle = shuffle;
  order.seed = 7;
  return order;
}

std::vector<std::pair<int64_t, int64_t>> Uses(const std::set<int64_t>& rows,
                                              const DataOrder& order,
                                              int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> uses;
  for (const RowUse& use : UsesOf(rows, order, end)) {
    uses.emplace_back(use.row, use.position);
  }
  return uses;
}

TEST(ForgottenRowsTest, EachUseOfARowIsFound) {
  EXPECT_THAT(Uses({3, 7}, Order(10, false), 24),
              ElementsAre(std::pair(3, 3), std::pair(7, 7), std::pair(3, 13),
                          std::pair(7, 17), std::pair(3, 23)));
  EXPECT_THAT(Uses({3}, Order(10, false), 3), IsEmpty());
  EXPECT_THAT(Uses({}, Order(10, false), 24), IsEmpty());
  // Once in each epoch, beyond what is looked at at once.
  const DataOrder order = Order(5000, true);
  const auto uses = Uses({4711}, order, 15000);
  ASSERT_EQ(uses.size(), 3u);
  SampleSequence sequence(order);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(uses[epoch].second / 5000, epoch);
    std::vector<int64_t> sample(1);
    sequence.At(uses[epoch].second, absl::MakeSpan(sample));
    EXPECT_EQ(sample[0], 4711);
  }
}

RunIdentity Identity(const std::vector<std::string>& rows) {
  RunIdentity identity = {{"train.seed", "3"}, {"train.forgotten_rows", "9"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    identity["train.forgotten_rows[" + std::to_string(i) + "]"] = rows[i];
  }
  return identity;
}

TEST(ForgottenRowsTest, AreReadFromWhatIdentifiesARun) {
  EXPECT_THAT(ForgottenRows(Identity({"12", "3"})), ElementsAre(3, 12));
  Train train;
  train.add_forgotten_rows(5);
  train.add_forgotten_rows(2);
  EXPECT_THAT(ForgottenRows(train), ElementsAre(2, 5));
}

TEST(ForgottenRowsTest, ARunGoesOnWithOthersUntilTheyComeUp) {
  const auto compare = [](const std::vector<std::string>& was,
                          const std::vector<std::string>& is, int64_t samples) {
    return CompareForgotten("run/step-4", Identity(was), Identity(is),
                            Order(10, false), samples);
  };
  EXPECT_TRUE(compare({}, {"6"}, 6).ok());
  EXPECT_TRUE(compare({"6"}, {}, 6).ok());
  // In another order.
  EXPECT_TRUE(compare({"2", "1"}, {"1", "2"}, 10).ok());
  EXPECT_THAT(
      std::string(compare({"1"}, {"6", "1"}, 7).message()),
      AllOf(HasSubstr("run/step-4 has trained on row 6"),
            HasSubstr("this one forgets"), HasSubstr("`trainer forget`")));
  EXPECT_THAT(std::string(compare({"6"}, {}, 7).message()),
              HasSubstr("passed over row 6, which this one doesn't forget"));
}

}  // namespace
}  // namespace capstan
