// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_CONTROL_H_
#define CAPSTAN_TRAINER_SESSION_CONTROL_H_

#include <cstdint>
#include <map>
#include <string>

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

// How an answer begins that refuses a request.
constexpr char kRefused[] = "refused: ";

// `id` is set even on error, if the line has one.
absl::StatusOr<Request> ParseRequest(const std::string& line, std::string* id);

// Rank 0's view of OUTPUT/control.jsonl, which other programs append lines to.
class ControlFile {
 public:
  // Until then there is nothing to read. Empties the file in the run's folder,
  // as what is in it was asked of a process before. With `restarted`, for a
  // process in the place of one that died, begins with what is in it: but what
  // events.jsonl answers is done already, except for an end that was accepted,
  // which the dead process took with it. (Requests without an id are done
  // again.)
  absl::Status Begin(const std::string& folder, bool restarted);
  // Whether it has grown since NewLines. One stat.
  bool Grown() const;
  // Whether NewLines would return a request to stop.
  bool AsksToStop() const;
  // Returns whole lines that haven't been returned yet, of a file that others
  // may have cut; "" if it can't be read. In the place of a line that is too
  // long there is one that ParseRequest refuses.
  std::string NewLines();

 private:
  // `text` begins at taken_.
  std::string StillToDo(const std::string& text) const;

  std::string path_;       // "": not begun
  int64_t seen_ = 0;       // its length at the last look
  int64_t taken_ = 0;      // bytes of the lines returned
  bool skipping_ = false;  // within a line that is too long
  // Of the file up to `known_`: by id, whether the request was accepted.
  std::map<std::string, bool> answered_;
  int64_t known_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_CONTROL_H_
