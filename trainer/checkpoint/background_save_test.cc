// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/checkpoint_testing.h"
#include "trainer/checkpoint/save.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kFlat = FakeRun::kFlat;

SaveRequest RequestAt(const std::string& output_dir, int64_t step,
                      int keep = 0) {
  SaveRequest request;
  request.output_dir = output_dir;
  request.train_state = StateAt(step);
  request.keep = keep;
  return request;
}

// As steps of training do: until all ranks' files are written.
absl::Status StepUntilWritten(BackgroundSave* save, ProcessGroup& group) {
  while (true) {
    const std::vector<double> written =
        FromAllRanks(group, save->written() ? 1.0 : 0.0);
    const std::vector<double> failed =
        FromAllRanks(group, save->status().ok() ? 0.0 : 1.0);
    double sum = 0.0;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (failed[rank] > 0) return save->status();
      sum += written[rank];
    }
    if (sum == group.size()) break;
    // sleeps: polls
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  save->Complete();
  return absl::OkStatus();
}

bool LoadsAs(const std::string& folder, float shift) {
  const std::vector<int64_t> bounds = {0, 13, kFlat};
  const absl::Status status = FirstError(OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), bounds);
    const auto state = LoadCheckpoint(folder, run.Parts(group));
    EXPECT_TRUE(run.HasValues(shift));
    return state.status();
  }));
  EXPECT_TRUE(status.ok()) << status;
  return status.ok();
}

TEST(BackgroundSaveTest, WritesWhatWasThereWhenItBegan) {
  const std::string out = NewFolder();
  const std::vector<int64_t> bounds = {0, 9, 9, kFlat};
  const auto statuses = OnRanks(3, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), bounds);
    run.SetValues(0.25f);
    BackgroundSave save;
    absl::Status status = save.Start(RequestAt(out, 5), run.Parts(group));
    run.SetValues(7.0f);  // training goes on
    status.Update(StepUntilWritten(&save, group));
    status.Update(save.Settle(group));
    return status;
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_THAT(Names(out + "/checkpoints"), ElementsAre("step-00000005"));
  EXPECT_TRUE(LoadsAs(NewestCheckpoint(out), 0.25f));
  // Byte by byte what a save in the foreground writes.
  const std::string other = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith(bounds, other, 5, 0, 0.25f)).ok());
  for (const std::string& name : Names(NewestCheckpoint(other))) {
    EXPECT_EQ(*ReadWholeFile(NewestCheckpoint(out) + "/" + name),
              *ReadWholeFile(NewestCheckpoint(other) + "/" + name))
        << name;
  }
}

TEST(BackgroundSaveTest, OneIsUnderWayAndOldOnesGo) {
  const std::string out = NewFolder();
  const auto statuses = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 9, kFlat});
    BackgroundSave save;
    absl::Status status;
    for (const int64_t step : {1, 2, 3, 4}) {
      run.SetValues(static_cast<float>(step));
      status.Update(save.Start(RequestAt(out, step, 2), run.Parts(group)));
    }
    status.Update(save.Settle(group));
    EXPECT_FALSE(save.busy());
    return status;
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_THAT(Names(out + "/checkpoints"),
              ElementsAre("step-00000003", "step-00000004"));
  EXPECT_TRUE(LoadsAs(out + "/checkpoints/step-00000003", 3.0f));
  EXPECT_TRUE(LoadsAs(out + "/checkpoints/step-00000004", 4.0f));
}

TEST(BackgroundSaveTest, UntilAllHaveWrittenTheOneBeforeIsTheNewest) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, 9, kFlat}, out, 1)).ok());
  const std::string before = NewestCheckpoint(out);
  const auto statuses = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 9, kFlat});
    BackgroundSave save;
    const absl::Status status = save.Start(RequestAt(out, 2), run.Parts(group));
    while (!save.written()) std::this_thread::yield();
    EXPECT_EQ(NewestCheckpoint(out), before);
    return status;  // as if it were killed
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_EQ(NewestCheckpoint(out), before);
}

TEST(BackgroundSaveTest, OneRankThatCannotWriteFailsAll) {
  const std::string out = NewFolder();
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit low = old;
  low.rlim_cur = 700;  // room for the small file of rank 0, not for rank 1's
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  std::vector<absl::Status> noticed(2);
  const auto statuses = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 1, kFlat});
    run.SetValues();
    BackgroundSave save;
    EXPECT_TRUE(save.Start(RequestAt(out, 6), run.Parts(group)).ok());
    noticed[group.rank()] = StepUntilWritten(&save, group);
    return save.Settle(group);
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  const std::string folder = ".step-00000006.tmp-";
  const std::string file = "/state-00001-of-00002.safetensors";
  EXPECT_THAT(
      std::string(statuses[1].message()),
      AllOf(HasSubstr(folder), HasSubstr(file), HasSubstr("File too large")));
  EXPECT_EQ(noticed[1], statuses[1]) << "before anyone waits for it";
  EXPECT_TRUE(absl::IsUnavailable(statuses[0]));
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 1 could not write "), HasSubstr(folder),
                    HasSubstr(file)));
  EXPECT_THAT(Names(out + "/checkpoints"), ElementsAre());
}

TEST(SaveTest, TransientErrorsAreTriedAgainAndAFullDiskIsNot) {
  const auto tries = [](const absl::Status& error, int failures) {
    int count = 0;
    const absl::Status status = WithRetries(
        [&] { return ++count <= failures ? error : absl::OkStatus(); });
    EXPECT_EQ(status.ok(), count > failures);
    return count;
  };
  EXPECT_EQ(tries(WriteError("f", EIO), 2), 3);
  EXPECT_EQ(tries(WriteError("f", ESTALE), 1), 2);
  EXPECT_EQ(tries(WriteError("f", EIO), 100), 4);
  EXPECT_EQ(tries(WriteError("f", ENOSPC), 1), 1);
  EXPECT_EQ(tries(WriteError("f", EACCES), 1), 1);
  // By the number: whatever stands around the system's words, and not by the
  // words themselves.
  const absl::Status more = Annotate(WriteError("f", EIO), "rank 1");
  EXPECT_EQ(tries(Annotate(more, "save"), 1), 2);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NPROC, &before), 0);
  const rlimit limit = {std::min<rlim_t>(1 << 20, before.rlim_max),
                        before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
  const absl::Status again = WriteError("f", EAGAIN);
  ASSERT_EQ(setrlimit(RLIMIT_NPROC, &before), 0);
  EXPECT_THAT(std::string(again.message()), HasSubstr("(ulimit -u)"));
  EXPECT_EQ(tries(again, 1), 2);
  EXPECT_EQ(
      tries(absl::InternalError("its tensor is named Input/output error"), 1),
      1);
}

TEST(SaveTest, ASaveThatRank0HasGivenUpIsNoErrorOfTheOthers) {
  SaveRequest request;
  request.output_dir = NewFolder();
  request.train_state.step = 5;
  const std::string temporary = request.temporary();
  ASSERT_TRUE(MakeFolder(temporary + "/of_a_writer").ok());
  GiveUpSave(request);
  EXPECT_TRUE(fs::is_empty(request.output_dir + "/checkpoints"));
  const absl::Status late = WriteRank(temporary, 1, 2, {});
  EXPECT_TRUE(IsLostPeer(late)) << late;
  const absl::Status own = WriteRank(temporary, 0, 2, {});
  EXPECT_TRUE(absl::IsNotFound(own)) << own;
}

TEST(SaveTest, ADiskWithoutRoomIsToldBefore) {
  const std::string out = NewFolder();
  EXPECT_TRUE(CheckRoom(out, 1).ok());
  const absl::Status status = CheckRoom(out, int64_t{1} << 60);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(out), HasSubstr("MiB free"),
                    HasSubstr("needs 1099511627776.0 MiB")));
  // It may be wrong.
  testing::internal::CaptureStderr();
  EXPECT_TRUE(BeginSave(RequestAt(out, 3), int64_t{1} << 60).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("MiB free"), HasSubstr("trying all the same")));
}

}  // namespace
}  // namespace capstan
