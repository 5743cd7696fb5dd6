// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_PIPELINE_H_
#define CAPSTAN_DESK_DOCTOR_PIPELINE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/doctor/finding.h"
#include "trainer/commands/prepare.h"

namespace capstan::doctor {

struct PipelineFacts {
  // Of one rank; a rank's data are read by one thread.
  double read_per_second = 0.0;    // samples
  double needed_per_second = 0.0;  // samples, by its steps
  double tokens = 0.0;             // of a sample, the mean; 0: it has none
};

// Reads as a rank of the run does, for a second, and runs a few steps of it
// (`words` start it on this machine), for two minutes at most.
absl::StatusOr<PipelineFacts> MeasurePipeline(
    const Prepared& prepared, const std::vector<std::string>& words);

Finding JudgePipeline(const PipelineFacts& facts);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_PIPELINE_H_
