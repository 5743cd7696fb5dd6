// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/collector.h"
#include "tests/conformance/plugin_under_test.h"

namespace {

std::string Output() {
  const std::filesystem::path folder = ::testing::TempDir();
  return (folder / "sums.txt").string();
}

// Loads the library as the trainer does.
std::unique_ptr<capstan::Collector> NewCollector() {
  auto plugin = capstan::conformance::LoadedPluginUnderTest::Load(
      {"myvendor/myplugin/libmyvendor_myplugin.so",
       absl::StrCat("[plugin/myvendor.myplugin.Config] { output: \"", Output(),
                    "\" lines: 1000 }")},
      capstan::PluginCategory::kCollector);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  if (!plugin.ok()) return nullptr;
  auto collector = plugin->Create<capstan::Collector>();
  EXPECT_TRUE(collector.ok()) << collector.status();
  return collector.ok() ? *std::move(collector) : nullptr;
}

TEST(MyPluginTest, WritesSumsThatAreRight) {
  const auto collector = NewCollector();
  ASSERT_NE(collector, nullptr);
  ASSERT_EQ(collector->output(), Output());
  const absl::Status status =
      collector->Collect([](double, absl::string_view) { return true; });
  ASSERT_TRUE(status.ok()) << status;
  std::ifstream file(Output());
  int lines = 0;
  int a, b, sum;
  std::string plus, equals;
  while (file >> a >> plus >> b >> equals >> sum) {
    EXPECT_EQ(a + b, sum);
    ++lines;
  }
  EXPECT_EQ(lines, 1000);
}

TEST(MyPluginTest, LeavesNothingWhenItIsStopped) {
  std::remove(Output().c_str());
  const auto collector = NewCollector();
  ASSERT_NE(collector, nullptr);
  EXPECT_TRUE(absl::IsCancelled(
      collector->Collect([](double, absl::string_view) { return false; })));
  EXPECT_FALSE(std::ifstream(Output()).good());
}

}  // namespace
