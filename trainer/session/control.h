// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_CONTROL_H_
#define CAPSTAN_TRAINER_SESSION_CONTROL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// What others ask of a run while it runs: a line of OUTPUT/control.jsonl.
struct Request {
  enum class What { kSave, kStop, kMaxSteps };
  What what = What::kSave;
  int64_t value = 0;  // of kMaxSteps
  std::string id;     // the asker's, for the answer
};

// `id` is set even on error, if the line has one.
absl::StatusOr<Request> ParseRequest(const std::string& line, std::string* id);

// Rank 0's view of OUTPUT/control.jsonl, which other programs append lines to.
class ControlFile {
 public:
  // Until then there is nothing to read. Empties the file, as what is in it was
  // asked of a process before, or with `keep` begins with what is in it.
  absl::Status Begin(const std::string& path, bool keep);
  // Whether it has grown since NewLines. One stat.
  bool Grown() const;
  // Returns whole lines that haven't been returned yet, of a file that others
  // may have cut; "" if it can't be read.
  std::string NewLines();

 private:
  std::string path_;   // "": not begun
  int64_t seen_ = 0;   // its length at the last look
  int64_t taken_ = 0;  // bytes of the lines returned
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_CONTROL_H_
