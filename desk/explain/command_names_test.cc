// SPDX-License-Identifier: Apache-2.0
//
// trainer/commands/command_names.cc against the commands that register.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "trainer/commands/command.h"

namespace capstan {
namespace {

TEST(CommandNamesTest, EachHasACommandAndEachCommandAName) {
  const absl::Status opened = OpenDesk();
  ASSERT_TRUE(opened.ok()) << opened;
  std::set<std::string> names, made;
  for (const CommandName& command : CommandNames()) {
    EXPECT_TRUE(names.insert(command.name).second) << command.name;
  }
  for (const auto& [name, make] : CommandMakers()) made.insert(name);
  EXPECT_EQ(names, made);
  EXPECT_EQ(names.count(kNewPlugin), 1);
}

}  // namespace
}  // namespace capstan
