// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

// Writes a text of sums, "27 + 15 = 42" a line, to learn from.
class MyPlugin final : public capstan::Collector {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    if (config.output().empty()) {
      return capstan::FieldError("output", "is not set");
    }
    if (config.lines() <= 0) {
      return capstan::FieldError("lines", "must be greater than 0");
    }
    return std::unique_ptr<MyPlugin>(new MyPlugin(config));
  }

  std::string output() const override { return config_.output(); }

  // Under another name first: the file is there whole or not at all.
  absl::Status Collect(const capstan::CollectProgress& progress) override {
    const std::string partial = absl::StrCat(output(), ".partial");
    const absl::Status status = Write(partial, progress);
    if (status.ok() && std::rename(partial.c_str(), output().c_str()) == 0) {
      return absl::OkStatus();
    }
    std::remove(partial.c_str());
    return status.ok() ? absl::UnavailableError(
                             absl::StrCat(output(), " can't be written"))
                       : status;
  }

 private:
  explicit MyPlugin(const Config& config) : config_(config) {}

  absl::Status Write(const std::string& path,
                     const capstan::CollectProgress& progress) const {
    std::ofstream file(path, std::ios::binary);
    const uint64_t key = capstan::RandomKey(config_.seed(), "sums");
    for (int64_t i = 0; i < config_.lines(); ++i) {
      // A few times a second at most.
      if (i % 1000000 == 0 &&
          !progress(static_cast<double>(i) / config_.lines(),
                    absl::StrCat(i, " lines"))) {
        return absl::CancelledError("stopped before all lines were written");
      }
      const uint64_t a = capstan::RandomBelow(key, 2 * i, 100);
      const uint64_t b = capstan::RandomBelow(key, 2 * i + 1, 100);
      file << a << " + " << b << " = " << a + b << '\n';
    }
    file.close();
    if (file) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path, " can't be written"));
  }

  const Config config_;
};

CAPSTAN_PLUGIN(Collector, MyPlugin, myvendor::myplugin::Config,
               "a text of sums to learn from");

}  // namespace myvendor::myplugin
