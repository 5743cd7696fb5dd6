// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_
#define CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/compare/comparison.h"

namespace capstan {

// What a finished run of `steps` steps has measured, from its folder. Errors
// name the file, and what is missing or not as expected.
absl::StatusOr<RunMeasurements> ReadMeasurements(const std::string& folder,
                                                 int64_t steps);

// The newest step of a run that is still going, from the end of its
// metrics.jsonl.
struct NewestStep {
  int64_t step = 0;
  double loss = 0.0;
  double lr = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = "tokens";     // as RunFacts has it
};

// Follows a metrics.jsonl that grows. One thread.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string path) : path_(std::move(path)) {}

  // Reads what is new, and returns the newest step (0: none yet).
  const NewestStep& Poll();

 private:
  const std::string path_;
  int64_t offset_ = 0;
  NewestStep newest_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_
