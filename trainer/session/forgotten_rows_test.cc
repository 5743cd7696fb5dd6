// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/forgotten_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
  EXPECT_THAT(
      std::string(compare({"6"}, {}, 7).message()),
      AllOf(HasSubstr("passed over row 6, which this one doesn't forget"),
            Not(HasSubstr("trainer forget"))));
}

// By the new order a row may not have come up that the run has trained on.
TEST(ForgottenRowsTest, NotAListAndAnOrderAtOnce) {
  const auto compare = [](const RunIdentity& is, int64_t samples) {
    return CompareForgotten("run/step-4", Identity({}), is, Order(10, false),
                            samples);
  };
  for (const char* name : {"train.seed", "train_data", "train_data.shuffle"}) {
    RunIdentity other = Identity({"9"});
    other[name] = "4";
    EXPECT_THAT(
        std::string(compare(other, 6).message()),
        AllOf(HasSubstr(name), HasSubstr("can't be told: change the list or")));
    EXPECT_TRUE(compare(other, 0).ok());
    RunIdentity order_alone = Identity({});
    order_alone[name] = "4";
    EXPECT_TRUE(compare(order_alone, 6).ok());
  }
}

// Ten rows, of which nothing is read.
class Rows final : public DatasetReader {
 public:
  int64_t size() const override { return 10; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
};

class Loss final : public Objective {
 public:
  explicit Loss(bool rollouts) : rollouts_(rollouts) {}
  absl::Status Check(Model&, const DatasetReader&) const override {
    return absl::OkStatus();
  }
  int64_t CountTargets(const Batch&, const StepInfo&) const override {
    return 1;
  }
  LossSum Compute(Model&, const Batch&, const StepInfo&, UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::vector<int64_t>> Sample(Model&,
                                              const std::vector<int64_t>&,
                                              const SampleOptions&,
                                              UnitRunner&) override {
    return absl::UnimplementedError("");
  }
  bool has_rollouts() const override { return rollouts_; }

 private:
  const bool rollouts_;
};

std::string Refused(const std::vector<int64_t>& rows, bool rollouts = false,
                    int64_t skipped = 0) {
  Train train;
  train.mutable_forgotten_rows()->Add(rows.begin(), rows.end());
  train.set_skip_bad_samples(skipped);
  RunParts parts;
  parts.train_data = std::make_unique<Rows>();
  parts.objective = std::make_unique<Loss>(rollouts);
  return std::string(CheckForgotten(train, parts).message());
}

TEST(ForgottenRowsTest, WhatDoesNotGoWithThemIsRefused) {
  EXPECT_EQ(Refused({}, /*rollouts=*/true, /*skipped=*/1), "");
  EXPECT_EQ(Refused({0, 9}), "");
  EXPECT_THAT(Refused({3}, /*rollouts=*/true), HasSubstr("rollouts"));
  EXPECT_THAT(Refused({3}, false, /*skipped=*/1),
              HasSubstr("skip_bad_samples"));
  EXPECT_THAT(Refused({10}), HasSubstr("no row 10, but those from 0 to 9"));
  EXPECT_THAT(Refused({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
              HasSubstr("names all rows"));
}

}  // namespace
}  // namespace capstan
