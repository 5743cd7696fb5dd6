// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of collectors:
//  CAPSTAN_COLLECTOR_CONFORMANCE(
//      Acme, "acme/libacme_sums.so",
//      "[plugin/acme.sums.Config] { output: \"$OUTPUT\" lines: 100 }");
// Take a config that is collected in a second or less: each test does so up to
// three times.
#ifndef CAPSTAN_TESTS_CONFORMANCE_COLLECTOR_H_
#define CAPSTAN_TESTS_CONFORMANCE_COLLECTOR_H_

#include <map>
#include <string>

#include "plugins/sdk/collector.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_COLLECTOR_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(CollectorConformance, name, library, config)

namespace capstan {
namespace conformance {

class CollectorConformance
    : public PluginConformance<Collector, PluginCategory::kCollector> {
 protected:
  Collector& collector() const { return instance(); }

  // The bytes of the files in the test's folder by their paths there; "" of a
  // folder.
  using Files = std::map<std::string, std::string>;
  Files Found() const;
  Files FoundOfOutput() const;
  // Has the output be something else than what Collect writes, as a file if
  // nothing is there.
  void Spoil() const;
  // Collects to the end; fails the test if that is an error.
  static void MustCollect(Collector& collector);
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_COLLECTOR_H_
