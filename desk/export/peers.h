// SPDX-License-Identifier: Apache-2.0
//
// What llama.cpp and transformers make of an export, where python3 has them.
#ifndef CAPSTAN_DESK_EXPORT_PEERS_H_
#define CAPSTAN_DESK_EXPORT_PEERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

struct LlamaAnswer {
  std::vector<std::vector<int64_t>> ids;  // of each text, with what it adds
  std::vector<int64_t> greedy;            // what follows the prompt
};

// An error of either says why the program couldn't be asked, be it that it
// isn't there, that it can't read what was written or that it ended: that isn't
// known to be the export's fault.

// Reads the GGUF file `path` with llama-cpp-python.
absl::StatusOr<LlamaAnswer> AskLlama(const std::string& path,
                                     const std::vector<std::string>& texts,
                                     const std::vector<int64_t>& prompt,
                                     int64_t count);

// Logits of `tokens`, [T, V] float32, by transformers' model in the folder
// `path`; [T, 1] of one that scores texts.
absl::StatusOr<at::Tensor> AskTransformers(const std::string& path,
                                           const std::vector<int64_t>& tokens);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_PEERS_H_
