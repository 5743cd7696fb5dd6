// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/families/reading.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::decoder {
namespace {

using Json = ConfigJson;

constexpr std::pair<const char*, RopeKind> kRopeKinds[] = {
    {"default", RopeKind::kDefault},   {"linear", RopeKind::kLinear},
    {"dynamic", RopeKind::kDynamic},   {"yarn", RopeKind::kYarn},
    {"longrope", RopeKind::kLongRope}, {"su", RopeKind::kLongRope},
    {"llama3", RopeKind::kLlama3},
};

// What a rope's object may say.
constexpr const char* kRopeKeys[] = {
    "rope_theta", "rope_type", "type", "partial_rotary_factor", "factor",
    "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "short_factor", "long_factor", "low_freq_factor",
    "high_freq_factor", "mscale", "mscale_all_dim", "truncate",
    // Of old files; nobody reads them.
    "finetuned", "short_mscale", "long_mscale"};

// Reads one rope's object, `json`, which is called `name`.
class RopeReader {
 public:
  RopeReader(ConfigKeys& keys, std::string name, const Json& json)
      : keys_(keys), name_(std::move(name)), json_(json) {}

  const Json* Find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  void Fail(absl::string_view key, absl::string_view problem) {
    keys_.Fail(absl::StrCat(name_, ".", key), problem);
  }

  double Number(const char* key, double otherwise) {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number()) return value->get<double>();
    Fail(key, absl::StrCat("must be a number, is ", value->dump()));
    return otherwise;
  }

  double Needed(const char* key) {
    if (Find(key) == nullptr) Fail(key, "is missing");
    return Positive(key, 1.0);
  }

  double Positive(const char* key, double otherwise) {
    const double value = Number(key, otherwise);
    if (value > 0.0 && std::isfinite(value)) return value;
    Fail(key, absl::StrCat("must be greater than 0, is ", value));
    return otherwise;
  }

  // A factor that stretches.
  double Factor(double otherwise) {
    const double factor = Positive("factor", otherwise);
    if (factor < 1.0) {
      Fail("factor", absl::StrCat("must be at least 1, is ", factor));
    }
    return factor;
  }

  std::vector<double> Numbers(const char* key) {
    std::vector<double> numbers;
    const Json* value = Find(key);
    if (value == nullptr || !value->is_array()) {
      Fail(key, "must be a list of numbers");
      return numbers;
    }
    for (const Json& number : *value) {
      if (!number.is_number() || !(number.get<double>() > 0.0)) {
        Fail(key, absl::StrCat("must hold numbers greater than 0, holds ",
                               number.dump()));
        break;
      }
      numbers.push_back(number.get<double>());
    }
    return numbers;
  }

  RopeKind Kind() {
    for (const char* key : {"rope_type", "type"}) {
      const Json* type = Find(key);
      if (type == nullptr) continue;
      for (const auto& [name, kind] : kRopeKinds) {
        if (*type == name) return kind;
      }
      Fail(key, absl::StrCat(type->dump(), " is not implemented, only ",
                             absl::StrJoin(kRopeKinds, ", ",
                                           [](std::string* out, const auto& k) {
                                             absl::StrAppend(out, "\"", k.first,
                                                             "\"");
                                           })));
      return RopeKind::kDefault;
    }
    return RopeKind::kDefault;
  }

  void RejectUnknown() {
    for (const auto& [key, value] : json_.items()) {
      const bool known = std::any_of(std::begin(kRopeKeys), std::end(kRopeKeys),
                                     [&](const char* k) { return key == k; });
      if (!known && !value.is_null()) {
        Fail(key, absl::StrCat("is not known; known are ",
                               absl::StrJoin(kRopeKeys, ", ")));
      }
    }
  }

 private:
  ConfigKeys& keys_;
  const std::string name_;
  const Json& json_;
};

double YarnScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// For what the file doesn't say: modeling_rope_utils.py.
double DefaultAttentionFactor(const Rope& rope, RopeReader& reader) {
  if (rope.kind == RopeKind::kYarn) {
    const double mscale = reader.Number("mscale", 0.0);
    const double all = reader.Number("mscale_all_dim", 0.0);
    return mscale != 0.0 && all != 0.0
               ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, all)
               : YarnScale(rope.factor, 1.0);
  }
  if (rope.kind == RopeKind::kLongRope && rope.factor > 1.0) {
    return std::sqrt(1.0 +
                     std::log(rope.factor) /
                         std::log(static_cast<double>(rope.trained_positions)));
  }
  return 1.0;
}

// The values of one kind of stretching.
void ReadStretch(ConfigKeys& keys, const DecoderConfig& c,
                 const RopeReading& reading, RopeReader& reader, Rope* rope) {
  const double positions = static_cast<double>(c.max_position_embeddings);
  rope->trained_positions = c.max_position_embeddings;
  const bool from_trained = rope->kind == RopeKind::kYarn ||
                            rope->kind == RopeKind::kLongRope ||
                            rope->kind == RopeKind::kLlama3;
  if (from_trained) {
    constexpr const char* kTrained = "original_max_position_embeddings";
    const auto inside = static_cast<int64_t>(
        std::min(reader.Positive(kTrained, positions), 1e15));
    // One of several ropes says its own; of a single one, the config's goes
    // first.
    rope->trained_positions =
        reading.layers != nullptr
            ? inside
            : keys.Int(kTrained, reading.trained_positions > 0
                                     ? reading.trained_positions
                                     : inside);
    // Its logarithm divides.
    if (rope->trained_positions < 2) {
      keys.Fail(kTrained, absl::StrCat("must be greater than 1, is ",
                                       rope->trained_positions));
      rope->trained_positions = 2;
    }
  }
  const double ratio =
      std::max(positions / static_cast<double>(rope->trained_positions), 1.0);
  if (rope->kind != RopeKind::kLongRope && reader.Find("factor") == nullptr &&
      rope->kind != RopeKind::kYarn) {
    reader.Fail("factor", "is missing");
  }
  rope->factor = reader.Factor(ratio);
  if (rope->kind == RopeKind::kLlama3) {
    rope->low_frequency_factor = reader.Needed("low_freq_factor");
    rope->high_frequency_factor = reader.Needed("high_freq_factor");
    if (rope->high_frequency_factor <= rope->low_frequency_factor) {
      reader.Fail("high_freq_factor", "must be greater than low_freq_factor");
    }
  }
  if (rope->kind == RopeKind::kYarn) {
    rope->beta_fast = reader.Positive("beta_fast", 32.0);
    rope->beta_slow = reader.Positive("beta_slow", 1.0);
    const Json* truncate = reader.Find("truncate");
    rope->truncate = truncate == nullptr || *truncate != false;
    if (rope->theta <= 1.0) {
      reader.Fail("rope_theta", "must be greater than 1 for \"yarn\"");
    }
  }
  if (rope->kind == RopeKind::kLongRope) {
    rope->short_factors = reader.Numbers("short_factor");
    rope->long_factors = reader.Numbers("long_factor");
  }
  rope->attention_factor = reader.Positive(
      "attention_factor", DefaultAttentionFactor(*rope, reader));
}

// `otherwise`, if the key is absent and the vocabulary has it.
absl::optional<int64_t> TokenOr(const char* key, ConfigKeys& keys,
                                absl::optional<int64_t> otherwise,
                                int64_t vocab_size) {
  if (keys.Has(key)) return keys.Token(key);
  if (otherwise.has_value() && *otherwise >= vocab_size) return absl::nullopt;
  return otherwise;
}

// The object that says how to rotate, and its name; null: there is none.
const Json* FindRope(ConfigKeys& keys, const RopeReading& reading,
                     std::string* name) {
  for (const char* key : {reading.scaling_key, "rope_parameters"}) {
    const Json* found = key == nullptr ? nullptr : keys.Find(key);
    if (found == nullptr) continue;
    *name = key;
    const bool by_layer =
        reading.layers != nullptr && std::string(key) == "rope_parameters";
    if (found->is_object() && by_layer) {
      const auto it = found->find(reading.layers);
      if (it == found->end() || it->is_null()) continue;
      absl::StrAppend(name, ".", reading.layers);
      found = &*it;
    }
    if (!found->is_object()) {
      keys.Fail(*name, absl::StrCat("must be an object, is ", found->dump()));
      continue;
    }
    if (found->empty()) continue;
    return found;
  }
  return nullptr;
}

}  // namespace

void ReadSizes(ConfigKeys& keys, DecoderConfig* config) {
  DecoderConfig& c = *config;
  const auto size = [&](const char* key, int64_t otherwise) {
    return keys.Int(key, otherwise == 0 ? absl::nullopt
                                        : absl::optional<int64_t>(otherwise));
  };
  c.hidden_size = size("hidden_size", c.hidden_size);
  c.intermediate_size = size("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = size("num_hidden_layers", c.num_hidden_layers);
  if (c.num_hidden_layers < 1 ||
      c.num_hidden_layers > ConfigCheck::kMostLayers) {
    keys.Fail("num_hidden_layers",
              absl::StrCat("must be from 1 to ", ConfigCheck::kMostLayers,
                           ", is ", c.num_hidden_layers));
    c.num_hidden_layers = 1;  // as families make a list of them
  }
  c.num_attention_heads = size("num_attention_heads", c.num_attention_heads);
  // Null: as many as of queries, though the class has another default.
  c.num_key_value_heads =
      keys.Int("num_key_value_heads",
               keys.Has("num_key_value_heads") ? 0 : c.num_key_value_heads);
  c.head_dim = keys.Int("head_dim", c.head_dim);
  c.vocab_size = size("vocab_size", c.vocab_size);
  c.max_position_embeddings =
      size("max_position_embeddings", c.max_position_embeddings);
  c.rms_norm_eps = keys.Double("rms_norm_eps", c.rms_norm_eps);
  c.tie_word_embeddings =
      keys.Bool("tie_word_embeddings", c.tie_word_embeddings);
  c.initializer_range = keys.Double("initializer_range", c.initializer_range);
  c.bos_token_id = TokenOr("bos_token_id", keys, c.bos_token_id, c.vocab_size);
  c.eos_token_id = TokenOr("eos_token_id", keys, c.eos_token_id, c.vocab_size);
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    keys.Only(key, 0.0, 0);
  }
  keys.RejectQuantized();
}

Rope ReadRope(ConfigKeys& keys, const DecoderConfig& c,
              const RopeReading& reading) {
  Rope rope;
  rope.theta = reading.theta;
  if (reading.theta_key != nullptr) {
    rope.theta = keys.Double(reading.theta_key, reading.theta);
  }
  rope.share = keys.Double("partial_rotary_factor", 1.0);
  std::string name;
  const Json* found = FindRope(keys, reading, &name);
  // With rope_scaling beside rope_parameters, the base may be in either.
  const Json* other = keys.Find("rope_parameters");
  if (other != nullptr && other->is_object() && other != found &&
      reading.layers == nullptr) {
    rope.theta = RopeReader(keys, "rope_parameters", *other)
                     .Number("rope_theta", rope.theta);
  }
  if (found != nullptr) {
    RopeReader reader(keys, name, *found);
    reader.RejectUnknown();
    rope.kind = reader.Kind();
    if (reading.yarn_is_longrope && rope.kind == RopeKind::kYarn) {
      rope.kind = RopeKind::kLongRope;
    }
    rope.theta = reader.Number("rope_theta", rope.theta);
    rope.share = reader.Number("partial_rotary_factor", rope.share);
    if (rope.kind != RopeKind::kDefault) {
      ReadStretch(keys, c, reading, reader, &rope);
    }
  }
  if (rope.share != 1.0 && !reading.partial) {
    keys.Fail("partial_rotary_factor",
              absl::StrCat(rope.share, " is not implemented, only 1"));
  }
  if (!(rope.share > 0.0 && rope.share <= 1.0)) {
    keys.Fail("partial_rotary_factor",
              absl::StrCat("must be above 0 and at most 1, is ", rope.share));
    rope.share = 1.0;
  }
  return rope;
}

void ReadWindow(ConfigKeys& keys, int64_t otherwise,
                const std::vector<bool>& sliding, DecoderConfig* c) {
  const int64_t window =
      keys.Int("sliding_window", keys.Has("sliding_window") ? 0 : otherwise);
  if (window < 0) {
    keys.Fail("sliding_window",
              absl::StrCat("must be 0 or greater, or null, is ", window));
  }
  // Beyond all positions, it changes nothing.
  if (window <= 0 || window >= c->max_position_embeddings) return;
  c->layer_kinds.resize(sliding.size());
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) c->layer_kinds[i].window = window;
  }
}

void ReadUpperWindows(ConfigKeys& keys, DecoderConfig* c) {
  if (!keys.Bool("use_sliding_window", false)) return;
  const int64_t first = keys.Int("max_window_layers", 28);
  std::vector<bool> sliding(c->num_hidden_layers);
  for (size_t i = 0; i < sliding.size(); ++i) {
    sliding[i] = static_cast<int64_t>(i) >= first;
  }
  ReadWindow(keys, 4096, ReadSliding(keys, *c, std::move(sliding)), c);
}

std::vector<bool> ReadSliding(ConfigKeys& keys, const DecoderConfig& c,
                              std::vector<bool> otherwise) {
  const Json* types = keys.Find("layer_types");
  if (types == nullptr) return otherwise;
  if (!types->is_array() ||
      static_cast<int64_t>(types->size()) != c.num_hidden_layers) {
    keys.Fail("layer_types",
              absl::StrCat("must be a list with a kind for each of the ",
                           c.num_hidden_layers, " layers"));
    return otherwise;
  }
  std::vector<bool> sliding;
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      keys.Fail("layer_types",
                absl::StrCat(type.dump(),
                             " is not implemented, only \"full_attention\" "
                             "and \"sliding_attention\""));
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

void ReadActivation(ConfigKeys& keys, const char* key, const char* otherwise,
                    DecoderConfig* c) {
  const Json* found = keys.Find(key);
  const Json name = found == nullptr ? Json(otherwise) : *found;
  if (name == "silu" || name == "swish") {
    c->activation = kernels::Activation::kSilu;
  } else if (name == "gelu_pytorch_tanh" || name == "gelu_new") {
    c->activation = kernels::Activation::kGeluTanh;
  } else {
    keys.Fail(key, absl::StrCat(name.dump(),
                                " is not implemented, only \"silu\" and "
                                "\"gelu_pytorch_tanh\""));
  }
}

}  // namespace capstan::decoder
