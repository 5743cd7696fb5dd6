// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_PRECISION_FP16_FP16_H_
#define CAPSTAN_PLUGINS_PRECISION_FP16_FP16_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/fp16/fp16.pb.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace fp16 {

// float16 compute with a dynamic loss scale, float32 masters.
class Fp16 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Fp16>> Create(const Config& config);
  PrecisionPolicy policy() const override { return policy_; }
  std::string instead() const override {
    return "precision=capstan.fp32 or precision=capstan.auto";
  }

 private:
  PrecisionPolicy policy_;
};

}  // namespace fp16
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_PRECISION_FP16_FP16_H_
