// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/fp32/fp32.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp32 {
namespace {

// Everything in float32.
class Fp32 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Fp32>> Create(const Config&) {
    return std::make_unique<Fp32>();
  }

  PrecisionPolicy policy() const override { return {}; }
};

}  // namespace

CAPSTAN_PLUGIN(Precision, Fp32, capstan::fp32::Config, "float32 throughout");

}  // namespace capstan::fp32
