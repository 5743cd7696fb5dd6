// SPDX-License-Identifier: Apache-2.0
//
// The plugin that a suite is run on, loaded as the trainer loads it.
#ifndef CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
#define CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {
namespace conformance {

struct PluginUnderTest {
  // The shared library, relative to the folder that the test runs in (under
  // Bazel: the label's path, "strategies/ddp/libcapstan_ddp.so") or absolute.
  std::string library;
  // What a run's config has in the slot's braces:
  // "[plugin/capstan.ddp.Config] { bucket_cap_mib: 1 }". Relative paths in it
  // start from the folder that the test runs in.
  std::string config;
};

// For googletest's messages.
void PrintTo(const PluginUnderTest& plugin, std::ostream* out);

// A plugin whose library is loaded and whose config is parsed: makes any
// number of instances, also in processes forked later.
class LoadedPluginUnderTest {
 public:
  // Errors are the trainer's own; and a config of another library than
  // `plugin.library`.
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

// At namespace scope of a test: runs `suite` on one plugin. `name` is part of
// the tests' names.
#define CAPSTAN_CONFORMANCE(suite, name, library, config) \
  using ::capstan::conformance::suite;                    \
  INSTANTIATE_TEST_SUITE_P(                               \
      name, suite,                                        \
      ::testing::Values(                                  \
          ::capstan::conformance::PluginUnderTest{library, config}))

#endif  // CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
