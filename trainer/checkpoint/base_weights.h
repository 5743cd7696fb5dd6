// SPDX-License-Identifier: Apache-2.0
//
// Which weights an adapter was trained on.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_
#define CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// Describes the weights in a model's folder: "290 tensors in BF16, 269060552
// bytes, crc32c 1a2b3c4d": equal for folders that have the same tensors, by
// name, dtype, shape and bytes, in whatever files and order. Reads all of them,
// at the speed of memory, with ATen's threads. Errors name the file.
absl::StatusOr<std::string> DigestOfWeights(const std::string& folder);

// capstan.json's key for the digest of an adapter's base.
inline constexpr char kBaseWeightsKey[] = "base_weights";

// Returns the digest in an adapter folder's capstan.json, or "" if there is
// none, as in PEFT's own folders.
std::string BaseWeightsOf(const std::string& adapter);
// A note for the user if it has none, else "".
std::string NoteWithoutBase(const std::string& adapter);

// Returns FAILED_PRECONDITION if the adapter says that its base had other
// weights than those in `folder`, whose digest is `base`. The message doesn't
// say what to do.
absl::Status CompareBaseWeights(const std::string& adapter,
                                const std::string& folder,
                                const std::string& base);

// Compares the weights in `folder` with what the adapter says of its base, if
// it does; then a folder without weights, such as a checkpoint, is an error.
// The error names --other_base: for commands that have this flag.
absl::Status CheckBaseWeights(const std::string& adapter,
                              const std::string& folder);
// The same for a model that was trained on a base whose digest is `trained`.
absl::Status CheckBaseWeights(const std::string& model,
                              const std::string& trained,
                              const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_
