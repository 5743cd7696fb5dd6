// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/pairs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "plugins/objective/common/token_objective.h"

namespace capstan {

absl::Status CheckPairs(const TokenModel& model, const DatasetReader& data,
                        bool labelled) {
  // A pair is two texts.
  const int64_t longest = (data.max_sequence_length() + 1) / 2;
  if (longest > model.max_positions()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has texts of ", longest,
                     " tokens, the model's max_position_embeddings is ",
                     model.max_positions(), ": set the data's max_length to ",
                     model.max_positions(), " at most"));
  }
  Batch batch;
  // One that can't be read is told where it is trained on.
  if (data.Read({0}, &batch).ok()) {
    const char* const kind = labelled ? "UNPAIRED" : "PREFERENCE";
    if (batch.count(kPairKeys) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the data has single texts: this objective needs kind: ", kind,
          " (docs/preference.md)"));
    }
    if ((batch.count(kDesirable) > 0) != labelled) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the data has ", labelled ? "pairs" : "answers with labels",
          ": this objective and loss need kind: ", kind,
          labelled ? "; a loss of pairs is SIGMOID" : "",
          labelled ? ""
                   : "; losses of labelled answers are capstan.dpo's KTO "
                     "and APO_ZERO_UNPAIRED"));
    }
  }
  return CheckVocabulary(model, data);
}

int64_t PairsOf(const Batch& batch, bool labelled) {
  if (!labelled && batch.count(kDesirable) > 0) {
    throw std::invalid_argument(
        "the batch has answers with labels (kind: UNPAIRED), and no pairs of a "
        "preferred and a rejected one: they are for capstan.dpo with loss: KTO "
        "or APO_ZERO_UNPAIRED");
  }
  if (labelled) RequiredTensor(batch, kDesirable);
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  const int64_t pairs = RequiredTensor(batch, kPairKeys).size(0);
  if (ids.dim() != 2 || ids.size(0) != 2 * pairs ||
      RequiredTensor(batch, kLabels).sizes() != ids.sizes()) {
    throw std::invalid_argument(
        absl::StrCat("the batch has ", pairs,
                     " pairs, but not two rows of input_ids and "
                     "labels for each"));
  }
  return pairs;
}

at::Tensor TextPositions(const Batch& batch) {
  const auto positions = batch.find(kSamplePosition);
  if (positions == batch.end()) return {};
  const at::Tensor twice = positions->second * 2;
  return at::cat({twice, twice + 1});
}

at::Tensor PreferenceLosses(const at::Tensor& lead, double smoothing) {
  const at::Tensor losses = -at::log_sigmoid(lead);
  if (smoothing == 0.0) return losses;
  return losses * (1.0 - smoothing) - at::log_sigmoid(-lead) * smoothing;
}

std::vector<at::Tensor> RewardMetrics(const at::Tensor& chosen_reward,
                                      const at::Tensor& rejected_reward,
                                      const at::Tensor& chosen,
                                      const at::Tensor& rejected) {
  const at::Tensor better = chosen_reward.detach();
  const at::Tensor worse = rejected_reward.detach();
  return {better,         worse,           better.gt(worse).to(at::kFloat),
          better - worse, chosen.detach(), rejected.detach()};
}

std::vector<std::string> RewardMetricNames() {
  return {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
          "rewards/margins", "logps/chosen",     "logps/rejected"};
}

at::Tensor MetricRow(const at::Tensor& sum, double divisor) {
  const at::Tensor value = sum.detach().to(at::kDouble);
  return at::stack({value, at::full({}, divisor, value.options())});
}

}  // namespace capstan
