// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunIdentity Earlier() {
  return {{"train_data", "capstan.text, 100 bytes, crc32c 00000001"},
          {"eval_data", "capstan.text, 50 bytes, crc32c 00000002"},
          {"model.rope_theta", "10000.0"},
          {"optimizer", "capstan.adamw"},
          {"optimizer.learning_rate", "0.001"},
          {"schedule", "kind: LINEAR warmup_steps: 2"},
          {"train.max_steps", "10"}};
}

constexpr int64_t kDone = 4;  // updates

absl::StatusOr<std::vector<std::string>> Compare(const RunIdentity& mine,
                                                 const Train& train = Train()) {
  return CompareIdentities("out/step-4", Earlier(), mine, kDone, train);
}

std::string Refused(const RunIdentity& mine, const Train& train = Train()) {
  return std::string(Compare(mine, train).status().message());
}

TEST(RunIdentityTest, TheSameRunGoesOn) {
  EXPECT_THAT(Compare(Earlier()).value(), IsEmpty());
}

TEST(RunIdentityTest, AnotherCurveIsTold) {
  RunIdentity mine = Earlier();
  EXPECT_FALSE(ChangesOf(Earlier(), mine, kDone, Train()).other_curve);
  mine["train.max_steps"] = "20";
  RunIdentity cosine = Earlier();
  for (RunIdentity* identity : {&mine, &cosine}) {
    (*identity)["schedule"] = "kind: COSINE";
  }
  EXPECT_TRUE(ChangesOf(cosine, mine, kDone, Train()).other_curve);
  EXPECT_FALSE(ChangesOf(cosine, mine, 0, Train()).other_curve);
}

TEST(RunIdentityTest, EachDifferenceIsListed) {
  RunIdentity mine = Earlier();
  mine["optimizer.learning_rate"] = "0.003";
  mine["train_data"] = "capstan.text, 100 bytes, crc32c 0000000f";
  mine.erase("model.rope_theta");
  mine["optimizer.beta1"] = "0.8";
  EXPECT_THAT(
      Refused(mine),
      AllOf(HasSubstr("the run in out/step-4 isn't this one"),
            HasSubstr("optimizer.learning_rate: 0.001 -> 0.003; "),
            HasSubstr("crc32c 00000001 -> capstan.text, 100 bytes, crc32c "
                      "0000000f"),
            HasSubstr("model.rope_theta: 10000.0 -> unset"),
            HasSubstr("optimizer.beta1: unset -> 0.8"),
            HasSubstr("train.resume_with_changes: [\"model.rope_theta\", "
                      "\"optimizer.beta1\", \"optimizer.learning_rate\", "
                      "\"train_data\"]")));
}

TEST(RunIdentityTest, WhatIsNamedGoesOnWithANote) {
  RunIdentity mine = Earlier();
  mine["optimizer.learning_rate"] = "0.003";
  mine["model.rope_theta"] = "20000.0";
  Train train;
  train.add_resume_with_changes("optimizer");
  train.add_resume_with_changes("train_data");  // and isn't changed
  EXPECT_THAT(Refused(mine, train),
              AllOf(HasSubstr("model.rope_theta"), Not(HasSubstr("rate: "))));
  train.add_resume_with_changes("model.rope_theta");
  EXPECT_THAT(Compare(mine, train).value(),
              ElementsAre("goes on with another model.rope_theta: 10000.0 -> "
                          "20000.0",
                          "goes on with another optimizer.learning_rate: "
                          "0.001 -> 0.003"));
  // A name stands for what is below it, not for what begins like it.
  Train other;
  other.add_resume_with_changes("optim");
  EXPECT_FALSE(MayHaveChanged(other, "optimizer.learning_rate"));
  other.add_resume_with_changes("train_data.source");
  EXPECT_TRUE(MayHaveChanged(other, "train_data.source[1].weight"));
}

TEST(RunIdentityTest, ANameThatNothingHasIsTold) {
  Train train;
  for (const char* named : {"optimiser", "train_data", "model", "seed"}) {
    train.add_resume_with_changes(named);
  }
  EXPECT_THAT(
      Compare(Earlier(), train).value(),
      ElementsAre(AllOf(HasSubstr("WARNING: "),
                        HasSubstr("\"optimiser\" is nothing that a resumed run "
                                  "compares: did you mean \"optimizer\"?")),
                  EndsWith("\"seed\" is nothing that a resumed run compares")));
  RunIdentity mine = Earlier();
  mine["optimizer.learning_rate"] = "0.003";
  EXPECT_THAT(Refused(mine, train),
              AllOf(HasSubstr("rate: 0.001 -> 0.003"),
                    HasSubstr("did you mean \"optimizer\"?")));
}

TEST(RunIdentityTest, ANameThatNeitherRunSetsIsNoMisspelling) {
  Train train;
  train.add_resume_with_changes("train.max_grad_norm");
  train.add_resume_with_changes("train.log_every");  // never compared
  EXPECT_THAT(Compare(Earlier(), train).value(),
              ElementsAre(EndsWith("\"train.max_grad_norm\" isn't set in "
                                   "either run"),
                          HasSubstr("is nothing that a resumed run compares")));
}

TEST(RunIdentityTest, EvaluationsMayBeOnOtherDataUnlessTheyAreCompared) {
  RunIdentity mine = Earlier();
  mine["eval_data"] = "capstan.text, 60 bytes, crc32c 00000003";
  EXPECT_THAT(Compare(mine).value(), ElementsAre(HasSubstr("eval_data")));
  Train train;
  train.set_keep_best(true);
  EXPECT_THAT(Refused(mine, train), HasSubstr("eval_data: "));
}

// Of sets and tasks, those that best_metric is of: the longest name.
TEST(RunIdentityTest, OnlyTheEvaluationThatDecidesMayNotChange) {
  for (const auto& [metric, decides] :
       {std::pair<const char*, const char*>{"eval_loss", "eval_data"},
        {"eval_code_loss", "eval_sets.code"},
        {"eval_code_small_loss", "eval_sets.code_small.path"},
        {"eval_quiz_acc", "eval_tasks.quiz"}}) {
    RunIdentity earlier = Earlier(), mine = Earlier();
    for (const char* name : {"eval_data", "eval_sets.code",
                             "eval_sets.code_small.path", "eval_tasks.quiz"}) {
      earlier[name] = "1";
      mine[name] = "2";
    }
    Train train;
    train.set_keep_best(true);
    train.set_best_metric(metric);
    const absl::Status status =
        CompareIdentities("out", earlier, mine, kDone, train).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("isn't this one: ", decides)),
                      Not(HasSubstr("; "))))
        << metric;
  }
}

// WSD is trained without an end, which a resumed run adds.
TEST(RunIdentityTest, AScheduleMayChangeWhereTheRunHasntBeen) {
  RunIdentity earlier = Earlier(), mine = Earlier();
  earlier["schedule"] = "kind: WSD decay_steps: 0";
  mine["schedule"] = "kind: WSD decay_steps: 6";
  const auto compare = [&](int64_t done) {
    return CompareIdentities("out", earlier, mine, done, Train());
  };
  EXPECT_THAT(compare(4).value(), ElementsAre(HasSubstr("schedule: ")));
  EXPECT_THAT(std::string(compare(8).status().message()),
              HasSubstr("schedule: kind: WSD decay_steps: 0 -> kind: WSD "
                        "decay_steps: 6"));
}

// The schedule of a shorter run is scaled before they are compared.
TEST(RunIdentityTest, FewerStepsAreNamedAsTheCauseOfAnotherWarmUp) {
  RunIdentity earlier = Earlier(), mine = Earlier();
  earlier["train.max_steps"] = "60";
  earlier["schedule"] = "kind: COSINE warmup_steps: 50";
  mine["train.max_steps"] = "45";
  mine["schedule"] = "kind: COSINE warmup_steps: 3";
  const auto refused = [&] {
    return std::string(CompareIdentities("out", earlier, mine, kDone, Train())
                           .status()
                           .message());
  };
  EXPECT_THAT(refused(),
              AllOf(HasSubstr("warmup_steps: 3: train.max_steps: 60 "
                              "-> 45 may be why"),
                    HasSubstr("resume_with_changes: [\"schedule\"]")));
  mine["schedule"] = "kind: LINEAR warmup_steps: 3";
  EXPECT_THAT(refused(), Not(HasSubstr("may be why")));
  mine["schedule"] = "kind: COSINE warmup_steps: 3";
  mine["train.max_steps"] = "60";
  EXPECT_THAT(refused(), Not(HasSubstr("may be why")));
}

TEST(RunIdentityTest, MoreStepsAreNotedWhereTheyStretchTheSchedule) {
  RunIdentity mine = Earlier();
  mine["train.max_steps"] = "20";
  EXPECT_THAT(Compare(mine).value(),
              ElementsAre(AllOf(HasSubstr("train.max_steps: 10 -> 20"),
                                HasSubstr("along another curve"))));
  RunIdentity earlier = Earlier();
  earlier["schedule"] = mine["schedule"] = "";
  EXPECT_THAT(CompareIdentities("out", earlier, mine, kDone, Train()).value(),
              IsEmpty());
}

}  // namespace
}  // namespace capstan
