// SPDX-License-Identifier: Apache-2.0
//
// What a decoder with a head of one number makes of texts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "kernels/to_device.h"
#include "plugins/model/decoder/decoder_model.h"

namespace capstan::decoder {

at::Tensor DecoderModel::Scores(const TokenInput& input, const at::Tensor& last,
                                UnitRunner& runner) {
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  const at::Tensor rows = last + at::arange(batch, last.options()) * length;
  const at::Tensor hidden =
      Hidden(input, runner, kernels::TiedGradient(), nullptr);
  return HeadLogits(
             hidden.index_select(0, kernels::ToDevice(rows, hidden.device())),
             runner)
      .to(at::kFloat)
      .view({batch});
}

}  // namespace capstan::decoder
