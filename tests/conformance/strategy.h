// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of strategies, on 1 to 4 real processes:
//  CAPSTAN_STRATEGY_CONFORMANCE(Acme, "acme/libacme_zero.so",
//                               "[plugin/acme.zero.Config] { level: 2 }");
// World sizes and precisions that the strategy's own Check refuses are left
// out; a test with none left is skipped with the refusal.
#ifndef CAPSTAN_TESTS_CONFORMANCE_STRATEGY_H_
#define CAPSTAN_TESTS_CONFORMANCE_STRATEGY_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tests/conformance/ranks.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/strategy_scenarios.h"

#define CAPSTAN_STRATEGY_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(StrategyConformance, name, library, config)

namespace capstan {
namespace conformance {

// Scenarios that ran in one set of processes.
struct Launch {
  std::vector<Scenario> scenarios;
  // Why others didn't run, by name.
  std::map<std::string, std::string> refused;
  std::string folder;  // where checkpoints are
  WorldResult result;
};

// The launch's scenario of that name, or null.
const Scenario* Find(const Launch& launch, const std::string& name);

// The largest allowed differences from the reference.
struct CurveBounds {
  double first = 0.0;  // relative, of the first step's loss and norm
  double loss = 0.0;   // relative
  double norm = 0.0;   // relative
  double value = 0.0;  // absolute, of a parameter or its momentum
};

class StrategyConformance : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  void SetUp() override;

  const LoadedPluginUnderTest& plugin() const { return *plugin_; }

  // Runs at the first call; cached for the other tests.
  const Launch& Training(int world);
  const Launch& Resuming(int world);
  const Launch& Failing(int world);

  using Visit = std::function<void(int world, const Scenario& scenario,
                                   const Launch& launch)>;
  // Calls `visit` for each world's scenario of that name; fails for those that
  // didn't finish, and skips the test if there are none.
  void ForEach(const std::string& name, const Visit& visit);
  void ExpectFinished(const Scenario& scenario, const Launch& launch);
  // Fails for the problems of a topic in all training scenarios so far.
  void ExpectNoProblems(const std::string& topic);

  static const Curve& ReferenceOf(int world, const Scenario& scenario);
  const absl::optional<OwnCurve>& own_curve() const;
  bool local_steps() const;
  // Compares losses, norms and skipped steps of all ranks; of a strategy with a
  // curve of its own the losses, by its bound.
  void ExpectCurve(int world, const Scenario& scenario, const Launch& launch,
                   CurveBounds bounds);
  // Checks what the ranks own at the end: each trainable element once and,
  // unless the curve is the strategy's own, close to the reference, momenta
  // too. Limited to `parameters`.
  void ExpectValues(int world, const Scenario& scenario, const Launch& launch,
                    const CurveBounds& bounds,
                    const std::vector<int>& parameters);

  // Compares the steps of a training scenario after its save with those of the
  // run that was resumed from it on as many ranks.
  void ExpectResumedToTheBit(const std::string& name);

 private:
  Launch Start(int world, std::vector<Scenario> scenarios,
               const std::string& folder);

  const LoadedPluginUnderTest* plugin_ = nullptr;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STRATEGY_H_
