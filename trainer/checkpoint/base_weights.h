// SPDX-License-Identifier: Apache-2.0
//
// Which weights an adapter was trained on.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_
#define CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// The weights in a model's folder, "290 tensors in BF16, 269060552 bytes,
// crc32c 1a2b3c4d": equal for folders that have the same tensors, by name,
// dtype, shape and bytes, in whatever files and order. Reads all of them, at
// the speed of memory, with ATen's threads. Errors name the file.
absl::StatusOr<std::string> DigestOfWeights(const std::string& folder);

// capstan.json's key for the digest of an adapter's base.
inline constexpr char kBaseWeightsKey[] = "base_weights";

// The digest in an adapter folder's capstan.json; "" if it has none, as those
// from elsewhere (PEFT's).
std::string BaseWeightsOf(const std::string& adapter);
// A note for the user if it has none, else "".
std::string NoteWithoutBase(const std::string& adapter);

// FAILED_PRECONDITION if the adapter says that its base had other weights than
// those in `folder`, whose digest is `base`; the sentence leaves open what to
// do.
absl::Status CompareBaseWeights(const std::string& adapter,
                                const std::string& folder,
                                const std::string& base);

// For commands that have the flag --other_base, which the error names: reads
// the weights in `folder`, if the adapter says what they have to be. A folder
// that isn't one of weights, such as a checkpoint, is an error then.
absl::Status CheckBaseWeights(const std::string& adapter,
                              const std::string& folder);
// The same for a model that was trained on a base whose digest is `trained`.
absl::Status CheckBaseWeights(const std::string& model,
                              const std::string& trained,
                              const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BASE_WEIGHTS_H_
