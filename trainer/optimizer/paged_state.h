// SPDX-License-Identifier: Apache-2.0
//
// Optimizer state that isn't where its shard is.
#ifndef CAPSTAN_TRAINER_OPTIMIZER_PAGED_STATE_H_
#define CAPSTAN_TRAINER_OPTIMIZER_PAGED_STATE_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// Zeros for the state of a shard on `device`. For a GPU in page-locked host
// memory. For the CPU in a file in `folder` that has no name, so that it goes
// with the process, mapped into memory; its room on the disk is taken at once.
// RESOURCE_EXHAUSTED if there isn't enough.
absl::StatusOr<at::Tensor> NewPagedState(int64_t length, at::ScalarType dtype,
                                         const at::Device& device,
                                         const std::string& folder);

// optimizer.Update, or UpdateInPieces if a part of `state` is on another device
// than the shard.
void UpdateWhereItIs(Optimizer& optimizer, const OptimizerStep& step,
                     const Model& model, OptimizerShard& shard,
                     absl::Span<at::Tensor> state);

// Updates a piece of the shard after another, with a copy of the piece's state
// on the shard's device, which is copied back; meanwhile the next one comes, so
// that two are there. A piece has at most `most` elements (rounded up to a
// block), or one parameter that the optimizer needs whole. The result is that
// of one Update. On a GPU the host waits once, in the end.
void UpdateInPieces(Optimizer& optimizer, const OptimizerStep& step,
                    const Model& model, OptimizerShard& shard,
                    absl::Span<at::Tensor> state, int64_t most);

// Elements of a piece: 128 MiB of float32 state.
constexpr int64_t kElementsOfPiece = int64_t{1} << 25;

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_OPTIMIZER_PAGED_STATE_H_
