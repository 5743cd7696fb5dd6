// SPDX-License-Identifier: Apache-2.0
#include "plugins/precision/fp16/fp16.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"

namespace capstan {
namespace fp16 {
namespace {

absl::Status CheckScale(const char* field, double scale) {
  int exponent = 0;
  if (std::isfinite(scale) && scale > 0 &&
      std::frexp(scale, &exponent) == 0.5) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat("must be a power of two, is ", scale));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fp16>> Fp16::Create(const Config& config) {
  LossScaling scaling;
  if (config.initial_scale() != 0) {
    scaling.initial_scale = config.initial_scale();
  }
  if (config.growth_interval() != 0) {
    scaling.growth_interval = config.growth_interval();
  }
  if (config.min_scale() != 0) scaling.min_scale = config.min_scale();
  CAPSTAN_RETURN_IF_ERROR(CheckScale("initial_scale", scaling.initial_scale));
  CAPSTAN_RETURN_IF_ERROR(CheckScale("min_scale", scaling.min_scale));
  if (scaling.growth_interval < 1) {
    return FieldError("growth_interval", absl::StrCat("must be at least 1, is ",
                                                      scaling.growth_interval));
  }
  if (scaling.min_scale > scaling.initial_scale) {
    return FieldError("min_scale", absl::StrCat("is above initial_scale, ",
                                                scaling.initial_scale));
  }
  auto fp16 = std::make_unique<Fp16>();
  fp16->policy_.compute = c10::ScalarType::Half;
  fp16->policy_.loss_scaling = scaling;
  return fp16;
}

CAPSTAN_PLUGIN(Precision, Fp16, capstan::fp16::Config,
               "float16 compute with a dynamic loss scale, float32 masters");

}  // namespace fp16
}  // namespace capstan
