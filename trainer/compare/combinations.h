// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_
#define CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/compare/compare_config.h"
#include "trainer/compare/comparison.h"

namespace capstan {

// One point of the axes: the run that it stands for, or why it is left out.
struct Combination {
  ComparedRun run;   // with kSkipped and the reason, or kPending
  RunConfig config;  // all but output_dir; not set where skipped
};

// Crosses the axes, precision by precision, in the order in which they are
// listed. A combination that the strategy, the batch or the machine (with
// `gpus` GPUs; 0: it trains on CPUs) refuses is skipped; whatever else is wrong
// is an error, also that nothing is left.
absl::StatusOr<std::vector<Combination>> CrossAxes(const LoadedCompare& loaded,
                                                   int gpus, PluginHost& host);

// The listed precisions with their bounds, as Compare wants them.
absl::StatusOr<std::vector<ComparedPrecision>> ListPrecisions(
    const LoadedCompare& loaded, int gpus, PluginHost& host);

// What people call each slot of an axis: the last part of its package ("ddp"),
// the whole package where two share the last part, with its fields
// ("ddp { bucket_cap_mib: 5 }") where one package is listed more than once.
std::vector<std::string> SlotLabels(
    const google::protobuf::RepeatedPtrField<google::protobuf::Any>& slots);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_COMBINATIONS_H_
