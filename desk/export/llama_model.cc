// SPDX-License-Identifier: Apache-2.0
//
// The names of tensors and values are those of llama.cpp (gguf-py's
// constants.py); what it computes of them is in its src/models/.
#include "desk/export/llama_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// What llama.cpp makes of a model_type.
struct Architecture {
  const char* model_type;
  const char* name;
  // Rows of queries and keys are permuted (LlamaTensor::heads).
  bool permuted = false;
  bool norm_plus_one = false;
  // Every so many layers one sees all positions, the others a window; 0: none
  // has a window.
  int64_t window_period = 0;
  // With so many layers attention is scaled by hidden_size over heads in place
  // of head_dim.
  int64_t odd_layers = 0;
  // Heads are as long as hidden_size over their number.
  bool plain_heads = false;
  // Modules that may have biases, or "all".
  std::set<std::string> biases;
};

const std::vector<Architecture>& Architectures() {
  static const auto* const all = new std::vector<Architecture>{
      {"llama", "llama", true, false, 0, 0, false, {"all"}},
      {"mistral", "llama", true},
      {"smollm3", "smollm3", true},
      {"qwen2",
       "qwen2",
       false,
       false,
       0,
       0,
       true,
       {"attn_q", "attn_k", "attn_v"}},
      {"qwen3", "qwen3"},
      {"qwen3_moe", "qwen3moe"},
      {"gemma2", "gemma2", false, true, 2, 46},
      {"gemma3_text", "gemma3", false, true, 6, 62},
      {"olmo2", "olmo2", false, false, 0, 0, true},
      {"phi3", "phi3", false, false, 0, 0, true},
  };
  return *all;
}

// Modules by their names in Hugging Face's folders, without "model." and
// "layers.N.".
const std::map<std::string, std::string>& Modules() {
  static const auto* const modules = new std::map<std::string, std::string>{
      {"embed_tokens", "token_embd"},
      {"norm", "output_norm"},
      {"lm_head", "output"},
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.o_proj", "attn_output"},
      {"post_attention_layernorm", "ffn_norm"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.experts.gate_proj", "ffn_gate_exps"},
      {"mlp.experts.up_proj", "ffn_up_exps"},
      {"mlp.experts.down_proj", "ffn_down_exps"},
  };
  return *modules;
}

absl::Status NotInLlama(const std::string& what) {
  return WithCode(absl::UnimplementedError(absl::StrCat(
                      what,
                      ": llama.cpp doesn't compute that; export to "
                      "--format=hf, or train without it")),
                  "export/architecture");
}

class Description {
 public:
  Description(const Model& model, std::string path, const Json& json,
              const Architecture& architecture)
      : specs_(model.parameters()),
        path_(std::move(path)),
        json_(json),
        keys_(path_, json),
        architecture_(architecture) {
    for (const ParameterSpec& spec : specs_) names_.insert(spec.name);
  }

  absl::StatusOr<LlamaModel> Make();

 private:
  template <typename Value>
  void Set(const char* key, Value value) {
    result_.values.emplace_back(absl::StrCat(architecture_.name, ".", key),
                                std::move(value));
  }
  void SetInt(const char* key, int64_t value) {
    Set(key, static_cast<uint32_t>(value));
  }
  void SetDouble(const char* key, double value) {
    Set(key, static_cast<float>(value));
  }
  bool IsGemma() const { return architecture_.window_period > 0; }
  // The size of a parameter; 0 if there is none whose name ends so.
  int64_t Size(absl::string_view ending, int dimension) const;
  void ReadSizes();
  void SetSizes();
  void SetExperts();
  // Gemma 2's default is `usual`; null is none, as in Gemma 3.
  double Softcap(const char* key, double usual) {
    const bool by_default = !json_.contains(key) &&
                            std::string(architecture_.model_type) == "gemma2";
    return keys_.Double(key, by_default ? usual : 0.0);
  }
  absl::Status CheckAttention();
  absl::Status SetWindow();
  Json RopeOf(const char* layers);
  absl::Status SetRope();
  absl::Status SetStretch(const Json& rope, const std::string& type);
  std::vector<float> Llama3Factors(const Json& rope) const;
  void AddValues(const char* name, std::vector<float> values);
  absl::Status AddTensor(int parameter);

  const std::vector<ParameterSpec>& specs_;
  std::set<std::string> names_;
  const std::string path_;
  const Json& json_;
  JsonKeys keys_;
  const Architecture& architecture_;
  LlamaModel result_;
  std::map<std::string, size_t> added_;  // tensors by name
  int64_t layers_ = 0, hidden_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  int64_t positions_ = 0;
  double theta_ = 0.0;
  int64_t rotated_ = 0;  // channels of a head
};

int64_t Description::Size(absl::string_view ending, int dimension) const {
  for (const ParameterSpec& spec : specs_) {
    if (absl::EndsWith(spec.name, ending)) return spec.shape[dimension];
  }
  return 0;
}

void Description::ReadSizes() {
  layers_ = keys_.Int("num_hidden_layers", absl::nullopt);
  hidden_ = Size("embed_tokens.weight", 1);
  result_.vocabulary = Size("embed_tokens.weight", 0);
  const absl::optional<int64_t> none;
  heads_ = keys_.Int("num_attention_heads",
                     IsGemma() ? absl::optional<int64_t>(8) : none);
  head_dim_ = keys_.Int("head_dim", 0);
  if (head_dim_ == 0) head_dim_ = IsGemma() ? 256 : hidden_ / heads_;
  kv_heads_ = Size("k_proj.weight", 0) / head_dim_;
  if (kv_heads_ == 0) {
    kv_heads_ = (Size("qkv_proj.weight", 0) / head_dim_ - heads_) / 2;
  }
  const std::string type = architecture_.model_type;
  const int64_t otherwise = type == "llama" || type == "olmo2" ? 2048
                            : type == "gemma2"                 ? 8192
                            : type == "phi3"                   ? 4096
                            : type == "mistral" || type == "gemma3_text"
                                ? 131072
                                : 32768;
  positions_ = keys_.Int("max_position_embeddings", otherwise);
}

void Description::SetSizes() {
  SetInt("vocab_size", result_.vocabulary);
  SetInt("embedding_length", hidden_);
  SetInt("block_count", layers_);
  int64_t inner = Size("mlp.up_proj.weight", 0);
  if (inner == 0) inner = Size("mlp.gate_up_proj.weight", 0) / 2;
  if (inner == 0) inner = keys_.Int("intermediate_size", 0);
  SetInt("feed_forward_length", inner);
  SetInt("attention.head_count", heads_);
  SetInt("attention.head_count_kv", kv_heads_);
  SetInt("attention.key_length", head_dim_);
  SetInt("attention.value_length", head_dim_);
  const std::string type = architecture_.model_type;
  SetDouble("attention.layer_norm_rms_epsilon",
            keys_.Double("rms_norm_eps",
                         type == "olmo2" || type == "phi3" ? 1e-5 : 1e-6));
}

void Description::SetExperts() {
  if (std::string(architecture_.name) != "qwen3moe") return;
  SetInt("expert_count", Size("mlp.gate.weight", 0));
  SetInt("expert_used_count", keys_.Int("num_experts_per_tok", 8));
  SetInt("expert_feed_forward_length", Size("experts.0.up_proj.weight", 0));
}

absl::Status Description::CheckAttention() {
  const std::string type = architecture_.model_type;
  const bool has_head = Size("lm_head.weight", 0) > 0;
  if ((type == "gemma2" && has_head) || (type == "olmo2" && !has_head)) {
    return NotInLlama(absl::StrCat(path_, ": tie_word_embeddings ",
                                   has_head ? "false" : "true"));
  }
  if (architecture_.plain_heads && heads_ * head_dim_ != hidden_) {
    return NotInLlama(absl::StrCat(path_, ": head_dim ", head_dim_,
                                   " that isn't hidden_size / heads"));
  }
  if (IsGemma()) {
    const double wanted = layers_ == architecture_.odd_layers
                              ? static_cast<double>(hidden_ / heads_)
                              : static_cast<double>(head_dim_);
    const double scalar = keys_.Double("query_pre_attn_scalar", 256.0);
    if (scalar != wanted) {
      return NotInLlama(absl::StrCat(path_, ": query_pre_attn_scalar ", scalar,
                                     " in place of ", wanted));
    }
    const double cap = Softcap("attn_logit_softcapping", 50.0);
    if ((cap > 0.0) != (type == "gemma2")) {
      return NotInLlama(absl::StrCat(path_, ": attn_logit_softcapping ", cap));
    }
    if (cap > 0.0) SetDouble("attn_logit_softcapping", cap);
    const double last = Softcap("final_logit_softcapping", 30.0);
    if ((last > 0.0) != (type == "gemma2")) {
      return NotInLlama(
          absl::StrCat(path_, ": final_logit_softcapping ", last));
    }
    if (last > 0.0) SetDouble("final_logit_softcapping", last);
  }
  if (type == "qwen3_moe") {
    for (int64_t i = 0; i < layers_; ++i) {
      if (names_.count(absl::StrCat("model.layers.", i, ".mlp.gate.weight")) ==
          0) {
        return NotInLlama(
            absl::StrCat(path_, ": layer ", i, " has no experts"));
      }
    }
    if (!keys_.Bool("norm_topk_prob", false)) {
      return NotInLlama(absl::StrCat(path_, ": norm_topk_prob false"));
    }
  }
  const Json* const rotated = keys_.Find("no_rope_layers");
  for (int64_t i = 0; type == "smollm3" && i < layers_; ++i) {
    const int64_t interval = keys_.Int("no_rope_layer_interval", 4);
    const bool turns =
        rotated != nullptr ? (*rotated)[i] != 0 : (i + 1) % interval != 0;
    if (turns != ((i + 1) % 4 != 0)) {
      return NotInLlama(absl::StrCat(path_, ": no_rope_layers, of which layer ",
                                     i, " isn't as if each fourth had none"));
    }
  }
  return keys_.status();
}

// Sets the window, and positions_ to what llama.cpp computes right.
absl::Status Description::SetWindow() {
  const std::string type = architecture_.model_type;
  const bool always = IsGemma() || type == "mistral" || type == "phi3";
  int64_t window = 0;
  if (always || keys_.Bool("use_sliding_window", false)) {
    const bool given = json_.contains("sliding_window");
    const bool by_default = IsGemma() || type == "mistral";
    window = keys_.Int("sliding_window", given || !by_default ? 0 : 4096);
  }
  if (window <= 0 || window > positions_) window = positions_;
  if (IsGemma()) {
    const int64_t period = architecture_.window_period;
    const int64_t given = keys_.Int(
        "sliding_window_pattern", keys_.Int("_sliding_window_pattern", period));
    const Json* const types = keys_.Find("layer_types");
    for (int64_t i = 0; i < layers_; ++i) {
      const bool slides = types != nullptr ? (*types)[i] == "sliding_attention"
                                           : (i + 1) % given != 0;
      // Most versions know this period alone, and ignore another.
      if (slides != ((i + 1) % period != 0)) {
        return NotInLlama(absl::StrCat(
            path_, ": layer_types, of which layer ", i, " isn't as if each ",
            period == 2 ? "second" : "sixth", " had no window"));
      }
    }
    SetInt("attention.sliding_window", window);
  } else if (window < positions_) {
    result_.notes.push_back(absl::StrCat(
        "llama.cpp has no windows in this architecture: its context_length is "
        "that of the window, ",
        window, ", in place of ", positions_));
    positions_ = window;
  }
  SetInt("context_length", positions_);
  return absl::OkStatus();
}

// The rope of all layers, or of those of a kind ("full_attention"); an object.
Json Description::RopeOf(const char* layers) {
  Json rope = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* found = keys_.Find(key);
    if (found == nullptr || !found->is_object()) continue;
    if (found->contains(layers)) found = &(*found)[layers];
    for (const auto& [name, value] : found->items()) {
      if (!value.is_null() && !value.is_object()) rope[name] = value;
    }
  }
  return rope;
}

void Description::AddValues(const char* name, std::vector<float> values) {
  LlamaTensor tensor;
  tensor.gguf.name = name;
  tensor.gguf.shape = {static_cast<int64_t>(values.size())};
  tensor.values = std::move(values);
  result_.tensors.push_back(std::move(tensor));
}

// Of "rope_freqs.weight", which divide the frequencies (as transformers'
// modeling_rope_utils.py computes them).
std::vector<float> Description::Llama3Factors(const Json& rope) const {
  const double factor = rope.value("factor", 1.0);
  const double low = rope.value("low_freq_factor", 1.0);
  const double high = rope.value("high_freq_factor", 4.0);
  const double trained = rope.value("original_max_position_embeddings", 8192.0);
  std::vector<float> factors;
  for (int64_t i = 0; i < rotated_; i += 2) {
    const double length =
        2 * M_PI * std::pow(theta_, static_cast<double>(i) / rotated_);
    const double smooth =
        std::clamp((trained / length - low) / (high - low), 0.0, 1.0);
    factors.push_back(
        static_cast<float>(1.0 / ((1.0 - smooth) / factor + smooth)));
  }
  return factors;
}

absl::Status Description::SetStretch(const Json& rope,
                                     const std::string& type) {
  const double factor = rope.value("factor", 1.0);
  const int64_t trained =
      rope.value("original_max_position_embeddings",
                 keys_.Int("original_max_position_embeddings", positions_));
  // Tensors of factors are read where the architecture has a place for them.
  const std::string name = architecture_.name;
  const bool is_long = type == "longrope" || type == "su";
  if (name != "llama" && (type == "llama3" || (is_long && name != "phi3"))) {
    return NotInLlama(absl::StrCat(path_, ": rope of type \"", type,
                                   "\" of a \"", architecture_.model_type,
                                   "\""));
  }
  if (type == "llama3") {
    AddValues("rope_freqs.weight", Llama3Factors(rope));
  } else if (type == "linear") {
    Set("rope.scaling.type", std::string("linear"));
    SetDouble("rope.scaling.factor", factor);
  } else if (type == "yarn") {
    for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"}) {
      const double usual = 0.1 * std::log(factor) + 1.0;
      if (rope.contains(key) &&
          (std::string(key) != "attention_factor" ||
           std::fabs(rope[key].get<double>() - usual) > 1e-6)) {
        return NotInLlama(absl::StrCat(path_, ": ", key, " of rope"));
      }
    }
    if (!rope.value("truncate", true)) {
      return NotInLlama(absl::StrCat(path_, ": truncate false of rope"));
    }
    Set("rope.scaling.type", std::string("yarn"));
    SetDouble("rope.scaling.factor", factor);
    SetInt("rope.scaling.original_context_length", trained);
    SetDouble("rope.scaling.yarn_beta_fast", rope.value("beta_fast", 32.0));
    SetDouble("rope.scaling.yarn_beta_slow", rope.value("beta_slow", 1.0));
  } else if (is_long) {
    const double ratio =
        static_cast<double>(keys_.Int("max_position_embeddings", trained)) /
        static_cast<double>(trained);
    Set("rope.scaling.type", std::string("longrope"));
    SetInt("rope.scaling.original_context_length", trained);
    SetDouble(
        "rope.scaling.attn_factor",
        rope.value("attention_factor",
                   ratio <= 1.0
                       ? 1.0
                       : std::sqrt(1.0 + std::log(ratio) / std::log(trained))));
    for (const char* length : {"long", "short"}) {
      AddValues(
          absl::StrCat("rope_factors_", length, ".weight").c_str(),
          rope[absl::StrCat(length, "_factor")].get<std::vector<float>>());
    }
  } else {
    return NotInLlama(absl::StrCat(path_, ": rope of type \"", type, "\""));
  }
  return absl::OkStatus();
}

absl::Status Description::SetRope() {
  const Json rope = RopeOf("full_attention");
  const std::string model = architecture_.model_type;
  const double usual = model == "smollm3"       ? 2000000.0
                       : model == "gemma3_text" ? 1000000.0
                                                : 10000.0;
  theta_ = rope.value("rope_theta", keys_.Double("rope_theta", usual));
  const double share = rope.value("partial_rotary_factor",
                                  keys_.Double("partial_rotary_factor", 1.0));
  rotated_ = static_cast<int64_t>(static_cast<double>(head_dim_) * share);
  SetInt("rope.dimension_count", rotated_);
  SetDouble("rope.freq_base", theta_);
  if (model == "gemma3_text") {
    SetDouble("rope.freq_base_swa",
              RopeOf("sliding_attention")
                  .value("rope_theta",
                         keys_.Double("rope_local_base_freq", 10000.0)));
  }
  std::string type = rope.value("rope_type", rope.value("type", "default"));
  if (model == "phi3" && type == "yarn") type = "longrope";
  return type == "default" ? absl::OkStatus() : SetStretch(rope, type);
}

absl::Status Description::AddTensor(int parameter) {
  const ParameterSpec& spec = specs_[parameter];
  absl::string_view rest = spec.name;
  absl::ConsumePrefix(&rest, "model.");
  std::string layer;
  std::vector<std::string> words = absl::StrSplit(rest, '.');
  if (words.size() > 3 && words[0] == "layers") {
    layer = absl::StrCat("blk.", words[1], ".");
    words.erase(words.begin(), words.begin() + 2);
  }
  const bool expert = words.size() > 3 && words[1] == "experts";
  if (expert) words.erase(words.begin() + 2);
  const std::string kind = words.back();
  words.pop_back();
  const auto found = Modules().find(absl::StrJoin(words, "."));
  std::string module = found == Modules().end() ? "" : found->second;
  // A norm of attention's output, where another is before the MLP.
  if (words[0] == "post_attention_layernorm" &&
      Size("post_feedforward_layernorm.weight", 0) > 0) {
    module = "post_attention_norm";
  }
  const std::set<std::string>& biases = architecture_.biases;
  if (module.empty() || (kind == "bias" && biases.count("all") == 0 &&
                         biases.count(module) == 0)) {
    return NotInLlama(absl::StrCat(path_, ": the parameter ", spec.name,
                                   " of a \"", architecture_.model_type, "\""));
  }
  LlamaTensor tensor;
  tensor.gguf.name = absl::StrCat(layer, module, ".", kind);
  const auto [place, first] =
      added_.emplace(tensor.gguf.name, result_.tensors.size());
  if (!first) {  // another expert
    LlamaTensor& all = result_.tensors[place->second];
    all.parameters.push_back(parameter);
    ++all.gguf.shape[0];
    return absl::OkStatus();
  }
  tensor.gguf.shape = spec.shape;
  if (expert) tensor.gguf.shape.insert(tensor.gguf.shape.begin(), 1);
  tensor.parameters = {parameter};
  if (architecture_.permuted && module == "attn_q") tensor.heads = heads_;
  if (architecture_.permuted && module == "attn_k") tensor.heads = kv_heads_;
  if (architecture_.norm_plus_one && absl::EndsWith(module, "norm")) {
    tensor.plus = 1.0f;
  }
  result_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<LlamaModel> Description::Make() {
  result_.values.emplace_back("general.architecture",
                              std::string(architecture_.name));
  ReadSizes();
  CAPSTAN_RETURN_IF_ERROR(keys_.status());
  SetSizes();
  SetExperts();
  CAPSTAN_RETURN_IF_ERROR(CheckAttention());
  CAPSTAN_RETURN_IF_ERROR(SetRope());
  CAPSTAN_RETURN_IF_ERROR(SetWindow());
  for (size_t i = 0; i < specs_.size(); ++i) {
    CAPSTAN_RETURN_IF_ERROR(AddTensor(static_cast<int>(i)));
  }
  CAPSTAN_RETURN_IF_ERROR(keys_.status());
  return std::move(result_);
}

}  // namespace

LlamaTensor::Row LlamaTensor::Source(int64_t row) const {
  const int64_t each = rows() / static_cast<int64_t>(parameters.size());
  const int parameter = parameters[row / each];
  row %= each;
  if (heads > 0) {
    const int64_t head = each / heads, in_head = row % head;
    row += in_head % 2 * (head / 2) + in_head / 2 - in_head;
  }
  return {parameter, row};
}

absl::StatusOr<LlamaModel> DescribeForLlama(const Model& model,
                                            const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  const std::string type = json.value("model_type", "");
  std::vector<std::string> known;
  for (const Architecture& architecture : Architectures()) {
    if (type == architecture.model_type) {
      return Description(model, "config.json", json, architecture).Make();
    }
    known.push_back(architecture.model_type);
  }
  return WithCode(absl::UnimplementedError(absl::StrCat(
                      "model_type \"", type,
                      "\" isn't one that llama.cpp has here; these "
                      "are: ",
                      absl::StrJoin(known, ", "))),
                  "export/architecture");
}

}  // namespace capstan
