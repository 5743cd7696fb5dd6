// SPDX-License-Identifier: Apache-2.0
//
// What a decoder with a head of one number makes of texts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include "kernels/to_device.h"
#include "plugins/model/decoder/decoder_model.h"
#include "plugins/sdk/dataset.h"

namespace capstan::decoder {

at::Tensor DecoderModel::Scores(const TokenInput& input, const at::Tensor& last,
                                UnitRunner& runner) {
  const int64_t batch = input.tokens.size(0);
  const bool divides = division_ != nullptr && division_->divides();
  TokenInput own = input;
  at::Tensor places = last;
  if (divides) {
    TokenTargets none = {at::full_like(input.tokens, kIgnoredTarget)};
    Divide(&own, &none);
    places = division_->PlacesOf(last, own.tokens.size(1));
  }
  const int64_t length =
      own.tokens.size(1) / (divides ? division_->ranks() : 1);
  const at::Tensor rows =
      places.clamp_min(0) + at::arange(batch, places.options()) * length;
  const at::Tensor hidden = Hidden(own, runner, kernels::TiedGradient(),
                                   nullptr, divides ? division_ : nullptr);
  at::Tensor scores =
      HeadLogits(
          hidden.index_select(0, kernels::ToDevice(rows, hidden.device())),
          runner)
          .to(at::kFloat)
          .view({batch});
  if (division_ == nullptr) return scores;
  if (divides) {
    // Of the ranks one has a text's last token.
    scores =
        at::where(kernels::ToDevice(places >= 0, scores.device()), scores, 0.0);
  }
  return division_->WholeSums(scores);
}

}  // namespace capstan::decoder
