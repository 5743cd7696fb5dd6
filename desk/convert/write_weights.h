// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_CONVERT_WRITE_WEIGHTS_H_
#define CAPSTAN_DESK_CONVERT_WRITE_WEIGHTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/convert/weight_source.h"

namespace capstan {

// Writes the weights to `output`: one file if that ends in .safetensors, else a
// Hugging Face folder with the other files of the source's, if that has a
// config.json. It appears whole or not at all. ALREADY_EXISTS if it is there.
// Memory holds one tensor at a time. Returns a line for the user about copied
// files, or "".
absl::StatusOr<std::string> WriteWeights(const WeightSource& source,
                                         const std::string& output);

// ALREADY_EXISTS if the path exists, be it as a link, and isn't an empty
// folder.
absl::Status CheckOutput(const std::string& output);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_WRITE_WEIGHTS_H_
