// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/tokens.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {
namespace {

// One row's cross_entropy with a smoothing. `wide` is memory to work in, so
// that 16 bits are rounded once.
template <typename T>
float SmoothedRow(T* x, int64_t vocab, int64_t target, bool gradient,
                  float factor, float smoothing, std::vector<float>* wide) {
  const int64_t row = 0;
  wide->assign(vocab, 0.0f);
  float* const z = wide->data();
  Simd().rows<T>().add_rows_wide(x, &row, 1, vocab, vocab, z);
  const double mean = std::accumulate(z, z + vocab, 0.0) / vocab;
  const float more = smoothing * static_cast<float>(z[target] - mean);
  const float loss =
      Simd().fp32.cross_entropy(z, vocab, target, gradient, factor) + more;
  if (!gradient) return loss;
  const float each = factor * smoothing / static_cast<float>(vocab);
  for (int64_t c = 0; c < vocab; ++c) z[c] -= each;
  z[target] += factor * smoothing;
  Simd().rows<T>().scaled(z, 1.0f, vocab, x);
  return loss;
}

// In place, whatever the storage.
at::Tensor OnCpu(at::Tensor& logits, const at::Tensor& targets, bool gradient,
                 double factor, const at::Tensor& weights, double smoothing) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float* weight = ReadAs<float>(weights);
  std::vector<float> losses(rows, 0.0f);
  WithStorage(logits.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    T* x = WriteAs<T>(logits);
    at::parallel_for(0, rows, RowGrain(vocab), [&](int64_t r, int64_t end) {
      std::vector<float> wide;
      for (; r < end; ++r) {
        if (target[r] >= 0) {
          TORCH_CHECK_INDEX(target[r] < vocab, "target ", target[r],
                            " is out of range for a vocabulary of ", vocab);
          const float w = weight == nullptr ? 1.0f : weight[r];
          const float f = static_cast<float>(factor) * w;
          T* const row = x + r * vocab;
          losses[r] =
              w * (smoothing == 0.0
                       ? Simd().rows<T>().cross_entropy(row, vocab, target[r],
                                                        gradient, f)
                       : SmoothedRow(row, vocab, target[r], gradient, f,
                                     static_cast<float>(smoothing), &wide));
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
                    bool gradient, double factor, const at::Tensor& weights,
                    double smoothing) {
  at::Tensor x = logits.to(at::kFloat);  // itself, if float32
  const at::Tensor valid = targets.ge(0).unsqueeze(1);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor lse = at::logsumexp(x, {1}, /*keepdim=*/true);
  at::Tensor losses = lse - x.gather(1, index);
  if (smoothing != 0.0) {
    losses.add_((x.gather(1, index) - x.mean(1, true)).mul_(smoothing));
  }
  if (weights.defined()) losses.mul_(weights.unsqueeze(1));
  const at::Tensor sum = losses.masked_fill_(~valid, 0.0).sum();
  if (!gradient) return sum;
  x = x.sub_(lse).exp_();
  x.scatter_add_(1, index,
                 at::full({}, smoothing - 1.0, x.options()).expand_as(index));
  if (smoothing != 0.0) x.sub_(smoothing / static_cast<double>(x.size(1)));
  if (weights.defined()) x.mul_(weights.unsqueeze(1));
  x.masked_fill_(~valid, 0.0);
  if (factor != 1.0) x.mul_(factor);
  if (!x.is_same(logits)) logits.copy_(x);
  return sum;
}

}  // namespace

at::Tensor CrossEntropySum(at::Tensor& logits, const at::Tensor& targets,
                           bool gradient, double factor,
                           const at::Tensor& weights, double smoothing) {
  const ProfileScope profile("cross-entropy");
  TORCH_CHECK(!weights.defined() || (weights.scalar_type() == at::kFloat &&
                                     weights.sizes() == targets.sizes() &&
                                     weights.device() == logits.device()),
              "weights of losses must be float32, one for each target, on the "
              "logits' device");
  if (const auto* cuda = cuda::For(logits)) {
    return cuda::CrossEntropySum(*cuda, logits, targets, gradient, factor,
                                 weights, smoothing);
  }
  if (HasRowKernels(logits)) {
    return OnCpu(logits, targets.contiguous(), gradient, factor,
                 weights.defined() ? weights.contiguous() : weights, smoothing);
  }
  return Composed(logits, targets, gradient, factor, weights, smoothing);
}

namespace {

// Of one row of float32 logits, which it overwrites; `copy` is memory to work
// in. entropy may be null.
float LogProbOf(float* x, int64_t vocab, int64_t target, float* entropy,
                std::vector<float>* copy) {
  const RowKernels<float>& rows = Simd().fp32;
  if (entropy == nullptr) {
    return -rows.cross_entropy(x, vocab, target, /*gradient=*/false, 1.0f);
  }
  copy->assign(x, x + vocab);
  const float loss =
      rows.cross_entropy(x, vocab, target, /*gradient=*/true, 1.0f);
  x[target] += 1.0f;  // x is the distribution now
  *entropy = loss + (*copy)[target] - Simd().dot(x, copy->data(), vocab);
  return -loss;
}

}  // namespace

at::Tensor LogProbs(const at::Tensor& logits, const at::Tensor& targets,
                    double temperature, at::Tensor* entropy) {
  const ProfileScope profile("cross-entropy");
  at::Tensor x = logits.to(at::kFloat).contiguous();
  if (temperature != 1.0) x.div_(temperature);
  if (!FastPath(x)) {
    const at::Tensor valid = targets.ge(0);
    const at::Tensor all = at::log_softmax(x, 1);
    x.reset();
    if (entropy != nullptr) {
      *entropy = all.exp().mul_(all).sum(1).neg_().masked_fill_(~valid, 0.0);
    }
    return all.gather(1, targets.clamp_min(0).unsqueeze(1))
        .squeeze(1)
        .masked_fill_(~valid, 0.0);
  }
  const int64_t rows = x.size(0), vocab = x.size(1);
  at::Tensor result = at::zeros({rows}, x.options());
  if (entropy != nullptr) *entropy = at::zeros({rows}, x.options());
  float* const entropies = entropy == nullptr ? nullptr : Data(*entropy);
  float *const values = Data(x), *const results = Data(result);
  const at::Tensor dense = targets.contiguous();
  const int64_t* const target = dense.const_data_ptr<int64_t>();
  at::parallel_for(0, rows, RowGrain(vocab), [&](int64_t r, int64_t end) {
    std::vector<float> copy;
    for (; r < end; ++r) {
      if (target[r] < 0) continue;
      TORCH_CHECK_INDEX(target[r] < vocab, "target ", target[r],
                        " is out of range for a vocabulary of ", vocab);
      results[r] =
          LogProbOf(values + r * vocab, vocab, target[r],
                    entropies == nullptr ? nullptr : entropies + r, &copy);
    }
  });
  return result;
}

namespace {

// The rows of dy by token, in order.
struct Groups {
  std::vector<int64_t> tokens;
  std::vector<int64_t> begin;  // into `rows`, and its size at the end
  std::vector<int64_t> rows;
};

Groups GroupByToken(const at::Tensor& tokens, int64_t vocab) {
  const int64_t count = tokens.numel();
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  std::vector<std::pair<int64_t, int64_t>> sorted(count);
  for (int64_t r = 0; r < count; ++r) {
    TORCH_CHECK_INDEX(token[r] >= 0 && token[r] < vocab, "token ", token[r],
                      " is out of range for a vocabulary of ", vocab);
    sorted[r] = {token[r], r};
  }
  std::sort(sorted.begin(), sorted.end());
  Groups groups;
  groups.rows.reserve(count);
  for (const auto& [id, row] : sorted) {
    if (groups.tokens.empty() || groups.tokens.back() != id) {
      groups.tokens.push_back(id);
      groups.begin.push_back(groups.rows.size());
    }
    groups.rows.push_back(row);
  }
  groups.begin.push_back(count);
  return groups;
}

template <typename T>
void AddGroups(const Groups& groups, const at::Tensor& dy,
               at::Tensor& d_weight) {
  const int64_t n = dy.size(1);
  const bool wide = d_weight.scalar_type() == at::kFloat;
  const T* x = ReadAs<T>(dy);
  // Threads divide columns, not tokens: one token may have most of the rows.
  constexpr int64_t kColumns = 64;
  const int64_t strips = (n + kColumns - 1) / kColumns;
  const auto add = [&](int64_t first, int64_t last) {
    const int64_t begin = first * kColumns;
    const int64_t columns = std::min(n, last * kColumns) - begin;
    for (size_t g = 0; g < groups.tokens.size(); ++g) {
      const int64_t* rows = groups.rows.data() + groups.begin[g];
      const int64_t count = groups.begin[g + 1] - groups.begin[g];
      const int64_t at = groups.tokens[g] * n + begin;
      if (wide) {
        Simd().rows<T>().add_rows_wide(x + begin, rows, count, n, columns,
                                       WriteAs<float>(d_weight) + at);
      } else {
        Simd().rows<T>().add_rows(x + begin, rows, count, n, columns,
                                  WriteAs<T>(d_weight) + at);
      }
    }
  };
  at::parallel_for(
      0, strips, RowGrain(kColumns * static_cast<int64_t>(groups.rows.size())),
      add);
}

}  // namespace

void AddEmbeddingGradient(const at::Tensor& dy, const at::Tensor& tokens,
                          at::Tensor& d_weight) {
  const ProfileScope profile("embedding gradient");
  TORCH_CHECK(d_weight.scalar_type() == at::kFloat ||
                  d_weight.scalar_type() == dy.scalar_type(),
              "the embedding's gradient is ", d_weight.scalar_type(),
              ", but must be float32 or ", dy.scalar_type(),
              ", as what is added to it");
  if (const auto* cuda = cuda::For(dy)) {
    cuda::EmbeddingBackward(*cuda, dy, tokens, d_weight);
    return;
  }
  const at::Tensor x = dy.contiguous();
  if (HasRowKernels(x) && HasRowKernels(d_weight)) {
    const Groups groups = GroupByToken(tokens.contiguous(), d_weight.size(0));
    WithStorage(x.scalar_type(), [&](auto storage) {
      AddGroups<decltype(storage)>(groups, x, d_weight);
    });
    return;
  }
  // d_weight itself, unless of 16 bits.
  at::Tensor sums =
      d_weight.to(c10::promoteTypes(d_weight.scalar_type(), at::kFloat));
  sums.index_add_(0, tokens, x.to(sums.scalar_type()));
  if (!sums.is_same(d_weight)) d_weight.copy_(sums);
}

}  // namespace capstan::kernels
