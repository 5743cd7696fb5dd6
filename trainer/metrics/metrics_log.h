// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/metrics.jsonl: one JSON object per line. A step's keys: step loss
// grad_norm lr tokens trained_tokens padding step_seconds tokens_per_second
// bytes_sent communication_seconds exposed_seconds, and, only if set, skipped,
// loss_scale and the objective's. Runs that count samples have samples and
// samples_per_second instead of the four token keys. An evaluation's: step
// eval_loss and the objective's. Doubles round-trip exactly; non-finite ones
// are null.
#ifndef CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
#define CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// For a file with one JSON object per line, each with a "step": drops lines of
// steps after `step`, and a last line truncated by a crash. OK if there is no
// such file.
absl::Status KeepLinesUpTo(int64_t step, const std::string& path);

// One thread.
class MetricsLog {
 public:
  // Continues after step `first_step`: drops lines of later steps, and a last
  // line truncated by a crash. With first_step 0 the file is started afresh.
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
  std::string line_;  // reused buffer
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
