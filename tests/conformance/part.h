// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of parts. The second argument is the interface that the
// part implements, which the users of such parts find it by:
//  CAPSTAN_PART_CONFORMANCE(Acme, capstan::Environment, "acme/libacme_maze.so",
//                           "[plugin/acme.maze.Config] { size: 9 }");
#ifndef CAPSTAN_TESTS_CONFORMANCE_PART_H_
#define CAPSTAN_TESTS_CONFORMANCE_PART_H_

#include <memory>
#include <ostream>
#include <string>

#include "plugins/sdk/part.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_PART_CONFORMANCE(name, Interface, library, config)         \
  using ::capstan::conformance::PartConformance;                           \
  INSTANTIATE_TEST_SUITE_P(                                                \
      name, PartConformance,                                               \
      ::testing::Values(::capstan::conformance::PartUnderTest{             \
          {library, config}, #Interface, [](const ::capstan::Part& part) { \
            return dynamic_cast<const Interface*>(&part) != nullptr;       \
          }}))

namespace capstan {
namespace conformance {

struct PartUnderTest : PluginUnderTest {
  std::string interface;
  bool (*implements)(const Part& part);
};

inline void PrintTo(const PartUnderTest& part, std::ostream* out) {
  PrintTo(static_cast<const PluginUnderTest&>(part), out);
}

class PartConformance
    : public PluginConformance<Part, PluginCategory::kPart, PartUnderTest> {
 protected:
  // As the plugin that uses the part makes it.
  absl::StatusOr<std::unique_ptr<Part>> Make(const std::string& config) const {
    return CreatePart(plugin().type(), config);
  }
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_PART_H_
