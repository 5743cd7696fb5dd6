// SPDX-License-Identifier: Apache-2.0
//
// What a run is, shown before it starts, and how it went: OUTPUT/summary.json
// and the table at the end.
#ifndef CAPSTAN_TRAINER_METRICS_SUMMARY_H_
#define CAPSTAN_TRAINER_METRICS_SUMMARY_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// What a run is, shown before it starts. Several lines; with `bold` the first
// is bold on a terminal.
std::string BannerText(const RunFacts& facts, bool bold);

// Keys as RunSummary's fields and in their order; losses that aren't set, and
// numbers that aren't finite, are null.
std::string SummaryJson(const RunSummary& summary);

std::string SummaryTable(const RunSummary& summary,
                         const std::string& output_dir);

// The steps of the run whose summary.json in `output_dir` says that it is
// completed; unset if there is none.
absl::optional<int64_t> CompletedSteps(const std::string& output_dir);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_SUMMARY_H_
