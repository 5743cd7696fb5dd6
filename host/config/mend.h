// SPDX-License-Identifier: Apache-2.0
//
// The right line of a config file, where an error knows it.
#ifndef CAPSTAN_HOST_CONFIG_MEND_H_
#define CAPSTAN_HOST_CONFIG_MEND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

struct Mend {
  std::string file;  // its path
  int line = 0;      // from 1
  std::string before;
  std::string after;  // may be several lines
};

// `status` with `mend`, which removes the error, or else a later one of the
// same config.
absl::Status WithMend(absl::Status status, const Mend& mend);
absl::optional<Mend> MendOf(const absl::Status& status);

// Writes the line into the file, and nothing else; returns the change as a
// diff. An error if the line is no longer `before`, or if there is no room; the
// file then has its old text.
absl::StatusOr<std::string> ApplyMend(const Mend& mend);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_MEND_H_
