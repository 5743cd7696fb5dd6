// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada_scratch/scratch_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/masked_fill.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace capstan {
namespace llada_scratch {

at::Tensor Dropped(const Dropout& dropout, const at::Tensor& x) {
  if (dropout.rate == 0.0 || !dropout.samples.defined()) return x;
  const at::Tensor samples = dropout.samples.cpu().contiguous();
  const int64_t* const sample = samples.const_data_ptr<int64_t>();
  const int64_t rows = x.size(0), width = x.size(1);
  TORCH_CHECK(samples.numel() > 0 && rows % samples.numel() == 0,
              "dropout has ", samples.numel(), " samples for ", rows, " rows");
  const int64_t length = rows / samples.numel();
  const int64_t groups = (width + 3) / 4;
  const uint64_t key = RandomKey(0, "llada_scratch.dropout");
  const auto dropped_below =
      static_cast<uint64_t>(std::ldexp(dropout.rate, 32));
  at::Tensor mask = at::empty({rows, width}, at::kBool);
  bool* out = mask.mutable_data_ptr<bool>();
  for (int64_t row = 0; row < rows; ++row) {
    // Four channels share the random bits of one counter.
    for (int64_t g = 0; g < groups; ++g) {
      const auto bits = RandomBits(key, row % length * groups + g,
                                   static_cast<uint64_t>(sample[row / length]));
      const int64_t channels = std::min<int64_t>(4, width - 4 * g);
      for (int64_t c = 0; c < channels; ++c) *out++ = bits[c] < dropped_below;
    }
  }
  return at::masked_fill(x, mask.to(x.device()), 0.0) *
         (1.0 / (1.0 - dropout.rate));
}

}  // namespace llada_scratch
}  // namespace capstan
