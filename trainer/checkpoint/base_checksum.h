// SPDX-License-Identifier: Apache-2.0
//
// Which base an adapter was trained on.
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

// Reads `count` values of the weight `name` from `begin` on, as float32.
using ReadWeight = std::function<absl::Status(
    const std::string& name, int64_t begin, int64_t count, float* out)>;

// A CRC-32C of the values of `weights` (elements by name), those that an
// adapter adds to: of each 64 pieces of 1024 values, evenly spread, so that it
// takes no time; of one that is no larger, all. Training changes values
// everywhere, so that another state of the same model has another checksum.
absl::StatusOr<uint32_t> BaseChecksum(
    const std::map<std::string, int64_t>& weights, const ReadWeight& read);

// The same of the weights that the adapter of `model` adds to.
absl::StatusOr<uint32_t> BaseChecksum(const Model& model, uint64_t seed);

// capstan.json of a folder: `config`, a run's; and of an adapter its base's
// checksum.
std::string CapstanJson(const std::string& config,
                        const absl::optional<uint32_t>& base_checksum);
// The checksum that the capstan.json of an adapter's folder has; none in
// another's folder, as PEFT's.
absl::optional<uint32_t> ReadBaseChecksum(const std::string& adapter);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BASE_CHECKSUM_H_
