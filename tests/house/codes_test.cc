// SPDX-License-Identifier: Apache-2.0
//
// Each code that an error is given (base/error_code.h) has a section in
// docs/troubleshooting.md, and each section a code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainerEq;

std::string TextOf(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::set<std::string> Sections(const std::string& page) {
  std::set<std::string> sections;
  std::stringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    absl::string_view heading = line;
    if (absl::ConsumePrefix(&heading, "### ")) sections.emplace(heading);
  }
  return sections;
}

// "config/file" and "[config/file]", where `groups` has "config".
void AddCodes(const std::string& text, const std::set<std::string>& groups,
              std::set<std::string>* codes) {
  static const std::regex* const kCode =
      new std::regex("[\"\\[](([a-z]+)/[a-z-]+)[\"\\]]");
  for (std::sregex_iterator it(text.begin(), text.end(), *kCode), end;
       it != end; ++it) {
    if (groups.count((*it)[2]) > 0) codes->insert((*it)[1]);
  }
}

TEST(CodesTest, EachHasASectionAndEachSectionACode) {
  // This workspace, by the real path of this file.
  const fs::path root = fs::canonical("tests/house/codes_test.cc")
                            .parent_path()
                            .parent_path()
                            .parent_path();
  const std::set<std::string> sections =
      Sections(TextOf(root / "docs/troubleshooting.md"));
  ASSERT_FALSE(sections.empty());
  std::set<std::string> groups;
  for (const std::string& code : sections) {
    groups.insert(code.substr(0, code.find('/')));
  }
  std::set<std::string> codes;
  for (const char* folder : {"base", "cluster", "datasets", "desk", "host",
                             "inference", "plugins", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path& path = entry.path();
      if ((path.extension() != ".cc" && path.extension() != ".h") ||
          absl::EndsWith(path.stem().string(), "_test")) {
        continue;
      }
      AddCodes(TextOf(path), groups, &codes);
    }
  }
  EXPECT_THAT(codes, ContainerEq(sections));
}

}  // namespace
}  // namespace capstan
