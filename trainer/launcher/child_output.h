// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_CHILD_OUTPUT_H_
#define CAPSTAN_TRAINER_LAUNCHER_CHILD_OUTPUT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// Cuts a stream of bytes into whole lines with a prefix before each.
class PrefixedLines {
 public:
  explicit PrefixedLines(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes; the rest is kept for the next call.
  std::string Add(absl::string_view bytes);
  // What is left, as a line of its own; empty where nothing is.
  std::string Finish();

 private:
  std::string prefix_;
  std::string rest_;
};

// Appends what can be read from the non-blocking `fd` now. False when the
// writers have closed it.
bool ReadAvailable(int fd, std::string* bytes);

// Writes all of `bytes`; false when `fd` can't take them.
bool WriteAll(int fd, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_CHILD_OUTPUT_H_
