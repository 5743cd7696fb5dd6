// SPDX-License-Identifier: Apache-2.0
//
// What objectives of token models share.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TOKEN_OBJECTIVE_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TOKEN_OBJECTIVE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Checks that the model has all ids of the data's tokenizer.
absl::Status CheckVocabulary(const TokenModel& model,
                             const DatasetReader& data);

// Checks that the model has logits, and no scores in place of them.
absl::Status CheckLogits(TokenModel& model);

// Checks that the model can continue `prompt`.
absl::Status CheckPrompt(TokenModel& model, absl::Span<const int64_t> prompt);

// x[:, t + 1] at t, `last` at the end, for x [B, T]: what is to be predicted
// there, of what tokens have.
at::Tensor NextOf(const at::Tensor& x, int64_t last);

// By how many tokens to lengthen the rows of a batch: on a GPU to LengthOnGpu;
// 0 if rows don't vary in length, i.e. the batch has no kTokenCounts, or packs
// documents.
int64_t TokensToAdd(const Batch& batch, int64_t most);

// Lengthens each row by `tokens` positions of padding: without targets, and
// seen by none of the others.
void AddPadding(const TokenModel& model, int64_t tokens, TokenInput* input,
                TokenTargets* targets);

// LossSum::metrics with one row, [1, 2] float64: at how many of `targets` ([B,
// T] int64, negative: none; on the CPU or the model's device) the likeliest
// token is the target, and the number of targets. Runs the model again, row by
// row, so that only one row's logits exist. Without gradients.
at::Tensor CountCorrect(TokenModel& model, const TokenInput& input,
                        const at::Tensor& targets, UnitRunner& runner);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TOKEN_OBJECTIVE_H_
