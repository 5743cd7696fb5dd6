// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities of pairs under a model that doesn't change, computed once
// and kept.
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"

namespace capstan::dpo {

// Sums of log p over the completions' tokens.
struct ReferenceLogps {
  float chosen = 0.0f;
  float rejected = 0.0f;
};
// By kPairKeys.
using ReferenceTable = std::map<int64_t, ReferenceLogps>;

// Tells models apart by what they start from: names, shapes and some values of
// each parameter. An adapter counts only if it changes anything at its start.
// `seed`: the run's, for random weights.
absl::StatusOr<std::string> ModelFingerprint(const Model& model, uint64_t seed);

// A safetensors file: keys [N] int64, ascending; logps [N, 2] float32, chosen
// and rejected; the model's fingerprint as metadata "model".
class ReferenceFile {
 public:
  // NOT_FOUND if there is none. Errors name the file.
  static absl::StatusOr<std::unique_ptr<ReferenceFile>> Open(
      const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& model() const { return model_; }
  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  // False if the pair isn't in it.
  bool Find(int64_t key, ReferenceLogps* logps) const;
  ReferenceTable table() const;

 private:
  ReferenceFile() = default;

  std::string path_;
  std::string model_;
  std::vector<int64_t> keys_;
  std::vector<ReferenceLogps> logps_;
};

// Writes the file anew, with the pairs of an existing one of the same model
// besides; the old one stays until the new one is complete. Returns how many
// pairs it has.
absl::StatusOr<int64_t> WriteReference(const std::string& path,
                                       const std::string& model,
                                       ReferenceTable table);

}  // namespace capstan::dpo

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_REFERENCE_FILE_H_
