// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/metrics.jsonl: one JSON object per line. A step's keys: step time
// (UnixSeconds) loss grad_norm lr tokens trained_tokens padding step_seconds
// tokens_per_second bytes_sent communication_seconds exposed_seconds, and, only
// if set, mfu, gpu_allocated_bytes, gpu_reserved_bytes and gpu_peak_bytes (of
// tensors), skipped, loss_scale and the objective's. Runs that count samples
// have samples and samples_per_second instead of the four token keys. An
// evaluation's: step, time, eval_loss, the objective's, and those of eval_sets
// and eval_tasks. Doubles round-trip exactly; non-finite ones are null.
#ifndef CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
#define CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// One thread.
class MetricsLog {
 public:
  // Continues after step `first_step`: drops lines of later steps, and a last
  // line truncated by a crash. With first_step 0 the file is started afresh.
  // `unit`, `evaluate_again`: as in RunFacts.
  static absl::StatusOr<MetricsLog> Open(const std::string& path,
                                         int64_t first_step,
                                         const std::string& unit = kTokenUnit,
                                         bool evaluate_again = false);

  // Steps up to `first_step` that had no line when it was opened.
  int64_t missing() const { return missing_; }
  // DATA_LOSS if a line that was written isn't in the file at `path`, where the
  // file should be now: it was removed, replaced or cut.
  absl::Status Check(const std::string& path) const;
  absl::Status Step(const StepMetrics& metrics);
  // A line of an evaluation.
  absl::Status Numbers(int64_t step, const TaggedNumbers& tagged);

 private:
  MetricsLog(OutputFile file, const std::string& unit);
  // Begins line_ with the keys of every line.
  void Begin(int64_t step);
  // Writes line_.
  absl::Status Append();

  OutputFile file_;
  std::string unit_;
  int64_t missing_ = 0;
  // The file, whatever is at its path, and how long it must be.
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  int64_t bytes_ = 0;
  std::string line_;  // reused buffer
};

// OUTPUT/generations.jsonl: what the model wrote to fixed prompts before,
// during and after training, one JSON object per line: step, prompt, text. One
// thread.
class GenerationsLog {
 public:
  // Continues after step `first_step` as MetricsLog does. The file is created
  // with its first line.
  static absl::StatusOr<GenerationsLog> Open(const std::string& path,
                                             int64_t first_step);

  absl::Status Add(int64_t step, const Generation& generation);
  // The text of step 0, even if an earlier part of the run wrote it.
  absl::optional<std::string> Before(const std::string& prompt) const;
  // Whether an earlier part of a resumed run wrote texts for `step`.
  bool Has(int64_t step) const { return steps_.count(step) > 0; }

 private:
  explicit GenerationsLog(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::map<std::string, std::string> before_;  // by prompt
  std::set<int64_t> steps_;                    // in the file when it was opened
};

// Two texts in columns separated by a line, each wrapped to half of `columns`,
// below their headings. Counts characters, not display widths.
std::string SideBySide(const std::string& left_heading, const std::string& left,
                       const std::string& right_heading,
                       const std::string& right, int columns);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_METRICS_LOG_H_
