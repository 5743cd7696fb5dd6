// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_
#define CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/compare/comparison.h"

namespace capstan {

// Reads the measurements of a finished run of `steps` steps from its folder.
// Errors name the file and what is missing or unexpected.
absl::StatusOr<RunMeasurements> ReadMeasurements(const std::string& folder,
                                                 int64_t steps);

// The newest step of an ongoing run, from its metrics.jsonl.
struct NewestStep {
  int64_t step = 0;
  double loss = 0.0;
  double lr = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = "tokens";     // as RunFacts has it
};

// Tails a growing metrics.jsonl. One thread.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string path) : path_(std::move(path)) {}

  // Reads new lines and returns the newest step (0: none yet).
  const NewestStep& Poll();

 private:
  const std::string path_;
  int64_t offset_ = 0;
  NewestStep newest_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_RUN_FILES_H_
