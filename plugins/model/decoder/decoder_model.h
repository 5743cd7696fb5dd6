// SPDX-License-Identifier: Apache-2.0
//
// The decoder that a DecoderConfig describes. In its simplest form it is Llama
// (Touvron et al., 2023, as in transformers' LlamaForCausalLM):
//   x += attention(rms_norm(x)) Wo^T     rotary, grouped queries
//   x += (silu(n Wgate^T) * n Wup^T) Wdown^T   with n = rms_norm(x)
// in each layer, then logits = rms_norm(x) Whead^T.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_MODEL_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layers/moe.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/loss/embedding_noise.h"
#include "kernels/loss/token_loss.h"
#include "plugins/model/decoder/decoder_cache.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/model/decoder/decoder_lora.h"
#include "plugins/model/decoder/packed.h"
#include "plugins/model/decoder/router_loss.h"
#include "plugins/model/decoder/row_division.h"
#include "plugins/model/decoder/weights.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {

class SharedPrefixes;  // shared_prefixes.h

class DecoderModel : public Model,
                     public TokenModel,
                     public RowLosses,
                     public TextScores,
                     public InferenceWeights {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override {
    return layout_.units;
  }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override;
  void Bind(std::vector<at::Tensor> parameters) override;
  void BindGradients(GradientSink* sink) override { sink_ = sink; }
  // As the config's family: the source's config.json with the vocabulary's
  // size, the dtype and the class.
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;
  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override;
  // A cache's tokens are computed in bfloat16.
  absl::Status SetFp8(const Fp8Spec& how) override;
  // The adapters' parameters come after all others.
  absl::Status AddLora(const LoraSpec& spec) override;
  absl::Status SetModulesToSave(std::vector<std::string> modules) override {
    modules_to_save_ = std::move(modules);
    return absl::OkStatus();
  }
  std::vector<std::string> SavedNames(int index) const override;
  TokenModel* token_model() override { return this; }
  RowLosses* row_losses() override { return config_.scores ? nullptr : this; }
  TextScores* text_scores() override { return config_.scores ? this : nullptr; }
  std::string sampling_objective() const override {
    return config_.scores ? "capstan.reward" : "";
  }
  InferenceWeights* inference_weights() override { return this; }

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override {
    return config_.max_position_embeddings;
  }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override;
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    return RegularizedSum(input, targets, {}, runner);
  }
  // The noise is on the embedding's rows, before they are scaled. L counts a
  // row's tokens up to the last that is a target.
  at::Tensor RegularizedSum(const TokenInput& input,
                            const TokenTargets& targets,
                            const Regularization& how,
                            UnitRunner& runner) override;
  bool regularizes() const override { return true; }
  // Without the router's own loss.
  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override;
  at::Tensor TokenLogProbs(const TokenInput& input, const at::Tensor& targets,
                           double temperature, at::Tensor* entropy,
                           UnitRunner& runner) override;
  bool has_token_log_probs() const override { return true; }
  at::Tensor Scores(const TokenInput& input, const at::Tensor& last,
                    UnitRunner& runner) override;
  bool causal() const override { return config_.causal; }
  // Keeps all positions, of layers with a window, too. With a cache, the
  // positions of TokenInput may be given: negative ones are padding on the left
  // of a row. If the model isn't causal, there is no padding, positions come in
  // any order, and new tokens see themselves and all that the cache holds.
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override;
  int64_t eos_token() const override {
    return config_.eos_token_id.value_or(-1);
  }
  std::vector<int64_t> other_end_tokens() const override {
    return config_.other_eos_token_ids;
  }
  std::string generation_config() const override {
    return config_.source_generation_config;
  }
  bool takes_host_targets() const override { return true; }
  absl::Status SetSequenceGroup(ProcessGroup* group,
                                bool deterministic) override;
  int64_t mask_token() const override {
    return config_.mask_token_id.value_or(-1);
  }

  // Below adapters (LoraSpec::quantize).
  int64_t PackedBytes(int index) const override;
  absl::Status PackedValue(int index, int64_t begin, int64_t count,
                           uint8_t* out) const override;
  void Unpack(int index, const uint8_t* bytes, float* out) const override {
    packed_->Unpack(index, bytes, out);
  }

  // Of an expert, as if all were chosen equally often.
  absl::optional<TokenShare> ShareOf(int parameter) const override;
  // Matrices of 16 bits and of int8 are taken beside float32 vectors, and then
  // make no losses, only logits.
  at::Tensor StoredWeight(int index) const override;
  absl::Status BindForInference(std::vector<at::Tensor> weights,
                                WeightForm form) override;
  at::Tensor LastLogits(const TokenInput& input, UnitRunner& runner) override;
  bool skips_other_logits() const override { return true; }

  // Modules that are trained whole can't be switched back.
  bool has_adapter() const override {
    return lora_ != nullptr && !lora_->SavesAny();
  }
  void SetAdapterEnabled(bool enabled) override { adapter_enabled_ = enabled; }

 protected:
  explicit DecoderModel(DecoderCheckpoint checkpoint);

  const DecoderConfig& config() const { return config_; }

 private:
  // What the layers of one forward have in common.
  struct Pass {
    kernels::TransformerBlockOptions options;
    std::vector<at::Tensor> rope_tables;  // by DecoderConfig::ropes
    DecoderCache* cache = nullptr;
    at::Tensor samples;  // dropout's keys
    kernels::RowPositions positions;
    c10::intrusive_ptr<RouterLoss> router_loss;
  };

  // The last layer's output, [B * T, hidden_size]; with a division that
  // divides, [B * T / ranks, hidden_size], and with shared prefixes of the
  // tokens that are computed.
  at::Tensor Hidden(const TokenInput& input, UnitRunner& runner,
                    const kernels::TiedGradient& tied,
                    const c10::intrusive_ptr<RouterLoss>& router_loss,
                    const std::shared_ptr<RowDivision>& division = nullptr,
                    const kernels::EmbeddingNoise& noise = {},
                    const std::shared_ptr<SharedPrefixes>& shared = nullptr);
  // With a division that divides: makes the rows divisible, and `targets` those
  // of this rank's parts.
  void Divide(TokenInput* input, TokenTargets* targets) const;
  // Null: all tokens are computed, each row's for itself.
  std::shared_ptr<SharedPrefixes> SharedIn(const TokenInput& input,
                                           const at::Tensor& targets) const;
  at::Tensor Embed(const at::Tensor& tokens, UnitRunner& runner,
                   const kernels::TiedGradient& tied,
                   const kernels::EmbeddingNoise& noise);
  // Of all tokens; not defined unless `how` has noise.
  kernels::EmbeddingNoise NoiseOf(const Regularization& how,
                                  const TokenInput& input,
                                  const at::Tensor& targets) const;
  at::Tensor RunExperts(int layer, const Pass& pass, const at::Tensor& x,
                        UnitRunner& runner) const;

  Pass MakePass(const TokenInput& input, DecoderCache* cache);
  // Cosines and sines of positions [0, length) or more, for texts of
  // `text_length`.
  at::Tensor RopeOf(size_t rope, int64_t length, int64_t text_length);
  // The same of the tokens at `positions` [B, T], all below `length`: one row a
  // token. `text_lengths`: one for all, or one for each row.
  at::Tensor RopeRows(size_t rope, int64_t length, const at::Tensor& positions,
                      const std::vector<int64_t>& text_lengths);
  // The settings of a layer.
  kernels::TransformerBlockOptions LayerOptions(int layer,
                                                const Pass& pass) const;
  // Weights and adapters of a layer.
  kernels::TransformerBlockWeights LayerWeights(int layer,
                                                const Pass& pass) const;
  kernels::MoeWeights ExpertWeights(int layer, const Pass& pass) const;
  // How a layer's products are in 8 bits, without a cache.
  Fp8Scaling Fp8Of(int layer) const;
  // As InitialValue, of the model's own parameters before they are packed.
  absl::Status BaseValue(int index, uint64_t seed, int64_t begin, int64_t count,
                         float* out) const;
  // What AddLora finds wrong with modules_to_save_.
  absl::Status CheckSaved() const;
  bool Packed(int index) const {
    return packed_ != nullptr && packed_->at(index) != nullptr;
  }
  // Whether a parameter is multiplied as a matrix, or is the embedding; not a
  // router's.
  bool IsMatrix(int index) const;
  // Whether `weight` is what StoredWeight gives.
  bool IsMapped(int index, const at::Tensor& weight) const;
  // A matrix in the form, or the tensor itself if it is no matrix of the
  // layers, the embedding or the head.
  at::Tensor InForm(int index, at::Tensor weight, WeightForm form);
  // The embedding's, or a matrix of a linear layer; undefined for an index of
  // -1.
  kernels::Weight MatrixAt(int index, Fp8Scaling fp8 = Fp8Scaling::kOff) const;
  // Of the activations: that of the norms' weights.
  at::TensorOptions Activations() const {
    return parameters_[layout_.norm].options();
  }
  // Of the rows of `hidden`, by the last norm and the head.
  at::Tensor HeadLogits(const at::Tensor& hidden, UnitRunner& runner);
  // Adds the norms of DoRA's rows to what a layer's block allocates.
  void AddNorms(const DecoderLayout::Layer& layer,
                kernels::OperatorMemory* of_block) const;
  // Bytes that the largest product of a unit's packed matrices allocates.
  int64_t PlanPacked(int unit, c10::ScalarType compute) const;
  // Whether the vocabulary's rows are those of a parameter.
  bool HasNewRows(int index) const {
    return new_rows_ != nullptr &&
           (index == kEmbedding || (index == layout_.head && !config_.scores));
  }
  // Undefined for an index of -1.
  at::Tensor ParameterAt(int index) const {
    return index < 0 ? at::Tensor() : parameters_[index];
  }
  kernels::Adapter AdapterAt(int index, const Pass& pass) const;
  // Null unless the embedding is the head, too, and is trained.
  kernels::TiedGradient NewTiedGradient() const;
  int head_unit() const { return static_cast<int>(layout_.units.size()) - 1; }
  struct LossHead {
    at::Tensor weight;
    kernels::WeightPlace place;  // of its gradient
    double softcap;
  };
  // Runs the head's unit with `loss` of the last layer's rows, normalised.
  // Keeps what it captures, as a body may run again in backward.
  using HeadLoss =
      std::function<at::Tensor(const at::Tensor& rows, const LossHead& head)>;
  at::Tensor RunHead(
      const at::Tensor& hidden, HeadLoss loss, UnitRunner& runner,
      const std::shared_ptr<SharedPrefixes>& shared = nullptr) const;

  const DecoderConfig config_;
  const DecoderLayout layout_;
  const std::unique_ptr<SafetensorsReader> weights_;  // see DecoderCheckpoint
  const std::vector<std::string> file_names_;
  const std::unique_ptr<NewRows> new_rows_;
  std::vector<ParameterSpec> specs_;  // the adapters', too
  std::vector<std::string> modules_to_save_;
  std::unique_ptr<DecoderLora> lora_;       // null: none
  std::unique_ptr<PackedMatrices> packed_;  // null: none
  std::shared_ptr<RowDivision> division_;   // null: rows are whole
  bool adapter_enabled_ = true;
  absl::optional<Fp8Spec> fp8_;  // unset: no products in 8 bits
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> scales_;  // by index, of int8 matrices; or empty
  GradientSink* sink_ = nullptr;
  // By DecoderConfig::ropes and DecisiveLength; they grow with the longest
  // sequence.
  std::vector<std::map<int64_t, at::Tensor>> rope_tables_;
};

// Bytes of the tables of rotations that a forward of `length` positions keeps.
int64_t RopeBytes(const DecoderConfig& config, int64_t length);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_MODEL_H_
