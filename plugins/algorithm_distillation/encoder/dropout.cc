// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/encoder/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/keep.h"
#include "plugins/algorithm_distillation/encoder/encoder_simd.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On a GPU: separate draws, 32 bits per number, repeated in backward.
at::Tensor CudaRows(const at::Tensor& x, const at::Tensor& samples,
                    uint64_t key, double rate) {
  return cuda::Dropout(*cuda::For(x), x.contiguous(), samples, key, rate);
}

// Each head separately, padded to max_length, so that a number's counter
// doesn't depend on the longest sequence of the batch.
at::Tensor CudaScores(const at::Tensor& x, const DropoutDraws& draws, int layer,
                      int64_t max_length) {
  const int64_t batch = x.size(0), queries = x.size(2), keys = x.size(3);
  at::Tensor out = at::empty_like(x);
  for (int64_t h = 0; h < x.size(1); ++h) {
    const at::Tensor padded =
        at::constant_pad_nd(x.select(1, h), {0, max_length - keys});
    const at::Tensor dropped =
        CudaRows(padded.view({batch * queries, max_length}), draws.samples,
                 DropoutKey(draws.seed, layer, DropoutPlace::kAttention,
                            static_cast<int>(h)),
                 draws.rate);
    out.select(1, h).copy_(
        dropped.view({batch, queries, max_length}).narrow(2, 0, keys));
  }
  return out;
}

using Draw = std::function<at::Tensor(const at::Tensor&)>;

class CudaDropout : public torch::autograd::Function<CudaDropout> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const Draw& draw) {
    return Keep(ctx, draw)(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {KeptOf<Draw>(ctx)(grads[0]), at::Tensor()};
  }
};

// Writes 1 for the first n numbers that the bits keep, 0 for the others.
void WriteKept(const std::vector<uint16_t>& bits, int64_t group, int64_t n,
               float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(bits[group + i / 16] >> (i % 16) & 1);
  }
}

at::Tensor KeptTimes(const at::Tensor& x, const at::Tensor& kept,
                     const DropoutDraws& draws) {
  return (x * kept.to(x.options())).mul(static_cast<double>(draws.factor()));
}

std::vector<int64_t> Samples(const DropoutDraws& draws) {
  const at::Tensor samples = draws.samples.cpu().contiguous();
  const int64_t* const data = samples.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + samples.numel());
}

}  // namespace

uint16_t DropoutDraws::threshold() const {
  return static_cast<uint16_t>(
      std::min(std::nearbyint(rate * 65536.0), 65535.0));
}

float DropoutDraws::factor() const {
  return static_cast<float>(65536.0 / (65536.0 - threshold()));
}

uint64_t DropoutKey(uint64_t seed, int layer, DropoutPlace place, int head) {
  return RandomKey(seed, absl::StrCat("encoder.dropout.", layer, ".",
                                      static_cast<int>(place), ".", head));
}

at::Tensor DropRows(const at::Tensor& x, const DropoutDraws& draws, int layer,
                    DropoutPlace place) {
  if (!draws.active()) return x;
  const uint64_t key = DropoutKey(draws.seed, layer, place);
  if (cuda::For(x) != nullptr) {
    return CudaDropout::apply(x, Draw([=](const at::Tensor& t) {
                                return CudaRows(t, draws.samples, key,
                                                draws.rate);
                              }));
  }
  const std::vector<int64_t> samples = Samples(draws);
  const int64_t batch = static_cast<int64_t>(samples.size());
  TORCH_CHECK(batch > 0 && x.size(0) % batch == 0, "dropout has ", batch,
              " samples for ", x.size(0), " rows");
  const int64_t rows = x.size(0) / batch, width = x.size(1);
  const int64_t groups = DropoutGroups(width);
  const at::Tensor kept = at::zeros({x.size(0), width}, at::kFloat);
  float* const out = kept.mutable_data_ptr<float>();
  std::vector<uint16_t> bits(rows * groups);
  for (int64_t b = 0; b < batch; ++b) {
    EncoderSimd().keep_bits(key, static_cast<uint64_t>(samples[b]), 0,
                            rows * groups, draws.threshold(), bits.data());
    for (int64_t t = 0; t < rows; ++t) {
      WriteKept(bits, t * groups, width, out + (b * rows + t) * width);
    }
  }
  return KeptTimes(x, kept.to(x.device()), draws);
}

at::Tensor DropScores(const at::Tensor& x, const DropoutDraws& draws, int layer,
                      int64_t max_length) {
  if (!draws.active()) return x;
  if (cuda::For(x) != nullptr) {
    return CudaDropout::apply(x, Draw([=](const at::Tensor& t) {
                                return CudaScores(t, draws, layer, max_length);
                              }));
  }
  const std::vector<int64_t> samples = Samples(draws);
  const int64_t batch = x.size(0), heads = x.size(1);
  const int64_t queries = x.size(2), keys = x.size(3);
  const bool one = queries == 1;
  const int64_t groups = one ? DropoutGroups(keys) : DropoutTriangle(queries);
  const at::Tensor kept = at::zeros(x.sizes(), at::kFloat);
  float* const out = kept.mutable_data_ptr<float>();
  std::vector<uint16_t> bits(groups);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      EncoderSimd().keep_bits(
          DropoutKey(draws.seed, layer, DropoutPlace::kAttention,
                     static_cast<int>(h)),
          static_cast<uint64_t>(samples[b]), 0, groups, draws.threshold(),
          bits.data());
      float* const head = out + (b * heads + h) * queries * keys;
      for (int64_t i = 0; i < queries; ++i) {
        WriteKept(bits, DropoutTriangle(i), one ? keys : i + 1,
                  head + i * keys);
      }
    }
  }
  return KeptTimes(x, kept.to(x.device()), draws);
}

}  // namespace capstan::kernels
