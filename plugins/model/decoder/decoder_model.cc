// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_model.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tanh.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/context/work_recorder.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/mixed_linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/loss/token_loss.h"
#include "kernels/to_device.h"
#include "plugins/model/common/parameters.h"
#include "plugins/model/decoder/family.h"
#include "plugins/model/decoder/shared_prefixes.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::decoder {
namespace {

// The length of a table of rotations for `length` positions: grows rarely.
int64_t RopePositions(int64_t length) {
  int64_t positions = 64;
  while (positions < length) positions *= 2;
  return positions;
}

// The number of positions that tokens reach.
int64_t Reach(const at::Tensor& positions) {
  return positions.max().item<int64_t>() + 1;
}

// The length of each row's text, by which its frequencies go: its own, so that
// the others in the batch don't change them.
std::vector<int64_t> TextLengths(const at::Tensor& positions,
                                 const DecoderCache& cache) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < positions.size(0); ++row) {
    lengths.push_back(std::max(Reach(positions[row]), cache.expected(row)));
  }
  return lengths;
}

// `scale`, rounded to the dtype as transformers does.
double Rounded(double scale, c10::ScalarType dtype) {
  return at::scalar_tensor(scale, at::TensorOptions().dtype(dtype))
      .item<double>();
}

}  // namespace

int64_t RopeBytes(const DecoderConfig& config, int64_t length) {
  int64_t channels = 0;
  for (const Rope& rope : config.ropes) {
    channels += rope.Channels(config.head_dim);
  }
  return RopePositions(length) * channels * kernels::kFloatBytes;
}

DecoderModel::DecoderModel(DecoderCheckpoint checkpoint)
    : config_(std::move(checkpoint.config)),
      layout_(config_),
      weights_(std::move(checkpoint.weights)),
      file_names_(std::move(checkpoint.file_names)),
      new_rows_(std::move(checkpoint.new_rows)),
      specs_(layout_.specs) {}

absl::Status DecoderModel::InitialValue(int index, uint64_t seed, int64_t begin,
                                        int64_t count, float* out) const {
  const size_t base = layout_.specs.size();
  if (static_cast<size_t>(index) >= base) {
    return lora_->InitialValue(
        index - static_cast<int>(base), seed, begin, count, out,
        [this, seed](int of, int64_t from, int64_t n, float* values) {
          return InitialValue(of, seed, from, n, values);
        });
  }
  if (lora_ != nullptr && lora_->HasSavedValue(index)) {
    return lora_->SavedValue(index, begin, count, out);
  }
  if (Packed(index)) return packed_->at(index)->ReadValues(begin, count, out);
  return BaseValue(index, seed, begin, count, out);
}

absl::Status DecoderModel::BaseValue(int index, uint64_t seed, int64_t begin,
                                     int64_t count, float* out) const {
  const ParameterSpec& spec = specs_[index];
  const std::string& name =
      file_names_.empty() ? spec.name : file_names_[index];
  if (HasNewRows(index)) {
    return new_rows_->Read(name, seed, config_.vocab_size, begin, count, out);
  }
  const bool has_file =
      weights_ != nullptr && !(config_.new_scores && index == layout_.head);
  if (has_file) return weights_->ReadFloats(name, begin, count, out);
  if (config_.norm_plus_one && spec.shape.size() == 1) {
    std::fill(out, out + count, 0.0f);  // a norm's weight, or a bias
    return absl::OkStatus();
  }
  FillInitial(spec, seed, config_.initializer_range, begin, count, out);
  return absl::OkStatus();
}

void DecoderModel::Bind(std::vector<at::Tensor> parameters) {
  if (packed_ == nullptr) {
    CheckBound(parameters, specs_);
  } else {
    packed_->CheckBound(parameters, specs_);
  }
  parameters_ = std::move(parameters);
  scales_.clear();
  rope_tables_.assign(config_.ropes.size(), {});
}

absl::Status DecoderModel::SaveConfig(const std::string& folder,
                                      c10::ScalarType dtype) const {
  CHECK(config_.family != nullptr && !config_.source_config.empty())
      << "models without a family save their own config";
  Json json = SourceKeys(config_);
  json["architectures"] = {Architecture(config_)};
  if (config_.new_scores) {
    json["num_labels"] = 1;
    json["id2label"] = {{"0", "LABEL_0"}};
    json["label2id"] = {{"LABEL_0", 0}};
  }
  json["vocab_size"] = config_.vocab_size;
  AddRopeSpellings(config_.ropes, &json);
  return WriteConfigFiles(config_, std::move(json), folder, dtype);
}

at::Tensor DecoderModel::RopeOf(size_t rope, int64_t length,
                                int64_t text_length) {
  std::map<int64_t, at::Tensor>& known = rope_tables_[rope];
  const Rope& kind = config_.ropes[rope];
  const int64_t decisive = DecisiveLength(kind, text_length);
  const auto found = known.find(decisive);
  if (found == known.end() || found->second.size(0) < length) {
    // longrope has two; of dynamic's, only the latest are of use.
    if (found == known.end() && known.size() == 2) known.erase(known.begin());
    const UnrecordedScope kept_below;
    known[decisive] = kernels::ToDevice(
        kernels::RopeTable(
            RopePositions(length),
            InverseFrequencies(kind, config_.head_dim, text_length),
            kind.attention_factor),
        parameters_[kEmbedding].device());
  }
  const at::Tensor& table = known[decisive];
  // Both times alike: whether the table was known is no part of the work.
  if (WorkRecorder* const recorder = CurrentWorkRecorder()) {
    recorder->Number(decisive);
    recorder->Keep(table);
  }
  return table;
}

DecoderModel::Pass DecoderModel::MakePass(const TokenInput& input,
                                          DecoderCache* cache) {
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  Pass pass;
  pass.cache = cache;
  pass.options.shape = {batch, config_.num_attention_heads,
                        config_.num_key_value_heads, config_.head_dim,
                        config_.causal};
  pass.options.shape.scale = config_.attention_scale;
  pass.options.shape.softcap = config_.attention_softcap;
  pass.options.eps = config_.rms_norm_eps;
  pass.options.norm_plus_one = config_.norm_plus_one;
  pass.options.activation = config_.activation;
  pass.options.sink = sink_;
  pass.options.masks = c10::make_intrusive<kernels::AttentionMasks>();
  const at::Device device = parameters_[kEmbedding].device();
  if (lora_ != nullptr && lora_->dropout() &&
      input.sample_positions.defined()) {
    pass.samples = kernels::ToDevice(input.sample_positions, device);
  }
  const int64_t begin = cache == nullptr ? 0 : cache->length();
  if (!input.positions.defined()) {
    const int64_t text = cache == nullptr
                             ? length
                             : std::max(begin + length, cache->expected(0));
    for (size_t i = 0; i < config_.ropes.size(); ++i) {
      pass.rope_tables.push_back(
          RopeOf(i, begin + length, text).narrow(0, begin, length));
    }
    return pass;
  }
  TORCH_CHECK(input.positions.sizes() == input.tokens.sizes(),
              "tokens and positions are of one shape");
  at::Tensor positions = input.positions;
  if (cache != nullptr) {
    positions = positions.to(at::kCPU).contiguous();
    if (config_.causal) {
      cache->NotePadding(positions);
      positions = positions.clamp_min(0);
    }
  }
  std::vector<int64_t> text_lengths = {begin + length};
  for (const Rope& rope : config_.ropes) {
    if (DecisiveLength(rope, 0) == 0) continue;
    text_lengths = cache == nullptr ? std::vector<int64_t>{Reach(positions)}
                                    : TextLengths(positions, *cache);
  }
  if (cache != nullptr) {
    TORCH_CHECK(Reach(positions) <= begin + length,
                "positions with a cache count a row's tokens");
  }
  const at::Tensor host = positions;
  positions = kernels::ToDevice(host, device).contiguous();
  if (cache == nullptr) {
    pass.options.packing =
        host.is_cpu()
            ? c10::make_intrusive<kernels::PackedRows>(host, positions)
            : c10::make_intrusive<kernels::PackedRows>(positions);
  }
  for (size_t i = 0; i < config_.ropes.size(); ++i) {
    pass.rope_tables.push_back(
        RopeRows(i, begin + length, positions, text_lengths));
  }
  return pass;
}

at::Tensor DecoderModel::RopeRows(size_t rope, int64_t length,
                                  const at::Tensor& positions,
                                  const std::vector<int64_t>& text_lengths) {
  const auto rows = [&](const at::Tensor& of, int64_t text_length) {
    return RopeOf(rope, length, text_length)
        .narrow(0, 0, length)
        .index_select(0, of.reshape({-1}));
  };
  const auto decisive = [&](int64_t text_length) {
    return DecisiveLength(config_.ropes[rope], text_length);
  };
  if (std::all_of(text_lengths.begin(), text_lengths.end(), [&](int64_t one) {
        return decisive(one) == decisive(text_lengths[0]);
      })) {
    return rows(positions, text_lengths[0]);
  }
  std::vector<at::Tensor> tables;
  for (size_t row = 0; row < text_lengths.size(); ++row) {
    tables.push_back(rows(positions[row], text_lengths[row]));
  }
  return at::cat(tables);
}

kernels::Adapter DecoderModel::AdapterAt(int index, const Pass& pass) const {
  if (lora_ == nullptr || !adapter_enabled_ || index < 0) return {};
  kernels::Adapter adapter =
      lora_->At(index, parameters_, pass.samples,
                pass.cache == nullptr ? nullptr : pass.cache->adapted_norms());
  adapter.dropout.positions = pass.positions;
  return adapter;
}

int64_t DecoderModel::PackedBytes(int index) const {
  return Packed(index) ? packed_->at(index)->bytes() : 0;
}

absl::Status DecoderModel::PackedValue(int index, int64_t begin, int64_t count,
                                       uint8_t* out) const {
  return packed_->at(index)->ReadBytes(begin, count, out);
}

absl::Status DecoderModel::SetFp8(const Fp8Spec& how) {
  const int64_t layers = config_.num_hidden_layers;
  if (!kernels::FitsFp8(/*out=*/16, config_.hidden_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hidden_size of ", config_.hidden_size,
                     " leaves no matrix for "
                     "products in 8 bits, whose sizes are multiples of 16; set "
                     "precision=capstan.bf16"));
  }
  if (how.bf16_layers_at_start >= layers ||
      how.bf16_layers_at_end >= layers - how.bf16_layers_at_start) {
    return FieldError(
        "bf16_layers_at_start",
        absl::StrCat("is ", how.bf16_layers_at_start,
                     " and bf16_layers_at_end is ", how.bf16_layers_at_end,
                     ", but the model has ", layers,
                     layers == 1 ? " layer" : " layers",
                     ": none would be in 8 bits; set fewer (0 is allowed), or "
                     "precision=capstan.bf16"));
  }
  fp8_ = how;
  return absl::OkStatus();
}

Fp8Scaling DecoderModel::Fp8Of(int layer) const {
  const bool inside =
      fp8_.has_value() && layer >= fp8_->bf16_layers_at_start &&
      layer < config_.num_hidden_layers - fp8_->bf16_layers_at_end;
  return inside ? fp8_->scaling : Fp8Scaling::kOff;
}

kernels::Weight DecoderModel::MatrixAt(int index, Fp8Scaling fp8) const {
  if (index < 0) return {};
  if (Packed(index)) {
    kernels::Weight packed = packed_->Bound(index, parameters_[index]);
    packed.fp8 = fp8;
    return packed;
  }
  if (!scales_.empty() && scales_[index].defined()) {
    return kernels::Weight::Scaled(parameters_[index], scales_[index]);
  }
  kernels::Weight dense = parameters_[index];
  dense.fp8 = fp8;
  return dense;
}

kernels::TransformerBlockWeights DecoderModel::LayerWeights(
    int layer, const Pass& pass) const {
  const DecoderLayout::Layer& index = layout_.layers[layer];
  const auto weight = [&](LayerModule m) {
    return ParameterAt(index.weight[m]);
  };
  const Fp8Scaling fp8 =
      pass.cache == nullptr ? Fp8Of(layer) : Fp8Scaling::kOff;
  const auto matrix = [&](LayerModule m) {
    return MatrixAt(index.weight[m], fp8);
  };
  const auto bias = [&](LayerModule m) { return ParameterAt(index.bias[m]); };
  const auto adapter = [&](LayerModule m) {
    return AdapterAt(index.weight[m], pass);
  };
  kernels::TransformerBlockWeights weights;
  kernels::AttentionWeights& attention = weights.attention;
  attention.norm = weight(kInputNorm);
  attention.q = matrix(kQuery);
  attention.k = matrix(kKey);
  attention.v = matrix(kValue);
  attention.adapters = {adapter(kQuery), adapter(kKey), adapter(kValue)};
  attention.q_bias = bias(kQuery);
  attention.k_bias = bias(kKey);
  attention.v_bias = bias(kValue);
  attention.q_norm = weight(kQueryNorm);
  attention.k_norm = weight(kKeyNorm);
  weights.output = matrix(kOutput);
  weights.output_bias = bias(kOutput);
  weights.output_adapter = adapter(kOutput);
  weights.attention_post_norm = weight(kAttentionPostNorm);
  if (config_.layer(layer).experts) return weights;
  kernels::GatedMlpWeights& mlp = weights.mlp;
  mlp.norm = weight(kMlpNorm);
  mlp.gate = matrix(kGate);
  mlp.up = matrix(kUp);
  mlp.down = matrix(kDown);
  mlp.adapters = {adapter(kGate), adapter(kUp), adapter(kDown)};
  mlp.gate_bias = bias(kGate);
  mlp.up_bias = bias(kUp);
  mlp.down_bias = bias(kDown);
  mlp.post_norm = weight(kMlpPostNorm);
  return weights;
}

kernels::TransformerBlockOptions DecoderModel::LayerOptions(
    int layer, const Pass& pass) const {
  const LayerKind kind = config_.layer(layer);
  const DecoderLayout::Layer& index = layout_.layers[layer];
  kernels::TransformerBlockOptions options = pass.options;
  options.shape.window = kind.window;
  if (pass.cache != nullptr) options.cache = pass.cache->layer(layer);
  if (kind.rope >= 0) options.rope_table = pass.rope_tables[kind.rope];
  for (int m = 0; m < kernels::kBlockMatrices; ++m) {
    options.parameters[m] = index.weight[kBlockModules[m]];
    options.bias_parameters[m] = index.bias[kBlockModules[m]];
  }
  options.norm_parameters = {
      index.weight[kInputNorm], index.weight[kQueryNorm],
      index.weight[kKeyNorm],   index.weight[kAttentionPostNorm],
      index.weight[kMlpNorm],   index.weight[kMlpPostNorm]};
  return options;
}

kernels::MoeWeights DecoderModel::ExpertWeights(int layer,
                                                const Pass& pass) const {
  const DecoderLayout::Layer& index = layout_.layers[layer];
  const Fp8Scaling fp8 =
      pass.cache == nullptr ? Fp8Of(layer) : Fp8Scaling::kOff;
  kernels::MoeWeights weights;
  weights.norm = ParameterAt(index.weight[kMlpNorm]);
  weights.router = ParameterAt(index.weight[kRouter]);
  for (const auto& [gate, up, down] : index.experts) {
    kernels::ExpertWeights expert;
    expert.gate = MatrixAt(gate, fp8);
    expert.up = MatrixAt(up, fp8);
    expert.down = MatrixAt(down, fp8);
    weights.experts.push_back(std::move(expert));
  }
  return weights;
}

at::Tensor DecoderModel::RunExperts(int layer, const Pass& pass,
                                    const at::Tensor& x,
                                    UnitRunner& runner) const {
  kernels::MoeOptions options;
  options.eps = config_.rms_norm_eps;
  options.top_k = config_.experts.chosen;
  options.normalise = config_.experts.normalise;
  options.sink = sink_;
  options.parameters = layout_.layers[layer].experts;
  const c10::intrusive_ptr<RouterLoss> loss = pass.router_loss;
  options.sums_probability = loss != nullptr;
  if (loss != nullptr) options.counted = loss->counted();
  return runner.Run(layout_.layers[layer].mlp_unit, x,
                    [weights = ExpertWeights(layer, pass), options, layer,
                     loss](const at::Tensor& input) {
                      const kernels::MoeResult result =
                          kernels::MoeMlp(input, weights, options);
                      if (loss == nullptr) return result.output;
                      return loss->Note(layer, result.output,
                                        result.probability, result.chosen);
                    });
}

at::Tensor DecoderModel::Embed(const at::Tensor& tokens, UnitRunner& runner,
                               const kernels::TiedGradient& tied,
                               const kernels::EmbeddingNoise& noise) {
  const at::Tensor& embedding = parameters_[kEmbedding];
  const kernels::WeightPlace place = {sink_, kEmbedding};
  const double scale =
      config_.embedding_scale == 1.0
          ? 1.0
          : Rounded(config_.embedding_scale,
                    c10::typeMetaToScalarType(Activations().dtype()));
  if (kernels::CanDecode(parameters_[layout_.norm])) {
    return runner.Run(
        0, tokens,
        [table = MatrixAt(kEmbedding), scale](const at::Tensor& tokens) {
          at::Tensor rows =
              kernels::StoredRows(table, tokens.reshape({-1}).cpu());
          return scale == 1.0 ? rows : rows.mul_(scale);
        });
  }
  return runner.Run(
      0, kernels::ToDevice(tokens, embedding.device()),
      [embedding, tied, place, scale, noise](const at::Tensor& tokens) {
        at::Tensor rows =
            kernels::Embedding(embedding, tokens.reshape({-1}), tied, place);
        if (noise.defined()) kernels::AddNoise(noise, rows);
        return scale == 1.0 ? rows : rows.mul_(scale);
      });
}

at::Tensor DecoderModel::Hidden(
    const TokenInput& input, UnitRunner& runner,
    const kernels::TiedGradient& tied,
    const c10::intrusive_ptr<RouterLoss>& router_loss,
    const std::shared_ptr<RowDivision>& division,
    const kernels::EmbeddingNoise& noise,
    const std::shared_ptr<SharedPrefixes>& shared) {
  DecoderCache* const cache = DecoderCache::Of(input, this);
  Pass pass = MakePass(input, cache);
  pass.router_loss = router_loss;
  if (cache != nullptr && cache->first().defined()) {
    pass.options.first =
        kernels::ToDevice(cache->first(), parameters_[kEmbedding].device());
  }
  at::Tensor tokens = input.tokens;
  if (division != nullptr) {
    division->SetPass(tokens.size(0), tokens.size(1));
    if (division->exchanges()) pass.options.exchange = division;
    if (division->divides()) {
      for (at::Tensor& table : pass.rope_tables) {
        const int64_t width = table.size(1);
        table = division->PartOf(table.view({-1, tokens.size(1), width}))
                    .view({-1, width});
      }
      pass.positions = division->Positions(tokens.size(1));
      tokens = division->PartOf(tokens);
    }
  }
  if (shared != nullptr) {
    pass.options.exchange = shared;
    const at::Tensor positions = shared->positions();
    for (at::Tensor& table : pass.rope_tables) {
      table = table.index_select(0, positions);
    }
    tokens = tokens.reshape({-1}).index_select(0, shared->places());
  }
  at::Tensor x = Embed(tokens, runner, tied, noise);
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    x = runner.Run(layout_.layers[layer].unit, x,
                   [weights = LayerWeights(layer, pass),
                    options = LayerOptions(layer, pass)](const at::Tensor& in) {
                     return kernels::TransformerBlock(in, weights, options);
                   });
    if (config_.layer(layer).experts) x = RunExperts(layer, pass, x, runner);
  }
  if (cache != nullptr) cache->Advance(input.tokens.size(1));
  return x;
}

at::Tensor DecoderModel::HeadLogits(const at::Tensor& hidden,
                                    UnitRunner& runner) {
  const at::Tensor& norm = parameters_[layout_.norm];
  const kernels::Weight head = MatrixAt(layout_.head);
  const double eps = config_.rms_norm_eps;
  const bool plus_one = config_.norm_plus_one;
  const double softcap = config_.scores ? 0.0 : config_.logit_softcap;
  return runner.Run(
      head_unit(), hidden,
      [norm, head, eps, plus_one, softcap](const at::Tensor& x) {
        // That has no backward, which scores in training need.
        if (at::globalContext().deterministicAlgorithms() &&
            !at::GradMode::is_enabled() &&
            head.tensor.scalar_type() == x.scalar_type()) {
          return kernels::HeadLogits(kernels::RmsNorm(x, norm, eps, plus_one),
                                     head.tensor, softcap);
        }
        const at::Tensor logits =
            kernels::CanDecode(x)
                ? kernels::DecodeHead(x, norm, head, eps, plus_one)
                : at::linear(kernels::RmsNorm(x, norm, eps, plus_one),
                             head.tensor);
        return softcap == 0.0 ? logits : at::tanh(logits / softcap) * softcap;
      });
}

at::Tensor DecoderModel::Logits(const TokenInput& input, UnitRunner& runner) {
  const at::Tensor hidden =
      Hidden(input, runner, kernels::TiedGradient(), nullptr);
  return HeadLogits(hidden, runner)
      .view({input.tokens.size(0), input.tokens.size(1), -1});
}

at::Tensor DecoderModel::LastLogits(const TokenInput& input,
                                    UnitRunner& runner) {
  const int64_t batch = input.tokens.size(0), length = input.tokens.size(1);
  const at::Tensor hidden =
      Hidden(input, runner, kernels::TiedGradient(), nullptr);
  return HeadLogits(hidden.view({batch, length, -1})
                        .select(1, length - 1)
                        .contiguous(),
                    runner)
      .view({batch, 1, -1});
}

absl::StatusOr<std::unique_ptr<KvCache>> DecoderModel::NewCache(
    int64_t batch, int64_t max_length) const {
  CHECK(!parameters_.empty()) << "Bind comes first";
  if (batch < 1 || max_length < 1 ||
      max_length > config_.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache of ", max_length, " positions for ", batch,
                     " sequences is asked for; max_position_embeddings is ",
                     config_.max_position_embeddings));
  }
  return DecoderCache::Create(this, config_, batch, max_length, Activations());
}

}  // namespace capstan::decoder
