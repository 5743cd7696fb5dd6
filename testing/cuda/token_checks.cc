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
#include <vector>

#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/adamw_bf16.h"
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
                        const at::Tensor& sum, const at::Tensor& gradient,
                        double smoothing = 0.0) {
  const at::Tensor x = logits.to(at::kDouble).set_requires_grad(true);
  at::Tensor counts = targets.ge(0).to(at::kDouble);
  if (weights.defined()) counts = counts * weights;
  const at::Tensor logs = at::log_softmax(x, 1);
  at::Tensor picked = logs.gather(1, targets.clamp_min(0).unsqueeze(1));
  if (smoothing != 0.0) {
    picked = picked * (1.0 - smoothing) + logs.mean(1, true) * smoothing;
  }
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

  // Infinite logits have an infinite mean.
  const at::Tensor finite = logits.clamp_min(-16.0);
  at::Tensor smoothed = finite.clone().to(device);
  const at::Tensor smoothed_sum =
      CrossEntropySum(subject.cuda, smoothed, on_device, true, factor,
                      weights_there, /*smoothing=*/0.1);
  ExpectCrossEntropy(finite, targets, weights, factor, smoothed_sum, smoothed,
                     0.1);

  at::Tensor bad = logits.clone().to(device);
  const at::Tensor outside = at::full({rows}, vocab, on_device.options());
  const at::Tensor nan =
      CrossEntropySum(subject.cuda, bad, outside, false, 1.0, {});
  EXPECT_TRUE(std::isnan(nan.item<float>())) << "targets out of range";
  bad.select(0, 0).fill_(kInfinity);  // an overflow is visible to loss scaling
  const at::Tensor overflow =
      CrossEntropySum(subject.cuda, bad, on_device, false, 1.0, {});
  EXPECT_TRUE(std::isnan(overflow.item<float>())) << "infinite logits";
  return {sum, x, weighted_sum, weighted, smoothed_sum, smoothed};
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

namespace {

// A copy on the device, the `shift`-th element of its memory.
at::Tensor Placed(const at::Tensor& t, const Subject& subject, int64_t shift) {
  const at::Tensor memory =
      at::zeros({shift + t.numel()}, t.options().device(subject.device));
  return memory.narrow(0, shift, t.numel()).copy_(t);
}

// Steps by the CPU and by a kernel, from the same `cpu`. written: its buffers,
// parameter and moments first.
template <typename Buffers, typename OnCpu, typename ByKernel>
Outputs CheckSteps(const Subject& subject, at::ScalarType gradient_type,
                   int64_t shift, Buffers cpu,
                   const std::vector<at::Tensor Buffers::*>& written,
                   OnCpu on_cpu, ByKernel by_kernel) {
  Buffers gpu;
  for (const auto t : written) {
    cpu.*t = (cpu.*t).clone();
    gpu.*t = Placed(cpu.*t, subject, shift);
  }
  const int64_t n = cpu.parameter.numel();
  AdamWOptions o;
  o.weight_decay = 0.1;
  o.gradient_scale = 0.3;
  const auto step = [&](const at::Tensor& scale, double last = 0.0) {
    o.learning_rate = 0.01 / static_cast<double>(o.step);
    // Of all magnitudes down to 10^-6.
    cpu.gradient = Normal(10 + o.step, {n}, at::kFloat) *
                   (Normal(20 + o.step, {n}, at::kFloat).abs_() * -4.0).exp_();
    if (o.step == 1) cpu.gradient.narrow(0, 0, n / 2).zero_();
    if (last != 0.0) cpu.gradient[n - 1] = last;
    cpu.gradient = cpu.gradient.to(gradient_type);
    gpu.gradient = Placed(cpu.gradient, subject, shift);
    cpu.device_scale = scale;
    gpu.device_scale = scale.defined() ? scale.to(subject.device) : scale;
    on_cpu(o, cpu);
    by_kernel(o, gpu);
    for (size_t i = 0; i < written.size(); ++i) {
      EXPECT_TRUE(SameBits(gpu.*written[i], cpu.*written[i]))
          << "buffer " << i << " in step " << o.step << ", shift " << shift;
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
  const Outputs outputs = {gpu.parameter.clone(), (gpu.*written[1]).clone(),
                           (gpu.*written[2]).clone()};
  for (const double last : {1e30, HUGE_VAL, 0.0, 0.0}) step({}, last);
  return outputs;
}

}  // namespace

Outputs CheckAdamW(const Subject& subject, at::ScalarType gradient,
                   at::ScalarType working, at::ScalarType state, int64_t n,
                   int64_t shift) {
  using B = AdamWBuffers;
  B cpu;
  cpu.parameter = Normal(1, {n}, at::kFloat);
  cpu.exp_avg = cpu.exp_avg_sq = at::zeros({n}, state);
  std::vector<at::Tensor B::*> written = {&B::parameter, &B::exp_avg,
                                          &B::exp_avg_sq};
  if (working != at::ScalarType::Undefined) {
    cpu.working = at::zeros({n}, working);
    written.push_back(&B::working);
  }
  // State in bfloat16 takes another key from element 2^32 on.
  const int64_t begin = (int64_t{1} << 32) - n / 2;
  return CheckSteps(
      subject, gradient, shift, cpu, written,
      [=](const AdamWOptions& o, const B& b) {
        state == at::kFloat ? AdamWStep(o, b)
                            : AdamWBf16Step(o, b, 7 + o.step, begin);
      },
      [&](const AdamWOptions& o, const B& b) {
        AdamWByKernel(subject.cuda, o, b, 7 + o.step, begin);
      });
}

Outputs CheckAdamW8Bit(const Subject& subject, at::ScalarType gradient,
                       at::ScalarType working, int64_t n, int64_t shift) {
  using B = AdamW8BitBuffers;
  B cpu;
  cpu.parameter = Normal(1, {n}, at::kFloat);
  cpu.exp_avg = cpu.exp_avg_sq = at::zeros({n}, at::kByte);
  cpu.exp_avg_absmax = cpu.exp_avg_sq_absmax =
      at::zeros({(n + kAdamW8BitBlock - 1) / kAdamW8BitBlock});
  std::vector<at::Tensor B::*> written = {&B::parameter, &B::exp_avg,
                                          &B::exp_avg_sq, &B::exp_avg_absmax,
                                          &B::exp_avg_sq_absmax};
  if (working != at::ScalarType::Undefined) {
    cpu.working = at::zeros({n}, working);
    written.push_back(&B::working);
  }
  return CheckSteps(subject, gradient, shift, cpu, written, AdamW8BitStep,
                    [&](const AdamWOptions& o, const B& b) {
                      AdamW8BitByKernel(subject.cuda, o, b);
                    });
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
