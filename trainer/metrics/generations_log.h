// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/generations.jsonl: what the model wrote to fixed prompts before,
// during and after training, one JSON object per line: step, prompt, text.
#ifndef CAPSTAN_TRAINER_METRICS_GENERATIONS_LOG_H_
#define CAPSTAN_TRAINER_METRICS_GENERATIONS_LOG_H_

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

#endif  // CAPSTAN_TRAINER_METRICS_GENERATIONS_LOG_H_
