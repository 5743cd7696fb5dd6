// SPDX-License-Identifier: Apache-2.0
//
// Batches of pairs (plugins/sdk/dataset.h), for objectives that compare texts.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Checks that the model has the positions and tokens of the data's pairs, and
// by the first sample that they are such pairs (PairsOf).
absl::Status CheckPairs(const TokenModel& model, const DatasetReader& data,
                        bool labelled = false);

// Pairs of a batch. Throws std::invalid_argument if it isn't one of pairs, with
// kDesirable if `labelled`, else without.
int64_t PairsOf(const Batch& batch, bool labelled = false);

// [2 B] int64, kSamplePosition of each text, which differs; undefined if the
// batch has none.
at::Tensor TextPositions(const Batch& batch);

// A row of LossSum::metrics.
at::Tensor MetricRow(const at::Tensor& sum, double divisor);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_
