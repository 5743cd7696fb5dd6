// SPDX-License-Identifier: Apache-2.0
#include "trainer/plugin_host/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
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

TEST(PluginHostTest, CreatesAPlugin) {
  PluginHost host({PluginFolder()});
  const auto precision = host.Create<Precision>("capstan.bf16.Config",
                                                PluginCategory::kPrecision, "");
  ASSERT_TRUE(precision.ok()) << precision.status();
  EXPECT_EQ((*precision)->policy().compute, c10::ScalarType::BFloat16);
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

// A copy of a real plugin whose fingerprint says another LibTorch.
TEST(PluginHostTest, RefusesAPluginOfAnotherBuildBeforeLoadingIt) {
  const std::string folder = ::testing::TempDir() + "/another_build";
  std::filesystem::create_directories(folder);
  std::ifstream in(PluginFolder() + "/libcapstan_fp16.so", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string version = "libtorch=2.";
  size_t replaced = 0;
  for (size_t at = bytes.find(version); at != std::string::npos;
       at = bytes.find(version, at + 1)) {
    bytes[at + version.size() - 2] = '1';
    ++replaced;
  }
  ASSERT_GT(replaced, 0);
  std::ofstream(folder + "/libcapstan_fp16.so", std::ios::binary) << bytes;
  PluginHost host({folder});
  const auto plugin = host.Load("capstan.fp16.Config");
  EXPECT_THAT(std::string(plugin.status().message()),
              AllOf(HasSubstr("is refused"), HasSubstr("libtorch: trainer 2."),
                    HasSubstr("plugin 1."), HasSubstr("build it again")));
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
  EXPECT_EQ(host.NearestPackage("capstan.dpd"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("ful_moon"), "");
  EXPECT_THAT(std::string(host.Load("ddp.Config").status().message()),
              HasSubstr("did you mean \"capstan.ddp\"?"));
}

TEST(FingerprintTest, EachDifferenceIsListedWithBothSides) {
  EXPECT_TRUE(CompareFingerprints("a=1\nb=2\n", "a=1\nb=2\n").ok());
  const absl::Status status =
      CompareFingerprints("a=1\nb=2\nc=3\n", "a=9\nb=2\n");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("a: trainer 1, plugin 9"),
                    HasSubstr("c: trainer 3, plugin (missing)")));
}

TEST(NearestNameTest, FindsTyposOnly) {
  EXPECT_EQ(NearestName("bucket_cap", {"bucket_cap_mib", "other"}),
            "bucket_cap_mib");
  EXPECT_EQ(NearestName("ddp", {"fp16", "llama"}), "");
}

}  // namespace
}  // namespace capstan
