// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/context/run_device.h"

namespace capstan::decoder {
namespace {

// Each has names and tensors, which are made before a file says whether it has
// them.
constexpr int64_t kMostExperts = 1 << 17;

void FillHeads(DecoderConfig* c, ConfigCheck* check) {
  const DecoderNames& names = *c->names;
  if (c->num_key_value_heads == 0) {
    c->num_key_value_heads = c->num_attention_heads;
  }
  if (c->head_dim != 0 || c->num_attention_heads < 1) return;
  if (c->hidden_size % c->num_attention_heads != 0) {
    const std::string otherwise =
        names.head_dim == nullptr ? ""
                                  : absl::StrCat(" (or give ", names.head_dim,
                                                 " for heads of another size)");
    check->Fail(names.hidden_size,
                absl::StrCat("must be divisible by ", names.num_attention_heads,
                             ", which is ", c->num_attention_heads, ", is ",
                             c->hidden_size, otherwise));
    return;
  }
  c->head_dim = c->hidden_size / c->num_attention_heads;
}

// In floating point, which doesn't overflow.
double ParameterCount(const DecoderConfig& c) {
  const double hidden = static_cast<double>(c.hidden_size);
  const double heads = 2.0 * (static_cast<double>(c.num_attention_heads) +
                              static_cast<double>(c.num_key_value_heads));
  const double inner = static_cast<double>(c.intermediate_size) +
                       static_cast<double>(c.experts.count) *
                           static_cast<double>(c.experts.intermediate_size);
  const double layer =
      hidden * (heads * static_cast<double>(c.head_dim) + 3.0 * inner);
  return static_cast<double>(c.num_hidden_layers) * layer +
         2.0 * hidden * static_cast<double>(c.vocab_size);
}

void CheckExperts(const DecoderConfig& c, ConfigCheck* check) {
  if (c.experts.count == 0) return;
  check->Size("num_experts", c.experts.count,
              std::max<int64_t>(kMostExperts / c.num_hidden_layers, 1));
  check->Size("num_experts_per_tok", c.experts.chosen, c.experts.count);
  check->Size("moe_intermediate_size", c.experts.intermediate_size);
}

void CheckSizes(const DecoderConfig& c, ConfigCheck* check) {
  const DecoderNames& names = *c.names;
  check->Size(names.hidden_size, c.hidden_size);
  check->Size(names.intermediate_size, c.intermediate_size);
  check->Size(names.num_hidden_layers, c.num_hidden_layers,
              ConfigCheck::kMostLayers);
  check->Size(names.num_attention_heads, c.num_attention_heads);
  check->Size(names.num_key_value_heads, c.num_key_value_heads);
  check->Size(names.head_dim == nullptr ? names.hidden_size : names.head_dim,
              c.head_dim);
  check->Size("vocab_size", c.vocab_size);
  check->Size(names.max_position_embeddings, c.max_position_embeddings);
  if (check->ok()) CheckExperts(c, check);
  check->Total(names.hidden_size, ParameterCount(c));
}

void CheckRope(const DecoderConfig& c, const Rope& rope, ConfigCheck* check) {
  check->Positive("rope_theta", rope.theta);
  const int64_t channels = rope.Channels(c.head_dim);
  if (channels % 2 != 0 || channels < 2 || channels > c.head_dim) {
    check->Fail("partial_rotary_factor",
                absl::StrCat("must make an even number of a head's ",
                             c.head_dim, " channels rotate, is ", rope.share));
    return;
  }
  if (rope.kind == RopeKind::kDynamic && channels < 4) {
    check->Fail("rope_type", "\"dynamic\" needs heads of more channels");
  }
  const auto pairs = static_cast<size_t>(channels / 2);
  if (rope.kind == RopeKind::kLongRope && (rope.short_factors.size() != pairs ||
                                           rope.long_factors.size() != pairs)) {
    check->Fail("short_factor and long_factor",
                absl::StrCat("must have ", pairs, " numbers each, have ",
                             rope.short_factors.size(), " and ",
                             rope.long_factors.size()));
  }
}

// Checks that heads can be rotated.
void CheckHeads(const DecoderConfig& c, ConfigCheck* check) {
  const DecoderNames& names = *c.names;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    check->Fail(
        names.num_key_value_heads,
        absl::StrCat("must divide ", names.num_attention_heads, ", which is ",
                     c.num_attention_heads, ", is ", c.num_key_value_heads));
  }
  if (c.head_dim % 2 == 0) return;
  const std::string problem =
      absl::StrCat("must be even for the rotary embedding, is ", c.head_dim);
  if (names.head_dim != nullptr) {
    check->Fail(names.head_dim, problem);
  } else {
    check->Fail(names.hidden_size,
                absl::StrCat("over ", names.num_attention_heads, " ", problem));
  }
}

// Adds a decoder's parameters in order.
class LayoutBuilder {
 public:
  LayoutBuilder(const DecoderConfig& config, DecoderLayout* layout)
      : c_(config), layout_(*layout) {}

  void Build() {
    layout_.units = {"embed"};
    Add(c_.names->embedding, ".weight", {c_.vocab_size, c_.hidden_size});
    // The gradient is scattered to the rows looked up.
    layout_.specs[0].read_in_backward = false;
    layout_.layers.resize(c_.num_hidden_layers);
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) AddLayer(i);
    layout_.units.push_back("head");
    layout_.norm = Add(c_.names->norm, ".weight", {c_.hidden_size});
    layout_.head = kEmbedding;
    if (c_.tie_word_embeddings) {
      layout_.specs[0].other_units = {unit()};
    } else {
      layout_.head = Add(c_.head(), ".weight",
                         {c_.scores ? 1 : c_.vocab_size, c_.hidden_size});
    }
  }

 private:
  int unit() const { return static_cast<int>(layout_.units.size()) - 1; }

  int Add(const std::string& module, const char* suffix,
          std::vector<int64_t> shape) {
    layout_.specs.push_back({module + suffix, std::move(shape), unit()});
    return static_cast<int>(layout_.specs.size()) - 1;
  }

  std::string Name(int64_t layer, LayerModule module) const {
    return absl::StrCat(c_.names->layers, layer, ".",
                        c_.names->in_layer[module]);
  }

  void AddNorm(int64_t layer, LayerModule module, int64_t size, bool has) {
    if (!has) return;
    layout_.layers[layer].weight[module] =
        Add(Name(layer, module), ".weight", {size});
  }

  // Matrices [rows, in] of one input. On GPUs their biases are behind all of
  // them, so that they are one product where they follow one another in memory
  // (JoinedLinear), as without biases.
  void AddMatrices(int64_t layer,
                   const std::vector<std::pair<LayerModule, int64_t>>& rows,
                   int64_t in, bool bias) {
    DecoderLayout::Layer& to = layout_.layers[layer];
    const auto add_bias = [&](LayerModule module, int64_t out) {
      to.bias[module] = Add(Name(layer, module), ".bias", {out});
    };
    const bool behind = CurrentRunDevice().gpu;
    for (const auto& [module, out] : rows) {
      to.weight[module] = Add(Name(layer, module), ".weight", {out, in});
      if (bias && !behind) add_bias(module, out);
    }
    if (!bias || !behind) return;
    for (const auto& [module, out] : rows) add_bias(module, out);
  }

  void AddLayer(int64_t i) {
    const int64_t hidden = c_.hidden_size;
    const int64_t q = c_.num_attention_heads * c_.head_dim;
    const int64_t kv = c_.num_key_value_heads * c_.head_dim;
    DecoderLayout::Layer& layer = layout_.layers[i];
    layer.weight.fill(-1);
    layer.bias.fill(-1);
    layout_.units.push_back(absl::StrCat("layers.", i));
    layer.unit = layer.mlp_unit = unit();
    AddNorm(i, kInputNorm, hidden, c_.norm_before);
    if (c_.fused) {
      AddMatrices(i, {{kQuery, q + 2 * kv}}, hidden, c_.qkv_bias);
    } else {
      AddMatrices(i, {{kQuery, q}, {kKey, kv}, {kValue, kv}}, hidden,
                  c_.qkv_bias);
    }
    const bool has = c_.query_key_norm != kernels::QueryKeyNorm::kNone;
    const bool row = c_.query_key_norm == kernels::QueryKeyNorm::kRow;
    AddNorm(i, kQueryNorm, row ? q : c_.head_dim, has);
    AddNorm(i, kKeyNorm, row ? kv : c_.head_dim, has);
    AddMatrices(i, {{kOutput, hidden}}, q, c_.output_bias);
    AddNorm(i, kAttentionPostNorm, hidden, c_.norm_after);
    if (c_.layer(i).experts) {
      layout_.units.push_back(absl::StrCat("layers.", i, ".experts"));
      layer.mlp_unit = unit();
    }
    AddNorm(i, kMlpNorm, hidden, c_.norm_before);
    if (c_.layer(i).experts) {
      AddExperts(i);
    } else {
      AddMlp(i);
    }
    AddNorm(i, kMlpPostNorm, hidden, c_.norm_after);
  }

  void AddMlp(int64_t i) {
    const int64_t hidden = c_.hidden_size, inner = c_.intermediate_size;
    if (c_.fused) {
      AddMatrices(i, {{kGate, 2 * inner}}, hidden, c_.mlp_bias);
    } else {
      AddMatrices(i, {{kGate, inner}, {kUp, inner}}, hidden, c_.mlp_bias);
    }
    AddMatrices(i, {{kDown, hidden}}, inner, c_.mlp_bias);
  }

  void AddExperts(int64_t i) {
    const int64_t hidden = c_.hidden_size, inner = c_.experts.intermediate_size;
    AddMatrices(i, {{kRouter, c_.experts.count}}, hidden, false);
    const std::string prefix =
        absl::StrCat(c_.names->layers, i, ".", c_.names->experts);
    for (int64_t e = 0; e < c_.experts.count; ++e) {
      std::array<int, 3> indices = {};
      for (int m = 0; m < 3; ++m) {
        const bool down = m == 2;
        indices[m] =
            Add(absl::StrCat(prefix, e, ".", c_.names->in_expert[m]), ".weight",
                {down ? hidden : inner, down ? inner : hidden});
      }
      layout_.layers[i].experts.push_back(indices);
    }
  }

  const DecoderConfig& c_;
  DecoderLayout& layout_;
};

}  // namespace

void AddScoreHead(DecoderConfig* config) {
  if (config->scores) return;
  config->scores = config->new_scores = true;
  config->tie_word_embeddings = false;
}

absl::Status FinishSizes(DecoderConfig* config) {
  ConfigCheck check;
  FillHeads(config, &check);
  if (!check.ok()) return check.status();
  const DecoderConfig& c = *config;
  CheckSizes(c, &check);
  if (!check.ok()) return check.status();
  CheckHeads(c, &check);
  check.Positive("rms_norm_eps", c.rms_norm_eps);
  for (const Rope& rope : c.ropes) CheckRope(c, rope, &check);
  check.Positive(c.names->initializer_range, c.initializer_range);
  check.Token("bos_token_id", c.bos_token_id, c.vocab_size);
  check.Token("eos_token_id", c.eos_token_id, c.vocab_size);
  check.Token("pad_token_id", c.pad_token_id, c.vocab_size);
  check.Token("mask_token_id", c.mask_token_id, c.vocab_size);
  return check.status();
}

DecoderLayout::DecoderLayout(const DecoderConfig& config) {
  LayoutBuilder(config, this).Build();
}

bool IsUnused(const DecoderConfig& config, absl::string_view name) {
  if (absl::EndsWith(name, ".rotary_emb.inv_freq")) return true;
  for (const std::string& part : config.other_parts) {
    if (absl::StartsWith(name, part)) return true;
  }
  if (!absl::ConsumeSuffix(&name, ".weight")) return false;
  return name == config.names->head;
}

}  // namespace capstan::decoder
