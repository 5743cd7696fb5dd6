// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "plugins/precision/bf16/bf16.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace capstan::bf16 {
namespace {

// bfloat16 compute, float32 masters.
class Bf16 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Bf16>> Create(const Config& config) {
    if (!Config::ReduceDtype_IsValid(config.reduce_dtype())) {
      return FieldError("reduce_dtype",
                        absl::StrCat("no such value: ", config.reduce_dtype()));
    }
    auto bf16 = std::make_unique<Bf16>();
    bf16->policy_.compute = c10::ScalarType::BFloat16;
    if (config.reduce_dtype() == Config::BFLOAT16) {
      bf16->policy_.reduce = c10::ScalarType::BFloat16;
    }
    return bf16;
  }

  PrecisionPolicy policy() const override { return policy_; }
  std::string instead() const override {
    return "precision=capstan.fp32 or precision=capstan.auto";
  }

 private:
  PrecisionPolicy policy_;
};

}  // namespace

CAPSTAN_PLUGIN(Precision, Bf16, capstan::bf16::Config,
               "bfloat16 compute, float32 masters and optimizer state");

}  // namespace capstan::bf16
