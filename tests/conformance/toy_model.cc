// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/toy_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <stdexcept>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "plugins/sdk/dataset.h"

namespace capstan {
namespace conformance {
namespace {

constexpr int64_t kWidth = 13;
constexpr int64_t kInner = 29;

// One micro-batch has one of these in steps 0, 1, 3, 4, 6, ..; no other has.
bool IsRare(int64_t sample) {
  return sample % kToyGlobalBatch == 7 && sample / kToyGlobalBatch % 3 != 2;
}

at::Tensor Embed(const at::Tensor& weight, const at::Tensor& ids) {
  return at::embedding(weight, ids);
}

at::Tensor Infinite(const at::Tensor& gradient) {
  return at::full_like(gradient, std::numeric_limits<double>::infinity());
}

at::Tensor Throwing(const at::Tensor&) {
  throw std::runtime_error("the test's fault in backward");
}

// x W^T for a parameter W, whose gradient goes to the strategy's place.
class Product : public torch::autograd::Function<Product> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x, const at::Tensor& weight,
                            int64_t parameter, GradientSink* sink) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["parameter"] = parameter;
    ctx->saved_data["sink"] = reinterpret_cast<int64_t>(sink);
    return at::matmul(x, weight.t());
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor rows = saved[0].reshape({-1, weight.size(1)});
    const at::Tensor d_rows = grads[0].reshape({-1, weight.size(0)});
    at::Tensor d_weight = at::matmul(d_rows.t(), rows);
    auto* const sink =
        reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt());
    GradientSink::Place place;
    if (sink != nullptr) {
      place =
          sink->Open(static_cast<int>(ctx->saved_data["parameter"].toInt()));
    }
    if (place.gradient.defined()) {
      if (place.add) {
        place.gradient.add_(d_weight);
      } else {
        place.gradient.copy_(d_weight);
      }
      d_weight = std::move(place.gradient);
    }
    return {at::matmul(grads[0], weight), std::move(d_weight), at::Tensor(),
            at::Tensor()};
  }
};

float FromByte(uint8_t byte) {
  return (static_cast<float>(byte) - 128.0f) / 256.0f;
}

// The values of kToyFrozen's bytes.
at::Tensor Unpacked(const at::Tensor& bytes) {
  return ((bytes.to(at::kFloat) - 128.0) / 256.0).view({kWidth, kWidth});
}

// A copy with a hook on its gradient.
at::Tensor WithHook(const at::Tensor& x,
                    at::Tensor (*hook)(const at::Tensor&)) {
  if (!x.requires_grad()) return x;
  const at::Tensor copy = x.clone();
  copy.register_hook(
      [hook](const at::Tensor& gradient) { return hook(gradient); });
  return copy;
}

}  // namespace

ToyBatch ToySamples(int64_t begin, int64_t count) {
  const uint64_t token_key = RandomKey(7, "toy.tokens");
  const uint64_t mask_key = RandomKey(7, "toy.mask");
  ToyBatch batch;
  batch.ids = at::empty({count, kToyLength}, at::kLong);
  batch.targets = at::empty({count, kToyLength}, at::kLong);
  batch.rare = at::empty({count, 1, 1}, at::kFloat);
  int64_t* ids = batch.ids.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  float* rare = batch.rare.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count * kToyLength; ++i) {
    const uint64_t position = begin * kToyLength + i;
    ids[i] =
        static_cast<int64_t>(RandomBelow(token_key, position, kToyVocabulary));
    const bool masked = RandomBelow(mask_key, position, 4) == 0;
    targets[i] = masked ? kIgnoredTarget : (3 * ids[i] + 1) % kToyVocabulary;
    batch.count += masked ? 0 : 1;
  }
  for (int64_t i = 0; i < count; ++i) {
    rare[i] = IsRare(begin + i) ? 1.0f : 0.0f;
    batch.any_rare |= IsRare(begin + i);
  }
  return batch;
}

ToyModel::ToyModel()
    : specs_(kToyParameters),
      units_({"embed", "mix", "frozen", "rare", "plain", "extra", "head"}) {
  const auto set = [this](ToyParameter index, const char* name,
                          std::vector<int64_t> shape, ToyUnit unit,
                          bool trainable = true) {
    specs_[index].name = name;
    specs_[index].shape = std::move(shape);
    specs_[index].unit = unit;
    specs_[index].trainable = trainable;
  };
  set(kToyEmbed, "embed.weight", {kToyVocabulary, kWidth}, kToyEmbedUnit);
  specs_[kToyEmbed].other_units = {kToyHeadUnit};
  specs_[kToyEmbed].read_in_backward = false;
  set(kToyUp, "mix.up.weight", {kInner, kWidth}, kToyMixUnit);
  set(kToyBias, "mix.up.bias", {kInner}, kToyMixUnit);
  set(kToyDown, "mix.down.weight", {kWidth, kInner}, kToyMixUnit);
  set(kToyScale, "mix.scale", {kWidth}, kToyMixUnit, /*trainable=*/false);
  set(kToyFrozen, "frozen.weight", {kWidth, kWidth}, kToyFrozenUnit,
      /*trainable=*/false);
  set(kToyRare, "rare.weight", {kWidth, kWidth}, kToyRareUnit);
  set(kToyUnused, "extra.unused", {5, 7}, kToyExtraUnit);
  set(kToyGain, "extra.gain", {1}, kToyExtraUnit);
  set(kToyNorm, "norm.weight", {kWidth}, kToyHeadUnit);
}

absl::Status ToyModel::InitialValue(int index, uint64_t seed, int64_t begin,
                                    int64_t count, float* out) const {
  if (index == kToyFrozen) {
    std::vector<uint8_t> bytes(count);
    CAPSTAN_RETURN_IF_ERROR(PackedValue(index, begin, count, bytes.data()));
    for (int64_t i = 0; i < count; ++i) out[i] = FromByte(bytes[i]);
    return absl::OkStatus();
  }
  const bool factor =
      index == kToyScale || index == kToyGain || index == kToyNorm;
  FillNormal(RandomKey(seed, specs_[index].name), begin, count,
             factor ? 1.0f : 0.0f, factor ? 0.1f : 0.3f, out);
  return absl::OkStatus();
}

int64_t ToyModel::PackedBytes(int index) const {
  return index == kToyFrozen ? specs_[index].numel() : 0;
}

absl::Status ToyModel::PackedValue(int index, int64_t begin, int64_t count,
                                   uint8_t* out) const {
  const uint64_t key = RandomKey(5, specs_[index].name);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>(RandomBelow(key, begin + i, 256));
  }
  return absl::OkStatus();
}

void ToyModel::Unpack(int index, const uint8_t* bytes, float* out) const {
  for (int64_t i = 0; i < specs_[index].numel(); ++i) {
    out[i] = FromByte(bytes[i]);
  }
}

at::Tensor ToyModel::LossSum(const ToyBatch& batch, UnitRunner& runner,
                             ToyFault fault) const {
  // Handles by value: a body may run again in backward.
  const std::vector<at::Tensor>& p = bound_;
  at::Tensor x = runner.Run(kToyEmbedUnit, batch.ids,
                            [embed = p[kToyEmbed]](const at::Tensor& ids) {
                              return Embed(embed, ids);
                            });
  x = runner.Run(
      kToyMixUnit, x,
      [up = p[kToyUp], bias = p[kToyBias], down = p[kToyDown],
       scale = p[kToyScale], fault, sink = sink_](const at::Tensor& in) {
        const at::Tensor b = fault == ToyFault::kInfiniteGradient
                                 ? WithHook(bias, Infinite)
                                 : bias;
        const at::Tensor h = at::tanh(at::matmul(in, up.t()) + b);
        return in + Product::apply(h, down, kToyDown, sink) * scale;
      });
  x = runner.Run(kToyFrozenUnit, x, [w = p[kToyFrozen]](const at::Tensor& in) {
    const at::Tensor whole =
        w.scalar_type() == at::kByte ? Unpacked(w).to(in.scalar_type()) : w;
    return in + at::tanh(at::matmul(in, whole.t()));
  });
  x = runner.Run(kToyRareUnit, x,
                 [w = p[kToyRare], rare = batch.rare, any = batch.any_rare,
                  fault](const at::Tensor& in) {
                   if (fault == ToyFault::kThrowInForward) {
                     throw std::runtime_error("the test's fault in forward");
                   }
                   const at::Tensor y = fault == ToyFault::kThrowInBackward
                                            ? WithHook(in, Throwing)
                                            : in;
                   if (!any) return y.clone();
                   return y + at::matmul(y, w) * rare.to(y.scalar_type());
                 });
  x = runner.Run(kToyPlainUnit, x,
                 [](const at::Tensor& in) { return at::silu(in); });
  x = runner.Run(kToyExtraUnit, x, [gain = p[kToyGain]](const at::Tensor& in) {
    return in * gain;
  });
  return runner.Run(
      kToyHeadUnit, x,
      [norm = p[kToyNorm], embed = p[kToyEmbed], targets = batch.targets,
       sink = sink_](const at::Tensor& in) {
        at::Tensor logits = Product::apply(in * norm, embed, kToyEmbed, sink);
        if (logits.scalar_type() != at::kDouble) {
          logits = logits.to(at::kFloat);
        }
        return at::cross_entropy_loss(logits.view({-1, kToyVocabulary}),
                                      targets.view({-1}), {},
                                      at::Reduction::Sum, kIgnoredTarget);
      });
}

}  // namespace conformance
}  // namespace capstan
