// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of optimizers:
//  CAPSTAN_OPTIMIZER_CONFORMANCE(Acme, "acme/libacme_muon.so",
//                                "[plugin/acme.muon.Config] { .. }");
#ifndef CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_
#define CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_

#include "plugins/sdk/optimizer.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_OPTIMIZER_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(OptimizerConformance, name, library, config)

namespace capstan {
namespace conformance {

class OptimizerConformance
    : public PluginConformance<Optimizer, PluginCategory::kOptimizer> {
 protected:
  void SetUp() override;
  Optimizer& optimizer() const { return instance(); }
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_
