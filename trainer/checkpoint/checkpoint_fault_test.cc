// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints against damage, kills and full disks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/checkpoint_testing.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kFlat = FakeRun::kFlat;
constexpr char kStateFile[] = "/state-00001-of-00002.safetensors";

class CheckpointFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    out_ = NewFolder();
    ASSERT_TRUE(FirstError(SaveWith({0, 9, kFlat}, out_, 5)).ok());
    folder_ = NewestCheckpoint(out_);
  }

  // "" if it loads, else the error. A failed load must not write anything,
  // unless values turn out to be wrong (`may_write`).
  std::string LoadError(bool may_write = false) {
    ThreadMeeting meeting(1);
    ThreadGroup group(&meeting, 0);
    FakeRun run(0, {0, kFlat});
    const auto state = LoadCheckpoint(folder_, run.Parts(group));
    const bool clean = run.tensor(0).equal(at::zeros({kFlat}, at::kFloat));
    if (!may_write) {
      EXPECT_EQ(state.ok(), !clean);
    }
    return std::string(state.status().message());
  }

  // Loads as rank `rank` of a run with such bounds, on its own.
  absl::Status LoadAs(int rank, const std::vector<int64_t>& bounds) {
    ThreadMeeting meeting(1);
    ThreadGroup group(&meeting, 0);
    FakeRun run(rank, bounds);
    const auto state = LoadCheckpoint(folder_, run.Parts(group));
    EXPECT_EQ(state.ok(), run.HasValues());
    return state.status();
  }

  // Changes the manifest's text, and its checksum to match if `sign`.
  void Edit(const std::string& from, const std::string& to, bool sign = true) {
    const std::string path = folder_ + "/manifest.json";
    std::string text = *ReadWholeFile(path);
    ASSERT_THAT(text, HasSubstr(from));
    text = absl::StrReplaceAll(text, {{from, to}});
    if (sign) {
      auto json = nlohmann::ordered_json::parse(text);
      json.erase("crc32c");
      json["crc32c"] = absl::StrFormat("%08x", Crc32c(json.dump()));
      text = json.dump(1);
    }
    ASSERT_TRUE(WriteWholeFile(path, text).ok());
  }

  void FlipLastByte(const std::string& path) {
    std::string bytes = *ReadWholeFile(path);
    bytes.back() ^= 1;
    ASSERT_TRUE(WriteWholeFile(path, bytes).ok());
  }

  std::string out_;
  std::string folder_;
};

TEST_F(CheckpointFaultTest, NumbersThatFitNoInteger) {
  for (const char* number : {"1e99", "-1e30"}) {
    const std::string whole = *ReadWholeFile(folder_ + "/manifest.json");
    Edit("\"world_size\": ",
         absl::StrCat("\"eval_step\": ", number, ", \"world_size\": "));
    EXPECT_THAT(LoadError(),
                AllOf(HasSubstr("manifest.json"), HasSubstr("is damaged")));
    ASSERT_TRUE(WriteWholeFile(folder_ + "/manifest.json", whole).ok());
  }
}

TEST_F(CheckpointFaultTest, AManifestOfBracketsOnly) {
  ASSERT_TRUE(
      WriteWholeFile(folder_ + "/manifest.json", std::string(200000, '['))
          .ok());
  EXPECT_THAT(LoadError(),
              AllOf(HasSubstr("manifest.json"), HasSubstr("is damaged")));
}

TEST_F(CheckpointFaultTest, NumelDoesNotOverflow) {
  ManifestState state;
  state.block = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(state.Numel(state.block), 1);
  EXPECT_EQ(state.Numel(2), 1);
  state.block = 256;
  EXPECT_EQ(state.Numel(257), 2);
}

TEST_F(CheckpointFaultTest, TruncatedStateFile) {
  const std::string path = folder_ + kStateFile;
  fs::resize_file(path, fs::file_size(path) - 4);
  EXPECT_THAT(LoadError(), AllOf(HasSubstr(kStateFile), HasSubstr("damaged"),
                                 HasSubstr("bytes")));
}

TEST_F(CheckpointFaultTest, OneChangedByte) {
  FlipLastByte(folder_ + kStateFile);
  EXPECT_THAT(
      LoadError(/*may_write=*/true),
      AllOf(HasSubstr(folder_ + kStateFile), HasSubstr("CRC-32C"),
            HasSubstr("'exp_avg_sq/b/0'"), HasSubstr("remove " + folder_)));
  FlipLastByte(folder_ + kStateFile);
  EXPECT_EQ(LoadError(), "");
  // Weights alone don't need the optimizer's state.
  FlipLastByte(folder_ + kStateFile);
  EXPECT_TRUE(CheckpointWeights(folder_, FakeRun::Specs()).ok());
}

TEST_F(CheckpointFaultTest, MissingStateFile) {
  fs::remove(folder_ + kStateFile);
  EXPECT_THAT(LoadError(), AllOf(HasSubstr(folder_ + kStateFile),
                                 HasSubstr("it isn't there"),
                                 HasSubstr("remove " + folder_)));
  EXPECT_THAT(
      std::string(
          CheckpointWeights(folder_, FakeRun::Specs()).status().message()),
      HasSubstr(folder_ + kStateFile));
}

TEST_F(CheckpointFaultTest, ARankReadsOnlyItsRanges) {
  const std::vector<int64_t> bounds = {0, 9, kFlat};
  FlipLastByte(folder_ + kStateFile);
  EXPECT_EQ(LoadAs(0, bounds), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(LoadAs(1, bounds)));
  // The last byte belongs to b's state, which a rank that reads a.weight from
  // the same file doesn't touch.
  EXPECT_EQ(LoadAs(0, {0, 20, kFlat}), absl::OkStatus());
  fs::remove(folder_ + kStateFile);
  EXPECT_EQ(LoadAs(0, bounds), absl::OkStatus());
}

TEST_F(CheckpointFaultTest, OneRankThatCannotReadFailsAll) {
  FlipLastByte(folder_ + kStateFile);
  const auto statuses = OnRanks(3, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 9, 22, kFlat});
    return LoadCheckpoint(folder_, run.Parts(group)).status();
  });
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("CRC-32C"));
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[rank]));
    EXPECT_THAT(std::string(statuses[rank].message()),
                HasSubstr("rank 2 could not read " + folder_));
  }
}

// From another run with the same layout: lengths and names match.
TEST_F(CheckpointFaultTest, AStateFileOfAnotherCheckpoint) {
  const std::string other = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, 9, kFlat}, other, 5, 0, 0.5f)).ok());
  fs::copy_file(NewestCheckpoint(other) + kStateFile, folder_ + kStateFile,
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(LoadError(/*may_write=*/true),
              AllOf(HasSubstr(folder_ + kStateFile),
                    HasSubstr("its tensor 'master/a.weight/9'")));
}

// Of the right length, but with a tensor of another shape.
TEST_F(CheckpointFaultTest, AStateFileWithAnotherTensor) {
  const std::string path = folder_ + kStateFile;
  const std::string bytes = *ReadWholeFile(path);
  ASSERT_TRUE(WriteWholeFile(path, absl::StrReplaceAll(
                                       bytes, {{"master/b/0", "master/c/0"}}))
                  .ok());
  EXPECT_THAT(LoadError(),
              AllOf(HasSubstr(path), HasSubstr("has no tensor 'master/b/0'")));
  ASSERT_TRUE(
      WriteWholeFile(path, absl::StrReplaceAll(bytes, {{"[7]", "[8]"}})).ok());
  EXPECT_THAT(LoadError(), AllOf(HasSubstr(path), HasSubstr("/b/0'")));
}

TEST_F(CheckpointFaultTest, MissingManifest) {
  fs::remove(folder_ + "/manifest.json");
  EXPECT_THAT(LoadError(), AllOf(HasSubstr(folder_), HasSubstr("manifest")));
  EXPECT_EQ(NewestCheckpoint(out_), "");
  EXPECT_FALSE(CheckpointConfig(folder_).ok());
}

TEST_F(CheckpointFaultTest, DamagedManifest) {
  const std::string path = folder_ + "/manifest.json";
  const std::string text = *ReadWholeFile(path);
  ASSERT_TRUE(WriteWholeFile(path, text.substr(0, text.size() / 2)).ok());
  EXPECT_THAT(LoadError(), HasSubstr("manifest.json: is damaged"));
  ASSERT_TRUE(WriteWholeFile(path, text).ok());
  Edit("\"samples\": 40", "\"samples\": 41", /*sign=*/false);
  EXPECT_THAT(LoadError(),
              AllOf(HasSubstr("manifest.json: is damaged"),
                    HasSubstr("CRC-32C"), HasSubstr("remove " + folder_)));
  ASSERT_TRUE(WriteWholeFile(path, text).ok());
  Edit("\"samples\"", "\"simples\"");
  EXPECT_THAT(LoadError(), HasSubstr("samples"));
}

TEST_F(CheckpointFaultTest, OfAnotherTrainer) {
  Edit("\"format_version\": 2", "\"format_version\": 1");
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("manifest.json: was saved by an "
                                           "older trainer"),
                                 HasSubstr("format_version is 1"),
                                 HasSubstr("another output_dir")));
  Edit("\"format_version\": 1", "\"format_version\": 3");
  EXPECT_THAT(LoadError(), HasSubstr("saved by a newer trainer"));
}

// They would have the run look for its data for ever.
TEST_F(CheckpointFaultTest, NumbersThatNoRunReaches) {
  const std::string path = folder_ + "/manifest.json";
  const std::string text = *ReadWholeFile(path);
  for (const char* samples : {"-1", "9223372036854775807"}) {
    Edit("\"samples\": 40", absl::StrCat("\"samples\": ", samples));
    EXPECT_THAT(LoadError(),
                AllOf(HasSubstr("manifest.json: is damaged"),
                      HasSubstr(absl::StrCat("samples is ", samples))));
    ASSERT_TRUE(WriteWholeFile(path, text).ok());
  }
}

// A header that says I32 where the run has written F32.
TEST_F(CheckpointFaultTest, ATensorOfAnotherType) {
  const std::string path = folder_ + kStateFile;
  const std::string bytes = *ReadWholeFile(path);
  ASSERT_TRUE(
      WriteWholeFile(path, absl::StrReplaceAll(bytes, {{"F32", "I32"}})).ok());
  EXPECT_THAT(LoadError(), AllOf(HasSubstr(path), HasSubstr("' is I32"),
                                 HasSubstr("says F32")));
}

// Loads the newest as `ranks` ranks; each one's error.
class FallbackTest : public CheckpointFaultTest {
 protected:
  void SetUp() override {
    CheckpointFaultTest::SetUp();
    ASSERT_TRUE(FirstError(SaveWith({0, 9, kFlat}, out_, 6, 0, 0.5f)).ok());
    newest_ = NewestCheckpoint(out_);
  }

  std::vector<absl::Status> Load(std::vector<Resumed>* resumed) {
    const std::vector<int64_t> bounds = {0, 9, 22, kFlat};
    resumed->resize(3);
    return OnRanks(3, [&](ProcessGroup& group) {
      FakeRun run(group.rank(), bounds);
      absl::StatusOr<Resumed> mine =
          LoadNewestCheckpoint(out_, run.Parts(group));
      if (mine.ok()) {
        EXPECT_TRUE(run.HasValues(mine->state.step == 6 ? 0.5f : 0.0f));
        (*resumed)[group.rank()] = *mine;
      }
      return mine.status();
    });
  }

  std::string newest_;
};

TEST_F(FallbackTest, TheNewestIfItIsWhole) {
  std::vector<Resumed> resumed;
  ASSERT_TRUE(FirstError(Load(&resumed)).ok());
  EXPECT_EQ(resumed[0].folder, newest_);
  EXPECT_TRUE(resumed[0].damaged.empty());
}

// Only the last rank reads the byte.
TEST_F(FallbackTest, AllTakeTheOneBefore) {
  FlipLastByte(newest_ + kStateFile);
  std::vector<Resumed> resumed;
  const auto statuses = Load(&resumed);
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  for (const Resumed& mine : resumed) {
    EXPECT_EQ(mine.folder, folder_);
    EXPECT_EQ(mine.state.step, 5);
    ASSERT_EQ(mine.damaged.size(), 1u);
    EXPECT_THAT(mine.damaged[0].second,
                AllOf(HasSubstr(newest_ + kStateFile), HasSubstr("CRC-32C"),
                      testing::Not(HasSubstr("intact copy"))));
  }
  EXPECT_EQ(resumed[0].damaged[0].first, 6);
}

TEST_F(FallbackTest, AManifestThatIsCut) {
  const std::string path = newest_ + "/manifest.json";
  ASSERT_TRUE(WriteWholeFile(path, "{").ok());
  std::vector<Resumed> resumed;
  ASSERT_TRUE(FirstError(Load(&resumed)).ok());
  EXPECT_EQ(resumed[2].folder, folder_);
}

// A later step's name would hide those between.
TEST_F(FallbackTest, ARenamedOneIsPassedOver) {
  const std::string renamed = out_ + "/checkpoints/step-00000099";
  fs::rename(folder_, renamed);
  std::vector<Resumed> resumed;
  const auto statuses = Load(&resumed);
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_EQ(resumed[0].folder, newest_);
  ASSERT_EQ(resumed[0].damaged.size(), 1u);
  EXPECT_EQ(resumed[0].damaged[0].first, 99);
  EXPECT_EQ(resumed[0].damaged[0].second,
            renamed + " holds step 5: give it its name back, step-00000005");
  EXPECT_FALSE(VerifyCheckpoint(renamed).ok());
  EXPECT_FALSE(VerifyCheckpoint(renamed + "/").ok());
  // Another name says nothing of steps.
  fs::rename(renamed, out_ + "/mine");
  EXPECT_TRUE(VerifyCheckpoint(out_ + "/mine").ok());
}

TEST_F(FallbackTest, NoneIsWhole) {
  FlipLastByte(newest_ + kStateFile);
  fs::remove(folder_ + kStateFile);
  std::vector<Resumed> resumed;
  const auto statuses = Load(&resumed);
  EXPECT_THAT(std::string(statuses[2].message()),
              AllOf(HasSubstr(newest_), HasSubstr("CRC-32C"),
                    HasSubstr("remove " + newest_)));
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("rank 2 could not read " + newest_));
}

// Damage that can be told from what can't be read at all, which hides nothing.
TEST_F(FallbackTest, AnotherModelIsNoDamage) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, 13}, {{"a.weight", {5, 4}, 0, true}});
  EXPECT_THAT(
      std::string(
          LoadNewestCheckpoint(out_, run.Parts(group)).status().message()),
      HasSubstr("made by another model"));
}

// Damaged ones don't count as those that are kept.
TEST_F(FallbackTest, WhatIsDamagedPushesNothingOut) {
  RemoveOldCheckpoints(out_, 2, /*saved_step=*/9, /*best_step=*/-1, {6});
  EXPECT_THAT(Names(out_ + "/checkpoints"),
              ElementsAre("step-00000005", "step-00000006"));
  RemoveOldCheckpoints(out_, 2, /*saved_step=*/9, /*best_step=*/-1);
  EXPECT_THAT(Names(out_ + "/checkpoints"), ElementsAre("step-00000006"));
}

TEST_F(CheckpointFaultTest, VerifyReadsEveryByte) {
  EXPECT_TRUE(VerifyCheckpoint(folder_).ok());
  FlipLastByte(folder_ + kStateFile);
  EXPECT_THAT(std::string(VerifyCheckpoint(folder_).message()),
              AllOf(HasSubstr(folder_ + kStateFile), HasSubstr("CRC-32C"),
                    HasSubstr("'exp_avg_sq/b/0'")));
}

TEST_F(CheckpointFaultTest, RangesAndFilesOfTheManifestAreChecked) {
  const std::string path = folder_ + "/manifest.json";
  const std::string text = *ReadWholeFile(path);
  const auto restore = [&] { ASSERT_TRUE(WriteWholeFile(path, text).ok()); };
  // a.weight lies in [0, 9) and [9, 20).
  Edit("\"length\": 11", "\"length\": 12");
  EXPECT_THAT(LoadError(), HasSubstr("'a.weight'"));
  restore();
  Edit("\"length\": 11", "\"length\": 10");
  EXPECT_THAT(LoadError(),
              HasSubstr("element 19 of master of 'a.weight' is missing"));
  restore();
  Edit("\"length\": 9", "\"length\": 8");
  EXPECT_THAT(LoadError(),
              HasSubstr("element 8 of master of 'a.weight' is missing"));
  restore();
  Edit("\"begin\": 9", "\"begin\": 8");
  Edit("\"length\": 11", "\"length\": 12");
  EXPECT_THAT(LoadError(),
              HasSubstr("element 8 of master of 'a.weight' is stored twice, in "
                        "state-00000-of-00002.safetensors and "
                        "state-00001-of-00002.safetensors"));
  Edit("\"length\": 9", "\"length\": 8");  // whole, but no such tensors
  EXPECT_THAT(LoadError(), HasSubstr("'master/a.weight/0' has 9 elements"));
  restore();
  Edit("\"exp_avg\",\n     \"parameter\": \"b\"",
       "\"exp_avg\",\n     \"parameter\": \"c\"");
  EXPECT_THAT(LoadError(), HasSubstr("'c'"));
  restore();
  Edit("\"state-00001", "\"../state-00001");
  EXPECT_THAT(LoadError(), HasSubstr("plain file name"));
}

TEST_F(CheckpointFaultTest, WhatAKilledRunLeavesIsIgnoredAndSweptAway) {
  const std::string root = out_ + "/checkpoints";
  fs::copy(folder_, root + "/.step-00000009.tmp");    // killed before rename
  fs::copy(folder_, root + "/.step-00000003.trash");  // while removing
  fs::create_directory(root + "/.step-00000006.tmp");
  ASSERT_TRUE(WriteWholeFile(root + "/.step-00000006.tmp/state-00000-of-00001."
                                    "safetensors",
                             "half")
                  .ok());
  fs::create_directory(root + "/step-00000007");  // without a manifest
  fs::create_directory(root + "/step-abc");
  EXPECT_EQ(NewestCheckpoint(out_), folder_);
  // The run reaches the killed step and saves it again.
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out_, 6, 2)).ok());
  EXPECT_THAT(Names(root), ElementsAre("step-00000005", "step-00000006",
                                       "step-00000007", "step-abc"));
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out_, 7, 2)).ok());
  EXPECT_THAT(Names(root),
              ElementsAre("step-00000006", "step-00000007", "step-abc"));
  EXPECT_EQ(NewestCheckpoint(out_), root + "/step-00000007");
}

// A host that is cut off still writes when the run has been started elsewhere
// (tests/sim, seed 211346).
TEST_F(CheckpointFaultTest, WhoWritesForALostSaveDisturbsNoOther) {
  SaveRequest lost;
  lost.output_dir = out_;
  lost.train_state.step = 6;
  lost.attempt = 0xabc;
  ASSERT_TRUE(BeginSave(lost, 0).ok());
  ASSERT_TRUE(WriteRank(lost.temporary(), 2, 4, {}).ok());
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out_, 6, 2)).ok());
  EXPECT_FALSE(WriteRank(lost.temporary(), 3, 4, {}).ok());
  EXPECT_THAT(Names(out_ + "/checkpoints"),
              ElementsAre("step-00000005", "step-00000006"));
  for (const std::string& name : Names(out_ + "/checkpoints/step-00000006")) {
    EXPECT_THAT(name, Not(HasSubstr("-of-00004")));
  }
}

TEST_F(CheckpointFaultTest, ACheckpointSetAsideIsStillFound) {
  const std::string aside = out_ + "/checkpoints/.step-00000005.old";
  fs::rename(folder_, aside);
  EXPECT_EQ(NewestCheckpoint(out_), aside);
  folder_ = aside;
  EXPECT_EQ(LoadError(), "");
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out_, 6, 2)).ok());
  EXPECT_TRUE(fs::exists(aside)) << "one of the two to keep";
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out_, 7, 2)).ok());
  EXPECT_THAT(Names(out_ + "/checkpoints"),
              ElementsAre("step-00000006", "step-00000007"));
}

TEST_F(CheckpointFaultTest, OneRankThatCannotWriteFailsAll) {
  // Room for the small file of rank 0, not for rank 1's.
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit low = old;
  low.rlim_cur = 700;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto statuses = SaveWith({0, 1, kFlat}, out_, 6, 1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  const std::string folder = ".step-00000006.tmp-";
  const std::string file = "/state-00001-of-00002.safetensors";
  EXPECT_THAT(
      std::string(statuses[1].message()),
      AllOf(HasSubstr(folder), HasSubstr(file), HasSubstr("File too large")));
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 1 could not write "), HasSubstr(folder),
                    HasSubstr(file)));
  EXPECT_TRUE(absl::IsUnavailable(statuses[0]));
  EXPECT_THAT(Names(out_ + "/checkpoints"), ElementsAre("step-00000005"));
  EXPECT_EQ(LoadError(), "");
}

TEST_F(CheckpointFaultTest, AnUnusableOutputFolderFailsAll) {
  ASSERT_TRUE(WriteWholeFile(out_ + "/file", "").ok());
  for (const absl::Status& status :
       SaveWith({0, 9, kFlat}, out_ + "/file", 1)) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("/file/checkpoints"));
  }
}

TEST_F(CheckpointFaultTest, AStrategyThatForgetsElementsFailsAll) {
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 9, 10, kFlat}, {0, 11, 9, kFlat}}) {
    const auto statuses = OnRanks(2, [&](ProcessGroup& group) {
      FakeRun run(0, {0, kFlat});
      const int r = group.rank();
      run.owned_ = {{0, cuts[2 * r], cuts[2 * r + 1]}};
      return SaveCheckpoint({out_, StateAt(6), /*keep=*/1}, run.Parts(group));
    });
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("'a.weight'"));
    EXPECT_FALSE(statuses[1].ok());
    EXPECT_THAT(Names(out_ + "/checkpoints"), ElementsAre("step-00000005"));
  }
}

}  // namespace
}  // namespace capstan
