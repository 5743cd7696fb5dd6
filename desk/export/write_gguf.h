// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_EXPORT_WRITE_GGUF_H_
#define CAPSTAN_DESK_EXPORT_WRITE_GGUF_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/export/llama_model.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

struct GgufExport {
  std::string type;  // one of GgufFileTypes
  std::string pre;   // as for TokenizerValues
  std::string name;  // of the model, for people
};

// "F16", .., "Q4_K_M": what matrices are; norms and biases are F32. As in
// llama.cpp the head, or the embedding that is one, is Q6_K at least, some
// matrices of the kinds with "_M" have more bits, and one whose rows aren't
// whole blocks is of a type with smaller ones.
const std::vector<std::string>& GgufFileTypes();
bool IsQuantized(const std::string& file_type);

// Writes the file `path`. Weights are those that the model starts from
// (Model::InitialValue), some MiB at a time. Returns what was written, with the
// tensors' types. Errors name what llama.cpp has no place for.
absl::StatusOr<LlamaModel> WriteGguf(const Model& model,
                                     const Tokenizer& tokenizer,
                                     const GgufExport& request,
                                     const std::string& path);

struct GgufReading {
  std::map<std::string, int64_t> types;  // tensors by type
  double error = 0.0;                    // the largest GgufError
  // The model's parameters as the file has them, in order, float32; empty if
  // not asked for.
  std::vector<at::Tensor> weights;
};

// Reads a file of WriteGguf's again and compares each value with the model's.
// DATA_LOSS, naming the tensor, if one is missing or differs by more than its
// type allows.
absl::StatusOr<GgufReading> ReadGgufBack(const std::string& path,
                                         const Model& model,
                                         const LlamaModel& written,
                                         bool keep_weights);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_WRITE_GGUF_H_
