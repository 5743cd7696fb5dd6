// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/embedding_noise.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/profile.h"
#include "base/random.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {

at::Tensor NoiseSize(const at::Tensor& targets, double alpha, int64_t hidden) {
  const int64_t length = targets.size(1);
  // A target at position t is token t + 1.
  const at::Tensor tokens = at::arange(2, length + 2, targets.options()) *
                            targets.ge(0).to(at::kLong);
  return tokens.amax(1)
      .clamp_(1, length)
      .to(at::kFloat)
      .mul_(static_cast<double>(hidden))
      .rsqrt_()
      .mul_(alpha);
}

void AddNoise(const EmbeddingNoise& noise, at::Tensor& x) {
  const ProfileScope profile("embedding noise");
  const auto* cuda = cuda::For(x);
  if (cuda != nullptr && noise.positions.jump == 0) {
    cuda::AddNoise(*cuda, noise.samples, noise.size, noise.key,
                   noise.positions.first, x);
    return;
  }
  if (!x.is_cpu()) {  // a GPU without our kernels, or rows in two pieces
    at::Tensor host = at::zeros(x.sizes(), at::kFloat);
    EmbeddingNoise there = noise;
    there.samples = noise.samples.cpu();
    there.size = noise.size.cpu();
    AddNoise(there, host);
    x.add_(host.to(x.device()));
    return;
  }
  const int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor samples = noise.samples.contiguous();
  TORCH_CHECK(
      x.is_contiguous() && samples.numel() > 0 && rows % samples.numel() == 0,
      "noise has ", samples.numel(), " samples for ", rows, " rows");
  const int64_t* const sample = samples.const_data_ptr<int64_t>();
  const float* const size = noise.size.const_data_ptr<float>();
  const int64_t length = rows / samples.numel(), groups = (width + 3) / 4;
  const auto add = [&](auto* data, int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t s = row / length;
      const int64_t counter = noise.positions.Of(row, length) * groups;
      auto* const to = data + row * width;
      for (int64_t c = 0; c < width; c += 4) {
        const auto bits = RandomBits(noise.key, counter + c / 4,
                                     static_cast<uint64_t>(sample[s]));
        for (int64_t i = 0; i < std::min<int64_t>(4, width - c); ++i) {
          const float u = static_cast<float>(bits[i]) * 0x1p-31f - 1.0f;
          to[c + i] = static_cast<float>(to[c + i]) + size[s] * u;
        }
      }
    }
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, x.scalar_type(), "AddNoise", [&] {
        auto* const data = x.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, rows, RowGrain(width),
                         [&](int64_t r, int64_t end) { add(data, r, end); });
      });
}

}  // namespace capstan::kernels
