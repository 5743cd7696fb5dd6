// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/collect_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace capstan {
namespace {

using ::testing::HasSubstr;

// AskToReplace's result when the user answers so at a terminal; *screen is what
// the terminal shows.
absl::StatusCode Answer(const std::string& answer, std::string* screen) {
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) _exit(static_cast<int>(AskToReplace("a/b.hdf5").code()));
  const std::string line = answer + "\n";
  EXPECT_EQ(write(terminal, line.data(), line.size()), line.size());
  char bytes[256];
  ssize_t count = 0;
  while ((count = read(terminal, bytes, sizeof(bytes))) > 0) {
    screen->append(bytes, count);
  }
  close(terminal);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return static_cast<absl::StatusCode>(WEXITSTATUS(status));
}

TEST(AskToReplaceTest, TheUserDecides) {
  for (const char* yes : {"y", "Y", "yes"}) {
    std::string screen;
    EXPECT_EQ(Answer(yes, &screen), absl::StatusCode::kOk);
    EXPECT_THAT(screen, HasSubstr("a/b.hdf5 is there already. Collect it"));
  }
  for (const char* no : {"", "n", "yess"}) {
    std::string screen;
    EXPECT_EQ(Answer(no, &screen), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace capstan
