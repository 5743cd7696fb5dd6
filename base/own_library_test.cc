// SPDX-License-Identifier: Apache-2.0
#include "base/own_library.h"

#include <dlfcn.h>
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

#include "base/elf_section.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

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

// A copy of the core that may be damaged. It isn't loaded: a test that fails
// has two cores.
class LibraryFileTest : public OwnLibraryTest {
 protected:
  void SetUp() override {
    OwnLibraryTest::SetUp();
    path_of_copy_ = folder_ + "/copy.so";
    fs::copy_file(Core(), path_of_copy_);
    fs::permissions(path_of_copy_, fs::perms::owner_all);
  }

  static std::string Core() {
    return FindOwnLibrary("libcapstan_core.so", "trainer");
  }
  std::string Refusal(const std::string& name = "libcapstan_core.so") const {
    const absl::Status status =
        LibrarySymbol(path_of_copy_, name, "no_such", RTLD_LAZY).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(path_of_copy_ + " is refused: "),
                      HasSubstr("bazel build //trainer:all")));
    return std::string(status.message());
  }

  std::string path_of_copy_;
};

// dlopen maps it, and a read behind its end is a bus error.
TEST_F(LibraryFileTest, OneThatIsCutOffIsRefused) {
  fs::resize_file(path_of_copy_, 500000);
  EXPECT_THAT(Refusal(), HasSubstr("it is a damaged shared library"));
  EXPECT_FALSE(CheckInterface(path_of_copy_).ok());
}

TEST_F(LibraryFileTest, WhatIsNoLibraryIsRefused) {
  Write(path_of_copy_, "text");
  EXPECT_THAT(Refusal(), HasSubstr("it is not a 64-bit shared library"));
  fs::remove(path_of_copy_);
  EXPECT_THAT(Refusal(), HasSubstr("it can't be read: No such file"));
  ASSERT_EQ(mkfifo(path_of_copy_.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("it is not a 64-bit shared library"));
}

TEST_F(LibraryFileTest, AnotherLibraryInItsPlaceIsRefused) {
  EXPECT_THAT(Refusal("libcapstan_evaluate.so"),
              HasSubstr("it is libcapstan_core.so, not libcapstan_evaluate"));
}

TEST_F(LibraryFileTest, OneOfAnotherBuildIsRefused) {
  const auto mark = ReadElfSection(Core(), "capstan_interface");
  ASSERT_TRUE(mark.ok() && mark->has_value()) << mark.status();
  EXPECT_TRUE(CheckInterface(path_of_copy_).ok());
  std::string bytes = Read(path_of_copy_);
  const size_t at = bytes.find(**mark);
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  Write(path_of_copy_, bytes);
  EXPECT_THAT(std::string(CheckInterface(path_of_copy_).message()),
              HasSubstr("it is of another build than the trainer's core"));
  // One of before there were marks.
  EXPECT_FALSE(CheckInterface("/proc/self/exe").ok());
}

TEST_F(LibraryFileTest, AMissingSymbolIsNamed) {
  const char kName[] = "libcapstan_core.so";
  EXPECT_TRUE(LibrarySymbol(Core(), kName, nullptr, RTLD_LAZY).ok());
  EXPECT_TRUE(
      OpenOwnLibrary(kName, "trainer", "the core", nullptr, RTLD_LAZY).ok());
  EXPECT_THAT(std::string(LibrarySymbol(Core(), kName, "no_such", RTLD_LAZY)
                              .status()
                              .message()),
              HasSubstr("it has no no_such"));
}

}  // namespace
}  // namespace capstan
