// SPDX-License-Identifier: Apache-2.0
#include "desk/who/measure_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "desk/who/token_losses.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/unit_runner.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/data_loader.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/evaluate.h"
#include "trainer/session/metric_sums.h"

namespace capstan {
namespace {

class RowMeasurer {
 public:
  explicit RowMeasurer(const MeasureRequest& request) : request_(request) {
    Model* const model = request.parts->model.get();
    // Other models are known to their objectives by interfaces of their own.
    if (model->token_model() != nullptr) {
      noting_ = std::make_unique<TokenLossModel>(model);
    }
    info_.seed = request.seed;
    info_.training = true;
  }

  absl::StatusOr<MeasuredStep> Run() {
    MeasuredStep step;
    for (const StepRow& place : request_.rows) {
      MeasuredRow row;
      row.place = place;
      CAPSTAN_ASSIGN_OR_RETURN(row.batch, Read({place}, at::kCPU));
      row.batch.erase(kSamplePosition);
      step.rows.push_back(std::move(row));
    }
    if (objective().has_rollouts()) CAPSTAN_RETURN_IF_ERROR(RollOut(&step));
    CAPSTAN_RETURN_IF_ERROR(SumTotals());
    CAPSTAN_RETURN_IF_ERROR(MeasureStep(&step));
    for (size_t i = 0; i < step.rows.size(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(MeasureRow(step.targets, i, &step.rows[i]));
      const double done = static_cast<double>(i + 1) / step.rows.size();
      request_.progress(0.5 + 0.5 * done);
    }
    return step;
  }

 private:
  using Places = absl::Span<const StepRow>;

  Objective& objective() { return *request_.parts->objective; }

  // With the positions in the run that training gives its batches.
  absl::StatusOr<Batch> Read(Places places, c10::Device device) {
    std::vector<int64_t> samples;
    for (const StepRow& place : places) samples.push_back(place.sample);
    CAPSTAN_ASSIGN_OR_RETURN(Batch batch,
                             ReadBatch(*request_.data, samples, device));
    at::Tensor positions =
        at::empty({static_cast<int64_t>(places.size())}, at::kLong);
    for (size_t i = 0; i < places.size(); ++i) {
      positions.mutable_data_ptr<int64_t>()[i] = places[i].position;
    }
    batch[kSamplePosition] = positions.to(device);
    return batch;
  }

  // Has the objective make what the step trains on.
  absl::Status RollOut(MeasuredStep* step) {
    std::vector<Batch> batches;
    CAPSTAN_RETURN_IF_ERROR(ForEachMicroBatch(
        [&](int, const Batch& batch) { batches.push_back(batch); }));
    std::vector<at::Tensor> positions;
    for (const Batch& batch : batches) {
      positions.push_back(batch.at(kSamplePosition));
    }
    RolloutInfo info;
    info.seed = request_.seed;
    info.step = request_.step;
    info.global_batch_size = static_cast<int64_t>(request_.rows.size());
    const auto first =
        std::min_element(request_.rows.begin(), request_.rows.end(),
                         [](const StepRow& a, const StepRow& b) {
                           return a.position < b.position;
                         });
    info.first_position = first->position;
    info.with_initial_weights = request_.with_initial_weights;
    {
      const at::NoGradGuard no_grad;
      CAPSTAN_RETURN_IF_ERROR(
          objective().Rollout(*request_.parts->model, &batches, info, runner_));
    }
    for (size_t b = 0; b < batches.size(); ++b) {
      batches[b][kSamplePosition] = positions[b];
    }
    made_ = std::move(batches);
    std::set<std::string> left_out = {kSamplePosition, kPairKeys};
    for (const auto& [name, tensor] : made_[0]) {
      left_out.insert(HostCopyName(name));
    }
    for (size_t i = 0; i < step->rows.size(); ++i) {
      MeasuredRow& row = step->rows[i];
      row.batch.clear();
      for (const auto& [name, tensor] : MadeRow(i)) {
        if (left_out.count(name) > 0) continue;
        row.batch[name] = tensor.cpu();
        if (tensor.dim() == 1 && tensor.size(0) == 1 && name != kTokenCounts) {
          row.made.emplace_back(name, tensor.item<double>());
        }
      }
    }
    return absl::OkStatus();
  }

  // Row `i` of all, on the device.
  Batch MadeRow(size_t i) const {
    const auto size = static_cast<size_t>(request_.micro_batch_size);
    const auto at = static_cast<int64_t>(i % size);
    const Batch& batch = made_[i / size];
    const int64_t rows = batch.at(kSamplePosition).size(0);
    const bool pairs = batch.count(kPairKeys) > 0;
    Batch row;
    for (const auto& [name, tensor] : batch) {
      if (tensor.dim() == 0) continue;
      row[name] = tensor.narrow(0, at, 1);
      if (!pairs || tensor.size(0) != 2 * rows) continue;
      row[name] = at::cat({row[name], tensor.narrow(0, rows + at, 1)});
    }
    return row;
  }

  // Calls `use` with each micro-batch and its rank.
  template <typename Use>
  absl::Status ForEachMicroBatch(const Use& use) {
    const Places rows(request_.rows);
    size_t index = 0;
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
      // Some may have been left out.
      while (end < rows.size() && rows[end].rank == rows[begin].rank &&
             rows[end].micro_batch == rows[begin].micro_batch) {
        ++end;
      }
      const Places places = rows.subspan(begin, end - begin);
      Batch batch;
      if (made_.empty()) {
        CAPSTAN_ASSIGN_OR_RETURN(batch, Read(places, request_.device));
      } else {
        batch = made_[index++];
      }
      use(places[0].rank, batch);
      request_.progress(0.5 * static_cast<double>(end) / rows.size());
    }
    return absl::OkStatus();
  }

  absl::Status SumTotals() {
    std::vector<ExactSum> sums(objective().step_totals());
    if (sums.empty()) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(ForEachMicroBatch([&](int, const Batch& batch) {
      AddStepTotals(objective(), batch, info_, absl::MakeSpan(sums));
    }));
    for (const ExactSum& sum : sums) info_.totals.push_back(sum.Value());
    return absl::OkStatus();
  }

  // Adds up in the order of training: a rank's micro-batches, then the ranks.
  absl::Status MeasureStep(MeasuredStep* step) {
    std::vector<std::pair<int, double>> by_rank;
    CAPSTAN_RETURN_IF_ERROR(
        ForEachMicroBatch([&](int rank, const Batch& batch) {
          const LossSum loss = objective().Compute(*request_.parts->model,
                                                   batch, info_, runner_);
          if (by_rank.empty() || by_rank.back().first != rank) {
            by_rank.emplace_back(rank, 0.0);
          }
          by_rank.back().second += loss.sum.item<double>();
          step->targets += loss.count;
        }));
    double sum = 0.0;
    for (const auto& [rank, of_rank] : by_rank) sum += of_rank;
    step->loss = sum / static_cast<double>(step->targets);
    return absl::OkStatus();
  }

  absl::Status MeasureRow(int64_t step_targets, size_t i, MeasuredRow* row) {
    Batch batch;
    if (made_.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(batch, Read({row->place}, request_.device));
    } else {
      batch = MadeRow(i);
    }
    Model& model = noting_ != nullptr ? *noting_ : *request_.parts->model;
    LossSum loss;
    const absl::Status computed = CatchAll([&] {
      loss = objective().Compute(model, batch, info_, runner_);
      return absl::OkStatus();
    });
    // As MeasureStep has computed all of them, this is one that can't be alone:
    // of a pair of answers to one prompt, say.
    if (!made_.empty() && objective().rollout_plan().rows_per_sample > 1 &&
        absl::IsInternal(computed)) {
      return absl::OkStatus();
    }
    CAPSTAN_RETURN_IF_ERROR(computed);
    row->metrics = MetricsOf(loss);
    // Or the objective says itself that there is none of one row.
    if (loss.sum.defined()) row->loss_sum = loss.sum.item<double>();
    row->targets = loss.count;
    row->tokens = loss.tokens;
    row->trained = loss.trained < 0 ? loss.count : loss.trained;
    if (noting_ != nullptr) row->token_losses = noting_->Take();
    if (request_.gradients && loss.sum.defined()) {
      row->gradient_norm =
          GradientNorm(loss.sum) / std::max<double>(1.0, step_targets);
    }
    return absl::OkStatus();
  }

  NamedNumbers MetricsOf(const LossSum& loss) {
    NamedNumbers numbers;
    if (!loss.metrics.defined()) return numbers;
    std::vector<std::string> tags;
    for (const MetricTags& tag : objective().metrics()) {
      tags.push_back(tag.train);
    }
    const MetricSums metrics(std::move(tags));
    const at::Tensor sums =
        metrics.ForRanks(loss.metrics.cpu(), /*rank=*/0, /*ranks=*/1)
            .contiguous();
    const absl::Span<const double> all(
        sums.const_data_ptr<double>(),
        static_cast<size_t>(metrics.numbers(/*ranks=*/1)));
    for (const auto& [tag, value] : metrics.Numbers(all, /*ranks=*/1)) {
      if (!tag.empty()) numbers.emplace_back(MetricName(tag), value);
    }
    return numbers;
  }

  double GradientNorm(const at::Tensor& loss) {
    torch::autograd::backward({loss}, {});
    double squares = 0.0;
    for (at::Tensor weight : request_.trained) {
      if (!weight.grad().defined()) continue;
      squares += weight.grad().to(at::kDouble).square().sum().item<double>();
      weight.mutable_grad() = at::Tensor();
    }
    return std::sqrt(squares);
  }

  const MeasureRequest& request_;
  std::unique_ptr<TokenLossModel> noting_;
  StepInfo info_;
  PlainRunner runner_;
  std::vector<Batch> made_;  // of each micro-batch; none without rollouts
};

}  // namespace

absl::StatusOr<MeasuredStep> MeasureRows(const MeasureRequest& request) {
  absl::StatusOr<MeasuredStep> step = absl::InternalError("not measured");
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    step = RowMeasurer(request).Run();
    return step.status();
  }));
  return step;
}

absl::StatusOr<std::vector<at::Tensor>> BindForTraining(
    const std::string& folder, uint64_t seed, c10::ScalarType dtype,
    c10::Device device, Model* model) {
  const std::vector<ParameterSpec>& specs = model->parameters();
  const auto initial = [&](int index, uint64_t of_run, float* out) {
    if (model->PackedBytes(index) > 0) return absl::OkStatus();  // below
    return model->InitialValue(index, of_run, 0, specs[index].numel(), out);
  };
  std::vector<at::Tensor> weights(specs.size());
  if (IsCheckpoint(folder)) {
    CAPSTAN_ASSIGN_OR_RETURN(weights,
                             CheckpointWeights(folder, specs, initial));
  }
  std::vector<at::Tensor> trained;
  for (size_t i = 0; i < specs.size(); ++i) {
    const int index = static_cast<int>(i);
    at::Tensor& weight = weights[i];
    const int64_t packed = model->PackedBytes(index);
    if (packed > 0) {
      weight = at::empty({packed}, at::kByte);
      CAPSTAN_RETURN_IF_ERROR(model->PackedValue(
          index, 0, packed, weight.mutable_data_ptr<uint8_t>()));
      weight = weight.to(device);
      continue;
    }
    if (!weight.defined()) {
      weight = at::empty(specs[i].shape, at::kFloat);
      CAPSTAN_RETURN_IF_ERROR(
          initial(index, seed, weight.mutable_data_ptr<float>()));
    }
    weight = weight.to(device, dtype);
    if (!specs[i].trainable) continue;
    weight.requires_grad_();
    trained.push_back(weight);
  }
  model->Bind(std::move(weights));
  return trained;
}

}  // namespace capstan
