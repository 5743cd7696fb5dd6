// SPDX-License-Identifier: Apache-2.0
//
// What --help says, whole: flags and their texts are what users and their
// scripts rely on. After a change that is meant, write the file anew:
//   trainer --help, then trainer NAME --help for each, with the "$ .." lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

TEST(HelpTest, OfEachCommandIsAsWrittenDown) {
  // "", then a command line and what it prints, in turn.
  std::vector<std::string> parts = absl::StrSplit(
      "\n" + ReadText(Runfile("tests/testdata/help.txt")), "\n$ trainer ");
  ASSERT_GE(parts.size(), 17);
  const std::string all = parts[1];
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> part =
        absl::StrSplit(parts[i], absl::MaxSplits('\n', 1));
    // The file's last line ends; others lost their end to the split.
    const std::string expected =
        i + 1 < parts.size() ? part.second + "\n" : part.second;
    const TrainerResult result =
        RunTrainer(absl::StrSplit(part.first, ' ', absl::SkipEmpty()));
    EXPECT_EQ(result.exit_code, 0) << part.first;
    EXPECT_EQ(result.out, expected) << part.first;
    EXPECT_EQ(result.err, "");
  }
  // Each that is listed is written down.
  const std::string list = all.substr(all.find("Subcommands:\n"));
  const std::vector<std::string> lines = absl::StrSplit(list, '\n');
  for (const std::string& line : lines) {
    if (!absl::StartsWith(line, "  ")) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_TRUE(std::any_of(parts.begin(), parts.end(),
                            [&](const std::string& part) {
                              return absl::StartsWith(part, name + " --help");
                            }))
        << name;
  }
}

}  // namespace
}  // namespace capstan
