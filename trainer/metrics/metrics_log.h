// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/metrics.jsonl: one JSON object a line. A step's keys: step loss
// grad_norm lr tokens trained_tokens padding step_seconds tokens_per_second
// bytes_sent communication_seconds exposed_seconds, and, only when set,
// skipped, loss_scale and what the objective adds. Where the run counts samples
// there are samples and samples_per_second in place of the four of tokens. An
// evaluation's: step eval_loss, and what the objective adds. Doubles keep every
// bit; those that aren't finite are null.
#ifndef CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
#define CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/output_file.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// For a file of JSON objects, one a line, each with a "step": keeps those of
// steps up to `step`, and drops the rest along with a last line cut short by a
// crash. OK if there is no such file.
absl::Status KeepLinesUpTo(int64_t step, const std::string& path);

// One thread.
class MetricsLog {
 public:
  // Continues after step `first_step`: keeps the lines of earlier steps and
  // its own, and drops those beyond, along with a last line cut short by a
  // crash. With first_step 0 the file begins anew.
  // `unit`: as in RunFacts.
  static absl::StatusOr<MetricsLog> Open(const std::string& path,
                                         int64_t first_step,
                                         const std::string& unit = kTokenUnit);

  absl::Status Step(const StepMetrics& metrics);
  absl::Status Eval(int64_t step, double eval_loss,
                    const TaggedNumbers& tagged);
  absl::Status Numbers(int64_t step, const TaggedNumbers& tagged);

 private:
  MetricsLog(OutputFile file, const std::string& unit);

  OutputFile file_;
  std::string unit_;
  std::string line_;  // kept for its memory
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
