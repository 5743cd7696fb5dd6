// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_COMPARE_COMPARE_CONFIG_H_
#define CAPSTAN_DESK_COMPARE_COMPARE_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "desk/compare/compare_config.pb.h"
#include "desk/compare/comparison.h"
#include "host/config/load_config.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

// A CompareConfig and the run config it refers to.
struct LoadedCompare : FieldPlaces {
  CompareConfig config;
  LoadedConfig shared;
  // What `shared` was loaded from.
  std::vector<std::string> files;
  std::vector<std::string> overrides;
};

// Reads a compare config (looked up like a run's) and the run configs that it
// names, applies its overrides and then `overrides`, and fills empty axes from
// the shared run. A sweep must have no axes. Errors name file, line, column and
// field.
absl::StatusOr<LoadedCompare> LoadCompareConfig(
    const std::string& file, const std::vector<std::string>& overrides,
    const ConfigContext& context);

// How a bound names a slot of an axis: "capstan.ddp" or its label.
struct SlotName {
  std::string package;
  std::string label;
};

// The bounds of a run of `strategy` and `precision`, whose policy is `policy`;
// `own_curve` is OwnCurveOf's.
CompareBounds BoundsOf(const CompareConfig& config, const SlotName& strategy,
                       const SlotName& precision, const PrecisionPolicy& policy,
                       const absl::optional<OwnCurve>& own_curve);

// A point of the axes: its run, or why it is skipped.
struct Combination {
  ComparedRun run;   // kSkipped with a reason, or kPending
  RunConfig config;  // all but output_dir; unset if skipped
};

// Crosses the axes, precision by precision, in listed order. Combinations
// refused by the strategy, the batch or the machine (`gpus` GPUs; 0: CPU
// training) are skipped; any other problem is an error, as is an empty result.
absl::StatusOr<std::vector<Combination>> CrossAxes(const LoadedCompare& loaded,
                                                   int gpus, PluginHost& host);

// Whether an override "PATH=VALUE" sets the field, all or some of it.
bool Sets(absl::string_view text, absl::string_view field);

// Lower-case letters, digits and '_' of a label, for a folder's name.
std::string FileName(const std::string& label);

// The listed precisions, as Compare takes them.
std::vector<ComparedPrecision> ListPrecisions(const CompareConfig& config);

// Display names of an axis's slots: the package's last part ("ddp"), the whole
// package where that is ambiguous, with fields ("ddp { bucket_cap_mib: 5 }")
// where a package is listed more than once.
std::vector<std::string> SlotLabels(
    const google::protobuf::RepeatedPtrField<google::protobuf::Any>& slots);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_COMPARE_CONFIG_H_
