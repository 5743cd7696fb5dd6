// SPDX-License-Identifier: Apache-2.0
#include "host/config/hub_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

void Write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A cache, and a PATH on which only a program `hf` of the test's may be.
class HubPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / test->name();
    fs::remove_all(root_);
    fs::create_directories(root_ / "bin");
    setenv("PATH", (root_ / "bin").c_str(), 1);
    setenv("HF_HOME", (root_ / "home").c_str(), 1);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HUB_OFFLINE");
  }

  // As huggingface_hub lays it out.
  fs::path Snapshot(const std::string& repo) {
    const fs::path folder = root_ / "home/hub" / repo;
    Write(folder / "refs/main", kCommit);
    fs::create_directories(folder / "snapshots" / kCommit);
    return folder / "snapshots" / kCommit;
  }
  // A program `hf` that does what the lines say.
  void Program(const std::string& lines) {
    const fs::path path = root_ / "bin/hf";
    Write(path, "#!/bin/sh\n" + lines);
    fs::permissions(path, fs::perms::owner_all);
  }
  static std::string Of(const std::string& text,
                        HubKind kind = HubKind::kModel) {
    const auto path = ResolveHubPath(text, kind);
    return path.ok() ? *path : "ERROR " + std::string(path.status().message());
  }

  fs::path root_;
};

TEST_F(HubPathTest, FindsWhatIsInTheCache) {
  const fs::path model = Snapshot("models--org--tiny");
  const fs::path data = Snapshot("datasets--org--tiny");
  Write(data / "data/train-0.parquet", "x");
  EXPECT_EQ(Of("hf:org/tiny"), model.string());
  EXPECT_EQ(Of("hf:org/tiny@main"), model.string());
  EXPECT_EQ(Of(std::string("hf:org/tiny@") + kCommit), model.string());
  EXPECT_EQ(Of("hf:org/tiny", HubKind::kDataset), data.string());
  EXPECT_EQ(Of("hf:datasets/org/tiny"), data.string());
  EXPECT_EQ(Of("hf:datasets/org/tiny/data"), (data / "data").string());
  EXPECT_EQ(Of("hf:datasets/org/tiny/data/train-*.parquet"),
            (data / "data/train-*.parquet").string());
  const fs::path old = Snapshot("models--gpt2");
  EXPECT_EQ(Of("hf:gpt2"), old.string());
  setenv("HF_HUB_CACHE", (root_ / "home/hub").c_str(), 1);
  setenv("HF_HOME", "/no/such", 1);
  EXPECT_EQ(Of("hf:org/tiny"), model.string());
}

// One shard fetched before isn't the data set.
TEST_F(HubPathTest, APartOfASnapshotIsCompleted) {
  const fs::path data = Snapshot("datasets--org--tiny");
  Write(data / "data/train-0.parquet", "x");
  const fs::path said = root_ / "said";
  Program("echo \"$@\" >> " + said.string() + "\n> " +
          (data / "data/train-1.parquet").string() + "\n");
  EXPECT_EQ(Of("hf:org/tiny", HubKind::kDataset), data.string());
  EXPECT_TRUE(fs::exists(data / "data/train-1.parquet"));
  EXPECT_EQ(Of("hf:datasets/org/tiny/data"), (data / "data").string());
  EXPECT_EQ(Of("hf:datasets/org/tiny/data/train-*.parquet"),
            (data / "data/train-*.parquet").string());
  // What names one file is whole when it is there.
  EXPECT_EQ(Of("hf:datasets/org/tiny/data/train-0.parquet"),
            (data / "data/train-0.parquet").string());
  EXPECT_EQ(ReadAll(said),
            "download org/tiny --repo-type dataset\n"
            "download org/tiny --repo-type dataset --include data*\n"
            "download org/tiny --repo-type dataset --include "
            "data/train-*.parquet\n");
  Program("exit 1\n");
  EXPECT_THAT(Of("hf:datasets/org/tiny"),
              AllOf(HasSubstr("may lack files, and `hf download org/tiny"),
                    HasSubstr("HF_HUB_OFFLINE=1")));
}

TEST_F(HubPathTest, WhatCannotBeCompletedIsCounted) {
  const fs::path data = Snapshot("datasets--org--tiny");
  Write(data / "data/train-0.parquet", "x");
  Write(data / "data/train-1.parquet", "x");
  Write(data / "README.md", "x");
  const auto said = [&](const std::string& text) {
    ::testing::internal::CaptureStderr();
    EXPECT_THAT(Of(text), HasSubstr(data.string()));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said("hf:datasets/org/tiny"),
              AllOf(HasSubstr("hf:datasets/org/tiny: 3 files of"),
                    HasSubstr("`hf`, which would fetch them, can't be run")));
  EXPECT_THAT(said("hf:datasets/org/tiny/data"), HasSubstr(": 2 files of"));
  EXPECT_THAT(said("hf:datasets/org/tiny/data/*-0.*"),
              HasSubstr(": 1 file of"));
  EXPECT_EQ(said("hf:datasets/org/tiny/README.md"), "");
  setenv("HF_HUB_OFFLINE", "1", 1);
  Program("exit 1\n");
  EXPECT_THAT(said("hf:datasets/org/tiny"),
              AllOf(HasSubstr("3 files"), HasSubstr("HF_HUB_OFFLINE is set")));
}

TEST_F(HubPathTest, AnInterruptedDownloadIsNotUsed) {
  const fs::path data = Snapshot("datasets--org--tiny");
  Write(data / "train-0.parquet", "x");
  Write(data.parent_path().parent_path() / "blobs/0a1b.incomplete", "x");
  const auto refused =
      AllOf(HasSubstr("a download of it hasn't ended ("),
            HasSubstr("blobs/0a1b.incomplete"),
            HasSubstr("`hf download org/tiny --repo-type dataset`"));
  EXPECT_THAT(Of("hf:datasets/org/tiny"), refused);
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_THAT(Of("hf:datasets/org/tiny"), refused);
  EXPECT_EQ(Of("hf:datasets/org/tiny/train-0.parquet"),
            (data / "train-0.parquet").string());
  unsetenv("HF_HUB_OFFLINE");
  // `hf` knows better: it may be what is left of another revision.
  Program("exit 0\n");
  EXPECT_EQ(Of("hf:datasets/org/tiny"), data.string());
}

TEST_F(HubPathTest, WhatIsNoNameIsAnError) {
  for (const char* text :
       {"hf:", "hf:a/", "hf:/b", "hf:../b", "hf:a/..", "hf:-a/b", "hf:a/b@",
        "hf:a/b/../c", "hf:a/b@../c", "hf:a b/c", "hf:a/b/-c"}) {
    EXPECT_THAT(Of(text), HasSubstr("write hf:OWNER/NAME")) << text;
  }
}

TEST_F(HubPathTest, WithoutTheProgramTheErrorSaysWhatToDo) {
  EXPECT_THAT(Of("hf:org/tiny"),
              HasSubstr("hf:org/tiny isn't in Hugging Face's cache ("));
  EXPECT_THAT(Of("hf:org/tiny"), HasSubstr("pip install huggingface_hub"));
  setenv("HF_HUB_OFFLINE", "1", 1);
  Program("exit 0\n");
  EXPECT_THAT(Of("hf:org/tiny"), HasSubstr("HF_HUB_OFFLINE is set"));
}

TEST_F(HubPathTest, TheProgramFetchesWhatIsMissing) {
  const fs::path data = Snapshot("datasets--org--tiny");
  const fs::path said = root_ / "said";
  Program("echo \"$@\" > " + said.string() + "\n> " +
          (data / "a.csv").string() + "\n");
  EXPECT_EQ(Of("hf:org/tiny@main/a.csv", HubKind::kDataset),
            (data / "a.csv").string());
  EXPECT_EQ(ReadAll(said),
            "download org/tiny --repo-type dataset --include a.csv*\n");
  Program("exit 3\n");
  EXPECT_THAT(Of("hf:org/other@v1"),
              HasSubstr("`hf download org/other --revision v1` failed (exit "
                        "code 3)"));
  Program("exit 0\n");
  EXPECT_THAT(Of("hf:org/tiny/b.csv", HubKind::kDataset),
              HasSubstr("there is no such file in it"));
}

}  // namespace
}  // namespace capstan
