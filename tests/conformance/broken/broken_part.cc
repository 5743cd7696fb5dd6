// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <memory>

#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_part.pb.h"
#include "tests/conformance/broken/lamp.h"

namespace acme::broken_part {
namespace {

class Candle final : public capstan::Part {};

class BrokenPart final : public Lamp {
 public:
  static absl::StatusOr<std::unique_ptr<capstan::Part>> Create(
      const Config& config) {
    constexpr char kText[] = "must not be negative";
    if (config.watts() < 0) {
      if (config.bug() == Config::CRASHES) std::abort();
      if (config.bug() == Config::NO_FIELD) {
        return absl::InvalidArgumentError(kText);
      }
      return capstan::FieldError(
          config.bug() == Config::STRANGE_FIELD ? "volts" : "watts", kText);
    }
    if (config.bug() == Config::NULL_POINTER) return nullptr;
    if (config.bug() == Config::OTHER_INTERFACE) {
      return std::make_unique<Candle>();
    }
    return std::unique_ptr<capstan::Part>(
        new BrokenPart(config.watts() == 0 ? 40 : config.watts()));
  }

  int watts() const override { return watts_; }

 private:
  explicit BrokenPart(int watts) : watts_(watts) {}

  const int watts_;
};

CAPSTAN_PLUGIN(Part, BrokenPart, acme::broken_part::Config,
               "a part with a bug");

}  // namespace
}  // namespace acme::broken_part
