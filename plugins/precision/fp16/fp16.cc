// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "plugins/precision/fp16/fp16.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp16 {
namespace {

bool IsPowerOfTwo(double scale) {
  int exponent = 0;
  return std::isfinite(scale) && scale > 0 &&
         std::frexp(scale, &exponent) == 0.5;
}

// float16 compute with a dynamic loss scale, float32 masters.
class Fp16 final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Fp16>> Create(const Config& config) {
    LossScaling s;
    if (config.initial_scale() != 0) s.initial_scale = config.initial_scale();
    if (config.growth_interval() != 0) {
      s.growth_interval = config.growth_interval();
    }
    if (config.min_scale() != 0) s.min_scale = config.min_scale();
    CAPSTAN_RETURN_IF_ERROR(CheckField(IsPowerOfTwo(s.initial_scale),
                                       "initial_scale", "a power of two",
                                       s.initial_scale));
    CAPSTAN_RETURN_IF_ERROR(CheckField(IsPowerOfTwo(s.min_scale), "min_scale",
                                       "a power of two", s.min_scale));
    CAPSTAN_RETURN_IF_ERROR(CheckField(s.growth_interval >= 1,
                                       "growth_interval", "at least 1",
                                       s.growth_interval));
    if (s.min_scale > s.initial_scale) {
      return FieldError("min_scale", absl::StrCat("is above initial_scale, ",
                                                  s.initial_scale));
    }
    auto fp16 = std::make_unique<Fp16>();
    fp16->policy_.compute = c10::ScalarType::Half;
    fp16->policy_.loss_scaling = s;
    return fp16;
  }

  PrecisionPolicy policy() const override { return policy_; }
  std::string instead() const override {
    return "precision=capstan.fp32 or precision=capstan.auto";
  }

 private:
  PrecisionPolicy policy_;
};

}  // namespace

CAPSTAN_PLUGIN(Precision, Fp16, capstan::fp16::Config,
               "float16 compute with a dynamic loss scale, float32 masters");

}  // namespace capstan::fp16
