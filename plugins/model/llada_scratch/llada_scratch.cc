// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada_scratch/llada_scratch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/loss/token_loss.h"
#include "plugins/model/common/check_weights.h"
#include "plugins/model/llada_scratch/scratch_dropout.h"
#include "plugins/model/llada_scratch/scratch_plan.h"
#include "plugins/sdk/memory.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {
namespace llada_scratch {
namespace {

// Parameters in the order of first use: those of the embedding, of each layer,
// of the head.
enum EmbedParameter {
  kToken,
  kPosition,
  kEmbedNorm,
  kEmbedNormBias,
  kEmbedParameters,
};
enum LayerParameter {
  kAttentionNorm,
  kAttentionNormBias,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kInnerNorm,
  kInnerNormBias,
  kIn,
  kInBias,
  kOut,
  kOutBias,
  kLayerParameters,
};
enum HeadParameter { kNorm, kNormBias, kHead, kHeadBias, kHeadParameters };

std::vector<ParameterSpec> ParameterSpecs(const Config& c) {
  const int64_t hidden = c.hidden_size(), inner = c.intermediate_size();
  std::vector<ParameterSpec> specs;
  int unit = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({name, std::move(shape), unit});
  };
  const auto add_norm = [&](const std::string& name) {
    add(name + ".weight", {hidden});
    add(name + ".bias", {hidden});
  };
  add("token_embedding.weight", {c.vocab_size(), hidden});
  add("position_embedding.weight", {c.max_sequence_length(), hidden});
  specs[kToken].read_in_backward = specs[kPosition].read_in_backward = false;
  add_norm("embedding_norm");
  for (int64_t i = 0; i < c.num_hidden_layers(); ++i) {
    ++unit;
    const std::string layer = absl::StrCat("layers.", i, ".");
    add_norm(layer + "attention_norm");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      add(absl::StrCat(layer, "attention.", name, ".weight"), {hidden, hidden});
    }
    add_norm(layer + "mlp_norm");
    add(layer + "mlp.in_proj.weight", {inner, hidden});
    add(layer + "mlp.in_proj.bias", {inner});
    add(layer + "mlp.out_proj.weight", {hidden, inner});
    add(layer + "mlp.out_proj.bias", {hidden});
  }
  ++unit;
  add_norm("norm");
  add("head.weight", {c.vocab_size(), hidden});
  add("head.bias", {c.vocab_size()});
  return specs;
}

std::vector<std::string> UnitNames(const Config& c) {
  std::vector<std::string> names = {"embed"};
  for (int64_t i = 0; i < c.num_hidden_layers(); ++i) {
    names.push_back(absl::StrCat("layers.", i));
  }
  names.push_back("head");
  return names;
}

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias, double eps) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
}

struct Layer {
  std::vector<at::Tensor> parameters;
  kernels::AttentionShape shape;
  kernels::Packing packing;
  double eps = 0.0;
};

// x: [B * T, hidden].
at::Tensor RunLayer(const Layer& layer, const at::Tensor& x) {
  const std::vector<at::Tensor>& p = layer.parameters;
  const at::Tensor n =
      LayerNorm(x, p[kAttentionNorm], p[kAttentionNormBias], layer.eps);
  const at::Tensor mixed =
      kernels::Attention(at::linear(n, p[kQuery]), at::linear(n, p[kKey]),
                         at::linear(n, p[kValue]), layer.shape, layer.packing);
  const at::Tensor y = x + at::linear(mixed, p[kOutput]);
  const at::Tensor m =
      LayerNorm(y, p[kInnerNorm], p[kInnerNormBias], layer.eps);
  const at::Tensor inner = at::gelu(at::linear(m, p[kIn], p[kInBias]));
  return y + at::linear(inner, p[kOut], p[kOutBias]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LladaScratch>> LladaScratch::Create(
    const Config& config) {
  const std::string& folder = config.pretrained();
  if (folder.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(Config sizes, Sizes(config));
    return std::unique_ptr<LladaScratch>(
        new LladaScratch(std::move(sizes), nullptr));
  }
  Config alone;
  alone.set_pretrained(folder);
  if (alone.SerializeAsString() != config.SerializeAsString()) {
    return FieldError("pretrained",
                      "is set beside sizes, which the folder's config.json "
                      "gives: set the one or the others");
  }
  absl::StatusOr<Config> sizes = SizesFromFolder(folder);
  if (!sizes.ok()) return FieldError("pretrained", sizes.status().message());
  auto weights = SafetensorsReader::Open(folder);
  if (!weights.ok()) {
    return FieldError("pretrained", weights.status().message());
  }
  const absl::Status fits =
      CheckWeights(ParameterSpecs(*sizes), **weights, folder);
  if (!fits.ok()) return FieldError("pretrained", fits.message());
  return std::unique_ptr<LladaScratch>(
      new LladaScratch(*std::move(sizes), *std::move(weights)));
}

LladaScratch::LladaScratch(Config sizes,
                           std::unique_ptr<SafetensorsReader> weights)
    : sizes_(std::move(sizes)),
      weights_(std::move(weights)),
      specs_(ParameterSpecs(sizes_)),
      units_(UnitNames(sizes_)) {}

absl::Status LladaScratch::InitialValue(int index, uint64_t seed, int64_t begin,
                                        int64_t count, float* out) const {
  const ParameterSpec& spec = specs_[index];
  if (weights_ != nullptr) {
    return weights_->ReadFloats(spec.name, begin, count, out);
  }
  if (absl::EndsWith(spec.name, ".bias")) {
    std::fill(out, out + count, 0.0f);
  } else if (spec.shape.size() == 1) {  // a norm
    std::fill(out, out + count, 1.0f);
  } else {
    FillNormal(RandomKey(seed, spec.name), begin, count, 0.0f,
               static_cast<float>(sizes_.initializer_range()), out);
  }
  return absl::OkStatus();
}

void LladaScratch::Bind(std::vector<at::Tensor> parameters) {
  CHECK_EQ(parameters.size(), specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    CHECK(parameters[i].sizes() == at::IntArrayRef(specs_[i].shape))
        << specs_[i].name;
  }
  parameters_ = std::move(parameters);
}

absl::Status LladaScratch::SaveConfig(const std::string& folder,
                                      c10::ScalarType dtype) const {
  return WriteConfig(sizes_, folder, dtype);
}

std::vector<UnitMemory> LladaScratch::PlanUnits(int64_t samples, int64_t length,
                                                c10::ScalarType compute) const {
  return llada_scratch::PlanUnits(sizes_, samples, length, compute);
}

std::vector<at::Tensor> LladaScratch::Parameters(int first, int count) const {
  return {parameters_.begin() + first, parameters_.begin() + first + count};
}

at::Tensor LladaScratch::Hidden(const TokenInput& input, UnitRunner& runner) {
  CHECK(input.cache == nullptr) << "this model has no cache";
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  TORCH_CHECK(length <= max_positions(), "a text of ", length,
              " tokens is longer than max_sequence_length, which is ",
              max_positions());
  const at::Device device = parameters_[kToken].device();
  Layer layer;
  layer.eps = sizes_.layer_norm_eps();
  layer.shape = {batch, sizes_.num_attention_heads(),
                 sizes_.num_attention_heads(),
                 sizes_.hidden_size() / sizes_.num_attention_heads(),
                 /*causal=*/false};
  at::Tensor positions;
  if (input.positions.defined()) {
    positions = input.positions.to(device).contiguous();
    layer.packing = c10::make_intrusive<kernels::PackedRows>(positions);
  } else {
    positions = at::arange(length, at::TensorOptions(at::kLong).device(device))
                    .expand({batch, length});
  }
  const Dropout dropout = {sizes_.dropout(), input.sample_positions};
  const std::vector<at::Tensor> embed = Parameters(0, kEmbedParameters);
  const double eps = layer.eps;
  at::Tensor x = runner.Run(
      0, input.tokens.to(device),
      [embed, positions, dropout, eps](const at::Tensor& tokens) {
        const at::Tensor sum =
            kernels::Embedding(embed[kToken], tokens.reshape({-1}), nullptr) +
            kernels::Embedding(embed[kPosition], positions.reshape({-1}),
                               nullptr);
        return Dropped(dropout, LayerNorm(sum, embed[kEmbedNorm],
                                          embed[kEmbedNormBias], eps));
      });
  for (int i = 0; i < sizes_.num_hidden_layers(); ++i) {
    layer.parameters =
        Parameters(kEmbedParameters + i * kLayerParameters, kLayerParameters);
    x = runner.Run(1 + i, x, [layer](const at::Tensor& input) {
      return RunLayer(layer, input);
    });
  }
  return x;
}

at::Tensor LladaScratch::Logits(const TokenInput& input, UnitRunner& runner) {
  const at::Tensor hidden = Hidden(input, runner);
  const int first = static_cast<int>(specs_.size()) - kHeadParameters;
  const std::vector<at::Tensor> head = Parameters(first, kHeadParameters);
  const double eps = sizes_.layer_norm_eps();
  const at::Tensor logits =
      runner.Run(head_unit(), hidden, [head, eps](const at::Tensor& x) {
        return at::linear(LayerNorm(x, head[kNorm], head[kNormBias], eps),
                          head[kHead], head[kHeadBias]);
      });
  return logits.view(
      {input.tokens.size(0), input.tokens.size(1), sizes_.vocab_size()});
}

at::Tensor LladaScratch::CrossEntropySum(const TokenInput& input,
                                         const TokenTargets& targets,
                                         UnitRunner& runner) {
  const at::Tensor hidden = Hidden(input, runner);
  const int first = static_cast<int>(specs_.size()) - kHeadParameters;
  const std::vector<at::Tensor> head = Parameters(first, kHeadParameters);
  const double eps = sizes_.layer_norm_eps();
  const at::Tensor flat = targets.tokens.reshape({-1});
  const at::Tensor factors =
      targets.weights.defined() ? targets.weights.reshape({-1}) : at::Tensor();
  return runner.Run(
      head_unit(), hidden, [head, eps, flat, factors](const at::Tensor& x) {
        const MemoryScope scope(MemoryCategory::kLogits);
        const at::Tensor n = LayerNorm(x, head[kNorm], head[kNormBias], eps);
        // The bias is one more column of the weight, for a channel of ones.
        const at::Tensor ones = at::ones({n.size(0), 1}, n.options());
        return kernels::HeadCrossEntropySum(
            at::cat({n, ones}, 1),
            at::cat({head[kHead], head[kHeadBias].unsqueeze(1)}, 1), flat,
            nullptr, kernels::kLogitsBytes, {}, factors);
      });
}

absl::StatusOr<std::unique_ptr<KvCache>> LladaScratch::NewCache(
    int64_t batch, int64_t max_length) const {
  return absl::UnimplementedError(
      "a model whose tokens see the whole text has no cache: each new token "
      "changes what the others' keys and values are");
}

}  // namespace llada_scratch
}  // namespace capstan
