// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NEW_ROWS_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NEW_ROWS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace llama {

// The rows that a vocabulary has beyond its checkpoint's, for tokens that were
// added to the tokenizer: each is the mean of the checkpoint's rows, around
// which transformers' resize_token_embeddings draws them, with a covariance of
// 1e-9 of the rows' (modeling_utils.py, mean_resizing). Thread-safe.
class NewRows {
 public:
  // The checkpoint has `rows` of `width` numbers; `weights` outlives this.
  NewRows(const SafetensorsReader* weights, int64_t rows, int64_t width)
      : weights_(weights), rows_(rows), width_(width) {}

  // Elements [begin, begin + count) of the grown tensor `name`.
  absl::Status Read(const std::string& name, int64_t begin, int64_t count,
                    float* out);

 private:
  // Of the rows of tensor `name`, [width]; made once.
  absl::StatusOr<const std::vector<float>*> Mean(const std::string& name);

  const SafetensorsReader* const weights_;
  const int64_t rows_;
  const int64_t width_;
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> means_;
};

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NEW_ROWS_H_
