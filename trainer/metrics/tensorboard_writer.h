// SPDX-License-Identifier: Apache-2.0
//
// TensorBoard event files: TFRecords of tensorflow.Event.
#ifndef CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_
#define CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/output_file.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

namespace tensorboard {
class Event;
}  // namespace tensorboard

// Writes FOLDER/events.out.tfevents.<unix time>.<host>.<pid>. Events are kept
// for about a second and then written together. One thread.
class TensorBoardWriter {
 public:
  // Makes the folder. With first_step > 0 TensorBoard is told to forget what
  // older files hold of later steps.
  // `unit`: as in RunFacts.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Open(
      const std::string& folder, int64_t first_step,
      const std::string& unit = kTokenUnit);
  // Writes what is left; an error is lost, so Flush first.
  ~TensorBoardWriter();

  // train/loss, train/lr, train/grad_norm, train/tokens_per_second (or what
  // the unit is), and what is tagged.
  absl::Status Step(const StepMetrics& metrics);
  absl::Status Scalars(int64_t step, const TaggedNumbers& tagged);
  // How the finite ones of `values` are distributed; nothing if there are none.
  absl::Status Histogram(int64_t step, const std::string& tag,
                         const std::vector<double>& values);
  // A text, shown as Markdown under "samples". Valid UTF-8.
  absl::Status Text(int64_t step, const std::string& markdown);
  absl::Status Flush();

 private:
  TensorBoardWriter(OutputFile file, const std::string& unit);
  tensorboard::Event* NewEvent(int64_t step);
  // Takes event_; writes when it is time to.
  absl::Status Add();

  OutputFile file_;
  const std::string rate_tag_;
  std::unique_ptr<tensorboard::Event> event_;  // kept for its memory
  std::string event_bytes_;
  std::string waiting_;  // records not yet written
  std::chrono::steady_clock::time_point last_flush_;
};

// data as a TFRecord, appended to *records: length (8 bytes, little-endian),
// its masked CRC-32C, data, its masked CRC-32C (tensorflow's
// core/lib/io/record_writer.h).
void AppendTfRecord(const std::string& data, std::string* records);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_TENSORBOARD_WRITER_H_
