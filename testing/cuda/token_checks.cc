// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy, embedding backward and the optimizer's passes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// [rows] int64 on the CPU, in [0, most), small numbers more often.
at::Tensor Tokens(uint64_t seed, int64_t rows, int64_t most) {
  const at::Tensor z = Normal(seed, {rows}, at::kFloat).abs_();
  return (z * (most * 0.4)).clamp_max_(most - 1.0).to(at::kLong);
}

// The sum and the gradient at logits, in float64.
void ExpectCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                        const at::Tensor& weights, double factor,
                        const at::Tensor& sum, const at::Tensor& gradient) {
  const at::Tensor x = logits.to(at::kDouble).set_requires_grad(true);
  at::Tensor counts = targets.ge(0).to(at::kDouble);
  if (weights.defined()) counts = counts * weights;
  const at::Tensor picked =
      at::log_softmax(x, 1).gather(1, targets.clamp_min(0).unsqueeze(1));
  const at::Tensor expected = -(picked.squeeze(1) * counts).sum();
  expected.backward();
  ExpectClose(sum, expected.detach(), at::kFloat, 4, "sum of losses");
  // exp(x - lse): the difference, up to 16, is rounded first.
  ExpectClose(gradient, x.grad() * factor, logits.scalar_type(), 16,
              "gradient of logits");
}

}  // namespace

Outputs CheckCrossEntropy(const Subject& subject, at::ScalarType dtype,
                          int64_t rows, int64_t vocab) {
  const auto device = subject.device;
  const at::Tensor logits = Normal(1, {rows, vocab}, dtype) * 3.0;
  at::Tensor targets = Tokens(2, rows, vocab);
  for (int64_t r = 1; r < rows; r += 3) targets[r] = -1;
  if (vocab > 600) {  // a row that some threads see as -inf alone
    logits.select(0, 0).narrow(0, 5, 500).fill_(-kInfinity);
    targets[0] = 1;
  }
  const double factor = dtype == at::kHalf ? 32768.0 : 1.0;
  // A copy: on the host, `to` would give logits itself.
  at::Tensor x = logits.clone().to(device);
  const at::Tensor on_device = targets.to(device);
  const at::Tensor alone =
      CrossEntropySum(subject.cuda, x, on_device, false, 1.0, {});
  EXPECT_TRUE(SameBits(x, logits)) << "logits without a gradient";
  const at::Tensor sum =
      CrossEntropySum(subject.cuda, x, on_device, true, factor, {});
  EXPECT_TRUE(SameBits(alone, sum));
  ExpectCrossEntropy(logits, targets, {}, factor, sum, x);

  // Some are 0; none above 1, so that float16 holds the gradients.
  const at::Tensor weights = Normal(3, {rows}, at::kFloat).clamp_(0.0, 1.0);
  const at::Tensor weights_there = weights.to(device);
  at::Tensor weighted = logits.clone().to(device);
  const at::Tensor weighted_alone = CrossEntropySum(
      subject.cuda, weighted, on_device, false, 1.0, weights_there);
  EXPECT_TRUE(SameBits(weighted, logits)) << "logits without a gradient";
  const at::Tensor weighted_sum = CrossEntropySum(
      subject.cuda, weighted, on_device, true, factor, weights_there);
  EXPECT_TRUE(SameBits(weighted_alone, weighted_sum));
  ExpectCrossEntropy(logits, targets, weights, factor, weighted_sum, weighted);

  at::Tensor bad = logits.clone().to(device);
  const at::Tensor outside = at::full({rows}, vocab, on_device.options());
  const at::Tensor nan =
      CrossEntropySum(subject.cuda, bad, outside, false, 1.0, {});
  EXPECT_TRUE(std::isnan(nan.item<float>())) << "targets out of range";
  bad.select(0, 0).fill_(kInfinity);  // an overflow is visible to loss scaling
  const at::Tensor overflow =
      CrossEntropySum(subject.cuda, bad, on_device, false, 1.0, {});
  EXPECT_TRUE(std::isnan(overflow.item<float>())) << "infinite logits";
  return {sum, x, weighted_sum, weighted};
}

Outputs CheckEmbedding(const Subject& subject, at::ScalarType dtype,
                       at::ScalarType weight_dtype, int64_t rows,
                       int64_t hidden, int64_t vocab) {
  const at::Tensor dy = Normal(1, {rows, hidden}, dtype);
  const at::Tensor tokens = Tokens(2, rows, vocab);
  const at::Tensor before = Normal(3, {vocab, hidden}, weight_dtype);
  at::Tensor expected = before.to(at::kDouble);
  expected.index_add_(0, tokens, dy.to(at::kDouble));
  at::Tensor d_weight = before.to(subject.device, before.scalar_type(),
                                  /*non_blocking=*/false, /*copy=*/true);
  EmbeddingBackward(subject.cuda, dy.to(subject.device),
                    tokens.to(subject.device), d_weight);
  ExpectClose(d_weight, expected, weight_dtype, 16, "embedding");
  const at::Tensor after = d_weight.clone();
  const at::Tensor outside = tokens.clone();
  for (int64_t r = 0; r < rows; ++r) outside[r] = r % 2 == 0 ? -1 : vocab;
  EmbeddingBackward(subject.cuda, dy.to(subject.device),
                    outside.to(subject.device), d_weight);
  EXPECT_TRUE(SameBits(d_weight, after)) << "tokens out of range";
  return {after};
}

Outputs CheckAdamW(const Subject& subject, at::ScalarType gradient_type,
                   at::ScalarType working_type, int64_t n) {
  const auto device = subject.device;
  AdamWBuffers cpu, gpu;
  cpu.parameter = Normal(1, {n}, at::kFloat);
  cpu.exp_avg = at::zeros({n});
  cpu.exp_avg_sq = at::zeros({n});
  if (working_type != at::ScalarType::Undefined) {
    cpu.working = at::zeros({n}, working_type);
    gpu.working = cpu.working.to(device, working_type, false, true);
  }
  gpu.parameter = cpu.parameter.to(device, at::kFloat, false, true);
  gpu.exp_avg = cpu.exp_avg.to(device, at::kFloat, false, true);
  gpu.exp_avg_sq = cpu.exp_avg_sq.to(device, at::kFloat, false, true);
  AdamWOptions o;
  o.weight_decay = 0.1;
  o.gradient_scale = 0.3;
  const auto step = [&](const at::Tensor& scale) {
    o.learning_rate = 0.01 / static_cast<double>(o.step);
    cpu.gradient = Normal(10 + o.step, {n}, gradient_type);
    gpu.gradient = cpu.gradient.to(device);
    cpu.device_scale = scale;
    gpu.device_scale = scale.defined() ? scale.to(device) : scale;
    AdamWStep(o, cpu);
    AdamWByKernel(subject.cuda, o, gpu);
    EXPECT_TRUE(SameBits(gpu.parameter, cpu.parameter)) << "step " << o.step;
    EXPECT_TRUE(SameBits(gpu.exp_avg, cpu.exp_avg));
    EXPECT_TRUE(SameBits(gpu.exp_avg_sq, cpu.exp_avg_sq));
    if (cpu.working.defined()) {
      EXPECT_TRUE(SameBits(gpu.working, cpu.working));
    }
    ++o.step;
  };
  step(at::Tensor());
  step(at::full({}, 0.7f));
  const at::Tensor before = gpu.parameter.clone();
  step(at::full({}, kInfinity));
  step(at::full({}, std::nanf("")));
  EXPECT_TRUE(SameBits(gpu.parameter, before)) << "a scale that isn't finite";
  step(at::Tensor());
  EXPECT_FALSE(SameBits(gpu.parameter, before));
  return {gpu.parameter, gpu.exp_avg, gpu.exp_avg_sq};
}

Outputs CheckSquaredSum(const Subject& subject, at::ScalarType dtype,
                        int64_t n) {
  const at::Tensor all = Normal(1, {n + 1}, dtype) * 100.0;
  Outputs outputs;
  for (const int64_t first : {0, 1}) {  // aligned and not
    const at::Tensor x = all.to(subject.device).narrow(0, first, n);
    const at::Tensor sum = SquaredSum(subject.cuda, x);
    const at::Tensor wide = all.narrow(0, first, n).to(at::kDouble);
    const double expected = (wide * wide).sum().item<double>();
    EXPECT_NEAR(sum.item<double>(), expected, 1e-12 * expected);
    outputs.push_back(sum);
  }
  return outputs;
}

}  // namespace capstan::kernels::cuda
