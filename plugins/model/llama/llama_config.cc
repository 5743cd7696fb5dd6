// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_config.h"

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "plugins/common/text_file.h"
#include "plugins/sdk/status.h"

namespace capstan {
namespace llama {
namespace {

using Json = nlohmann::ordered_json;

// What Check found wrong: with one key's value.
struct Problem {
  std::string key;
  std::string text;
};

// Whether the sizes make a model, from whichever source.
absl::optional<Problem> FindProblem(const LlamaConfig& c) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"vocab_size", c.vocab_size},
      {"max_position_embeddings", c.max_position_embeddings},
  };
  for (const auto& [name, value] : sizes) {
    // Products of two sizes then fit an int64.
    if (value < 1 || value > std::numeric_limits<int32_t>::max()) {
      return Problem{name,
                     absl::StrCat("must be from 1 to 2147483647, is ", value)};
    }
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return Problem{
        "num_key_value_heads",
        absl::StrCat("must divide num_attention_heads, which is ",
                     c.num_attention_heads, ", is ", c.num_key_value_heads)};
  }
  if (c.head_dim % 2 != 0) {
    return Problem{"head_dim", absl::StrCat("must be even for the rotary "
                                            "embedding, is ",
                                            c.head_dim)};
  }
  const std::pair<const char*, double> positive[] = {
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_theta", c.rope_theta},
      {"initializer_range", c.initializer_range},
  };
  for (const auto& [name, value] : positive) {
    if (!(value > 0.0 && value < std::numeric_limits<double>::infinity())) {
      return Problem{name, absl::StrCat("must be greater than 0, is ", value)};
    }
  }
  for (const auto& [name, id] : {std::make_pair("bos_token_id", c.bos_token_id),
                                 {"eos_token_id", c.eos_token_id}}) {
    if (id.has_value() && (*id < 0 || *id >= c.vocab_size)) {
      return Problem{
          name, absl::StrCat("must be below vocab_size, which is ",
                             c.vocab_size, ", and not negative, is ", *id)};
    }
  }
  return absl::nullopt;
}

// Sets num_key_value_heads and head_dim where they are 0.
absl::optional<Problem> FillHeads(LlamaConfig* c) {
  if (c->num_key_value_heads == 0) {
    c->num_key_value_heads = c->num_attention_heads;
  }
  if (c->head_dim != 0 || c->num_attention_heads < 1) return absl::nullopt;
  if (c->hidden_size % c->num_attention_heads != 0) {
    return Problem{"hidden_size",
                   absl::StrCat("must be divisible by num_attention_heads, "
                                "which is ",
                                c->num_attention_heads, ", is ", c->hidden_size,
                                " (or give head_dim for heads of "
                                "another size)")};
  }
  c->head_dim = c->hidden_size / c->num_attention_heads;
  return absl::nullopt;
}

absl::StatusOr<Json> ParseObject(const std::string& path,
                                 const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
}

// Reads keys of config.json, and remembers the first that is wrong.
class KeyReader {
 public:
  KeyReader(std::string path, const Json& json)
      : path_(std::move(path)), json_(json) {}

  int64_t Int(const char* key, absl::optional<int64_t> otherwise) {
    const Json* value = Find(key);
    if (value == nullptr) {
      if (!otherwise.has_value()) Fail(key, "is missing");
      return otherwise.value_or(1);
    }
    if (value->is_number_integer()) return value->get<int64_t>();
    Fail(key, absl::StrCat("must be an integer, is ", value->dump()));
    return 1;
  }
  double Double(const char* key, double otherwise) {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number()) return value->get<double>();
    Fail(key, absl::StrCat("must be a number, is ", value->dump()));
    return otherwise;
  }
  bool Bool(const char* key, bool otherwise) {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    Fail(key, absl::StrCat("must be true or false, is ", value->dump()));
    return otherwise;
  }
  // A token id; the first of a list.
  absl::optional<int64_t> Token(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return absl::nullopt;
    if (value->is_array() && !value->empty()) value = &value->front();
    if (value->is_number_integer()) return value->get<int64_t>();
    Fail(key, absl::StrCat("must be a token id, is ", value->dump()));
    return absl::nullopt;
  }
  // Fails unless the key is absent, null or one of the two values.
  void Only(const char* key, const Json& value, const Json& or_value) {
    const Json* found = Find(key);
    if (found == nullptr || *found == value || *found == or_value) return;
    Fail(key, absl::StrCat(found->dump(), " is not implemented, only ",
                           value.dump()));
  }

  // Null if absent or null.
  const Json* Find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  void Fail(absl::string_view key, absl::string_view problem) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, " ", problem));
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  const Json& json_;
  absl::Status status_;
};

// The rotation's base, from either form; fails for scaled ones.
double ReadRope(KeyReader& keys) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = keys.Find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      keys.Fail(key, absl::StrCat("must be an object, is ", rope->dump()));
      continue;
    }
    for (const char* type : {"rope_type", "type"}) {
      const auto it = rope->find(type);
      if (it != rope->end() && *it != "default") {
        keys.Fail(
            absl::StrCat(key, ".", type),
            absl::StrCat(it->dump(), " is not implemented, only \"default\""));
      }
    }
    const auto partial = rope->find("partial_rotary_factor");
    if (partial != rope->end() && *partial != 1.0) {
      keys.Fail(absl::StrCat(key, ".partial_rotary_factor"),
                absl::StrCat(partial->dump(), " is not implemented, only 1"));
    }
    const auto theta = rope->find("rope_theta");
    if (theta == rope->end()) continue;
    if (theta->is_number()) return theta->get<double>();
    keys.Fail(absl::StrCat(key, ".rope_theta"),
              absl::StrCat("must be a number, is ", theta->dump()));
  }
  return keys.Double("rope_theta", 10000.0);
}

void RejectWhatIsMissingHere(KeyReader& keys) {
  const Json* type = keys.Find("model_type");
  if (type == nullptr || *type != "llama") {
    keys.Fail("model_type",
              absl::StrCat("must be \"llama\", is ",
                           type == nullptr ? "missing" : type->dump()));
  }
  keys.Only("hidden_act", "silu", "silu");
  keys.Only("attention_bias", false, false);
  keys.Only("mlp_bias", false, false);
  keys.Only("attention_dropout", 0.0, 0);
  keys.Only("partial_rotary_factor", 1.0, 1);
  if (keys.Find("quantization_config") != nullptr) {
    keys.Fail("quantization_config",
              "is not implemented, only weights that aren't quantized");
  }
}

}  // namespace

absl::StatusOr<LlamaConfig> ConfigFromSizes(const Config& config) {
  const auto or_default = [](auto value, auto otherwise) {
    return value == 0 ? static_cast<decltype(value)>(otherwise) : value;
  };
  LlamaConfig c;
  c.hidden_size = config.hidden_size();
  c.intermediate_size = config.intermediate_size();
  c.num_hidden_layers = config.num_hidden_layers();
  c.num_attention_heads = config.num_attention_heads();
  c.num_key_value_heads = config.num_key_value_heads();
  c.head_dim = config.head_dim();
  c.vocab_size = config.vocab_size();
  c.max_position_embeddings =
      or_default(config.max_position_embeddings(), 2048);
  c.rms_norm_eps = or_default(config.rms_norm_eps(), 1e-5);
  c.rope_theta = or_default(config.rope_theta(), 10000.0);
  c.tie_word_embeddings =
      !config.has_tie_word_embeddings() || config.tie_word_embeddings();
  c.initializer_range = or_default(config.initializer_range(), 0.02);
  if (config.has_bos_token_id()) c.bos_token_id = config.bos_token_id();
  if (config.has_eos_token_id()) c.eos_token_id = config.eos_token_id();
  absl::optional<Problem> problem = FillHeads(&c);
  if (!problem.has_value()) problem = FindProblem(c);
  if (problem.has_value()) return FieldError(problem->key, problem->text);
  return c;
}

absl::StatusOr<LlamaConfig> ConfigFromFolder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  KeyReader keys(path, json);
  RejectWhatIsMissingHere(keys);
  // Defaults are those of transformers' LlamaConfig.
  LlamaConfig c;
  c.hidden_size = keys.Int("hidden_size", absl::nullopt);
  c.intermediate_size = keys.Int("intermediate_size", absl::nullopt);
  c.num_hidden_layers = keys.Int("num_hidden_layers", absl::nullopt);
  c.num_attention_heads = keys.Int("num_attention_heads", absl::nullopt);
  c.num_key_value_heads = keys.Int("num_key_value_heads", 0);
  c.head_dim = keys.Int("head_dim", 0);
  c.vocab_size = keys.Int("vocab_size", absl::nullopt);
  c.max_position_embeddings = keys.Int("max_position_embeddings", 2048);
  c.rms_norm_eps = keys.Double("rms_norm_eps", 1e-6);
  c.rope_theta = ReadRope(keys);
  c.tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
  c.initializer_range = keys.Double("initializer_range", 0.02);
  c.bos_token_id = keys.Token("bos_token_id");
  c.eos_token_id = keys.Token("eos_token_id");
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  absl::optional<Problem> problem = FillHeads(&c);
  if (!problem.has_value()) problem = FindProblem(c);
  if (problem.has_value()) {
    keys.Fail(problem->key, problem->text);
    return keys.status();
  }
  c.source_config = std::move(text);
  const std::string generation_path = folder + "/generation_config.json";
  absl::StatusOr<std::string> generation = ReadTextFile(generation_path);
  if (generation.ok()) {
    CAPSTAN_RETURN_IF_ERROR(ParseObject(generation_path, *generation).status());
    c.source_generation_config = *std::move(generation);
  }
  return c;
}

absl::Status WriteConfig(const LlamaConfig& c, const std::string& folder,
                         c10::ScalarType dtype) {
  const char* dtype_name = dtype == c10::ScalarType::BFloat16 ? "bfloat16"
                           : dtype == c10::ScalarType::Half   ? "float16"
                                                              : "float32";
  const auto token = [](absl::optional<int64_t> id) {
    return id.has_value() ? Json(*id) : Json(nullptr);
  };
  Json json =
      c.source_config.empty() ? Json::object() : Json::parse(c.source_config);
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_key_value_heads;
  json["head_dim"] = c.head_dim;
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_parameters"] = {{"rope_theta", c.rope_theta},
                             {"rope_type", "default"}};
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["initializer_range"] = c.initializer_range;
  json["use_cache"] = true;
  json["dtype"] = dtype_name;
  json["torch_dtype"] = dtype_name;
  Json generation = {{"_from_model_config", true}};
  if (!c.source_generation_config.empty()) {
    generation = Json::parse(c.source_generation_config);
  }
  // A folder's own ids stay as they are: there may be several.
  for (Json* out : {&json, &generation}) {
    if (!out->contains("bos_token_id")) {
      (*out)["bos_token_id"] = token(c.bos_token_id);
    }
    if (!out->contains("eos_token_id")) {
      (*out)["eos_token_id"] = token(c.eos_token_id);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(
      WriteTextFile(folder + "/config.json", json.dump(2) + "\n"));
  return WriteTextFile(folder + "/generation_config.json",
                       generation.dump(2) + "\n");
}

}  // namespace llama
}  // namespace capstan
