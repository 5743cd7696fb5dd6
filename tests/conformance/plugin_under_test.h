// SPDX-License-Identifier: Apache-2.0
//
// The plugin under test, loaded as the trainer loads it.
#ifndef CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
#define CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/plugins/plugin_host.h"

namespace capstan {
namespace conformance {

struct PluginUnderTest {
  // The shared library: an absolute path, or relative to the test's working
  // directory (under Bazel the label's path,
  // "strategies/ddp/libcapstan_ddp.so").
  std::string library;
  // The contents of the slot's braces in a run's config:
  // "[plugin/capstan.ddp.Config] { bucket_cap_mib: 1 }". Relative paths in it
  // are relative to the test's working directory.
  std::string config;
};

// For googletest's messages.
void PrintTo(const PluginUnderTest& plugin, std::ostream* out);

// A plugin with its library loaded and its config parsed: creates any number of
// instances, also in processes forked later.
class LoadedPluginUnderTest {
 public:
  // Returns the trainer's errors, and one if the config belongs to another
  // library than `plugin.library`.
  static absl::StatusOr<LoadedPluginUnderTest> Load(
      const PluginUnderTest& plugin, PluginCategory category);

  template <typename Base>
  absl::StatusOr<std::unique_ptr<Base>> Create() const {
    return host_->Create<Base>(type_, category_, config_);
  }

 private:
  std::shared_ptr<PluginHost> host_;
  PluginCategory category_;
  std::string type_;
  std::string config_;  // serialized
};

}  // namespace conformance
}  // namespace capstan

// Runs `suite` on one plugin; use at namespace scope of a test. `name` is part
// of the tests' names.
#define CAPSTAN_CONFORMANCE(suite, name, library, config) \
  using ::capstan::conformance::suite;                    \
  INSTANTIATE_TEST_SUITE_P(                               \
      name, suite,                                        \
      ::testing::Values(                                  \
          ::capstan::conformance::PluginUnderTest{library, config}))

#endif  // CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
