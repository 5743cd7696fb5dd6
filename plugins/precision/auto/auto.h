// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_PRECISION_AUTO_AUTO_H_
#define CAPSTAN_PLUGINS_PRECISION_AUTO_AUTO_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/auto/auto.pb.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace auto_ {

// The narrowest dtype that is fast on the run's device.
class Auto final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Auto>> Create(const Config& config);
  // For an unknown device: float32.
  PrecisionPolicy policy() const override { return {}; }
  bool depends_on_device() const override { return true; }
  PrecisionPolicy PolicyOn(const DeviceFacts& device) const override;
};

}  // namespace auto_
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_PRECISION_AUTO_AUTO_H_
