// SPDX-License-Identifier: Apache-2.0
#include "inference/engine/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace capstan {
namespace {

constexpr std::chrono::milliseconds kNow{0};

AnswerPiece Piece(size_t request, int64_t token) {
  AnswerPiece piece;
  piece.request = request;
  piece.tokens.push_back({token, 0.0f, {}});
  return piece;
}

TEST(AnswersTest, WhatCameSinceIsOnePiece) {
  AnswerQueue queue(2);
  EXPECT_FALSE(queue.Next(kNow).has_value());
  queue.Add(Piece(1, 5));
  queue.Add(Piece(1, 6));
  queue.Add(Piece(0, 7));
  AnswerPiece last;
  last.request = 0;
  last.last = true;
  last.stopped = true;
  queue.Add(std::move(last));
  const auto first = queue.Next(kNow);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->request, 1);
  EXPECT_EQ(first->tokens.size(), 2);
  EXPECT_EQ(queue.left(), 2);
  const auto second = queue.Next(kNow);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->tokens[0].token, 7);
  EXPECT_TRUE(second->last);
  EXPECT_TRUE(second->stopped);
  EXPECT_EQ(queue.left(), 1);
}

TEST(CertainTextTest, KeepsBackWhatMayBeTakenBack) {
  const StopStrings stops({"END"});
  CertainText text(&stops);
  EXPECT_EQ(text.Add("one E"), "one ");
  EXPECT_EQ(text.Add("N"), "");
  EXPECT_EQ(text.Add("TER "), "ENTER ");
  EXPECT_EQ(text.Add("END and more"), "");
  EXPECT_EQ(text.Finish(), "");
}

TEST(CertainTextTest, GivesWholeCharacters) {
  const StopStrings none;
  CertainText text(&none);
  const std::string umbrella = "\xE2\x98\x82", grin = "\xF0\x9F\x98\x80";
  EXPECT_EQ(text.Add("a" + umbrella.substr(0, 1)), "a");
  EXPECT_EQ(text.Add(umbrella.substr(1, 1)), "");
  EXPECT_EQ(text.Add(umbrella.substr(2) + grin.substr(0, 3)), umbrella);
  EXPECT_EQ(text.Add(grin.substr(3)), grin);
  // What can't become a character is given as it is.
  EXPECT_EQ(text.Add("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(text.Add("\xE2"), "");
  EXPECT_EQ(text.Finish(), "\xE2");
}

}  // namespace
}  // namespace capstan
