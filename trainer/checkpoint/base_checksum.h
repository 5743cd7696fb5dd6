// SPDX-License-Identifier: Apache-2.0
//
// Identifies the base model that an adapter was trained on.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_BASE_CHECKSUM_H_
#define CAPSTAN_TRAINER_CHECKPOINT_BASE_CHECKSUM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/model.h"

namespace capstan {

// Reads `count` values of the weight `name` from offset `begin`, as float32.
using ReadWeight = std::function<absl::Status(
    const std::string& name, int64_t begin, int64_t count, float* out)>;

// A CRC-32C over samples of `weights` (elements by name), those that an adapter
// modifies: 64 evenly spaced pieces of 1024 values each, or all of a weight no
// larger than that, so that it costs no time. Training changes values
// everywhere, so any other state of the model has another checksum.
absl::StatusOr<uint32_t> BaseChecksum(
    const std::map<std::string, int64_t>& weights, const ReadWeight& read);

// The same for the weights that `model`'s adapter modifies.
absl::StatusOr<uint32_t> BaseChecksum(const Model& model, uint64_t seed);

// A folder's capstan.json: `config` of the run and, for an adapter, the
// checksum of its base.
std::string CapstanJson(const std::string& config,
                        const absl::optional<uint32_t>& base_checksum);
// The checksum in an adapter folder's capstan.json; nullopt for folders from
// elsewhere, such as PEFT's.
absl::optional<uint32_t> ReadBaseChecksum(const std::string& adapter);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BASE_CHECKSUM_H_
