// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "plugins/precision/fp8/fp8.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp8 {
namespace {

// bfloat16 compute with linear layers' products in 8 bits, float32 masters.
class Fp8 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Fp8>> Create(const Config& config) {
    if (!Config::Scaling_IsValid(config.scaling())) {
      return FieldError("scaling",
                        absl::StrCat("no such value: ", config.scaling()));
    }
    auto fp8 = std::make_unique<Fp8>();
    Fp8Spec& spec = fp8->spec_;
    if (config.scaling() == Config::ROW) spec.scaling = Fp8Scaling::kRow;
    if (config.has_bf16_layers_at_start()) {
      spec.bf16_layers_at_start = config.bf16_layers_at_start();
    }
    if (config.has_bf16_layers_at_end()) {
      spec.bf16_layers_at_end = config.bf16_layers_at_end();
    }
    CAPSTAN_RETURN_IF_ERROR(CheckField(spec.bf16_layers_at_start >= 0,
                                       "bf16_layers_at_start", "at least 0",
                                       spec.bf16_layers_at_start));
    CAPSTAN_RETURN_IF_ERROR(CheckField(spec.bf16_layers_at_end >= 0,
                                       "bf16_layers_at_end", "at least 0",
                                       spec.bf16_layers_at_end));
    spec.log_underflow = config.log_underflow();
    return fp8;
  }

  PrecisionPolicy policy() const override {
    PrecisionPolicy policy;
    policy.compute = c10::ScalarType::BFloat16;
    return policy;
  }
  bool UsesFp8(Fp8Spec* how) const override {
    *how = spec_;
    return true;
  }
  std::string instead() const override {
    return "precision=capstan.fp32 or precision=capstan.auto";
  }

 private:
  Fp8Spec spec_;
};

}  // namespace

CAPSTAN_PLUGIN(Precision, Fp8, capstan::fp8::Config,
               "linear layers' products in 8 bits (E4M3, E5M2), the rest as in "
               "bf16");

}  // namespace capstan::fp8
