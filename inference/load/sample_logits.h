// SPDX-License-Identifier: Apache-2.0
//
// To compare two models: what they say of the same tokens.
#ifndef CAPSTAN_INFERENCE_LOAD_SAMPLE_LOGITS_H_
#define CAPSTAN_INFERENCE_LOAD_SAMPLE_LOGITS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// Up to 64 tokens, as many as the model has positions, that depend on the size
// of its vocabulary alone. UNIMPLEMENTED if the model isn't one of tokens.
absl::StatusOr<std::vector<int64_t>> FixedTokens(Model& model);

// The model's logits for these tokens, of which there is one or more: [T, V],
// float32, on the CPU; of a model of scores [T, 1], each token's score as the
// last one's. Without gradients.
at::Tensor LogitsOf(Model& model, const std::vector<int64_t>& tokens,
                    UnitRunner& runner);
at::Tensor LogitsOf(Model& model, const std::vector<int64_t>& tokens);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_SAMPLE_LOGITS_H_
