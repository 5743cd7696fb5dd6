// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of models:
//  CAPSTAN_MODEL_CONFORMANCE(Acme, "acme/libacme_tiny.so",
//                            "[plugin/acme.tiny.Config] { hidden_size: 16 }");
// Take a config of a small model: each test runs it several times. What only
// token models have is skipped for others.
#ifndef CAPSTAN_TESTS_CONFORMANCE_MODEL_H_
#define CAPSTAN_TESTS_CONFORMANCE_MODEL_H_

#include <memory>
#include <vector>

#include "plugins/sdk/model.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_MODEL_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(ModelConformance, name, library, config)

namespace capstan {
namespace conformance {

class ModelConformance
    : public PluginConformance<Model, PluginCategory::kModel> {
 protected:
  // Not bound.
  Model& model() const { return instance(); }
  // Initial values in `dtype`, one tensor per parameter, ready for Bind.
  static std::vector<at::Tensor> Values(
      const Model& model, c10::ScalarType dtype = c10::ScalarType::Float);
  // A bound instance, or null, which fails the test.
  std::unique_ptr<Model> NewBound(
      c10::ScalarType dtype = c10::ScalarType::Float) const;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_MODEL_H_
