// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_sizes.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace llama {
namespace {

// Whether heads can be rotated.
absl::optional<ConfigProblem> FindHeadProblem(const LlamaConfig& c) {
  const LlamaNames& names = *c.names;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return ConfigProblem{
        names.num_key_value_heads,
        absl::StrCat("must divide ", names.num_attention_heads, ", which is ",
                     c.num_attention_heads, ", is ", c.num_key_value_heads)};
  }
  if (c.head_dim % 2 == 0) return absl::nullopt;
  if (names.head_dim != nullptr) {
    return ConfigProblem{names.head_dim,
                         absl::StrCat("must be even for the rotary embedding, "
                                      "is ",
                                      c.head_dim)};
  }
  return ConfigProblem{
      names.hidden_size,
      absl::StrCat("over ", names.num_attention_heads,
                   " must be even for the rotary embedding, is ", c.head_dim)};
}

absl::optional<ConfigProblem> FindTokenProblem(const LlamaConfig& c) {
  const std::pair<const char*, absl::optional<int64_t>> tokens[] = {
      {"bos_token_id", c.bos_token_id},
      {"eos_token_id", c.eos_token_id},
      {"pad_token_id", c.pad_token_id},
      {"mask_token_id", c.mask_token_id},
  };
  for (const auto& [name, id] : tokens) {
    if (id.has_value() && (*id < 0 || *id >= c.vocab_size)) {
      return ConfigProblem{
          name, absl::StrCat("must be below vocab_size, which is ",
                             c.vocab_size, ", and not negative, is ", *id)};
    }
  }
  return absl::nullopt;
}

absl::optional<ConfigProblem> FindProblem(const LlamaConfig& c) {
  const LlamaNames& names = *c.names;
  const std::pair<const char*, int64_t> sizes[] = {
      {names.hidden_size, c.hidden_size},
      {names.intermediate_size, c.intermediate_size},
      {names.num_hidden_layers, c.num_hidden_layers},
      {names.num_attention_heads, c.num_attention_heads},
      {names.num_key_value_heads, c.num_key_value_heads},
      {names.head_dim == nullptr ? names.hidden_size : names.head_dim,
       c.head_dim},
      {"vocab_size", c.vocab_size},
      {names.max_position_embeddings, c.max_position_embeddings},
  };
  for (const auto& [name, value] : sizes) {
    // Products of two sizes then fit an int64.
    if (value < 1 || value > std::numeric_limits<int32_t>::max()) {
      return ConfigProblem{
          name, absl::StrCat("must be from 1 to 2147483647, is ", value)};
    }
  }
  absl::optional<ConfigProblem> problem = FindHeadProblem(c);
  if (problem.has_value()) return problem;
  const std::pair<const char*, double> positive[] = {
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_theta", c.rope_theta},
      {names.initializer_range, c.initializer_range},
  };
  for (const auto& [name, value] : positive) {
    if (!(value > 0.0 && value < std::numeric_limits<double>::infinity())) {
      return ConfigProblem{name,
                           absl::StrCat("must be greater than 0, is ", value)};
    }
  }
  return FindTokenProblem(c);
}

absl::optional<ConfigProblem> FillHeads(LlamaConfig* c) {
  const LlamaNames& names = *c->names;
  if (c->num_key_value_heads == 0) {
    c->num_key_value_heads = c->num_attention_heads;
  }
  if (c->head_dim != 0 || c->num_attention_heads < 1) return absl::nullopt;
  if (c->hidden_size % c->num_attention_heads != 0) {
    const std::string otherwise =
        names.head_dim == nullptr ? ""
                                  : absl::StrCat(" (or give ", names.head_dim,
                                                 " for heads of another size)");
    return ConfigProblem{
        names.hidden_size,
        absl::StrCat("must be divisible by ", names.num_attention_heads,
                     ", which is ", c->num_attention_heads, ", is ",
                     c->hidden_size, otherwise)};
  }
  c->head_dim = c->hidden_size / c->num_attention_heads;
  return absl::nullopt;
}

}  // namespace

absl::optional<ConfigProblem> FinishSizes(LlamaConfig* config) {
  absl::optional<ConfigProblem> problem = FillHeads(config);
  return problem.has_value() ? problem : FindProblem(*config);
}

}  // namespace llama
}  // namespace capstan
