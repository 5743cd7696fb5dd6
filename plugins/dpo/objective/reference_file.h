// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities of pairs under a model that doesn't change, computed once
// and kept.
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"

namespace capstan::dpo {

// Sums of log p over the completions' tokens.
struct ReferenceLogps {
  float chosen = 0.0f;
  float rejected = 0.0f;
};
// Of pairs by their kPairKeys, under the model of this fingerprint.
struct Reference {
  std::string model;
  absl::btree_map<int64_t, ReferenceLogps> pairs;
};

// Tells models apart by what they start from: names, shapes and some values of
// each parameter. An adapter counts only if it changes anything at its start.
// `seed`: the run's, for random weights.
absl::StatusOr<std::string> ModelFingerprint(const Model& model, uint64_t seed);

// Reads a safetensors file: keys [N] int64, ascending; logps [N, 2] float32,
// chosen and rejected; the model's fingerprint as metadata "model". NOT_FOUND
// if there is none. Errors name the file.
absl::StatusOr<Reference> ReadReference(const std::string& path);

// Writes the file anew, with the pairs of an existing one of the same model
// besides; the old one stays until the new one is complete. Returns how many
// pairs it has.
absl::StatusOr<int64_t> WriteReference(const std::string& path,
                                       Reference reference);

}  // namespace capstan::dpo

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_
