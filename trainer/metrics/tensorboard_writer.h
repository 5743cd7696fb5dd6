// SPDX-License-Identifier: Apache-2.0
//
// TensorBoard event files: TFRecords of tensorflow.Event.
#ifndef CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_
#define CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

namespace tensorboard {
class Event;
}  // namespace tensorboard

// Writes FOLDER/events.out.tfevents.<unix time>.<host>.<pid>. Buffers events
// for about a second. One thread.
class TensorBoardWriter {
 public:
  // Creates the folder. With first_step > 0, makes TensorBoard discard later
  // steps of older files. `unit`: as in RunFacts.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Open(
      const std::string& folder, int64_t first_step,
      const std::string& unit = kTokenUnit);
  // Flushes, but ignores errors; call Flush first to see them.
  ~TensorBoardWriter();

  // train/loss, train/lr, train/grad_norm, train/tokens_per_second (or the
  // unit's name), and tagged numbers.
  absl::Status Step(const StepMetrics& metrics);
  absl::Status Scalars(int64_t step, const TaggedNumbers& tagged);
  // A histogram of the finite `values`; nothing if there are none.
  absl::Status Histogram(int64_t step, const std::string& tag,
                         const std::vector<double>& values);
  // The run's settings, for TensorBoard's HParams; numbers as such.
  absl::Status HParams(const std::map<std::string, std::string>& settings);
  // Valid UTF-8, shown as Markdown under "samples".
  absl::Status Text(int64_t step, const std::string& markdown);
  absl::Status Flush();

 private:
  TensorBoardWriter(OutputFile file, const std::string& unit);
  tensorboard::Event* NewEvent(int64_t step);
  // Buffers event_; flushes when due.
  absl::Status Add();

  OutputFile file_;
  const std::string rate_tag_;
  std::unique_ptr<tensorboard::Event> event_;  // reused buffer
  std::string event_bytes_;
  std::string waiting_;  // records not yet written
  std::chrono::steady_clock::time_point last_flush_;
};

// Appends `data` as a TFRecord: length (8 bytes, little-endian), its masked
// CRC-32C, data, its masked CRC-32C (tensorflow's core/lib/io/record_writer.h).
void AppendTfRecord(const std::string& data, std::string* records);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_
