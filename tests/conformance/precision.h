// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of precisions:
//  CAPSTAN_PRECISION_CONFORMANCE(Acme, "acme/libacme_tf32.so",
//                                "[plugin/acme.tf32.Config] {}");
#ifndef CAPSTAN_TESTS_CONFORMANCE_PRECISION_H_
#define CAPSTAN_TESTS_CONFORMANCE_PRECISION_H_

#include "plugins/sdk/precision.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_PRECISION_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(PrecisionConformance, name, library, config)

namespace capstan {
namespace conformance {

class PrecisionConformance
    : public PluginConformance<Precision, PluginCategory::kPrecision> {
 protected:
  Precision& precision() const { return instance(); }
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_PRECISION_H_
