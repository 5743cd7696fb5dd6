// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_
#define CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/compare/compare_config.h"
#include "trainer/compare/comparison.h"

namespace capstan {

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

// The listed precisions with their bounds, as Compare takes them.
absl::StatusOr<std::vector<ComparedPrecision>> ListPrecisions(
    const LoadedCompare& loaded, int gpus, PluginHost& host);

// Display names of an axis's slots: the package's last part ("ddp"), the whole
// package where that is ambiguous, with fields ("ddp { bucket_cap_mib: 5 }")
// where a package is listed more than once.
std::vector<std::string> SlotLabels(
    const google::protobuf::RepeatedPtrField<google::protobuf::Any>& slots);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_
