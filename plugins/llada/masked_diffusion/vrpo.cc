// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/masked_diffusion/vrpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/to_device.h"
#include "plugins/llada/masked_diffusion/noise.h"
#include "plugins/objective/common/pairs.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/objective/common/twin_runner.h"
#include "plugins/sdk/dataset.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::masked_diffusion {
namespace {

// [2 B] float32, from Rollout: the bounds under the reference.
constexpr char kReferenceBounds[] = "reference_bounds";

// The metrics that need no reference come last.
constexpr size_t kRewards = 4;

}  // namespace

// A batch's 2 B texts under each of S draws.
struct Vrpo::Draws {
  TokenInput input;     // [S * 2 B, T], draw by draw
  at::Tensor targets;   // [1, S * 2 B, T]: the masked tokens
  at::Tensor weights;   // [S, 2 B] float32: 1 / p
  int64_t padding = 0;  // positions that AddPadding has added to a draw

  // [2 B], of RowLosses::CrossEntropyRows.
  at::Tensor BoundsOf(const at::Tensor& sums) const {
    return -(sums[0].view(weights.sizes()) * weights).mean(0);
  }
};

absl::Status Vrpo::Check(TokenModel& model, const DatasetReader& data) const {
  if (model.row_losses() == nullptr) {
    return absl::InvalidArgumentError(
        "loss: VRPO needs a model that gives the loss of each text apart "
        "(TokenModel::row_losses), as capstan.llada does; this model doesn't");
  }
  return CheckPairs(model, data);
}

std::vector<MetricTags> Vrpo::metrics() const {
  std::vector<MetricTags> tags;
  for (const std::string& name : RewardMetricNames()) {
    tags.push_back({absl::StrCat("train/", name), absl::StrCat("eval/", name)});
  }
  return tags;
}

Vrpo::Draws Vrpo::Draw(const TokenModel& model, int64_t mask_token,
                       const Batch& batch, const StepInfo& info) const {
  const at::Device device = batch.at(kInputIds).device();
  const bool host = TakesHostTargets(model);
  const int64_t samples = options_.bound_samples;
  const NoiseKey key = info.training ? NoiseKey::ForTraining(info.seed)
                                     : NoiseKey::ForEvaluation();
  // The rows are texts, each at a place of its own.
  Batch texts = batch;
  texts.erase(HostCopyName(kSamplePosition));
  const Batch on_host = {{kSamplePosition, HostTensor(batch, kSamplePosition)}};
  texts[kSamplePosition] = TextPositions(on_host);
  Layout layout = LayoutOf(texts, key, /*random_length_ratio=*/0.0);
  const std::vector<int64_t> places = layout.samples;
  std::vector<at::Tensor> tokens, positions, targets;
  std::vector<int64_t> dropout_keys;
  Draws draws;
  draws.weights = at::zeros({samples, layout.batch}, at::kFloat);
  float* weight = draws.weights.mutable_data_ptr<float>();
  for (int64_t s = 0; s < samples; ++s, weight += layout.batch) {
    for (int64_t r = 0; r < layout.batch; ++r) {
      layout.samples[r] = places[r] * samples + s;
    }
    dropout_keys.insert(dropout_keys.end(), layout.samples.begin(),
                        layout.samples.end());
    const Noise noise = DrawNoise(layout, key, options_.eps);
    for (size_t d = 0; d < layout.documents.size(); ++d) {
      const Document& document = layout.documents[d];
      if (document.targets == 0) continue;
      weight[document.row] = static_cast<float>(1.0 / noise.p[d]);
    }
    // As a mean: the weights are of whole rows.
    const HiddenBatch hidden =
        Hide(texts, layout, noise, Config::MASKED_MEAN, mask_token, host);
    tokens.push_back(hidden.input.tokens);
    if (hidden.input.positions.defined()) {
      positions.push_back(hidden.input.positions);
    }
    targets.push_back(hidden.targets.tokens);
  }
  draws.input.tokens = at::cat(tokens);
  if (!positions.empty()) draws.input.positions = at::cat(positions);
  if (info.training) {
    const at::Tensor keys =
        at::empty({static_cast<int64_t>(dropout_keys.size())}, at::kLong);
    std::copy(dropout_keys.begin(), dropout_keys.end(),
              keys.mutable_data_ptr<int64_t>());
    draws.input.sample_positions = kernels::ToDevice(keys, device);
  }
  TokenTargets all = {at::cat(targets)};
  draws.padding = TokensToAdd(batch, model.max_positions());
  AddPadding(model, draws.padding, &draws.input, &all);
  draws.targets = all.tokens.unsqueeze(0);
  draws.weights = kernels::ToDevice(draws.weights, device);
  return draws;
}

Vrpo::Bounds Vrpo::BoundsOf(Model& model, const Draws& draws,
                            const Batch& batch, UnitRunner& runner) {
  RowLosses& rows = *model.token_model()->row_losses();
  const auto run = [&](const TokenInput& input, UnitRunner& by) {
    return rows.CrossEntropyRows(input, draws.targets, by);
  };
  if (model.has_adapter()) {
    TokenInput plain = draws.input;
    plain.sample_positions = at::Tensor();  // no dropout
    TwinRunner twin(
        RecordWithoutAdapter(
            model, [&](UnitRunner& recorder) { run(plain, recorder); }),
        &runner);
    const at::Tensor sums = run(draws.input, twin);
    return {draws.BoundsOf(sums), draws.BoundsOf(twin.output())};
  }
  const auto reference = batch.find(kReferenceBounds);
  return {draws.BoundsOf(run(draws.input, runner)),
          reference == batch.end() ? at::Tensor() : reference->second};
}

LossSum Vrpo::Compute(Model& model, int64_t mask_token, const Batch& batch,
                      const StepInfo& info, UnitRunner& runner) const {
  const int64_t pairs = PairsOf(batch);
  const Draws draws = Draw(*model.token_model(), mask_token, batch, info);
  const Bounds bounds = BoundsOf(model, draws, batch, runner);
  const bool compares = bounds.reference.defined();
  CHECK(compares || !info.training) << "Rollout comes first";
  const at::Tensor rewards = (compares ? bounds.model - bounds.reference
                                       : at::zeros_like(bounds.model)) *
                             options_.beta;
  const auto half = [pairs](const at::Tensor& t, int64_t which) {
    return t.narrow(0, which * pairs, pairs);
  };
  LossSum loss;
  if (compares) {
    loss.sum = PreferenceLosses(half(rewards, 0) - half(rewards, 1)).sum();
    loss.count = pairs;
  } else {
    loss.sum = at::zeros({}, rewards.options());
  }
  const std::vector<at::Tensor> values =
      RewardMetrics(half(rewards, 0), half(rewards, 1), half(bounds.model, 0),
                    half(bounds.model, 1));
  std::vector<at::Tensor> metrics;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool known = compares || i >= kRewards;
    metrics.push_back(
        MetricRow(values[i].sum(), known ? static_cast<double>(pairs) : 0.0));
  }
  loss.metrics = at::stack(metrics);
  loss.trained = HostTensor(batch, kLabels).ge(0).sum().item<int64_t>();
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding + draws.padding * 2 * pairs;
  return loss;
}

absl::Status Vrpo::Rollout(Model& model, int64_t mask_token,
                           std::vector<Batch>* batches, const RolloutInfo& info,
                           UnitRunner& runner) const {
  if (model.has_adapter()) return absl::OkStatus();  // as Compute says
  TokenModel& tokens = *model.token_model();
  StepInfo step;
  step.seed = info.seed;
  step.training = true;
  return info.with_initial_weights([&] {
    for (size_t i = 0; !info.all_done(i >= batches->size()); ++i) {
      Batch& batch = (*batches)[std::min(i, batches->size() - 1)];
      Draws draws = Draw(tokens, mask_token, batch, step);
      draws.input.sample_positions = at::Tensor();  // no dropout
      batch[kReferenceBounds] =
          draws.BoundsOf(tokens.row_losses()->CrossEntropyRows(
              draws.input, draws.targets, runner));
    }
    return absl::OkStatus();
  });
}

}  // namespace capstan::masked_diffusion
