// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_CHILD_OUTPUT_H_
#define CAPSTAN_CLUSTER_LAUNCH_CHILD_OUTPUT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// Splits a byte stream into lines and prefixes each.
class PrefixedLines {
 public:
  explicit PrefixedLines(std::string prefix) : prefix_(std::move(prefix)) {}

  // Returns the lines completed by `bytes`; buffers the rest.
  std::string Add(absl::string_view bytes);
  // Returns the rest as a line of its own; "" if none.
  std::string Finish();

 private:
  std::string prefix_;
  std::string rest_;
};

// Appends the available bytes of the non-blocking `fd`. Returns false at end of
// file.
bool ReadAvailable(int fd, std::string* bytes);

// Writes all of `bytes`; false if writing to `fd` fails.
bool WriteAll(int fd, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_CHILD_OUTPUT_H_
