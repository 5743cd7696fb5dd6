// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/status.h"
#include "trainer/session/output_folder.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Batching BatchOf(int64_t micro, int64_t global) {
  Batching batch;
  batch.set_micro_batch_size(static_cast<Batching::MicroBatchSize>(micro));
  batch.set_global_batch_size(global);
  return batch;
}

std::string Keep(int64_t run, int world_size, Batching* batch,
                 bool deterministic = false) {
  TrainState earlier;
  earlier.global_batch_size = run;
  Mesh mesh;
  mesh.data = world_size;
  return KeepGlobalBatch("out/step-00000004", earlier, mesh, deterministic,
                         batch);
}

void ExpectBatch(const Batching& batch, int64_t micro, int64_t global) {
  EXPECT_EQ(static_cast<int64_t>(batch.micro_batch_size()), micro);
  EXPECT_EQ(batch.global_batch_size(), global);
}

TEST(ResumeBatchTest, OnAsManyRanksNothingChanges) {
  Batching batch = BatchOf(6, 0);
  EXPECT_EQ(Keep(12, 2, &batch), "");
  ExpectBatch(batch, 6, 0);
}

TEST(ResumeBatchTest, FewerRanksAccumulate) {
  Batching batch = BatchOf(6, 0);
  EXPECT_THAT(Keep(12, 1, &batch),
              HasSubstr("global batch of 12 = micro 6 x 1 rank x "
                        "accumulation 2"));
  ExpectBatch(batch, 6, 12);
}

TEST(ResumeBatchTest, TheMicroBatchIsLoweredToCutIt) {
  Batching batch = BatchOf(6, 0);
  EXPECT_THAT(Keep(12, 3, &batch),
              AllOf(HasSubstr("12 = micro 4 x 3 ranks x accumulation 1"),
                    HasSubstr("micro_batch_size 6")));
  ExpectBatch(batch, 4, 12);
  // Also where the config names the run's own global batch.
  batch = BatchOf(6, 12);
  EXPECT_NE(Keep(12, 3, &batch), "");
  ExpectBatch(batch, 4, 12);
  // A default micro-batch is 1.
  batch = BatchOf(0, 0);
  EXPECT_NE(Keep(12, 3, &batch), "");
  ExpectBatch(batch, 1, 12);
}

TEST(ResumeBatchTest, AnAutomaticMicroBatchStaysSo) {
  Batching batch = BatchOf(Batching::AUTO, 0);
  EXPECT_THAT(Keep(12, 3, &batch), HasSubstr("global batch of 12"));
  ExpectBatch(batch, Batching::AUTO, 12);
  EXPECT_EQ(Keep(12, 3, &batch), "");
}

TEST(ResumeBatchTest, AGlobalBatchThatIsSetWins) {
  Batching batch = BatchOf(4, 24);
  EXPECT_THAT(Keep(12, 2, &batch), AllOf(HasSubstr("24"), HasSubstr("12")));
  ExpectBatch(batch, 4, 24);
}

TEST(ResumeBatchTest, RanksThatDontDivideItShareItNearlyEvenly) {
  Batching batch = BatchOf(2, 0);
  EXPECT_THAT(Keep(12, 5, &batch),
              HasSubstr("12, at most micro 1 x 5 ranks x accumulation 3"));
  ExpectBatch(batch, 1, 12);
  batch = BatchOf(6, 0);
  EXPECT_THAT(Keep(12, 5, &batch),
              AllOf(HasSubstr("12, at most micro 3 x 5 ranks x accumulation 1"),
                    HasSubstr("micro_batch_size 6")));
}

// Of a deterministic run it is a part of the bits.
TEST(ResumeBatchTest, ADeterministicRunKeepsTheMicroBatch) {
  Batching batch = BatchOf(6, 0);
  EXPECT_THAT(Keep(12, 3, &batch, /*deterministic=*/true),
              HasSubstr("12, at most micro 6 x 3 ranks x accumulation 1"));
  ExpectBatch(batch, 6, 12);
}

TEST(ResumeBatchTest, WhatACheckpointDoesntSayIsntKept) {
  Batching batch = BatchOf(6, 0);
  EXPECT_EQ(Keep(0, 5, &batch), "");
  ExpectBatch(batch, 6, 0);
}

TEST(ResumeBatchTest, OtherGroupsByLengthNameTheirField) {
  TrainState earlier, mine;
  earlier.data_size = mine.data_size = 100;
  earlier.global_batch_size = 12;
  mine.global_batch_size = 4;
  EXPECT_TRUE(CheckGroups("out", earlier, mine).ok());
  earlier.data_group = 24;
  absl::Status status = CheckGroups("out", earlier, mine);
  EXPECT_EQ(FieldOf(status), "group_by_length");
  EXPECT_THAT(std::string(status.message()), HasSubstr("set it to true"));
  mine.data_group = 20;
  status = CheckGroups("out", earlier, mine);
  EXPECT_EQ(FieldOf(status), "global_batch_size");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("is 4"), HasSubstr("set it to 12")));
  // Other data is another matter.
  mine.data_size = 50;
  EXPECT_TRUE(CheckGroups("out", earlier, mine).ok());
}

TEST(ResumeCommandTest, AddsWhatTheWordsLack) {
  RunConfig config;
  EXPECT_EQ(ResumeCommand({"trainer", "--config=a.pbtxt"}, config, "/out"),
            "trainer --config=a.pbtxt --set train.resume=AUTO --set "
            "output_dir=/out");
  config.set_output_dir("/out");
  config.mutable_train()->set_resume(Train::AUTO);
  EXPECT_EQ(ResumeCommand({"trainer", "--config=a.pbtxt"}, config, "/out"),
            "trainer --config=a.pbtxt");
  EXPECT_EQ(ResumeCommand({}, config, "/out"), "");
}

TEST(ResumeCommandTest, QuotesForAShell) {
  RunConfig config;
  config.set_output_dir("/out");
  config.mutable_train()->set_resume(Train::AUTO);
  EXPECT_EQ(ResumeCommand({"trainer", "my run.pbtxt", "it's", ""}, config, ""),
            "trainer 'my run.pbtxt' 'it'\\''s' ''");
}

TEST(CommandWordsTest, AreWhatAUserTypes) {
  const char* const argv[] = {"/somewhere/trainer", "--config=a.pbtxt"};
  unsetenv("BUILD_WORKSPACE_DIRECTORY");
  EXPECT_EQ(
      CommandWords(2, argv),
      std::vector<std::string>({"/somewhere/trainer", "--config=a.pbtxt"}));
  setenv("BUILD_WORKSPACE_DIRECTORY", "/workspace", 1);
  EXPECT_EQ(CommandWords(2, argv),
            std::vector<std::string>(
                {"bazel", "run", "//trainer", "--", "--config=a.pbtxt"}));
}

}  // namespace
}  // namespace capstan
