// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/saved_weights.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(ChainOnCardTest, IsThatOfItsTable) {
  const CardChain found = ChainOnCard(
      "# It\n| seed | 1 |\n| receipts' chain | `9526d4`, after step 20 "
      "|\nend\n");
  EXPECT_EQ(found.step, 20);
  EXPECT_EQ(found.chain, "9526d4");
  for (const char* none :
       {"", "| seed | 1 |\n", "| receipts' chain | `9526d4", "receipts' chain",
        "| receipts' chain | `9526d4`, after step |\n",
        "| receipts' chain | `9526d4\n`, after step 20 |\n"}) {
    EXPECT_EQ(ChainOnCard(none).step, -1) << none;
  }
}

}  // namespace
}  // namespace capstan
