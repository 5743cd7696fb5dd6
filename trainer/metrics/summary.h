// SPDX-License-Identifier: Apache-2.0
//
// A run's banner, and its results: OUTPUT/summary.json and the final table.
#ifndef CAPSTAN_TRAINER_METRICS_SUMMARY_H_
#define CAPSTAN_TRAINER_METRICS_SUMMARY_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// Describes a run before it starts, in several lines; with `bold` the first is
// bold on a terminal.
std::string BannerText(const RunFacts& facts, bool bold);

// Keys are RunSummary's fields, in order; unset losses and non-finite numbers
// are null.
std::string SummaryJson(const RunSummary& summary);

std::string SummaryTable(const RunSummary& summary,
                         const std::string& output_dir);

// Steps of the run in `output_dir` if its summary.json says completed; else
// unset.
absl::optional<int64_t> CompletedSteps(const std::string& output_dir);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_SUMMARY_H_
