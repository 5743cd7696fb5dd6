// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_PRECISION_FP32_FP32_H_
#define CAPSTAN_PLUGINS_PRECISION_FP32_FP32_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/fp32/fp32.pb.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace fp32 {

// Everything in float32.
class Fp32 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Fp32>> Create(const Config& config);
  PrecisionPolicy policy() const override { return policy_; }

 private:
  PrecisionPolicy policy_;
};

}  // namespace fp32
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_PRECISION_FP32_FP32_H_
