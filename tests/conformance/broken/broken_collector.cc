// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_collector.pb.h"

namespace acme::broken_collector {
namespace {

using capstan::CollectProgress;

class BrokenCollector final : public capstan::Collector {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenCollector>> Create(
      const Config& config) {
    if (config.lines() <= 0) {
      constexpr char kText[] = "must be greater than 0";
      return config.bug() == Config::NO_FIELD
                 ? absl::InvalidArgumentError(kText)
                 : capstan::FieldError("lines", kText);
    }
    if (config.bug() == Config::WORKS_AT_ONCE) {
      std::ofstream(config.output()) << "early";
    }
    return std::unique_ptr<BrokenCollector>(new BrokenCollector(config));
  }

  std::string output() const override {
    return bug() == Config::MOVES_OUTPUT && collected_
               ? absl::StrCat(config_.output(), "2")
               : config_.output();
  }

  absl::Status Collect(const CollectProgress& progress) override {
    const std::string final = config_.output();
    if (bug() == Config::DROPS_THE_OLDER) std::remove(final.c_str());
    if (bug() == Config::LEAVES_A_LOG) std::ofstream(final + ".log") << "log";
    const bool in_place = bug() == Config::IN_PLACE || bug() == Config::APPENDS;
    const std::string partial =
        in_place ? final : absl::StrCat(final, ".partial");
    const absl::Status status = Write(partial, progress);
    if (absl::IsCancelled(status) && bug() != Config::LEAVES_HALF) {
      std::remove(partial.c_str());
    }
    if (!status.ok()) return status;
    collected_ = true;
    if (!in_place && std::rename(partial.c_str(), final.c_str()) != 0 &&
        bug() != Config::IGNORES_ERRORS) {
      return absl::UnavailableError(absl::StrCat(final, " can't be written"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput() const override {
    return bug() == Config::REFUSES_ITS_OWN
               ? capstan::FieldError("lines", "is another number there")
               : absl::OkStatus();
  }

 private:
  explicit BrokenCollector(const Config& config) : config_(config) {}

  Config::Bug bug() const { return config_.bug(); }

  // Tells of two halves.
  absl::Status Write(const std::string& path,
                     const CollectProgress& progress) const {
    static int runs = 0;
    ++runs;
    std::ofstream file(
        path, bug() == Config::APPENDS ? std::ios::app : std::ios::trunc);
    for (int i = 0; i < config_.lines(); ++i) {
      file << "line " << (bug() == Config::RANDOM ? runs : i) << std::endl;
      const bool half = i % (config_.lines() / 2 + 1) == 0;
      if ((half || bug() == Config::CHATTY) &&
          !Tell(static_cast<double>(i) / config_.lines(), progress)) {
        return absl::CancelledError("stopped");
      }
    }
    return absl::OkStatus();
  }

  // Whether to go on.
  bool Tell(double done, const CollectProgress& progress) const {
    bool more = true;
    if (bug() == Config::SILENT) return more;
    if (bug() == Config::OTHER_THREAD) {
      std::thread([&] { more = progress(done, "lines"); }).join();
    } else {
      more = progress(bug() == Config::PERCENT ? 100.0 * done : done, "lines");
    }
    return more || bug() == Config::NEVER_STOPS;
  }

  const Config config_;
  bool collected_ = false;
};

CAPSTAN_PLUGIN(Collector, BrokenCollector, acme::broken_collector::Config,
               "a collector with a bug");

}  // namespace
}  // namespace acme::broken_collector
