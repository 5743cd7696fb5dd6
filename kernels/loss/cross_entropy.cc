// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>

#include <cstring>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {
namespace {

// In place, whatever the storage.
at::Tensor OnCpu(at::Tensor& logits, const at::Tensor& targets, bool gradient,
                 double factor, const at::Tensor& weights) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float* weight = ReadAs<float>(weights);
  std::vector<float> losses(rows, 0.0f);
  WithStorage(logits.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    T* x = WriteAs<T>(logits);
    at::parallel_for(0, rows, RowGrain(vocab), [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        if (target[r] >= 0) {
          TORCH_CHECK_INDEX(target[r] < vocab, "target ", target[r],
                            " is out of range for a vocabulary of ", vocab);
          const float w = weight == nullptr ? 1.0f : weight[r];
          losses[r] = w * Simd().rows<T>().cross_entropy(
                              x + r * vocab, vocab, target[r], gradient,
                              static_cast<float>(factor) * w);
        } else if (gradient) {
          std::memset(x + r * vocab, 0, vocab * sizeof(T));
        }
      }
    });
  });
  double sum = 0.0;
  for (float loss : losses) sum += loss;
  return at::full({}, sum, logits.options().dtype(at::kFloat));
}

at::Tensor Composed(at::Tensor& logits, const at::Tensor& targets,
                    bool gradient, double factor, const at::Tensor& weights) {
  at::Tensor x = logits.to(at::kFloat);  // itself, if float32
  const at::Tensor valid = targets.ge(0).unsqueeze(1);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor lse = at::logsumexp(x, {1}, /*keepdim=*/true);
  at::Tensor losses = lse - x.gather(1, index);
  if (weights.defined()) losses.mul_(weights.unsqueeze(1));
  const at::Tensor sum = losses.masked_fill_(~valid, 0.0).sum();
  if (!gradient) return sum;
  x = x.sub_(lse).exp_();
  x.scatter_add_(1, index, at::full({}, -1.0, x.options()).expand_as(index));
  if (weights.defined()) x.mul_(weights.unsqueeze(1));
  x.masked_fill_(~valid, 0.0);
  if (factor != 1.0) x.mul_(factor);
  if (!x.is_same(logits)) logits.copy_(x);
  return sum;
}

}  // namespace

at::Tensor CrossEntropySum(at::Tensor& logits, const at::Tensor& targets,
                           bool gradient, double factor,
                           const at::Tensor& weights) {
  const ProfileScope profile("cross-entropy");
  TORCH_CHECK(!weights.defined() || (weights.scalar_type() == at::kFloat &&
                                     weights.sizes() == targets.sizes() &&
                                     weights.device() == logits.device()),
              "weights of losses must be float32, one for each target, on the "
              "logits' device");
  if (const auto* cuda = cuda::For(logits)) {
    return cuda::CrossEntropySum(*cuda, logits, targets, gradient, factor,
                                 weights);
  }
  if (HasRowKernels(logits)) {
    return OnCpu(logits, targets.contiguous(), gradient, factor,
                 weights.defined() ? weights.contiguous() : weights);
  }
  return Composed(logits, targets, gradient, factor, weights);
}

}  // namespace capstan::kernels
