// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_COMPARE_CONFIG_H_
#define CAPSTAN_TRAINER_COMPARE_COMPARE_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/precision.h"
#include "trainer/compare/compare_config.pb.h"
#include "trainer/config/load_config.h"

namespace capstan {

// A CompareConfig and the run config it refers to.
struct LoadedCompare : FieldPlaces {
  CompareConfig config;
  LoadedConfig shared;
};

// Reads a compare config (looked up like a run's) and the run configs that it
// names, applies its overrides and then `overrides`, and fills empty axes from
// the shared run. Errors name file, line, column and field.
absl::StatusOr<LoadedCompare> LoadCompareConfig(
    const std::string& file, const std::vector<std::string>& overrides,
    const ConfigContext& context);

// Maximum allowed relative distances.
struct CompareBounds {
  double loss = 0.0;
  double grad_norm = 0.0;
};

// The bounds of precision `package` with policy `policy`.
CompareBounds BoundsOf(const CompareConfig& config, const std::string& package,
                       const PrecisionPolicy& policy);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_COMPARE_CONFIG_H_
