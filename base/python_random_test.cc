// SPDX-License-Identifier: Apache-2.0
#include "base/python_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

using testing::ElementsAre;

TEST(PythonRandomTest, IsPythons) {
  // random.seed(..); [random.getrandbits(32) for _ in range(1000)]
  PythonRandom zero(0), large(12345678901);
  std::vector<uint32_t> of_zero(1000), of_large(1000);
  for (uint32_t& x : of_zero) x = zero.Bits();
  for (uint32_t& x : of_large) x = large.Bits();
  EXPECT_THAT((std::vector{of_zero[0], of_zero[1], of_zero[999]}),
              ElementsAre(3626764237u, 1654615998u, 2971151651u));
  EXPECT_THAT((std::vector{of_large[0], of_large[1], of_large[999]}),
              ElementsAre(4063089813u, 2562312935u, 724139399u));
}

// Of Python 3.11's random.Random(1234).
TEST(PythonRandomTest, SamplesAsPython) {
  PythonRandom random(1234);
  EXPECT_THAT(random.Sample(10, 3), ElementsAre(7, 1, 0));
  EXPECT_THAT(random.Sample(1000, 5), ElementsAre(92, 932, 965, 961, 826));
  EXPECT_THAT(random.Sample(90, 6), ElementsAre(74, 4, 85, 88, 10, 12));
  EXPECT_THAT(random.Sample(5, 5), ElementsAre(2, 1, 0, 4, 3));
}

}  // namespace
}  // namespace capstan
