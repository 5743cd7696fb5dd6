// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_PRECISION_BF16_BF16_H_
#define CAPSTAN_PLUGINS_PRECISION_BF16_BF16_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/bf16/bf16.pb.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace bf16 {

// bfloat16 compute, float32 masters.
class Bf16 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Bf16>> Create(const Config& config);
  PrecisionPolicy policy() const override { return policy_; }
  std::string instead() const override {
    return "precision=capstan.fp32 or precision=capstan.auto";
  }

 private:
  PrecisionPolicy policy_;
};

}  // namespace bf16
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_PRECISION_BF16_BF16_H_
