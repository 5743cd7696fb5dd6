// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/ad_transformer/ad_transformer_sizes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/model/common/config_check.h"
#include "plugins/model/common/config_keys.h"

namespace capstan {
namespace ad_transformer {
namespace {

using Json = ConfigJson;

constexpr char kModelType[] = "ad_transformer";

// Coordinates and actions are bytes.
constexpr int64_t kMostOfAByte = 255;

ConfigCheck Check(const Sizes& s) {
  ConfigCheck check;
  check.Size("embedding", s.embedding, 1 << 20);
  check.Size("layers", s.layers, 1 << 16);
  check.Size("heads", s.heads, 1 << 16);
  check.Size("feed_forward", s.feed_forward, 1 << 24);
  check.Size("n_transit", s.n_transit, 1 << 20);
  check.Size("grid", s.grid, kMostOfAByte);
  check.Size("actions", s.actions, kMostOfAByte);
  if (check.ok() && s.embedding % s.heads != 0) {
    check.Fail("heads", absl::StrCat("must divide embedding, which is ",
                                     s.embedding, ", is ", s.heads));
  }
  check.Rate("dropout", s.dropout);
  return check;
}

// The sizes in a config.json, by name.
template <typename Body>
void ForSizes(Sizes& s, const Body& body) {
  body("embedding", s.embedding);
  body("layers", s.layers);
  body("heads", s.heads);
  body("feed_forward", s.feed_forward);
  body("n_transit", s.n_transit);
  body("grid", s.grid);
  body("actions", s.actions);
}

}  // namespace

absl::StatusOr<Sizes> SizesOf(const Config& config) {
  Sizes s;
  s.embedding = config.embedding();
  s.layers = config.layers();
  s.heads = config.heads();
  s.n_transit = config.n_transit();
  s.grid = OrDefault(config.grid(), 9);
  s.actions = OrDefault(config.actions(), 5);
  s.compressed = config.compressed();
  if (config.has_dropout()) s.dropout = config.dropout();
  // Before the product: embedding may be anything.
  s.feed_forward = OrDefault(config.feed_forward(), 1);
  CAPSTAN_RETURN_IF_ERROR(Check(s).status());
  if (config.feed_forward() == 0) s.feed_forward = 4 * s.embedding;
  return s;
}

absl::StatusOr<Sizes> ReadSizes(const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  const auto fail = [&](absl::string_view key, absl::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", key, " ", problem));
  };
  if (json.value("model_type", Json()) != kModelType) {
    return fail("model_type", absl::StrCat("must be \"", kModelType, "\""));
  }
  Sizes s;
  absl::Status status;
  ForSizes(s, [&](const char* key, int64_t& value) {
    const Json found = json.value(key, Json());
    if (const absl::optional<int64_t> integer = JsonInteger(found)) {
      value = *integer;
    } else if (status.ok()) {
      status =
          fail(key, absl::StrCat("must be an integer below 2^63, is ",
                                 found.is_null() ? "missing" : found.dump()));
    }
  });
  CAPSTAN_RETURN_IF_ERROR(status);
  const Json compressed = json.value("compressed", Json());
  if (!compressed.is_boolean()) {
    return fail("compressed", "must be true or false");
  }
  s.compressed = compressed.get<bool>();
  const Json dropout = json.value("dropout", Json(s.dropout));
  if (!dropout.is_number()) return fail("dropout", "must be a number");
  s.dropout = dropout.get<double>();
  const absl::optional<ConfigProblem> problem = Check(s).problem();
  if (problem.has_value()) return fail(problem->key, problem->text);
  return s;
}

absl::Status WriteSizes(const Sizes& sizes, const std::string& folder,
                        c10::ScalarType dtype) {
  Json json;
  json["model_type"] = kModelType;
  json["architectures"] = {"AdTransformer"};
  Sizes s = sizes;
  ForSizes(s, [&](const char* key, int64_t& value) { json[key] = value; });
  json["compressed"] = s.compressed;
  json["dropout"] = s.dropout;
  json["dtype"] = DtypeName(dtype);
  return WriteWholeFile(folder + "/config.json", json.dump(2) + "\n");
}

namespace {

constexpr const char* kLayerNames[kernels::kEncoderWeights] = {
    "self_attn.in_proj_weight",
    "self_attn.in_proj_bias",
    "self_attn.out_proj.weight",
    "self_attn.out_proj.bias",
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm1.weight",
    "norm1.bias",
    "norm2.weight",
    "norm2.bias",
};

std::vector<int64_t> LayerShape(const Sizes& s, int weight) {
  const int64_t e = s.embedding, f = s.feed_forward;
  switch (weight) {
    case kernels::kInWeight:
      return {3 * e, e};
    case kernels::kInBias:
      return {3 * e};
    case kernels::kOutWeight:
      return {e, e};
    case kernels::kUpWeight:
      return {f, e};
    case kernels::kUpBias:
      return {f};
    case kernels::kDownWeight:
      return {e, f};
    default:
      return {e};
  }
}

void FillUniform(uint64_t key, double bound, int64_t begin, int64_t count,
                 float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(
        bound *
        (2.0 * RandomUniform(key, static_cast<uint64_t>(begin + i)) - 1.0));
  }
}

// The initial value of a parameter.
struct Start {
  enum Kind { kConstant, kUniform, kNormal } kind;
  double size;  // the constant, the bound or the standard deviation
};

// torch.nn.Linear's weight and bias.
Start OfLinear(int64_t inputs) {
  return {Start::kUniform, 1.0 / std::sqrt(static_cast<double>(inputs))};
}

Start StartOf(const Sizes& s, int index) {
  if (index >= HeadIndex(s)) return OfLinear(s.embedding);
  if (index < EmbeddingParameters(s)) {
    if (index == kPositions) return {Start::kNormal, 0.02};
    if (index == kContextWeight || index == kContextBias) {
      return OfLinear(s.features());
    }
    return {Start::kNormal, 1.0};
  }
  switch ((index - EmbeddingParameters(s)) % kernels::kEncoderWeights) {
    case kernels::kInWeight:  // Xavier, of [3E, E]
      return {Start::kUniform,
              std::sqrt(6.0 / (4.0 * static_cast<double>(s.embedding)))};
    case kernels::kOutWeight:
    case kernels::kUpWeight:
    case kernels::kUpBias:
      return OfLinear(s.embedding);
    case kernels::kDownWeight:
    case kernels::kDownBias:
      return OfLinear(s.feed_forward);
    case kernels::kNorm1Weight:
    case kernels::kNorm2Weight:
      return {Start::kConstant, 1.0};
    default:
      return {Start::kConstant, 0.0};
  }
}

}  // namespace

int EmbeddingParameters(const Sizes& sizes) {
  return sizes.compressed ? kEndToken + 1 : kQueryStates + 1;
}

std::vector<ParameterSpec> ParameterSpecs(const Sizes& s) {
  const int64_t e = s.embedding;
  std::vector<ParameterSpec> specs;
  int unit = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({name, std::move(shape), unit});
    // Gradients of embeddings are scattered to the rows looked up.
    specs.back().read_in_backward = unit > 0;
  };
  add("pos_embedding", {1, s.n_transit, e});
  add("embed_context.weight", {e, s.features()});
  add("embed_context.bias", {e});
  add("embed_query_state.weight", {s.grid * s.grid, e});
  if (s.compressed) {
    add("token_type_embedding.weight", {kTokenTypes, e});
    add("compress_start_token", {1, 1, e});
    add("compress_end_token", {1, 1, e});
  }
  for (int64_t i = 0; i < s.layers; ++i) {
    ++unit;
    for (int w = 0; w < kernels::kEncoderWeights; ++w) {
      add(absl::StrCat("transformer_encoder.layers.", i, ".", kLayerNames[w]),
          LayerShape(s, w));
    }
  }
  ++unit;
  add("pred_action.weight", {s.actions, e});
  add("pred_action.bias", {s.actions});
  if (s.compressed) {
    add("pred_token_type.weight", {kTokenTypes, e});
    add("pred_token_type.bias", {kTokenTypes});
  }
  return specs;
}

void RandomValue(const Sizes& sizes, int index, const ParameterSpec& spec,
                 uint64_t seed, int64_t begin, int64_t count, float* out) {
  const Start start = StartOf(sizes, index);
  const uint64_t key = RandomKey(seed, spec.name);
  switch (start.kind) {
    case Start::kConstant:
      std::fill(out, out + count, static_cast<float>(start.size));
      break;
    case Start::kUniform:
      FillUniform(key, start.size, begin, count, out);
      break;
    case Start::kNormal:
      FillNormal(key, begin, count, 0.0f, static_cast<float>(start.size), out);
      break;
  }
}

}  // namespace ad_transformer
}  // namespace capstan
