// SPDX-License-Identifier: Apache-2.0
#include "desk/who/measure_rows.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <memory>
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
#include "trainer/session/evaluate.h"

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
    if (objective().has_rollouts()) return step;
    CAPSTAN_RETURN_IF_ERROR(SumTotals());
    CAPSTAN_RETURN_IF_ERROR(MeasureStep(&step));
    for (size_t i = 0; i < step.rows.size(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(MeasureRow(step.targets, &step.rows[i]));
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

  // Calls `use` with each micro-batch and its rank.
  template <typename Use>
  absl::Status ForEachMicroBatch(const Use& use) {
    const Places rows(request_.rows);
    const auto size = static_cast<size_t>(request_.micro_batch_size);
    for (size_t begin = 0; begin < rows.size(); begin += size) {
      const Places places = rows.subspan(begin, size);
      CAPSTAN_ASSIGN_OR_RETURN(const Batch batch,
                               Read(places, request_.device));
      use(places[0].rank, batch);
      request_.progress(0.5 * static_cast<double>(begin + size) / rows.size());
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

  absl::Status MeasureRow(int64_t step_targets, MeasuredRow* row) {
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch,
                             Read({row->place}, request_.device));
    Model& model = noting_ != nullptr ? *noting_ : *request_.parts->model;
    const LossSum loss = objective().Compute(model, batch, info_, runner_);
    row->loss_sum = loss.sum.item<double>();
    row->targets = loss.count;
    row->tokens = loss.tokens;
    row->trained = loss.trained < 0 ? loss.count : loss.trained;
    if (noting_ != nullptr) row->token_losses = noting_->Take();
    if (request_.gradients) {
      row->gradient_norm =
          GradientNorm(loss.sum) / std::max<double>(1.0, step_targets);
    }
    return absl::OkStatus();
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
