// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/loss/row_loss.h"
#include "plugins/model/common/parameters.h"
#include "plugins/sdk/memory.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::llama {

absl::Status NewRows::Read(const std::string& name, int64_t begin,
                           int64_t count, float* out) {
  const int64_t old = rows_ * width_;
  const int64_t from_file = std::clamp<int64_t>(old - begin, 0, count);
  if (from_file > 0) {
    CAPSTAN_RETURN_IF_ERROR(weights_->ReadFloats(name, begin, from_file, out));
  }
  if (from_file == count) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<float>* const mean, Mean(name));
  for (int64_t i = from_file; i < count; ++i) {
    out[i] = (*mean)[(begin + i) % width_];
  }
  return absl::OkStatus();
}

absl::StatusOr<const std::vector<float>*> NewRows::Mean(
    const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = means_.find(name);
  if (found != means_.end()) return &found->second;
  std::vector<double> sums(width_, 0.0);
  std::vector<float> row(width_);
  for (int64_t r = 0; r < rows_; ++r) {
    CAPSTAN_RETURN_IF_ERROR(
        weights_->ReadFloats(name, r * width_, width_, row.data()));
    for (int64_t i = 0; i < width_; ++i) sums[i] += row[i];
  }
  std::vector<float> mean(width_);
  for (int64_t i = 0; i < width_; ++i) {
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(rows_));
  }
  return &means_.emplace(name, std::move(mean)).first->second;
}

absl::StatusOr<LlamaCheckpoint> OpenCheckpoint(
    const std::string& folder, absl::StatusOr<LlamaConfig> config,
    int64_t vocab_size) {
  if (!config.ok()) return FieldError("pretrained", config.status().message());
  LlamaCheckpoint checkpoint;
  checkpoint.config = *std::move(config);
  LlamaConfig& sizes = checkpoint.config;
  CAPSTAN_ASSIGN_OR_RETURN(checkpoint.weights,
                           OpenPretrained(folder, ParameterSpecs(sizes),
                                          [&](absl::string_view name) {
                                            return IsUnused(sizes, name);
                                          }));
  const int64_t rows = sizes.vocab_size;
  if (vocab_size == 0 || vocab_size == rows) return checkpoint;
  if (vocab_size < rows) {
    return FieldError("vocab_size",
                      absl::StrCat("is ", vocab_size, ", but ", folder, " has ",
                                   rows, " tokens already: it can only grow"));
  }
  sizes.vocab_size = vocab_size;
  checkpoint.new_rows = std::make_unique<NewRows>(checkpoint.weights.get(),
                                                  rows, sizes.hidden_size);
  return checkpoint;
}

namespace {

// In the order of kernels::BlockMatrix.
constexpr LayerParameter kBlockParameters[kernels::kBlockMatrices] = {
    kQuery, kKey, kValue, kOutput, kGate, kUp, kDown};

// Keys and values of each layer, [batch, max_length, kv_heads * head_dim].
class LlamaCache final : public KvCache {
 public:
  struct Layer {
    at::Tensor k;
    at::Tensor v;
  };

  // `owner`: the only model that may use it.
  LlamaCache(const LlamaModel* owner, const LlamaConfig& config, int64_t batch,
             int64_t max_length, const at::TensorOptions& options)
      : owner_(owner), batch_(batch), max_length_(max_length) {
    const std::vector<int64_t> shape = {
        batch, max_length, config.num_key_value_heads * config.head_dim};
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back({at::empty(shape, options), at::empty(shape, options)});
    }
  }

  int64_t length() const override { return length_; }
  void Advance(int64_t positions) { length_ += positions; }
  const LlamaModel* owner() const { return owner_; }
  bool Holds(int64_t batch, int64_t more) const {
    return batch == batch_ && length_ + more <= max_length_;
  }

  // Appends k and v [B * T, ..] of a layer; returns all of them.
  Layer Append(int layer, const at::Tensor& k, const at::Tensor& v) const {
    const int64_t added = k.size(0) / batch_;
    const auto put = [&](const at::Tensor& cache, const at::Tensor& x) {
      cache.narrow(1, length_, added).copy_(x.view({batch_, added, -1}));
      return cache.narrow(1, 0, length_ + added);
    };
    return {put(layers_[layer].k, k), put(layers_[layer].v, v)};
  }

 private:
  const LlamaModel* const owner_;
  const int64_t batch_;
  const int64_t max_length_;
  int64_t length_ = 0;
  std::vector<Layer> layers_;
};

// The length of a table of rotations for `length` positions: grows rarely.
int64_t RopePositions(int64_t length) {
  int64_t positions = 64;
  while (positions < length) positions *= 2;
  return positions;
}

// One layer's weights and the forward's settings.
struct LayerPass {
  int layer = 0;
  kernels::TransformerBlockWeights weights;
  kernels::TransformerBlockOptions options;
  LlamaCache* cache = nullptr;
};

// x: [B * T, hidden].
at::Tensor RunLayer(const LayerPass& pass, const at::Tensor& x) {
  const kernels::TransformerBlockWeights& w = pass.weights;
  const kernels::TransformerBlockOptions& options = pass.options;
  if (pass.cache != nullptr) {
    const kernels::QueryKeyValue qkv = kernels::AttentionInput(
        x, w.attention, options.eps, options.rope_table);
    const LlamaCache::Layer past = pass.cache->Append(pass.layer, qkv.k, qkv.v);
    const at::Tensor mixed =
        kernels::CachedAttention(qkv.q, past.k, past.v, options.shape);
    return kernels::GatedMlp(
        kernels::LinearAdd(mixed, w.output, x, w.output_adapter), w.mlp,
        options.eps);
  }
  return kernels::CanFuseTransformerBlock(x)
             ? kernels::FusedTransformerBlock(x, w, options)
             : kernels::PlainTransformerBlock(x, w, options);
}

}  // namespace

LlamaModel::LlamaModel(LlamaCheckpoint checkpoint)
    : config_(std::move(checkpoint.config)),
      weights_(std::move(checkpoint.weights)),
      new_rows_(std::move(checkpoint.new_rows)),
      specs_(ParameterSpecs(config_)),
      units_(UnitNames(config_.num_hidden_layers)),
      base_parameters_(specs_.size()) {}

absl::Status LlamaModel::InitialValue(int index, uint64_t seed, int64_t begin,
                                      int64_t count, float* out) const {
  if (static_cast<size_t>(index) >= base_parameters_) {
    return lora_->InitialValue(index - static_cast<int>(base_parameters_), seed,
                               begin, count, out);
  }
  const ParameterSpec& spec = specs_[index];
  if (new_rows_ != nullptr &&
      (index == kEmbedding || index == HeadIndex(config_))) {
    return new_rows_->Read(spec.name, begin, count, out);
  }
  if (weights_ != nullptr) {
    return weights_->ReadFloats(spec.name, begin, count, out);
  }
  FillInitial(spec, seed, config_.initializer_range, begin, count, out);
  return absl::OkStatus();
}

absl::Status LlamaModel::AddLora(const LoraSpec& spec) {
  if (lora_ != nullptr || !parameters_.empty()) {
    return absl::FailedPreconditionError(
        "an adapter is added once, before the model's parameters are bound");
  }
  CAPSTAN_ASSIGN_OR_RETURN(lora_, LlamaLora::Create(spec, specs_));
  for (ParameterSpec& base : specs_) base.trainable = false;
  specs_.insert(specs_.end(), lora_->specs().begin(), lora_->specs().end());
  return absl::OkStatus();
}

void LlamaModel::Bind(std::vector<at::Tensor> parameters) {
  CheckBound(parameters, specs_);
  parameters_ = std::move(parameters);
  rope_table_.reset();
}

at::Tensor LlamaModel::RopeAt(int64_t begin, int64_t length) {
  if (!rope_table_.defined() || rope_table_.size(0) < begin + length) {
    rope_table_ = kernels::RopeTable(RopePositions(begin + length),
                                     config_.head_dim, config_.rope_theta)
                      .to(parameters_[kEmbedding].device());
  }
  return rope_table_.narrow(0, begin, length);
}

kernels::TransformerBlockWeights LlamaModel::LayerWeights(
    int layer, const at::Tensor& samples) const {
  const auto weight = [&](LayerParameter parameter) {
    return parameters_[LayerIndex(layer, parameter)];
  };
  kernels::TransformerBlockWeights weights;
  weights.attention = {weight(kInputNorm), weight(kQuery), weight(kKey),
                       weight(kValue)};
  weights.output = weight(kOutput);
  weights.mlp = {weight(kPostNorm), weight(kGate), weight(kUp), weight(kDown)};
  if (lora_ == nullptr || !adapter_enabled_) return weights;
  const auto adapter = [&](LayerParameter parameter) {
    return lora_->At(LayerIndex(layer, parameter), parameters_, samples);
  };
  weights.attention.adapters = {adapter(kQuery), adapter(kKey),
                                adapter(kValue)};
  weights.output_adapter = adapter(kOutput);
  weights.mlp.adapters = {adapter(kGate), adapter(kUp), adapter(kDown)};
  return weights;
}

kernels::TransformerBlockOptions LlamaModel::BlockOptions(
    const TokenInput& input) {
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  kernels::TransformerBlockOptions options;
  options.shape = {batch, config_.num_attention_heads,
                   config_.num_key_value_heads, config_.head_dim,
                   config_.causal};
  options.eps = config_.rms_norm_eps;
  options.rope_table =
      RopeAt(input.cache == nullptr ? 0 : input.cache->length(), length);
  options.sink = sink_;
  if (!input.positions.defined()) return options;
  CHECK(input.cache == nullptr) << "a cache holds one document a row";
  CHECK(input.positions.sizes() == input.tokens.sizes())
      << "tokens and positions are of one shape";
  const at::Tensor positions =
      input.positions.to(options.rope_table.device()).contiguous();
  options.packing = c10::make_intrusive<kernels::PackedRows>(positions);
  // One row of the table per token.
  options.rope_table =
      options.rope_table.index_select(0, positions.reshape({-1}));
  return options;
}

at::Tensor LlamaModel::Hidden(const TokenInput& input, UnitRunner& runner,
                              const kernels::TiedGradient& tied) {
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  auto* cache = dynamic_cast<LlamaCache*>(input.cache);
  if (input.cache != nullptr) {
    TORCH_CHECK(cache != nullptr && cache->owner() == this,
                "the cache is another model's: a model continues only what its "
                "own NewCache has made");
    CHECK(!at::GradMode::is_enabled())
        << "a cache is for use without gradients";
    CHECK(cache->Holds(batch, length)) << "the cache is too small";
  }
  const kernels::TransformerBlockOptions options = BlockOptions(input);
  const at::Tensor& embedding = parameters_[kEmbedding];
  // Dropout's keys.
  const bool dropout = lora_ != nullptr && adapter_enabled_ && lora_->dropout();
  const at::Tensor samples = dropout && input.sample_positions.defined()
                                 ? input.sample_positions.to(embedding.device())
                                 : at::Tensor();
  const kernels::WeightPlace place = {sink_, kEmbedding};
  at::Tensor x = runner.Run(0, input.tokens.to(embedding.device()),
                            [embedding, tied, place](const at::Tensor& tokens) {
                              return kernels::Embedding(
                                  embedding, tokens.reshape({-1}), tied, place);
                            });
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    LayerPass pass;
    pass.layer = layer;
    pass.cache = cache;
    pass.weights = LayerWeights(layer, samples);
    pass.options = options;
    for (int m = 0; m < kernels::kBlockMatrices; ++m) {
      pass.options.parameters[m] = LayerIndex(layer, kBlockParameters[m]);
    }
    x = runner.Run(1 + layer, x, [pass](const at::Tensor& input) {
      return RunLayer(pass, input);
    });
  }
  if (cache != nullptr) cache->Advance(length);
  return x;
}

at::Tensor LlamaModel::Logits(const TokenInput& input, UnitRunner& runner) {
  const at::Tensor hidden = Hidden(input, runner, kernels::TiedGradient());
  const at::Tensor& norm = parameters_[NormIndex(config_)];
  const at::Tensor& head = parameters_[HeadIndex(config_)];
  const double eps = config_.rms_norm_eps;
  const at::Tensor logits =
      runner.Run(head_unit(), hidden, [norm, head, eps](const at::Tensor& x) {
        return at::linear(kernels::RmsNorm(x, norm, eps), head);
      });
  return logits.view(
      {input.tokens.size(0), input.tokens.size(1), config_.vocab_size});
}

kernels::TiedGradient LlamaModel::NewTiedGradient() const {
  const bool wanted = config_.tie_word_embeddings &&
                      at::GradMode::is_enabled() &&
                      parameters_[kEmbedding].requires_grad();
  return wanted ? c10::make_intrusive<kernels::HeadGradient>()
                : kernels::TiedGradient();
}

at::Tensor LlamaModel::CrossEntropyRows(const TokenInput& input,
                                        const at::Tensor& targets,
                                        UnitRunner& runner) {
  const kernels::TiedGradient tied = NewTiedGradient();
  const at::Tensor hidden = Hidden(input, runner, tied);
  const at::Tensor& norm = parameters_[NormIndex(config_)];
  const at::Tensor& head = parameters_[HeadIndex(config_)];
  const double eps = config_.rms_norm_eps;
  const kernels::WeightPlace place = {sink_, HeadIndex(config_)};
  return runner.Run(
      head_unit(), hidden,
      [norm, head, eps, targets, tied, place](const at::Tensor& x) {
        const MemoryScope scope(MemoryCategory::kLogits);
        return kernels::HeadCrossEntropyRows(kernels::RmsNorm(x, norm, eps),
                                             head, targets, tied,
                                             kernels::kLogitsBytes, place);
      });
}

at::Tensor LlamaModel::CrossEntropySum(const TokenInput& input,
                                       const TokenTargets& targets,
                                       UnitRunner& runner) {
  const kernels::TiedGradient tied = NewTiedGradient();
  const at::Tensor hidden = Hidden(input, runner, tied);
  const at::Tensor& norm = parameters_[NormIndex(config_)];
  const at::Tensor& head = parameters_[HeadIndex(config_)];
  const double eps = config_.rms_norm_eps;
  const at::Tensor flat = targets.tokens.reshape({-1});
  const at::Tensor factors =
      targets.weights.defined() ? targets.weights.reshape({-1}) : at::Tensor();
  const kernels::WeightPlace place = {sink_, HeadIndex(config_)};
  return runner.Run(
      head_unit(), hidden,
      [norm, head, eps, flat, factors, tied, place](const at::Tensor& x) {
        const MemoryScope scope(MemoryCategory::kLogits);
        return kernels::HeadCrossEntropySum(
            kernels::RmsNorm(x, norm, eps), head, flat, tied,
            kernels::kLogitsBytes, place, factors);
      });
}

absl::StatusOr<std::unique_ptr<KvCache>> LlamaModel::NewCache(
    int64_t batch, int64_t max_length) const {
  if (!config_.causal) return NoCacheError();
  CHECK(!parameters_.empty()) << "Bind comes first";
  if (batch < 1 || max_length < 1 ||
      max_length > config_.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache of ", max_length, " positions for ", batch,
                     " sequences is asked for; max_position_embeddings is ",
                     config_.max_position_embeddings));
  }
  return std::unique_ptr<KvCache>(new LlamaCache(
      this, config_, batch, max_length, parameters_[kEmbedding].options()));
}

namespace {

// What the embedding and the head allocate.
UnitMemory PlanEmbedding(const LlamaConfig& c,
                         const kernels::TokenLossShape& shape, int64_t length) {
  const int64_t weight =
      c.vocab_size * c.hidden_size * kernels::ElementBytes(shape.dtype);
  UnitMemory unit;
  unit.output = shape.rows * c.hidden_size * kernels::ElementBytes(shape.dtype);
  unit.kept =
      unit.output + RopePositions(length) * c.head_dim * kernels::kFloatBytes;
  // Masked diffusion may truncate rows (TokenInput::positions), so any batch of
  // a bidirectional model may have a table row per token.
  if (!c.causal) unit.kept += shape.rows * c.head_dim * kernels::kFloatBytes;
  if (!shape.trained) return unit;  // no backward comes here
  kernels::MemoryLedger backward;
  kernels::PlanEmbeddingBackward(shape, &backward);
  // The strategy counts the weight's gradient, the largest one; the kernel may
  // not hold it in addition to its place, and then this is negative.
  unit.backward_workspace = backward.peak() - weight;
  return unit;
}

UnitMemory PlanHead(const kernels::TokenLossShape& s, int64_t largest) {
  // Everything but the norm's rstd is logits.
  const int64_t rstd = s.rows * kernels::kFloatBytes;
  kernels::MemoryLedger forward;
  kernels::PlanRmsNorm(s.rows, s.hidden, s.dtype, &forward);
  kernels::PlanHead(s, &forward);
  UnitMemory unit;
  unit.output = kernels::kFloatBytes;
  unit.kept = unit.output + rstd;
  // Everything but the gradient of the hidden rows waits for a tied embedding.
  if (s.tied && s.trained) {
    unit.logits_kept =
        forward.live() - rstd - s.rows * s.hidden * kernels::kFloatBytes;
  }
  unit.logits_passing = forward.live() - rstd - unit.logits_kept;
  unit.forward_workspace = forward.peak() - forward.live();
  kernels::MemoryLedger backward(forward.live());
  kernels::PlanHeadBackward(s, &backward);
  kernels::PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, &backward);
  unit.backward_workspace = backward.peak() - forward.live() - largest;
  return unit;
}

}  // namespace

std::vector<UnitMemory> LlamaModel::PlanUnits(int64_t samples, int64_t length,
                                              c10::ScalarType compute) const {
  const bool trained = lora_ == nullptr;
  const kernels::TokenLossShape ends = {
      samples * length, config_.hidden_size,        config_.vocab_size, compute,
      trained,          config_.tie_word_embeddings};
  kernels::TransformerBlockShape block;
  block.rows = ends.rows;
  block.hidden = config_.hidden_size;
  block.intermediate = config_.intermediate_size;
  block.attention = {samples, config_.num_attention_heads,
                     config_.num_key_value_heads, config_.head_dim,
                     config_.causal};
  block.dtype = compute;
  block.packed = !config_.causal;
  block.trained = trained;
  std::vector<UnitMemory> units = {PlanEmbedding(config_, ends, length)};
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    for (int m = 0; !trained && m < kernels::kBlockMatrices; ++m) {
      const bool has = lora_->Has(LayerIndex(layer, kBlockParameters[m]));
      block.adapters[m] = {has ? lora_->rank() : 0, lora_->dropout()};
    }
    units.push_back(PlanUnit(kernels::PlanTransformerBlock(block), block.x(),
                             specs_, 1 + layer, compute));
  }
  units.push_back(
      PlanHead(ends, LargestGradient(specs_, head_unit(), compute)));
  return units;
}

}  // namespace capstan::llama
