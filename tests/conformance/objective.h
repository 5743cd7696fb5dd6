// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of objectives of text:
//  CAPSTAN_OBJECTIVE_CONFORMANCE(Acme, "acme/libacme_focal.so",
//                                "[plugin/acme.focal.Config] { gamma: 2 }");
// The model is StubModel, causal, or with a mask token if the objective's Check
// refuses that; the suite is skipped if it refuses both.
#ifndef CAPSTAN_TESTS_CONFORMANCE_OBJECTIVE_H_
#define CAPSTAN_TESTS_CONFORMANCE_OBJECTIVE_H_

#include <memory>

#include "plugins/sdk/objective.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/conformance/stub_model.h"

#define CAPSTAN_OBJECTIVE_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(ObjectiveConformance, name, library, config)

namespace capstan {
namespace conformance {

class ObjectiveConformance
    : public PluginConformance<Objective, PluginCategory::kObjective> {
 protected:
  void SetUp() override;

  Objective& objective() const { return instance(); }
  StubModel& model() const { return *model_; }
  // Of a batch, with StepInfo::totals of that batch alone.
  LossSum Compute(const Batch& batch, bool training = true) const;

 private:
  std::unique_ptr<StubModel> model_;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_OBJECTIVE_H_
