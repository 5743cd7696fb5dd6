// SPDX-License-Identifier: Apache-2.0
//
// On the CPU: testing/standin tries it on a GPU that isn't there.
#include "base/side_stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace capstan {
namespace {

TEST(SideStreamTest, OnTheCpuThingsHappenAtOnce) {
  SideStream side(c10::kCPU);
  std::vector<int> order;
  side.Run([&] { order.push_back(1); });
  order.push_back(2);
  side.Join();
  side.Run([&] { order.push_back(3); });
  side.Wait();
  order.push_back(4);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace capstan
