// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of optimizers:
//  CAPSTAN_OPTIMIZER_CONFORMANCE(Acme, "acme/libacme_muon.so",
//                                "[plugin/acme.muon.Config] { .. }");
#ifndef CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_
#define CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_

#include <gtest/gtest.h>

#include <memory>

#include "plugins/sdk/optimizer.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_OPTIMIZER_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(OptimizerConformance, name, library, config)

namespace capstan {
namespace conformance {

class OptimizerConformance : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  void SetUp() override;

  // Another instance with the same config.
  std::unique_ptr<Optimizer> New() const;
  Optimizer& optimizer() const { return *optimizer_; }

 private:
  std::unique_ptr<LoadedPluginUnderTest> plugin_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_OPTIMIZER_H_
