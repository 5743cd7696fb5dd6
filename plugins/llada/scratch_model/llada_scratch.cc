// SPDX-License-Identifier: Apache-2.0
//
// The transformer for trying LLaDA's recipe from scratch, on a text of a
// megabyte:
//   x = dropout(layer_norm(token[ids] + position[0, 1, ..]))
//   x += attention(layer_norm(x)) Wo^T    every token sees the whole text
//   x += gelu(layer_norm(x) Win^T + bin) Wout^T + bout
// in each layer, then logits = layer_norm(x) Whead^T + bhead. Composed of
// LibTorch's operators: speed doesn't matter here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/ones.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/random.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/layer_cache.h"
#include "kernels/context/run_device.h"
#include "kernels/layers/linear.h"
#include "kernels/loss/token_loss.h"
#include "kernels/to_device.h"
#include "plugins/llada/scratch_model/llada_scratch.pb.h"
#include "plugins/model/common/config.h"
#include "plugins/model/common/parameters.h"
#include "plugins/model/decoder/decoder_cache.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/token_model.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::llada_scratch {

namespace {

absl::Status CheckSizes(const Config& c) {
  ConfigCheck check;
  check.Size("vocab_size", c.vocab_size());
  check.Size("hidden_size", c.hidden_size());
  check.Size("intermediate_size", c.intermediate_size());
  check.Size("num_hidden_layers", c.num_hidden_layers(),
             ConfigCheck::kMostLayers);
  check.Size("num_attention_heads", c.num_attention_heads());
  check.Size("max_sequence_length", c.max_sequence_length());
  const double hidden = static_cast<double>(c.hidden_size());
  check.Total("hidden_size",
              hidden * (static_cast<double>(c.num_hidden_layers()) *
                            (4.0 * hidden +
                             2.0 * static_cast<double>(c.intermediate_size())) +
                        2.0 * static_cast<double>(c.vocab_size()) +
                        static_cast<double>(c.max_sequence_length())));
  if (!check.ok()) return check.status();
  if (c.hidden_size() % c.num_attention_heads() != 0) {
    check.Fail(
        "hidden_size",
        absl::StrCat("must be divisible by num_attention_heads, which is ",
                     c.num_attention_heads(), ", is ", c.hidden_size()));
  }
  check.Rate("dropout", c.dropout());
  check.Positive("layer_norm_eps", c.layer_norm_eps());
  check.Positive("initializer_range", c.initializer_range());
  const auto token = [&](const char* key, bool is_set, int64_t id) {
    if (is_set) check.Token(key, id, c.vocab_size());
  };
  token("mask_token_id", c.has_mask_token_id(), c.mask_token_id());
  token("bos_token_id", c.has_bos_token_id(), c.bos_token_id());
  token("eos_token_id", c.has_eos_token_id(), c.eos_token_id());
  token("pad_token_id", c.has_pad_token_id(), c.pad_token_id());
  return check.status();
}

// The sizes in `config`, with defaults for every field but `pretrained`
// (special tokens other than the mask may stay unset). FieldError otherwise.
absl::StatusOr<Config> Sizes(const Config& config) {
  Config c = config;
  c.clear_pretrained();
  if (c.hidden_size() == 0) c.set_hidden_size(768);
  if (c.intermediate_size() == 0) c.set_intermediate_size(4 * c.hidden_size());
  if (c.num_hidden_layers() == 0) c.set_num_hidden_layers(24);
  if (c.num_attention_heads() == 0) c.set_num_attention_heads(12);
  if (c.max_sequence_length() == 0) c.set_max_sequence_length(4096);
  if (!c.has_dropout()) c.set_dropout(0.1);
  if (c.layer_norm_eps() == 0.0) c.set_layer_norm_eps(1e-5);
  if (c.initializer_range() == 0.0) c.set_initializer_range(0.02);
  if (!c.has_mask_token_id()) c.set_mask_token_id(c.vocab_size() - 1);
  CAPSTAN_RETURN_IF_ERROR(CheckSizes(c));
  return c;
}

// The same from a folder's config.json. An error names the file and the key.
absl::StatusOr<Config> SizesFromFolder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const ConfigJson json, ParseObject(path, text));
  ConfigKeys keys(path, json);
  keys.Must("model_type", "llada_scratch");
  keys.Only("hidden_act", "gelu", "gelu");
  Config c;
  c.set_vocab_size(keys.Int("vocab_size", absl::nullopt));
  c.set_hidden_size(keys.Int("hidden_size", absl::nullopt));
  c.set_intermediate_size(keys.Int("intermediate_size", absl::nullopt));
  c.set_num_hidden_layers(keys.Int("num_hidden_layers", absl::nullopt));
  c.set_num_attention_heads(keys.Int("num_attention_heads", absl::nullopt));
  c.set_max_sequence_length(keys.Int("max_sequence_length", absl::nullopt));
  c.set_dropout(keys.Double("dropout", 0.1));
  c.set_layer_norm_eps(keys.Double("layer_norm_eps", 1e-5));
  c.set_initializer_range(keys.Double("initializer_range", 0.02));
  c.set_mask_token_id(keys.Int("mask_token_id", absl::nullopt));
  if (const auto id = keys.Token("bos_token_id")) c.set_bos_token_id(*id);
  if (const auto id = keys.Token("eos_token_id")) c.set_eos_token_id(*id);
  if (const auto id = keys.Token("pad_token_id")) c.set_pad_token_id(*id);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  CAPSTAN_RETURN_IF_ERROR(keys.FailIf(CheckSizes(c)));
  return c;
}

// Writes config.json for weights of `dtype`.
absl::Status WriteConfig(const Config& c, const std::string& folder,
                         c10::ScalarType dtype) {
  const auto token = [](bool is_set, int64_t id) {
    return is_set ? ConfigJson(id) : ConfigJson(nullptr);
  };
  const ConfigJson json = {
      {"architectures", ConfigJson::array({"LladaScratchModel"})},
      {"model_type", "llada_scratch"},
      {"vocab_size", c.vocab_size()},
      {"hidden_size", c.hidden_size()},
      {"intermediate_size", c.intermediate_size()},
      {"num_hidden_layers", c.num_hidden_layers()},
      {"num_attention_heads", c.num_attention_heads()},
      {"max_sequence_length", c.max_sequence_length()},
      {"hidden_act", "gelu"},
      {"dropout", c.dropout()},
      {"layer_norm_eps", c.layer_norm_eps()},
      {"initializer_range", c.initializer_range()},
      {"mask_token_id", c.mask_token_id()},
      {"bos_token_id", token(c.has_bos_token_id(), c.bos_token_id())},
      {"eos_token_id", token(c.has_eos_token_id(), c.eos_token_id())},
      {"pad_token_id", token(c.has_pad_token_id(), c.pad_token_id())},
      {"dtype", DtypeName(dtype)},
      {"torch_dtype", DtypeName(dtype)},
  };
  return WriteWholeFile(folder + "/config.json", json.dump(2) + "\n");
}

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

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias, double eps) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
}

// Dropout of x [B * T, width], with a gradient; keyed by sample, position in
// the row and channel, so that truncating a row doesn't change the rest.
at::Tensor Dropped(const kernels::AdapterDropout& dropout,
                   const at::Tensor& x) {
  if (!dropout.active()) return x;
  const at::Tensor mask = kernels::DropoutMask(dropout, x.size(0), x.size(1));
  return at::masked_fill(x, mask.to(x.device()), 0.0) *
         (1.0 / (1.0 - dropout.rate));
}

struct Layer {
  std::vector<at::Tensor> parameters;
  kernels::AttentionShape shape;
  kernels::Packing packing;
  double eps = 0.0;
  kernels::LayerCache* cache = nullptr;
};

// x: [B * T, hidden].
at::Tensor RunLayer(const Layer& layer, const at::Tensor& x) {
  const std::vector<at::Tensor>& p = layer.parameters;
  const at::Tensor n =
      LayerNorm(x, p[kAttentionNorm], p[kAttentionNormBias], layer.eps);
  const at::Tensor q = at::linear(n, p[kQuery]), k = at::linear(n, p[kKey]);
  const at::Tensor v = at::linear(n, p[kValue]);
  at::Tensor mixed;
  if (layer.cache == nullptr) {
    mixed = kernels::Attention(q, k, v, layer.shape, layer.packing);
  } else {
    const kernels::CachedKeyValue all = layer.cache->Append(k, v);
    mixed = kernels::CachedAttention(q, all.k, all.v, layer.shape);
  }
  const at::Tensor y = x + at::linear(mixed, p[kOutput]);
  const at::Tensor m =
      LayerNorm(y, p[kInnerNorm], p[kInnerNormBias], layer.eps);
  const at::Tensor inner = at::gelu(at::linear(m, p[kIn], p[kInBias]));
  return y + at::linear(inner, p[kOut], p[kOutBias]);
}

// What LibTorch's operators and autograd hold in one forward and backward on
// the CPU, with a target at each position.

using kernels::kFloatBytes;

// Bytes of the tensors involved.
struct Bytes {
  Bytes(const Config& c, int64_t samples, int64_t length,
        c10::ScalarType compute)
      : rows(samples * length),
        dtype(compute),
        element(kernels::ElementBytes(compute)),
        x(rows * c.hidden_size() * element),
        inner(rows * c.intermediate_size() * element),
        norm(2 * rows * kFloatBytes) {}

  const int64_t rows;
  const c10::ScalarType dtype;
  const int64_t element;
  const int64_t x;      // [rows, hidden]
  const int64_t inner;  // [rows, intermediate]
  const int64_t norm;   // mean and 1 / standard deviation of each row
};

UnitMemory PlanEmbedding(const Config& c, const Bytes& b) {
  const bool dropout = c.dropout() > 0.0;
  const int64_t mask = dropout ? b.rows * c.hidden_size() : 0;
  UnitMemory unit;
  unit.output = b.x;
  // The sum, for the norm's backward; positions; the output.
  const int64_t positions = b.rows * static_cast<int64_t>(sizeof(int64_t));
  unit.kept = b.x + b.norm + positions + mask + b.x;
  // The dropped input and the result before scaling, or both rows.
  unit.forward_workspace = dropout ? 2 * b.x : b.x;
  const int64_t tokens = std::max(c.vocab_size(), c.max_sequence_length());
  kernels::MemoryLedger gradient;
  kernels::PlanEmbeddingBackward({b.rows, c.hidden_size(), tokens, b.dtype,
                                  /*trained=*/true, /*tied=*/false,
                                  /*sink=*/false},
                                 &gradient);
  // By then the mask, the sum and the output's gradient are gone.
  unit.backward_workspace = std::max(dropout ? 2 * b.x : b.x,
                                     b.x + gradient.peak() - (2 * b.x + mask)) -
                            tokens * c.hidden_size() * b.element;
  return unit;
}

// RunLayer.
UnitMemory PlanLayer(const Config& c, const Bytes& b,
                     const kernels::AttentionShape& shape) {
  kernels::MemoryLedger attention;
  kernels::PlanAttention(shape, b.rows, b.dtype, /*packed=*/false, &attention,
                         CurrentRunDevice().gpu);
  UnitMemory unit;
  unit.output = b.x;
  // The attention's input, q, k, v and what it keeps, the sum, the MLP's input
  // and its inner rows, before and after GELU.
  unit.kept =
      6 * b.x + 2 * b.inner + 2 * b.norm + attention.live() + unit.output;
  // What is added to the sum.
  unit.forward_workspace = b.x;
  // The gradients to the inner rows, and to the last matrix, which is as large
  // as any, and its bias.
  const int64_t bias = c.hidden_size() * b.element;
  unit.backward_workspace = std::max(b.inner + bias, b.x);
  return unit;
}

UnitMemory PlanHead(const Config& c, const Bytes& b) {
  // The bias is a column of the weight (CrossEntropySum).
  kernels::TokenLossShape shape = {
      b.rows,           c.hidden_size() + 1, c.vocab_size(), b.dtype,
      /*trained=*/true, /*tied=*/false,      /*sink=*/false};
  shape.device = CurrentRunDevice();
  const int64_t rows = b.rows * shape.hidden * b.element;
  // The rows and the weight with that column, then what the kernel holds.
  kernels::MemoryLedger forward(rows + shape.vocab * shape.hidden * b.element);
  kernels::PlanHead(shape, &forward);
  UnitMemory unit;
  unit.output = kFloatBytes;
  unit.kept = unit.output + b.norm;
  unit.logits_passing = forward.live();
  // The rows and the column before they are concatenated.
  unit.forward_workspace =
      forward.peak() - forward.live() + b.x + b.rows * b.element;
  kernels::MemoryLedger backward(forward.live());
  // The gradient of 16-bit rows, besides the kernel's own.
  if (b.dtype == c10::ScalarType::Float) backward.Take(rows);
  kernels::PlanHeadBackward(shape, &backward);
  unit.backward_workspace = backward.peak() - forward.live() -
                            c.vocab_size() * c.hidden_size() * b.element;
  return unit;
}

class LladaScratch final : public Model, public TokenModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<LladaScratch>> Create(
      const Config& config) {
    const std::string& folder = config.pretrained();
    if (folder.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(Config sizes, Sizes(config));
      return std::unique_ptr<LladaScratch>(
          new LladaScratch(std::move(sizes), nullptr));
    }
    CAPSTAN_RETURN_IF_ERROR(CheckAlone(config, {"pretrained"}));
    absl::StatusOr<Config> sizes = SizesFromFolder(folder);
    if (!sizes.ok()) return FieldError("pretrained", sizes.status().message());
    CAPSTAN_ASSIGN_OR_RETURN(auto weights,
                             OpenPretrained(folder, ParameterSpecs(*sizes)));
    return std::unique_ptr<LladaScratch>(
        new LladaScratch(*std::move(sizes), std::move(weights)));
  }

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }

  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override {
    const ParameterSpec& spec = specs_[index];
    if (weights_ != nullptr) {
      return weights_->ReadFloats(spec.name, begin, count, out);
    }
    FillInitial(spec, seed, sizes_.initializer_range(), begin, count, out);
    return absl::OkStatus();
  }

  void Bind(std::vector<at::Tensor> parameters) override {
    CheckBound(parameters, specs_);
    parameters_ = std::move(parameters);
  }

  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override {
    return WriteConfig(sizes_, folder, dtype);
  }

  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override {
    const Bytes bytes(sizes_, samples, length, compute);
    std::vector<UnitMemory> units = {PlanEmbedding(sizes_, bytes)};
    for (int64_t i = 0; i < sizes_.num_hidden_layers(); ++i) {
      units.push_back(PlanLayer(sizes_, bytes, Attention(samples)));
    }
    units.push_back(PlanHead(sizes_, bytes));
    return units;
  }

  TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return sizes_.vocab_size(); }
  int64_t max_positions() const override {
    return sizes_.max_sequence_length();
  }

  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
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

  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    const at::Tensor hidden = Hidden(input, runner);
    const int first = static_cast<int>(specs_.size()) - kHeadParameters;
    const std::vector<at::Tensor> head = Parameters(first, kHeadParameters);
    const double eps = sizes_.layer_norm_eps();
    const at::Tensor flat = targets.tokens.reshape({-1});
    const at::Tensor factors = targets.weights.defined()
                                   ? targets.weights.reshape({-1})
                                   : at::Tensor();
    return runner.Run(
        head_unit(), hidden, [head, eps, flat, factors](const at::Tensor& x) {
          const MemoryScope scope(MemoryCategory::kLogits);
          const at::Tensor n = LayerNorm(x, head[kNorm], head[kNormBias], eps);
          // The bias is an additional column of the weight, for a channel of
          // ones.
          const at::Tensor ones = at::ones({n.size(0), 1}, n.options());
          return kernels::HeadCrossEntropySum(
              at::cat({n, ones}, 1),
              at::cat({head[kHead], head[kHeadBias].unsqueeze(1)}, 1), flat,
              nullptr, /*logits_bytes=*/0, {}, factors);
        });
  }

  bool causal() const override { return false; }

  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override {
    CHECK(!parameters_.empty()) << "Bind comes first";
    if (batch < 1 || max_length < 1 || max_length > max_positions()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a cache of ", max_length, " positions for ", batch,
          " sequences is asked for; max_sequence_length is ", max_positions()));
    }
    decoder::DecoderConfig sizes;
    sizes.num_hidden_layers = sizes_.num_hidden_layers();
    sizes.num_key_value_heads = sizes_.num_attention_heads();
    sizes.head_dim = sizes_.hidden_size() / sizes_.num_attention_heads();
    return decoder::DecoderCache::Create(this, sizes, batch, max_length,
                                         parameters_[kToken].options());
  }

  int64_t eos_token() const override {
    return sizes_.has_eos_token_id() ? sizes_.eos_token_id() : -1;
  }
  int64_t mask_token() const override { return sizes_.mask_token_id(); }
  std::string sampling_objective() const override {
    return "capstan.masked_diffusion";
  }
  bool takes_host_targets() const override { return true; }

 private:
  LladaScratch(Config sizes, std::unique_ptr<SafetensorsReader> weights)
      : sizes_(std::move(sizes)),
        weights_(std::move(weights)),
        specs_(ParameterSpecs(sizes_)),
        units_(UnitNames(sizes_.num_hidden_layers())) {}

  // The last layer's output, [B * T, hidden_size].
  at::Tensor Hidden(const TokenInput& input, UnitRunner& runner) {
    decoder::DecoderCache* const cache = decoder::DecoderCache::Of(input, this);
    const int64_t begin = cache == nullptr ? 0 : cache->length();
    const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
    TORCH_CHECK(begin + length <= max_positions(), "a text of ", begin + length,
                " tokens is longer than max_sequence_length, which is ",
                max_positions());
    const at::Device device = parameters_[kToken].device();
    Layer layer;
    layer.eps = sizes_.layer_norm_eps();
    layer.shape = Attention(batch);
    at::Tensor positions;
    if (input.positions.defined()) {
      const at::Tensor& given = input.positions;
      positions = kernels::ToDevice(given, device).contiguous();
      if (cache == nullptr) {
        layer.packing =
            given.is_cpu()
                ? c10::make_intrusive<kernels::PackedRows>(given, positions)
                : c10::make_intrusive<kernels::PackedRows>(positions);
      }
    } else {
      positions = at::arange(begin, begin + length,
                             at::TensorOptions(at::kLong).device(device))
                      .expand({batch, length});
    }
    const kernels::AdapterDropout dropout = {
        sizes_.dropout(), RandomKey(0, "llada_scratch.dropout"),
        input.sample_positions};
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
      if (cache != nullptr) layer.cache = cache->layer(i);
      layer.parameters =
          Parameters(kEmbedParameters + i * kLayerParameters, kLayerParameters);
      x = runner.Run(1 + i, x, [layer](const at::Tensor& input) {
        return RunLayer(layer, input);
      });
    }
    if (cache != nullptr) cache->Advance(length);
    return x;
  }

  // The attention shape for `batch` rows.
  kernels::AttentionShape Attention(int64_t batch) const {
    const int64_t heads = sizes_.num_attention_heads();
    return {batch, heads, heads, sizes_.hidden_size() / heads,
            /*causal=*/false};
  }

  // `count` parameters from `first` on.
  std::vector<at::Tensor> Parameters(int first, int count) const {
    return {parameters_.begin() + first, parameters_.begin() + first + count};
  }

  int head_unit() const { return static_cast<int>(units_.size()) - 1; }

  const Config sizes_;
  const std::unique_ptr<SafetensorsReader> weights_;  // null: random
  std::vector<ParameterSpec> specs_;
  std::vector<std::string> units_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace

CAPSTAN_PLUGIN(Model, LladaScratch, capstan::llada_scratch::Config,
               "LLaDA's small model from scratch: learned positions, "
               "LayerNorm, GELU, and sight of the whole text");

}  // namespace capstan::llada_scratch
