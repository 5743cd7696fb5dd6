// SPDX-License-Identifier: Apache-2.0
//
// The losses of a DecoderModel's logits, regularised or not, on rows that are
// whole or divided among ranks.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/context/recompute.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/loss/row_loss.h"
#include "kernels/to_device.h"
#include "plugins/model/decoder/decoder_model.h"
#include "plugins/model/decoder/shared_prefixes.h"
#include "plugins/sdk/memory.h"

namespace capstan::decoder {

kernels::TiedGradient DecoderModel::NewTiedGradient() const {
  const bool wanted = config_.tie_word_embeddings &&
                      at::GradMode::is_enabled() &&
                      parameters_[kEmbedding].requires_grad();
  return wanted ? c10::make_intrusive<kernels::HeadGradient>()
                : kernels::TiedGradient();
}

std::shared_ptr<SharedPrefixes> DecoderModel::SharedIn(
    const TokenInput& input, const at::Tensor& targets) const {
  const bool drops = lora_ != nullptr && lora_->dropout();
  if (!config_.causal || input.positions.defined() || drops ||
      !kernels::CanFuseTransformerBlock(parameters_[layout_.norm])) {
    return nullptr;
  }
  // A layer keeps x, y, q, k, v, the result and, unless it computes them again,
  // gate and up of what it computes; with whole rows of q, k, v and the result
  // beside them it must not take more memory than without.
  const int64_t q = config_.num_attention_heads * config_.head_dim;
  const int64_t kv = config_.num_key_value_heads * config_.head_dim;
  const int64_t inner = RecomputesMlp() ? 0 : config_.intermediate_size;
  const auto whole = static_cast<double>(2 * (q + kv));
  const double most =
      1.0 -
      whole / (whole + 2.0 * static_cast<double>(config_.hidden_size + inner));
  return SharedPrefixes::Find(input.tokens, targets, most);
}

at::Tensor DecoderModel::RunHead(
    const at::Tensor& hidden, HeadLoss loss, UnitRunner& runner,
    const std::shared_ptr<SharedPrefixes>& shared) const {
  const at::Tensor& norm = parameters_[layout_.norm];
  const double eps = config_.rms_norm_eps;
  const bool plus_one = config_.norm_plus_one;
  const LossHead head = {
      parameters_[layout_.head], {sink_, layout_.head}, config_.logit_softcap};
  const kernels::WeightPlace of_norm = {sink_, layout_.norm};
  return runner.Run(
      head_unit(), hidden,
      [norm, eps, plus_one, head, of_norm, shared,
       loss = std::move(loss)](const at::Tensor& x) {
        const MemoryScope scope(MemoryCategory::kLogits);
        return loss(kernels::RmsNorm(shared == nullptr ? x : shared->Whole(x),
                                     norm, eps, plus_one, of_norm),
                    head);
      });
}

at::Tensor DecoderModel::CrossEntropyRows(const TokenInput& input,
                                          const at::Tensor& targets,
                                          UnitRunner& runner) {
  const kernels::TiedGradient tied = NewTiedGradient();
  // In a deterministic run each rank computes what one would.
  const bool divides = division_ != nullptr && division_->divides();
  TokenInput own = input;
  TokenTargets flat = {targets.reshape({-1, targets.size(-1)})};
  if (divides) Divide(&own, &flat);
  const auto shared = divides ? nullptr : SharedIn(input, targets);
  return RunHead(
      Hidden(own, runner, tied, nullptr, divides ? division_ : nullptr, {},
             shared),
      [targets = flat.tokens.view({targets.size(0), targets.size(1), -1}), tied,
       division = division_](const at::Tensor& rows, const LossHead& head) {
        const at::Tensor sums = kernels::HeadCrossEntropyRows(
            rows, head.weight, targets, tied, /*logits_bytes=*/0, head.place,
            head.softcap);
        return division == nullptr ? sums : division->WholeSums(sums);
      },
      runner, shared);
}

void DecoderModel::Divide(TokenInput* input, TokenTargets* targets) const {
  // Rope may depend on a text's length, which positions tell.
  const bool by_place =
      config_.causal &&
      std::all_of(config_.ropes.begin(), config_.ropes.end(),
                  [](const Rope& r) { return DecisiveLength(r, 0) == 0; });
  division_->Pad(by_place, input, targets);
  targets->tokens = division_->PartOf(targets->tokens);
  if (targets->weights.defined()) {
    targets->weights = division_->PartOf(targets->weights);
  }
}

at::Tensor DecoderModel::TokenLogProbs(const TokenInput& input,
                                       const at::Tensor& targets,
                                       double temperature, at::Tensor* entropy,
                                       UnitRunner& runner) {
  const kernels::TiedGradient tied = NewTiedGradient();
  const bool divides = division_ != nullptr && division_->divides();
  TokenInput own = input;
  TokenTargets of_own = {targets};
  if (divides) Divide(&own, &of_own);
  const at::Tensor flat = of_own.tokens.reshape({-1});
  std::shared_ptr<at::Tensor> found;
  if (entropy != nullptr) found = std::make_shared<at::Tensor>();
  const auto shared = divides ? nullptr : SharedIn(input, targets);
  const at::Tensor log_probs = RunHead(
      Hidden(own, runner, tied, nullptr, divides ? division_ : nullptr, {},
             shared),
      [flat, temperature, tied, found](const at::Tensor& rows,
                                       const LossHead& head) {
        return kernels::HeadTokenLogProbs(rows, head.weight, flat, temperature,
                                          found.get(), tied, head.place,
                                          head.softcap);
      },
      runner, shared);
  const auto whole = [&](const at::Tensor& x) {
    const at::Tensor rows = x.view(of_own.tokens.sizes());
    return division_ == nullptr ? rows
                                : division_->WholeRows(rows, targets.size(1));
  };
  if (entropy != nullptr) *entropy = whole(*found);
  return whole(log_probs);
}

absl::Status DecoderModel::SetSequenceGroup(ProcessGroup* group,
                                            bool deterministic) {
  const int64_t ranks = group->size();
  const bool by_heads = DividesHeads(ranks, config_.num_attention_heads,
                                     config_.num_key_value_heads);
  division_ = std::make_shared<RowDivision>(group, deterministic, by_heads);
  return absl::OkStatus();
}

kernels::EmbeddingNoise DecoderModel::NoiseOf(const Regularization& how,
                                              const TokenInput& input,
                                              const at::Tensor& targets) const {
  kernels::EmbeddingNoise noise;
  if (how.noise_alpha == 0.0) return noise;
  TORCH_CHECK(input.sample_positions.defined(),
              "noise on embeddings needs sample_positions");
  const at::Device device = parameters_[kEmbedding].device();
  noise.key = RandomKey(how.seed, "noise on embeddings");
  noise.samples = kernels::ToDevice(input.sample_positions, device);
  noise.size = kernels::ToDevice(
      kernels::NoiseSize(targets, how.noise_alpha, config_.hidden_size),
      device);
  return noise;
}

at::Tensor DecoderModel::RegularizedSum(const TokenInput& whole,
                                        const TokenTargets& whole_targets,
                                        const Regularization& how,
                                        UnitRunner& runner) {
  TokenInput input = whole;
  TokenTargets targets = whole_targets;
  kernels::EmbeddingNoise noise = NoiseOf(how, input, targets.tokens);
  const bool divides = division_ != nullptr && division_->divides();
  at::Tensor counted;
  if (divides) {
    Divide(&input, &targets);
    noise.positions = division_->Positions(input.tokens.size(1));
    counted = division_->Unpadded(whole.tokens, input.tokens.size(1));
  }
  const kernels::TiedGradient tied = NewTiedGradient();
  c10::intrusive_ptr<RouterLoss> router_loss;
  if (config_.experts.loss_coefficient != 0.0) {
    const at::Device device = parameters_[kEmbedding].device();
    if (counted.defined()) counted = kernels::ToDevice(counted, device);
    router_loss = c10::make_intrusive<RouterLoss>(
        static_cast<int>(config_.num_hidden_layers),
        config_.experts.loss_coefficient, counted);
  }
  const at::Tensor hidden =
      Hidden(input, runner, tied, router_loss, division_, noise);
  const at::Tensor flat = targets.tokens.reshape({-1});
  const at::Tensor factors =
      targets.weights.defined() ? targets.weights.reshape({-1}) : at::Tensor();
  at::Tensor sum = RunHead(
      hidden,
      [flat, factors, tied, smoothing = how.smoothing](const at::Tensor& rows,
                                                       const LossHead& head) {
        return kernels::HeadCrossEntropySum(rows, head.weight, flat, tied,
                                            /*logits_bytes=*/0, head.place,
                                            factors, head.softcap, smoothing);
      },
      runner);
  if (router_loss != nullptr) {
    std::function<void(const at::Tensor&)> all_sum;
    if (divides) {
      all_sum = [this](const at::Tensor& x) { division_->AllSum(x); };
    }
    sum = router_loss->AddTo(
        sum, kernels::ToDevice((whole_targets.tokens >= 0).sum(), sum.device()),
        whole.tokens.numel(), all_sum);
  }
  return division_ == nullptr || divides ? sum
                                         : sum * (1.0 / division_->ranks());
}

}  // namespace capstan::decoder
