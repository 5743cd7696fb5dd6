// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/conformance/ranks.h"
#include "tests/conformance/toy_model.h"
#include "tests/conformance/toy_training.h"
#include "trainer/session/loss_scaler.h"

namespace capstan {
namespace conformance {
namespace {

constexpr double kSilence = 60.0;  // seconds

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  return std::vector<double>(data, data + flat.numel());
}

bool IsWide(const PrecisionPolicy& precision) {
  return precision.compute == at::kFloat && precision.reduce == at::kFloat &&
         precision.master == at::kFloat;
}

class PlainTraining {
 public:
  explicit PlainTraining(const ReferenceOptions& options)
      : options_(options), scaler_(options.precision.loss_scaling) {
    if (IsWide(options.precision)) {
      compute_ = reduce_ = master_ = at::kDouble;
    } else {
      compute_ = options.precision.compute;
      reduce_ = options.precision.reduce;
      master_ = options.precision.master;
    }
    for (int i = 0; i < kToyParameters; ++i) {
      const ParameterSpec& spec = model_.parameters()[i];
      const at::Tensor value = at::empty(spec.shape, at::kFloat);
      // The toy's never fails.
      model_
          .InitialValue(i, kToySeed, 0, value.numel(),
                        value.mutable_data_ptr<float>())
          .IgnoreError();
      masters_.push_back(value.to(master_));
      leaves_.push_back(value.to(compute_).clone());
      leaves_.back().set_requires_grad(spec.trainable);
      sums_.push_back(at::zeros(spec.shape, reduce_));
      momenta_.push_back(at::zeros(spec.shape, master_));
      blocks_.push_back(at::zeros({(value.numel() + kToyBlock - 1) / kToyBlock},
                                  at::kDouble));
      counts_.push_back(at::zeros({1}, at::kLong));
    }
    model_.Bind(leaves_);
  }

  void Step(int step, RankReport* report) {
    for (const at::Tensor& sum : sums_) sum.zero_();
    double loss_sum = 0.0;
    double count = 0.0;
    const int64_t micro = kToyGlobalBatch / options_.micro_batches;
    for (int i = 0; i < options_.micro_batches; ++i) {
      MicroBatch(ToySamples(step * kToyGlobalBatch + i * micro, micro),
                 &loss_sum, &count);
    }
    double squared_sum = step == options_.broken_step
                             ? std::numeric_limits<double>::quiet_NaN()
                             : 0.0;
    for (const at::Tensor& sum : sums_) {
      for (double g : ToDoubles(sum)) squared_sum += g * g;
    }
    const double unscale = kToyNominalTargets / count / scaler_.scale();
    const double norm = std::sqrt(squared_sum) * unscale;
    if (std::isfinite(norm)) Update(unscale * ToyClip(norm));
    scaler_.Update(std::isfinite(norm));
    report->Add("step",
                {loss_sum / count, norm, std::isfinite(norm) ? 1.0 : 0.0});
  }

  void Evaluate(RankReport* report) {
    at::NoGradGuard no_grad;
    PlainRunner runner;
    std::vector<double> losses;
    for (int rank = 0; rank < 4; ++rank) {
      const ToyBatch batch =
          ToySamples(kToyEvalBegin + rank * kToyEvalBatch, kToyEvalBatch);
      losses.push_back(model_.LossSum(batch, runner).item<double>());
    }
    report->Add("eval", losses);
  }

  void ReportValues(RankReport* report) const {
    for (int i = 0; i < kToyParameters; ++i) {
      report->Add("value", ToDoubles(masters_[i]));
      report->Add("momentum", ToDoubles(momenta_[i]));
    }
  }

 private:
  void MicroBatch(const ToyBatch& batch, double* loss_sum, double* count) {
    PlainRunner runner;
    const at::Tensor loss = model_.LossSum(batch, runner);
    torch::autograd::backward(
        {loss},
        {at::full({}, scaler_.scale() / kToyNominalTargets, loss.options())});
    *loss_sum += loss.item<double>();
    *count += static_cast<double>(batch.count);
    at::NoGradGuard no_grad;
    for (int i = 0; i < kToyParameters; ++i) {
      at::Tensor& gradient = leaves_[i].mutable_grad();
      if (gradient.defined()) sums_[i].add_(gradient.to(reduce_));
      gradient.reset();
    }
  }

  void Update(double gradient_scale) {
    at::NoGradGuard no_grad;
    for (int i = 0; i < kToyParameters; ++i) {
      if (!model_.parameters()[i].trainable) continue;
      const at::Tensor gradient = sums_[i].to(master_).mul(gradient_scale);
      if (options_.matrices) {
        ToyMatrixUpdate(kToyLearningRate, ToyNeedsWhole(model_, i), gradient,
                        momenta_[i], blocks_[i], counts_[i], masters_[i]);
      } else {
        ToyUpdate(kToyLearningRate, gradient, momenta_[i], masters_[i]);
      }
      leaves_[i].copy_(masters_[i]);
    }
  }

  const ReferenceOptions options_;
  LossScaler scaler_;
  ToyModel model_;
  at::ScalarType compute_ = at::kDouble;
  at::ScalarType reduce_ = at::kDouble;
  at::ScalarType master_ = at::kDouble;
  std::vector<at::Tensor> masters_;
  std::vector<at::Tensor> leaves_;  // working copies
  std::vector<at::Tensor> sums_;    // of gradients
  std::vector<at::Tensor> momenta_;
  std::vector<at::Tensor> blocks_;
  std::vector<at::Tensor> counts_;
};

Curve Compute(const ReferenceOptions& options) {
  // In a separate process: the test's own must remain able to fork.
  WorldResult world =
      RunRanks(1, kSilence, [&](ProcessGroup*, RankReport* report) {
        report->Begin("the reference");
        PlainTraining training(options);
        training.Evaluate(report);
        for (int step = 0; step < options.steps; ++step) {
          training.Step(step, report);
          training.Evaluate(report);
        }
        training.ReportValues(report);
        return absl::OkStatus();
      });
  Curve curve;
  auto& values = world.ranks[0].values;
  for (const std::vector<double>& step : values["step"]) {
    curve.losses.push_back(step[0]);
    curve.norms.push_back(step[1]);
    curve.applied.push_back(step[2]);
  }
  curve.evals = values["eval"];
  curve.values = values["value"];
  curve.momenta = values["momentum"];
  curve.failure = world.failure;
  return curve;
}

}  // namespace

const Curve& ReferenceCurve(const ReferenceOptions& options) {
  static auto& curves = *new std::map<std::vector<double>, Curve>;
  ReferenceOptions canonical = options;
  // Without rounding, the number of micro-batches has no effect.
  if (IsWide(options.precision)) canonical.micro_batches = 1;
  const PrecisionPolicy& p = canonical.precision;
  const std::vector<double> key = {
      static_cast<double>(p.compute),
      static_cast<double>(p.reduce),
      static_cast<double>(p.master),
      p.loss_scaling.has_value() ? p.loss_scaling->initial_scale : 0.0,
      static_cast<double>(canonical.micro_batches),
      static_cast<double>(canonical.steps),
      static_cast<double>(canonical.broken_step),
      canonical.matrices ? 1.0 : 0.0};
  auto it = curves.find(key);
  if (it == curves.end()) it = curves.emplace(key, Compute(canonical)).first;
  return it->second;
}

}  // namespace conformance
}  // namespace capstan
