// SPDX-License-Identifier: Apache-2.0
#include "plugins/precision/fp32/fp32.h"

#include "plugins/sdk/plugin.h"

namespace capstan {
namespace fp32 {

absl::StatusOr<std::unique_ptr<Fp32>> Fp32::Create(const Config&) {
  return std::make_unique<Fp32>();
}

CAPSTAN_PLUGIN(Precision, Fp32, capstan::fp32::Config, "float32 throughout");

}  // namespace fp32
}  // namespace capstan
