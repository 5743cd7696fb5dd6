// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "tests/conformance/part.h"

namespace capstan {
namespace conformance {
namespace {

TEST_P(PartConformance, CreatePartFindsIt) {
  const auto part = Make(plugin().config());
  EXPECT_TRUE(part.ok()) << "CreatePart: " << part.status().message();
}

TEST_P(PartConformance, ImplementsItsInterface) {
  EXPECT_TRUE(GetParam().implements(instance()))
      << "the part isn't a "
      << GetParam().interface << ": its class must derive from that, publicly";
}

// A plugin that uses it may pass on what a user has left out.
TEST_P(PartConformance, AnEmptyConfigMeansItsDefaults) {
  const auto part = Make("");
  if (part.ok()) {
    EXPECT_TRUE(GetParam().implements(**part))
        << "with an empty config the part isn't a " << GetParam().interface;
  } else {
    plugin().ExpectAField(part.status(), "nothing set");
  }
}

TEST_P(PartConformance, ErrorsNameAField) {
  for (const auto& [set, config] : plugin().DoubtfulConfigs()) {
    const absl::Status error = Make(config).status();
    if (!error.ok()) plugin().ExpectAField(error, set);
  }
}

}  // namespace
}  // namespace conformance
}  // namespace capstan
