// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>

#include "tests/conformance/collector.h"

CAPSTAN_COLLECTOR_CONFORMANCE(
    MyPlugin, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { output: \"$OUTPUT\" lines: 1000 }");

// A test of its own beside those of the suite, with the same plugin.
TEST_P(CollectorConformance, SumsAreRight) {
  MustCollect(collector());
  std::ifstream file(collector().output());
  int lines = 0;
  int a, b, sum;
  std::string plus, equals;
  while (file >> a >> plus >> b >> equals >> sum) {
    EXPECT_EQ(a + b, sum);
    ++lines;
  }
  EXPECT_EQ(lines, 1000);
}
