// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_EXPORT_LLAMA_MODEL_H_
#define CAPSTAN_DESK_EXPORT_LLAMA_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/export/gguf_file.h"
#include "plugins/sdk/model.h"

namespace capstan {

// A tensor of a GGUF file, and the model's parameters that its rows come from.
struct LlamaTensor {
  GgufTensor gguf;  // type isn't set
  // Whose rows follow each other (several: a layer's experts); empty: `values`.
  std::vector<int> parameters;
  std::vector<float> values;
  // If set, in each of so many heads the rows of a pair that rope turns follow
  // each other, as llama.cpp has them, where the model has them half a head
  // apart.
  int64_t heads = 0;
  float plus = 0.0f;  // added to the model's values

  // Rows are of the last dimension; a head's biases are rows of one value.
  int64_t columns() const {
    return heads > 0 && gguf.shape.size() == 1 ? 1 : gguf.shape.back();
  }
  int64_t rows() const { return gguf.values() / columns(); }

  struct Row {
    int parameter;
    int64_t row;  // of the parameter
  };
  // Where row `row` comes from. For tensors with parameters.
  Row Source(int64_t row) const;
};

// A decoder as an architecture of llama.cpp's.
struct LlamaModel {
  GgufValues values;  // general.architecture and ARCHITECTURE.*
  std::vector<LlamaTensor> tensors;
  int64_t vocabulary = 0;          // rows of the embedding
  std::vector<std::string> notes;  // for the user, a line each
};

// `folder` has the config.json that the model saved (Model::SaveConfig).
// UNIMPLEMENTED, naming key or parameter, for what llama.cpp doesn't compute.
absl::StatusOr<LlamaModel> DescribeForLlama(const Model& model,
                                            const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_LLAMA_MODEL_H_
