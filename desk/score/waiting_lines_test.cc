// SPDX-License-Identifier: Apache-2.0
#include "desk/score/waiting_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/subprocess.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void Write(const Pipe& pipe, const std::string& text) {
  ASSERT_EQ(write(pipe.write_end(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
}

TEST(WaitingLinesTest, AsManyAsAreThere) {
  Pipe pipe;
  WaitingLines lines(pipe.read_end());
  Write(pipe, "one\ntwo\r\n\nthree\nfo");
  EXPECT_THAT(lines.Next(3).value(), ElementsAre("one", "two", ""));
  // It doesn't wait for the fourth's end.
  EXPECT_THAT(lines.Next(3).value(), ElementsAre("three"));
  Write(pipe, "ur\nfive");
  EXPECT_THAT(lines.Next(3).value(), ElementsAre("four"));
  pipe.CloseWrite();
  EXPECT_THAT(lines.Next(3).value(), ElementsAre("five"));
  EXPECT_THAT(lines.Next(3).value(), IsEmpty());
}

TEST(WaitingLinesTest, WhatCantBeRead) {
  EXPECT_FALSE(WaitingLines(-1).Next(1).ok());
}

}  // namespace
}  // namespace capstan
