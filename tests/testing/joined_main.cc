// SPDX-License-Identifier: Apache-2.0
//
// The main of programs that several files of tests are linked into
// (tools/capstan.bzl: joined_tests). Called as x_test, it runs those of
// x_test.cc, or of them what --gtest_filter names.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string own =
      std::filesystem::path(argv[0]).filename().string() + ".cc";
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  std::string others;
  bool has_own = false;
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(i);
    std::string first;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string file =
          std::filesystem::path(suite.GetTestInfo(j)->file()).filename();
      if (j == 0) first = file;
      if (file != first) {
        std::fprintf(stderr, "%s and %s both have tests of %s: rename one's\n",
                     first.c_str(), file.c_str(), suite.name());
        return 1;
      }
    }
    has_own |= first == own;
    // A library's tests are whoever's links it.
    if (first != own && absl::EndsWith(first, "_test.cc")) {
      absl::StrAppend(&others, ":", suite.name(), ".*");
    }
  }
  if (!has_own) {
    std::fprintf(stderr, "%s: no test of %s is linked\n", argv[0], own.c_str());
    return 1;
  }
  std::string& filter = ::testing::GTEST_FLAG(filter);
  if (!others.empty()) {
    const bool excludes = absl::StrContains(filter, '-');
    absl::StrAppend(&filter, excludes ? "" : "-", others.substr(!excludes));
  }
  return RUN_ALL_TESTS();
}
