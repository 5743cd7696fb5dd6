// SPDX-License-Identifier: Apache-2.0
#include "base/own_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace capstan {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A workspace, an output base, and a `bazel` on the PATH that does as it is
// told.
class OwnLibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "own_library." +
              testing::UnitTest::GetInstance()->current_test_info()->name() +
              std::to_string(getpid());
    fs::remove_all(folder_);
    for (const std::string& made :
         {bin() + "/plugins", root() + "/trainer", folder_ + "/path"}) {
      fs::create_directories(made);
    }
    Write(base() + "/DO_NOT_BUILD_HERE", root());
    Write(root() + "/trainer/own_libraries.bzl", "");
    Write(bin() + "/libcapstan_core.so", "core");
    Write(bin() + "/own_libraries.txt", "plugins/a.so 11\nplugins/b.so 22\n");
    path_ = getenv("PATH");
    setenv("PATH", (folder_ + "/path:" + path_).c_str(), 1);
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }

  std::string root() const { return folder_ + "/a clone"; }
  std::string base() const { return folder_ + "/base"; }
  std::string bin() const {
    return base() + "/execroot/capstan/bazel-out/k8-opt/bin/trainer";
  }

  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void WriteBazel(const std::string& script) const {
    const std::string path = folder_ + "/path/bazel";
    Write(path, "#!/bin/sh\nbin=\"" + bin() + "\"\n" + script + "\n");
    chmod(path.c_str(), 0755);
  }
  // What building it leaves.
  void Put(const std::string& path, const std::string& digest) const {
    Write(bin() + "/" + path, "library");
    Write(bin() + "/" + path + ".sources", digest);
  }
  absl::Status Build(const std::string& path) const {
    return Clone::Of(bin())->Build({path}, "the tool");
  }

  std::string folder_;
  std::string path_;
};

constexpr char kBuildA[] =
    "echo x >$bin/plugins/a.so; printf 11 >$bin/plugins/a.so.sources";

TEST_F(OwnLibraryTest, AFolderElsewhereIsNoClones) {
  EXPECT_TRUE(Clone::Of(bin()).has_value());
  EXPECT_FALSE(Clone::Of("/usr/lib/capstan/lib").has_value());
  EXPECT_FALSE(Clone::Of("").has_value());
  EXPECT_FALSE(Clone::Of(base() +
                         "/execroot/x/bazel-out/k8-opt/bin/external/capstan/"
                         "trainer")
                   .has_value());
  // The clone was deleted, or is on another host.
  fs::remove_all(root());
  EXPECT_FALSE(Clone::Of(bin()).has_value());
}

TEST_F(OwnLibraryTest, WhatIsMissingOrOldIsUnbuilt) {
  EXPECT_THAT(Clone::Of(bin())->Unbuilt(),
              ElementsAre("plugins/a.so", "plugins/b.so"));
  Put("plugins/a.so", "11");
  Put("plugins/b.so", "21");
  EXPECT_THAT(Clone::Of(bin())->Unbuilt(), ElementsAre("plugins/b.so"));
  EXPECT_FALSE(Clone::Of(bin())->IsUnbuilt("plugins/other.so"));
}

TEST_F(OwnLibraryTest, BuildsInTheWorkspace) {
  WriteBazel(std::string("pwd >words; echo \"$@\" >>words; ") + kBuildA);
  const absl::Status status = Build("plugins/a.so");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Read(root() + "/words"),
            root() + "\n--output_base=" + base() +
                " build --keep_going //trainer:plugins/a.so "
                "//trainer:own_libraries.txt\n");
}

TEST_F(OwnLibraryTest, WhatIsBuiltIsNotBuiltAgain) {
  WriteBazel("exit 7");
  Put("plugins/a.so", "11");
  EXPECT_TRUE(Build("plugins/a.so").ok());
}

TEST_F(OwnLibraryTest, AFailureNamesTheCommand) {
  WriteBazel("exit 7");
  EXPECT_THAT(std::string(Build("plugins/a.so").message()),
              HasSubstr("can't build the tool: `bazel build "
                        "//trainer:plugins/a.so` in " +
                        root() + " ended with exit code 7"));
  // An error's text asks again.
  WriteBazel(kBuildA);
  EXPECT_FALSE(Build("plugins/a.so").ok());
}

TEST_F(OwnLibraryTest, WithoutBazelThereIsAWayOut) {
  WriteBazel("exit 127");
  EXPECT_THAT(std::string(Build("plugins/a.so").message()),
              HasSubstr("./bazelw in the clone installs it"));
}

TEST_F(OwnLibraryTest, OtherOptionsBuildElsewhere) {
  WriteBazel("true");
  EXPECT_THAT(std::string(Build("plugins/a.so").message()),
              HasSubstr("built with other options"));
}

// Its library would meet this process's core.
TEST_F(OwnLibraryTest, ACoreBuiltAnewIsNotMixed) {
  WriteBazel(std::string(kBuildA) +
             "; echo new >$bin/new; mv $bin/new $bin/libcapstan_core.so");
  EXPECT_THAT(std::string(Build("plugins/a.so").message()),
              HasSubstr("start it again"));
}

// Ranks ask at once.
TEST_F(OwnLibraryTest, OneProcessOfSeveralBuilds) {
  WriteBazel(std::string("echo x >>built; ") + kBuildA);
  for (int i = 0; i < 4; ++i) {
    if (fork() == 0) _exit(Build("plugins/a.so").ok() ? 0 : 1);
  }
  for (int i = 0; i < 4; ++i) {
    int status = -1;
    ASSERT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Read(root() + "/built"), "x\n");
}

TEST_F(OwnLibraryTest, FindsWhatIsBesideTheCore) {
  EXPECT_THAT(FindOwnLibrary("libcapstan_core.so", "trainer"),
              HasSubstr("/trainer/libcapstan_core.so"));
  EXPECT_EQ(FindOwnLibrary("libcapstan_nothing.so", "trainer"), "");
}

}  // namespace
}  // namespace capstan
