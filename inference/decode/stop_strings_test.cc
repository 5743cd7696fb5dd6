// SPDX-License-Identifier: Apache-2.0
#include "inference/decode/stop_strings.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(StopStringsTest, TheFirstOneEndsTheText) {
  const StopStrings stops({"###", "\n\n", ""});
  EXPECT_EQ(stops.EndOf("a\n\nb###"), 1u);
  EXPECT_EQ(stops.EndOf("a##b"), 4u);
  EXPECT_TRUE(stops.EndIn("###"));
  EXPECT_FALSE(stops.EndIn("ab\n"));
  EXPECT_FALSE(StopStrings().EndIn("anything"));
}

TEST(StopStringsTest, WhatMayBecomeOneIsHeldBack) {
  const StopStrings stops({"###", "#!"});
  EXPECT_EQ(stops.Certain("ab#"), 2u);
  EXPECT_EQ(stops.Certain("ab##"), 2u);
  EXPECT_EQ(stops.Certain("ab##c"), 5u);
  EXPECT_EQ(stops.Certain("ab###c"), 2u);
  EXPECT_EQ(stops.Certain("##"), 0u);
  EXPECT_EQ(StopStrings().Certain("ab#"), 3u);
}

}  // namespace
}  // namespace capstan
