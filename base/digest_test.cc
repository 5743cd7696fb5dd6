// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(DigestTest, Sha256IsThatOfTheStandard) {
  // FIPS 180-4's examples.
  EXPECT_EQ(Sha256Text("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Text(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").size(), 32u);
}

}  // namespace
}  // namespace capstan
