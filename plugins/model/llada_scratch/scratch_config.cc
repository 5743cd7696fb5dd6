// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada_scratch/scratch_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/model/common/config_check.h"
#include "plugins/model/common/config_keys.h"

namespace capstan {
namespace llada_scratch {
namespace {

ConfigCheck CheckSizes(const Config& c) {
  ConfigCheck check;
  check.Size("vocab_size", c.vocab_size());
  check.Size("hidden_size", c.hidden_size());
  check.Size("intermediate_size", c.intermediate_size());
  check.Size("num_hidden_layers", c.num_hidden_layers());
  check.Size("num_attention_heads", c.num_attention_heads());
  check.Size("max_sequence_length", c.max_sequence_length());
  if (!check.ok()) return check;
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
  return check;
}

}  // namespace

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
  CAPSTAN_RETURN_IF_ERROR(CheckSizes(c).status());
  return c;
}

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
  const absl::optional<ConfigProblem> problem = CheckSizes(c).problem();
  if (!problem.has_value()) return c;
  keys.Fail(problem->key, problem->text);
  return keys.status();
}

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

}  // namespace llada_scratch
}  // namespace capstan
