// SPDX-License-Identifier: Apache-2.0
#include "host/plugins/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "plugins/sdk/part.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

std::string PluginFolder() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins");
}

TEST(PluginHostTest, AllPluginsLoadTogether) {
  PluginHost host({PluginFolder()});
  const std::vector<std::string> packages = host.Available();
  EXPECT_GE(packages.size(), 10);
  for (const std::string& package : packages) {
    const auto plugin = host.Load(absl::StrCat(package, ".Config"));
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    EXPECT_NE(std::string((*plugin)->descriptor->doc), "");
  }
}

// A clone that can't build what it lists.
Clone BrokenClone(const std::string& folder) {
  const std::string bin = folder + "/execroot/x/bazel-out/k8-opt/bin/trainer";
  std::filesystem::create_directories(bin);
  std::filesystem::create_directories(folder + "/root/trainer");
  std::ofstream(folder + "/root/trainer/own_libraries.bzl") << "";
  std::ofstream(folder + "/DO_NOT_BUILD_HERE") << folder << "/root";
  std::ofstream(bin + "/own_libraries.txt")
      << "plugins/libacme_unbuilt.so 11\nlib/libcapstan_desk.so 22\n";
  setenv("PATH", "/usr/bin/nowhere", 1);
  return *Clone::Of(bin);
}

TEST(PluginHostTest, WhatIsNotBuiltIsKnownAndBuiltWhenLoaded) {
  PluginHost host({}, BrokenClone(::testing::TempDir() + "/broken_clone"));
  const std::vector<std::string> packages = host.Available();
  EXPECT_THAT(packages, Contains("acme.unbuilt"));
  EXPECT_THAT(packages, Contains("capstan.ddp"));
  EXPECT_FALSE(host.IsBuilt("acme.unbuilt"));
  EXPECT_TRUE(host.IsBuilt("capstan.ddp"));
  EXPECT_TRUE(absl::IsNotFound(host.LoadBuilt("acme.unbuilt.Config").status()));
  EXPECT_THAT(std::string(host.Load("acme.unbuilt.Config").status().message()),
              HasSubstr("can't build acme.unbuilt"));
  EXPECT_TRUE(host.Load("capstan.ddp.Config").ok());
}

TEST(PluginHostTest, CreatesAPlugin) {
  PluginHost host({PluginFolder()});
  const auto precision = host.Create<Precision>("capstan.bf16.Config",
                                                PluginCategory::kPrecision, "");
  ASSERT_TRUE(precision.ok()) << precision.status();
  EXPECT_EQ((*precision)->policy().compute, c10::ScalarType::BFloat16);
}

// In the folders of the trainer's host, which the taker doesn't know.
TEST(PluginHostTest, PartsAreMadeForOtherPlugins) {
  const PluginHost host({PluginFolder()});
  const auto part = CreatePart("capstan.dark_key_to_door.Config", "");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_NE(*part, nullptr);
  EXPECT_THAT(
      std::string(CreatePart("capstan.ddp.Config", "").status().message()),
      HasSubstr("capstan.ddp is a strategy, a part is wanted"));
  EXPECT_THAT(
      std::string(CreatePart("acme.maze.Config", "").status().message()),
      AllOf(HasSubstr(PluginFolder()), HasSubstr("libacme_maze.so")));
}

TEST(PluginHostTest, WrongSlotNamesBothCategories) {
  PluginHost host({PluginFolder()});
  const auto strategy = host.Create<Strategy>("capstan.fp16.Config",
                                              PluginCategory::kStrategy, "");
  EXPECT_THAT(std::string(strategy.status().message()),
              HasSubstr("capstan.fp16 is a precision, a strategy is wanted"));
  const auto precision = host.Create<Precision>("capstan.adamw.Config",
                                                PluginCategory::kPrecision, "");
  EXPECT_THAT(
      std::string(precision.status().message()),
      HasSubstr("capstan.adamw is an optimizer, a precision is wanted"));
}

// The error for a copy of a real plugin with `from` replaced by `to` of the
// same length. It mustn't be loaded, as the original may be.
std::string ErrorOfChanged(const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const std::string folder = ::testing::TempDir() + "/changed";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ifstream in(PluginFolder() + "/libcapstan_fp16.so", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  size_t replaced = 0;
  for (size_t at = bytes.find(from); at != std::string::npos;
       at = bytes.find(from, at + 1)) {
    bytes.replace(at, to.size(), to);
    ++replaced;
  }
  EXPECT_GT(replaced, 0);
  std::ofstream(folder + "/libcapstan_fp16.so", std::ios::binary) << bytes;
  PluginHost host({folder});
  return std::string(host.Load("capstan.fp16.Config").status().message());
}

TEST(PluginHostTest, RefusesAPluginOfAnotherBuildBeforeLoadingIt) {
  EXPECT_THAT(ErrorOfChanged("libtorch=2.", "libtorch=1."),
              AllOf(HasSubstr("is refused"), HasSubstr("libtorch: trainer 2."),
                    HasSubstr("plugin 1."), HasSubstr("build it again")));
  EXPECT_THAT(ErrorOfChanged("containers=plain", "containers=debug"),
              HasSubstr("containers: trainer plain, plugin debug"));
  EXPECT_THAT(ErrorOfChanged("sdk=1.", "sdk=2."),
              AllOf(HasSubstr("is refused"), HasSubstr("(SDK: trainer 1."),
                    HasSubstr(", plugin 2."),
                    HasSubstr("build it again with this trainer's SDK")));
  const std::string hash = CAPSTAN_SDK_HASH;
  EXPECT_THAT(ErrorOfChanged("headers=" + hash,
                             "headers=" + std::string(hash.size(), 'x')),
              AllOf(HasSubstr("is refused"), HasSubstr("(headers of SDK 1."),
                    HasSubstr(absl::StrCat(": trainer ", hash, ", plugin x")),
                    HasSubstr("build it again with this trainer's SDK")));
}

// In /tmp anybody may have left it.
TEST(PluginHostTest, RefusesAnotherUsersInAFolderThatAllMayWrite) {
  namespace fs = std::filesystem;
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string folder = ::testing::TempDir() + "/all_may_write";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = folder + "/libcapstan_fp16.so";
  fs::copy_file(PluginFolder() + "/libcapstan_fp16.so", path);
  constexpr uid_t kAnother = 65534;
  if (chown(path.c_str(), kAnother, kAnother) != 0) {
    GTEST_SKIP() << "no other user is known in this sandbox";
  }
  const auto refusal = [&folder] {
    PluginHost host({folder});
    return std::string(host.Load("capstan.fp16.Config").status().message());
  };
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path + " is refused"),
                               HasSubstr("user 65534 owns it"),
                               HasSubstr("any user may write")));
  // A colleague's, where only the colleague can change it. This process has its
  // proto file already.
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_THAT(refusal(), HasSubstr("it holds the proto file"));
  // This user's own.
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  EXPECT_THAT(refusal(), HasSubstr("it holds the proto file"));
}

TEST(PluginHostTest, RefusesWhatIsNoPlugin) {
  const std::string folder = ::testing::TempDir() + "/no_plugin";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/libacme_text.so") << "not a library";
  std::filesystem::copy_file("/proc/self/exe", folder + "/libacme_program.so",
                             std::filesystem::copy_options::overwrite_existing);
  PluginHost host({folder});
  EXPECT_THAT(std::string(host.Load("acme.text.Config").status().message()),
              HasSubstr("not a 64-bit shared library"));
  EXPECT_THAT(std::string(host.Load("acme.program.Config").status().message()),
              HasSubstr("no Capstan plugin"));
}

TEST(PluginHostTest, MissingPluginListsTheFoldersTried) {
  PluginHost host({PluginFolder()});
  EXPECT_THAT(std::string(host.Load("capstan.lama.Config").status().message()),
              AllOf(HasSubstr(PluginFolder()), HasSubstr("libcapstan_lama.so"),
                    HasSubstr("did you mean \"capstan.llama\"?")));
}

TEST(PluginHostTest, AShortNameIsNearTheWhole) {
  PluginHost host({PluginFolder()});
  EXPECT_EQ(host.NearestPackage("ddp"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("acme.ddp"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("capstan.ddq"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("capstan.fdsp"), "capstan.fsdp");
  EXPECT_EQ(host.NearestPackage("ful_moon"), "");
  EXPECT_EQ(host.NearestPackage("capstan.int4"), "");
  EXPECT_THAT(std::string(host.Load("ddp.Config").status().message()),
              HasSubstr("did you mean \"capstan.ddp\"?"));
}

constexpr char kCore[] =
    "libtorch=2\nstdlib=new\nabsl=3\nprotobuf=4\nsanitizer=none\n"
    "containers=plain\ncompiler=12\nsdk=1.3\nheaders=abc\n";

std::string Difference(const std::string& from, const std::string& to) {
  return std::string(
      CompareFingerprints(kCore, absl::StrReplaceAll(kCore, {{from, to}}))
          .message());
}

TEST(FingerprintTest, EachDifferenceThatMattersIsListedWithBothSides) {
  EXPECT_EQ(Difference("x", "x"), "");
  EXPECT_EQ(Difference("compiler=12", "compiler=14"), "");
  const std::string both = std::string(
      CompareFingerprints(kCore, "libtorch=1\nabsl=3\nsanitizer=none\n")
          .message());
  EXPECT_THAT(both, AllOf(HasSubstr("libtorch: trainer 2, plugin 1; "),
                          HasSubstr("protobuf: trainer 4, plugin (missing)")));
  EXPECT_THAT(Difference("stdlib=new", "stdlib=old"),
              HasSubstr("stdlib: trainer new, plugin old"));
  EXPECT_THAT(Difference("sanitizer=none", "sanitizer=address"),
              HasSubstr("plugin address"));
}

// The error for a plugin whose fingerprint ends in `sdk`.
std::string SdkDifference(const std::string& sdk) {
  return Difference("sdk=1.3\nheaders=abc\n", sdk);
}

TEST(FingerprintTest, AnOlderSdkIsTakenAndOfTheSameThoseOfTheSameHeaders) {
  for (const char* taken :
       {"sdk=1.0\n", "sdk=1.0\nheaders=def\n", "sdk=1.2\nheaders=def\n",
        "sdk=1.2\nheaders=abc\n", "sdk=1.3\nheaders=abc\n"}) {
    EXPECT_EQ(SdkDifference(taken), "") << taken;
  }
}

TEST(FingerprintTest, ANewerSdkIsAnotherTrainersAndSoAreOtherHeaders) {
  const std::string end =
      "): build it again with this trainer's SDK and compiler";
  const std::string start = "it was built for another trainer (";
  EXPECT_EQ(SdkDifference("sdk=1.4\nheaders=abc\n"),
            start + "SDK: trainer 1.3, plugin 1.4, which is newer" + end);
  EXPECT_EQ(SdkDifference("sdk=1.10\nheaders=abc\n"),
            start + "SDK: trainer 1.3, plugin 1.10, which is newer" + end);
  EXPECT_EQ(SdkDifference("sdk=1.3\nheaders=def\n"),
            start + "headers of SDK 1.3: trainer abc, plugin def" + end);
  EXPECT_EQ(SdkDifference(""),
            start + "SDK: trainer 1.3, plugin (missing)" + end);
  // A hash was the version before there were versions.
  for (const std::string other : {"abc", "2.0", "2.3", "0.3", "1", "1.", "1.-1",
                                  "1.x", "1.2x", "1.02", "1.+2", "11.2"}) {
    EXPECT_EQ(SdkDifference("sdk=" + other + "\nheaders=abc\n"),
              start + "SDK: trainer 1.3, plugin " + other + end);
  }
}

TEST(FingerprintTest, ShowsNoControlBytes) {
  EXPECT_THAT(Difference("libtorch=2", "libtorch=\x1b[31m"),
              HasSubstr("libtorch: trainer 2, plugin \\x1b[31m"));
}

TEST(FingerprintTest, TellsItsSdk) {
  EXPECT_EQ(SdkVersion(kCore), "1.3");
  EXPECT_EQ(SdkVersion("libtorch=2\n"), "");
  EXPECT_EQ(SdkVersion(CoreFingerprint()),
            absl::StrCat("1.", CAPSTAN_SDK_MINOR));
}

// What CAPSTAN_PLUGIN asserts, in words.
struct NoCreate : Precision {
  PrecisionPolicy policy() const override { return {}; }
};
struct RawCreate : NoCreate {
  static RawCreate* Create(const int&) { return nullptr; }
};
struct RightCreate : NoCreate {
  static absl::StatusOr<std::unique_ptr<RightCreate>> Create(const int&) {
    return nullptr;
  }
};
struct ForeignCreate {
  static absl::StatusOr<std::unique_ptr<ForeignCreate>> Create(const int&) {
    return nullptr;
  }
};

TEST(CreateTest, ItsSignatureIsRecognised) {
  EXPECT_TRUE((HasCreate<Precision, RightCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, NoCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, RawCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, RightCreate, std::string>::value));
  EXPECT_FALSE((HasCreate<Precision, ForeignCreate, int>::value));
}

TEST(NearestNameTest, FindsTyposOnly) {
  EXPECT_EQ(NearestName("bucket_cap", {"bucket_cap_mib", "other"}),
            "bucket_cap_mib");
  EXPECT_EQ(NearestName("ddp", {"fp16", "llama"}), "");
  EXPECT_EQ(NearestName("5", {"ls"}), "");
  EXPECT_EQ(NearestName("fp8", {"dpo"}), "");
  EXPECT_EQ(NearestName("hlep", {"ls", "help"}), "help");
}

}  // namespace
}  // namespace capstan
