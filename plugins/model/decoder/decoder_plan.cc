// SPDX-License-Identifier: Apache-2.0
//
// What a decoder's units allocate.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "base/gpus.h"
#include "kernels/context/row_division.h"
#include "kernels/context/run_device.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/moe.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/loss/token_loss.h"
#include "kernels/quant/packed_linear.h"
#include "plugins/model/common/parameters.h"
#include "plugins/model/decoder/decoder_model.h"
#include "plugins/model/decoder/row_division.h"

namespace capstan::decoder {
namespace {

// What the embedding and the head allocate.
UnitMemory PlanEmbedding(const DecoderConfig& c,
                         const kernels::TokenLossShape& shape, int64_t length) {
  const int64_t weight =
      c.vocab_size * c.hidden_size * kernels::ElementBytes(shape.dtype);
  UnitMemory unit;
  unit.output = shape.rows * c.hidden_size * kernels::ElementBytes(shape.dtype);
  unit.kept = unit.output + RopeBytes(c, length);
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

// Whether experts' products may be grouped on the run's GPUs
// (HasGroupedProducts), which may not be known.
bool MayGroup(c10::ScalarType compute) {
  const int capability = LeastComputeCapability();
  return CurrentRunDevice().gpu && compute == at::kBFloat16 &&
         (capability == 0 || kernels::GroupsProducts(capability));
}

// Adds what an expert's largest product in 8 bits allocates, if all rows choose
// it.
void AddFp8(const kernels::MoeShape& s, bool gpu,
            kernels::OperatorMemory* of_experts) {
  if (!kernels::FitsFp8(s.intermediate, s.hidden)) return;
  const kernels::Fp8LinearMemory up =
      kernels::PlanFp8Linear(s.rows, s.hidden, s.intermediate, gpu);
  const kernels::Fp8LinearMemory down =
      kernels::PlanFp8Linear(s.rows, s.intermediate, s.hidden, gpu);
  of_experts->forward += std::max(up.forward, down.forward);
  of_experts->backward += std::max(up.backward, down.backward);
}

}  // namespace

int64_t DecoderModel::PlanPacked(int unit, c10::ScalarType compute) const {
  int64_t most = 0;
  for (size_t i = 0; i < layout_.specs.size(); ++i) {
    const ParameterSpec& spec = layout_.specs[i];
    if (spec.unit != unit || !Packed(static_cast<int>(i))) continue;
    most = std::max(
        most, kernels::PlanPackedLinear(spec.shape[0], spec.shape[1], compute));
  }
  return most;
}

void DecoderModel::AddNorms(const DecoderLayout::Layer& layer,
                            kernels::OperatorMemory* of_block) const {
  int64_t most = 0;
  for (const LayerModule module : kBlockModules) {
    const int index = layer.weight[module];
    if (!lora_->Has(index)) continue;
    const std::vector<int64_t>& shape = specs_[index].shape;
    of_block->kept += shape[0] * kernels::kFloatBytes;
    most = std::max(most, kernels::PlanAdaptedNorms(shape[0], shape[1]));
  }
  // They come before what the block keeps.
  of_block->forward = std::max(of_block->forward, most - of_block->kept);
}

absl::optional<TokenShare> DecoderModel::ShareOf(int parameter) const {
  for (const DecoderLayout::Layer& layer : layout_.layers) {
    for (const std::array<int, 3>& expert : layer.experts) {
      if (std::find(expert.begin(), expert.end(), parameter) == expert.end()) {
        continue;
      }
      return TokenShare{static_cast<double>(config_.experts.chosen) /
                            static_cast<double>(config_.experts.count),
                        0.0};
    }
  }
  return absl::nullopt;
}

std::vector<UnitMemory> DecoderModel::PlanUnits(int64_t samples, int64_t length,
                                                c10::ScalarType compute) const {
  const bool all = lora_ == nullptr;
  const auto saved = [this, all](int index) {
    return all || lora_->Saves(index);
  };
  bool trained = all;  // a weight of a layer itself, or all of them
  for (const DecoderLayout::Layer& layer : layout_.layers) {
    for (const int index : layer.weight) trained |= index >= 0 && saved(index);
  }
  const DecoderConfig& c = config_;
  const int64_t ranks = CurrentRowDivision();
  const int64_t rows = samples * OwnLength(length, ranks);
  kernels::TokenLossShape ends = {
      rows,    c.hidden_size,       c.vocab_size,
      compute, saved(layout_.head), c.tie_word_embeddings};
  ends.softcap = c.logit_softcap != 0.0;
  ends.device = CurrentRunDevice();
  kernels::TransformerBlockShape block;
  block.rows = ends.rows;
  block.hidden = c.hidden_size;
  block.intermediate = c.intermediate_size;
  block.attention = {samples, c.num_attention_heads, c.num_key_value_heads,
                     c.head_dim, c.causal};
  block.attention.softcap = c.attention_softcap;
  block.dtype = compute;
  block.packed = !c.causal;
  block.trained = trained;
  block.gpu = CurrentRunDevice().gpu;
  if (block.gpu && (c.attention_softcap != 0.0 || compute == at::kFloat)) {
    block.rows = samples * length;  // ATen's scores aren't divided as rows are
  }
  block.input_norms = c.norm_before;
  block.post_norms = c.norm_after;
  block.query_key_norm = c.query_key_norm;
  kernels::MoeShape experts = {
      ends.rows,       c.hidden_size,    c.experts.intermediate_size,
      c.experts.count, c.experts.chosen, compute,
      trained};
  kernels::TokenLossShape embedding = ends;
  embedding.trained = saved(kEmbedding);
  std::vector<UnitMemory> units = {PlanEmbedding(c, embedding, length)};
  std::set<int64_t> windows;
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    const DecoderLayout::Layer& index = layout_.layers[layer];
    for (int m = 0; !all && m < kernels::kBlockMatrices; ++m) {
      const bool has = lora_->Has(index.weight[kBlockModules[m]]);
      block.adapters[m] = {has ? lora_->rank() : 0, lora_->dropout(),
                           lora_->dora()};
    }
    block.attention.window = c.layer(layer).window;
    if (windows.insert(block.attention.window).second) {
      // Kept as the tables of ropes are.
      units[0].kept += kernels::AttentionMaskBytes(block.attention, length,
                                                   compute, block.gpu);
    }
    block.mlp = !c.layer(layer).experts;
    block.fp8 = Fp8Of(layer) != Fp8Scaling::kOff;
    kernels::OperatorMemory of_block = kernels::PlanTransformerBlock(block);
    if (!all && lora_->dora()) AddNorms(index, &of_block);
    PlanExchange(block.attention, rows, ranks, compute, block.gpu, &of_block);
    units.push_back(PlanUnit(of_block, block.x(), specs_, index.unit, compute));
    if (block.mlp) continue;
    experts.grouped =
        MayGroup(compute) &&
        !(block.fp8 &&
          kernels::FitsFp8(c.experts.intermediate_size, c.hidden_size));
    kernels::OperatorMemory of_experts = kernels::PlanMoeMlp(experts);
    if (block.fp8) AddFp8(experts, block.gpu, &of_experts);
    units.push_back(
        PlanUnit(of_experts, block.x(), specs_, index.mlp_unit, compute));
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int64_t packed = PlanPacked(static_cast<int>(unit), compute);
    units[unit].forward_workspace += packed;
    units[unit].backward_workspace += packed;
  }
  if (c.scores) ends.vocab = 1;
  units.push_back(
      PlanHead(ends, LargestGradient(specs_, head_unit(), compute)));
  return units;
}

}  // namespace capstan::decoder
