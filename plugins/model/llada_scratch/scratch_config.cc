// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada_scratch/scratch_config.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/model/common/config_keys.h"

namespace capstan {
namespace llada_scratch {
namespace {

// The first field that makes no model, as a FieldError.
absl::Status CheckSizes(const Config& c) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", c.vocab_size()},
      {"hidden_size", c.hidden_size()},
      {"intermediate_size", c.intermediate_size()},
      {"num_hidden_layers", c.num_hidden_layers()},
      {"num_attention_heads", c.num_attention_heads()},
      {"max_sequence_length", c.max_sequence_length()},
  };
  for (const auto& [name, value] : sizes) {
    // Products of two sizes then fit an int64.
    if (value < 1 || value > std::numeric_limits<int32_t>::max()) {
      return FieldError(
          name, absl::StrCat("must be from 1 to 2147483647, is ", value));
    }
  }
  if (c.hidden_size() % c.num_attention_heads() != 0) {
    return FieldError(
        "hidden_size",
        absl::StrCat("must be divisible by num_attention_heads, which is ",
                     c.num_attention_heads(), ", is ", c.hidden_size()));
  }
  if (!(c.dropout() >= 0.0 && c.dropout() < 1.0)) {
    return FieldError("dropout", absl::StrCat("must be at least 0 and below 1, "
                                              "is ",
                                              c.dropout()));
  }
  for (const auto& [name, value] :
       {std::make_pair("layer_norm_eps", c.layer_norm_eps()),
        {"initializer_range", c.initializer_range()}}) {
    if (!(value > 0.0 && value < std::numeric_limits<double>::infinity())) {
      return FieldError(name,
                        absl::StrCat("must be greater than 0, is ", value));
    }
  }
  const auto outside = [&](bool is_set, int64_t token) {
    return is_set && (token < 0 || token >= c.vocab_size());
  };
  const auto check = [&](const char* name, bool is_set, int64_t token) {
    if (!outside(is_set, token)) return absl::OkStatus();
    return FieldError(
        name, absl::StrCat("must be below vocab_size, which is ",
                           c.vocab_size(), ", and not negative, is ", token));
  };
  CAPSTAN_RETURN_IF_ERROR(
      check("mask_token_id", c.has_mask_token_id(), c.mask_token_id()));
  CAPSTAN_RETURN_IF_ERROR(
      check("bos_token_id", c.has_bos_token_id(), c.bos_token_id()));
  CAPSTAN_RETURN_IF_ERROR(
      check("eos_token_id", c.has_eos_token_id(), c.eos_token_id()));
  return check("pad_token_id", c.has_pad_token_id(), c.pad_token_id());
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
  CAPSTAN_RETURN_IF_ERROR(CheckSizes(c));
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
  const absl::Status status = CheckSizes(c);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", *FieldOf(status), " ", status.message()));
  }
  return c;
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
