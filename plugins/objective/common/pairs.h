// SPDX-License-Identifier: Apache-2.0
//
// Batches of pairs (plugins/sdk/dataset.h), for objectives that compare texts,
// and the loss of preferences.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

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

// -log sigmoid(lead), where `lead` is by how much each pair's chosen text is
// ahead. With the probability `smoothing` a pair is the wrong way round
// (Mitchell, "A note on DPO with noisy preferences", 2023).
at::Tensor PreferenceLosses(const at::Tensor& lead, double smoothing = 0.0);

// What is told of pairs: without gradient, [B] each, in the order of
// RewardMetricNames, which are TRL's. Rewards are beta times the log-ratios,
// `chosen` and `rejected` the texts' log-probabilities.
std::vector<at::Tensor> RewardMetrics(const at::Tensor& chosen_reward,
                                      const at::Tensor& rejected_reward,
                                      const at::Tensor& chosen,
                                      const at::Tensor& rejected);
std::vector<std::string> RewardMetricNames();

// A row of LossSum::metrics.
at::Tensor MetricRow(const at::Tensor& sum, double divisor);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_PAIRS_H_
