// SPDX-License-Identifier: Apache-2.0
//
// The source of a decoder's initial values: a folder's weights.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_WEIGHTS_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "plugins/model/common/parameters.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::decoder {

// The rows that a vocabulary has beyond its checkpoint's, for tokens added to
// the tokenizer: drawn from the normal distribution with the mean of the
// checkpoint's rows and 1e-9 of their covariance, as transformers'
// resize_token_embeddings does (modeling_utils.py, mean_resizing); all are the
// mean where there are no more rows than columns, so that the covariance is
// singular. The same on every rank. Thread-safe.
class NewRows {
 public:
  // The checkpoint has `rows` rows of `width` numbers; `weights` outlives this.
  NewRows(const SafetensorsReader* weights, int64_t rows, int64_t width)
      : weights_(weights), rows_(rows), width_(width) {}

  // Elements [begin, begin + count) of tensor `name`, grown to `rows` rows.
  absl::Status Read(const std::string& name, uint64_t seed, int64_t rows,
                    int64_t begin, int64_t count, float* out);

 private:
  // The rows [rows_, rows) of tensor `name`, which must be the same in each
  // call; cached.
  absl::StatusOr<const std::vector<float>*> Drawn(const std::string& name,
                                                  uint64_t seed, int64_t rows);

  const SafetensorsReader* const weights_;
  const int64_t rows_;
  const int64_t width_;
  std::mutex mutex_;
  std::map<std::pair<std::string, uint64_t>, std::vector<float>> drawn_;
};

struct DecoderCheckpoint {
  DecoderConfig config;
  std::unique_ptr<SafetensorsReader> weights;  // null: random
  // The parameters' names in the weights' files; empty: their own.
  std::vector<std::string> file_names;
  // Null: the vocabulary is that of the weights.
  std::unique_ptr<NewRows> new_rows;
};

// Opens and validates the weights of `folder`, whose config.json gave `config`,
// for a vocabulary of `vocab_size` (0: the folder's own). FieldError for
// "pretrained" or "vocab_size".
absl::StatusOr<DecoderCheckpoint> OpenCheckpoint(
    const std::string& folder, absl::StatusOr<DecoderConfig> config,
    int64_t vocab_size);

// From a plugin's config, which names a folder or has sizes.
template <typename Config>
absl::StatusOr<DecoderCheckpoint> MakeCheckpoint(
    const Config& config,
    absl::StatusOr<DecoderConfig> (*from_sizes)(const Config&),
    absl::StatusOr<DecoderConfig> (*from_folder)(const std::string&)) {
  if (!config.pretrained().empty()) {
    CAPSTAN_RETURN_IF_ERROR(CheckAlone(config, {"pretrained", "vocab_size"}));
    return OpenCheckpoint(config.pretrained(), from_folder(config.pretrained()),
                          config.vocab_size());
  }
  DecoderCheckpoint checkpoint;
  CAPSTAN_ASSIGN_OR_RETURN(checkpoint.config, from_sizes(config));
  return checkpoint;
}

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_WEIGHTS_H_
