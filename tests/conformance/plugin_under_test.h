// SPDX-License-Identifier: Apache-2.0
//
// The plugin under test, loaded as the trainer loads it.
#ifndef CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
#define CAPSTAN_TESTS_CONFORMANCE_PLUGIN_UNDER_TEST_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scratch_folder.h"
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
  // are relative to the test's working directory. Of a command, which has no
  // config: the words of a call, "--text=acme/words/testdata/lines.txt".
  // $OUTPUT in it becomes a path in a new folder, where nothing is yet.
  std::string config;
};

// For googletest's messages.
void PrintTo(const PluginUnderTest& plugin, std::ostream* out);

// With `output` in place of $OUTPUT.
PluginUnderTest WithOutput(PluginUnderTest plugin, const std::string& output);

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
    return CreateFrom<Base>(config_);
  }
  // From the bytes of another config of the same type.
  template <typename Base>
  absl::StatusOr<std::unique_ptr<Base>> CreateFrom(
      const std::string& config) const {
    return host_->Create<Base>(type_, category_, config);
  }

  // The config's message, "acme.lion.Config", and its bytes.
  const std::string& type() const { return type_; }
  const std::string& config() const { return config_; }
  // The config with one number that can hardly be meant, -1 or NaN, in each
  // that there is; by what is set: "lines: -1".
  std::map<std::string, std::string> DoubtfulConfigs() const;
  // Fails the test if Create's `error` is about no field of the config.
  void ExpectAField(const absl::Status& error, const std::string& set) const;

 private:
  std::shared_ptr<PluginHost> host_;
  PluginCategory category_;
  std::string type_;
  std::string config_;  // serialized
};

// The base of a category's suite: each test has the plugin, and an instance.
// Param: PluginUnderTest, or what derives from it.
template <typename Base, PluginCategory category,
          typename Param = PluginUnderTest>
class PluginConformance : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    absl::StatusOr<LoadedPluginUnderTest> loaded = LoadedPluginUnderTest::Load(
        WithOutput(this->GetParam(), output()), category);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    plugin_ = std::make_unique<LoadedPluginUnderTest>(*std::move(loaded));
    instance_ = New();
    ASSERT_NE(instance_, nullptr);
  }

  // Another instance with the same config; null, which fails the test, if there
  // is an error.
  std::unique_ptr<Base> New() const {
    absl::StatusOr<std::unique_ptr<Base>> made = plugin_->Create<Base>();
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *std::move(made) : nullptr;
  }
  Base& instance() const { return *instance_; }
  const LoadedPluginUnderTest& plugin() const { return *plugin_; }
  // The test's own folder, and what $OUTPUT stands for.
  const std::string& folder() const { return folder_.path(); }
  std::string output() const { return folder() + "/output"; }

 private:
  const ScratchFolder folder_;
  std::unique_ptr<LoadedPluginUnderTest> plugin_;
  std::unique_ptr<Base> instance_;
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
