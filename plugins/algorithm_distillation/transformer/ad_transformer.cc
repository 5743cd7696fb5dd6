// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "kernels/context/run_device.h"
#include "plugins/algorithm_distillation/environment.h"
#include "plugins/algorithm_distillation/transformer/history_layers.h"
#include "plugins/model/common/config.h"
#include "plugins/model/common/parameters.h"
#include "plugins/sdk/plugin.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::ad_transformer {

namespace {

using Json = ConfigJson;

constexpr char kModelType[] = "ad_transformer";
constexpr int64_t kTokenTypes = 3;

// Coordinates and actions are bytes.
constexpr int64_t kMostOfAByte = 255;
constexpr int64_t kMostObservations = 1 << 20;

// Whether a single number, the grid's, says what observations are.
bool IsGrid(const Sizes& s) {
  return s.observation.size() == 2 && s.observation[0] == s.observation[1];
}

absl::Status Check(const Sizes& s) {
  ConfigCheck check;
  check.Size("embedding", s.embedding, 1 << 20);
  check.Size("layers", s.layers, ConfigCheck::kMostLayers);
  check.Size("heads", s.heads, 1 << 16);
  check.Size("feed_forward", s.feed_forward, 1 << 24);
  check.Size("n_transit", s.n_transit, 1 << 20);
  if (s.observation.size() > EnvironmentSpec::kMostNumbers) {
    check.Fail("observation",
               absl::StrCat("has ", s.observation.size(), " numbers, but only ",
                            EnvironmentSpec::kMostNumbers, " are possible"));
  }
  for (const int64_t bound : s.observation) {
    check.Size(IsGrid(s) ? "grid" : "observation", bound, kMostOfAByte);
  }
  if (check.ok() && s.observations() > kMostObservations) {
    check.Fail("observation", absl::StrCat("must be of ", kMostObservations,
                                           " different ones at most, is of ",
                                           s.observations()));
  }
  check.Size("actions", s.actions, kMostOfAByte);
  if (check.ok() && s.embedding % s.heads != 0) {
    check.Fail("heads", absl::StrCat("must divide embedding, which is ",
                                     s.embedding, ", is ", s.heads));
  }
  check.Rate("dropout", s.dropout);
  return check.status();
}

// The sizes in a config.json, by name.
template <typename Body>
void ForSizes(Sizes& s, const Body& body) {
  body("embedding", s.embedding);
  body("layers", s.layers);
  body("heads", s.heads);
  body("feed_forward", s.feed_forward);
  body("n_transit", s.n_transit);
  if (IsGrid(s)) {
    body("grid", s.observation[0]);
    s.observation[1] = s.observation[0];
  }
  body("actions", s.actions);
}

// From the config's sizes; errors name the field.
absl::StatusOr<Sizes> SizesOf(const Config& config) {
  Sizes s;
  s.embedding = config.embedding();
  s.layers = config.layers();
  s.heads = config.heads();
  s.n_transit = config.n_transit();
  s.observation.assign(2, OrDefault(config.grid(), 9));
  if (config.observation_size() > 0) {
    if (config.grid() != 0) {
      return FieldError("observation", "takes the place of grid: set one");
    }
    s.observation.assign(config.observation().begin(),
                         config.observation().end());
  }
  s.actions = OrDefault(config.actions(), 5);
  s.compressed = config.compressed();
  if (config.has_dropout()) s.dropout = config.dropout();
  // Before the product: embedding may be anything.
  s.feed_forward = OrDefault(config.feed_forward(), 1);
  CAPSTAN_RETURN_IF_ERROR(Check(s));
  if (config.feed_forward() == 0) s.feed_forward = 4 * s.embedding;
  return s;
}

// Reads (writes) FOLDER/config.json.
absl::StatusOr<Sizes> ReadSizes(const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  ConfigKeys keys(path, json);
  if (json.value("model_type", Json()) != kModelType) {
    keys.Fail("model_type", absl::StrCat("must be \"", kModelType, "\""));
  }
  Sizes s;
  // Where it isn't a grid.
  const Json observation = json.value("observation", Json());
  if (!observation.is_null()) {
    s.observation.clear();
    for (const Json& bound : observation) {
      s.observation.push_back(JsonInteger(bound).value_or(0));
    }
    if (!observation.is_array() || observation.empty()) {
      keys.Fail("observation", "must be a list of integers");
    }
  }
  ForSizes(s, [&](const char* key, int64_t& value) {
    const Json found = json.value(key, Json());
    if (const absl::optional<int64_t> integer = JsonInteger(found)) {
      value = *integer;
    } else {
      keys.Fail(key, absl::StrCat("must be an integer below 2^63, is ",
                                  found.is_null() ? "missing" : found.dump()));
    }
  });
  const Json compressed = json.value("compressed", Json());
  const Json dropout = json.value("dropout", Json(s.dropout));
  if (!compressed.is_boolean()) {
    keys.Fail("compressed", "must be true or false");
  }
  if (!dropout.is_number()) keys.Fail("dropout", "must be a number");
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  s.compressed = compressed.get<bool>();
  s.dropout = dropout.get<double>();
  CAPSTAN_RETURN_IF_ERROR(keys.FailIf(Check(s)));
  return s;
}

absl::Status WriteSizes(const Sizes& sizes, const std::string& folder,
                        c10::ScalarType dtype) {
  Json json;
  json["model_type"] = kModelType;
  json["architectures"] = {"AdTransformer"};
  Sizes s = sizes;
  ForSizes(s, [&](const char* key, int64_t& value) { json[key] = value; });
  if (!IsGrid(s)) json["observation"] = s.observation;
  json["compressed"] = s.compressed;
  json["dropout"] = s.dropout;
  json["dtype"] = DtypeName(dtype);
  return WriteWholeFile(folder + "/config.json", json.dump(2) + "\n");
}

// The number of the first unit's parameters, i.e. the index of layer 0's first.
int EmbeddingParameters(const Sizes& sizes) {
  return sizes.compressed ? kEndToken + 1 : kQueryStates + 1;
}

int LayerIndex(const Sizes& sizes, int64_t layer) {
  return EmbeddingParameters(sizes) +
         static_cast<int>(layer) * kernels::kEncoderWeights;
}
// The index of pred_action.weight and .bias, and (compressed)
// pred_token_type's.
int HeadIndex(const Sizes& sizes) { return LayerIndex(sizes, sizes.layers); }

struct Parameter {
  ParameterSpec spec;
  InitialValues initial;
};

// Random as in the PyTorch modules of the original, but independent per layer
// (torch.nn.TransformerEncoder copies one layer).
std::vector<Parameter> ParametersOf(const Sizes& s) {
  using Values = InitialValues;
  // torch.nn.Linear's weight and bias.
  const auto linear = [](int64_t inputs) {
    return Values{Values::kUniform,
                  1.0 / std::sqrt(static_cast<double>(inputs))};
  };
  const int64_t e = s.embedding, f = s.feed_forward;
  const Values of_context = linear(s.features());
  const Values of_e = linear(e), of_f = linear(f);
  // Of [3E, E].
  const Values xavier = {Values::kUniform,
                         std::sqrt(6.0 / (4.0 * static_cast<double>(e)))};
  const Values normal = {Values::kNormal, 1.0};
  const Values zero = {Values::kConstant, 0.0}, one = {Values::kConstant, 1.0};
  std::vector<Parameter> all;
  int unit = 0;
  std::string prefix;
  const auto add = [&](const char* name, std::vector<int64_t> shape,
                       const Values& initial) {
    all.push_back({{prefix + name, std::move(shape), unit}, initial});
    // Gradients of embeddings are scattered to the rows looked up.
    all.back().spec.read_in_backward = unit > 0;
  };
  add("pos_embedding", {1, s.n_transit, e}, {Values::kNormal, 0.02});
  add("embed_context.weight", {e, s.features()}, of_context);
  add("embed_context.bias", {e}, of_context);
  add("embed_query_state.weight", {s.observations(), e}, normal);
  if (s.compressed) {
    add("token_type_embedding.weight", {kTokenTypes, e}, normal);
    add("compress_start_token", {1, 1, e}, normal);
    add("compress_end_token", {1, 1, e}, normal);
  }
  // In the order of kernels::EncoderWeight.
  for (int64_t i = 0; i < s.layers; ++i) {
    ++unit;
    prefix = absl::StrCat("transformer_encoder.layers.", i, ".");
    add("self_attn.in_proj_weight", {3 * e, e}, xavier);
    add("self_attn.in_proj_bias", {3 * e}, zero);
    add("self_attn.out_proj.weight", {e, e}, of_e);
    add("self_attn.out_proj.bias", {e}, zero);
    add("linear1.weight", {f, e}, of_e);
    add("linear1.bias", {f}, of_e);
    add("linear2.weight", {e, f}, of_f);
    add("linear2.bias", {e}, of_f);
    add("norm1.weight", {e}, one);
    add("norm1.bias", {e}, zero);
    add("norm2.weight", {e}, one);
    add("norm2.bias", {e}, zero);
  }
  ++unit;
  prefix.clear();
  add("pred_action.weight", {s.actions, e}, of_e);
  add("pred_action.bias", {s.actions}, of_e);
  if (s.compressed) {
    add("pred_token_type.weight", {kTokenTypes, e}, of_e);
    add("pred_token_type.bias", {kTokenTypes}, of_e);
  }
  return all;
}

using kernels::EncoderRows;

// The rows of [B, T] histories: as many tokens as the lengths say, or T each.
c10::intrusive_ptr<const EncoderRows> RowsOf(const at::Tensor& lengths,
                                             int64_t length, bool packed) {
  auto rows = c10::make_intrusive<EncoderRows>();
  const int64_t batch = lengths.size(0);
  if (!packed) {
    for (int64_t b = 0; b <= batch; ++b) rows->offsets.push_back(b * length);
    rows->last = at::arange(batch, lengths.options()) * length + lengths - 1;
    return rows;
  }
  const at::Tensor whole = lengths.contiguous();
  const int64_t* const count = whole.const_data_ptr<int64_t>();
  rows->offsets.push_back(0);
  std::vector<int64_t> last;
  for (int64_t b = 0; b < batch; ++b) {
    CHECK(count[b] >= 1 && count[b] <= length)
        << "a history has " << count[b] << " tokens of " << length;
    rows->offsets.push_back(rows->offsets.back() + count[b]);
    last.push_back(rows->offsets.back() - 1);
  }
  rows->last = at::tensor(last, at::kLong);
  return rows;
}

}  // namespace

int64_t Sizes::observations() const {
  int64_t count = 1;
  for (const int64_t bound : observation) {
    count = std::min(kMostObservations + 1, count * bound);
  }
  return count;
}

absl::StatusOr<std::unique_ptr<AdTransformer>> AdTransformer::Create(
    const Config& config) {
  if (config.pretrained().empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(config));
    return std::unique_ptr<AdTransformer>(new AdTransformer(sizes));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckAlone(config, {"pretrained", "dropout"}));
  const std::string& folder = config.pretrained();
  absl::StatusOr<Sizes> sizes = ReadSizes(folder);
  if (!sizes.ok()) return FieldError("pretrained", sizes.status().message());
  if (config.has_dropout()) sizes->dropout = config.dropout();
  ConfigCheck check;
  check.Rate("dropout", sizes->dropout);
  CAPSTAN_RETURN_IF_ERROR(check.status());
  auto model = std::unique_ptr<AdTransformer>(new AdTransformer(*sizes));
  CAPSTAN_ASSIGN_OR_RETURN(model->weights_,
                           OpenPretrained(folder, model->specs_));
  return model;
}

AdTransformer::AdTransformer(const Sizes& sizes)
    : sizes_(sizes), units_(UnitNames(sizes.layers)) {
  for (Parameter& parameter : ParametersOf(sizes)) {
    specs_.push_back(std::move(parameter.spec));
    initial_.push_back(parameter.initial);
  }
}

absl::Status AdTransformer::InitialValue(int index, uint64_t seed,
                                         int64_t begin, int64_t count,
                                         float* out) const {
  const std::string& name = specs_[index].name;
  if (weights_ != nullptr) return weights_->ReadFloats(name, begin, count, out);
  const auto& [kind, size] = initial_[index];
  const uint64_t key = RandomKey(seed, name);
  switch (kind) {
    case InitialValues::kConstant:
      std::fill(out, out + count, static_cast<float>(size));
      break;
    case InitialValues::kUniform:
      FillUniform(key, size, begin, count, out);
      break;
    case InitialValues::kNormal:
      FillNormal(key, begin, count, 0.0f, static_cast<float>(size), out);
      break;
  }
  return absl::OkStatus();
}

void AdTransformer::Bind(std::vector<at::Tensor> parameters) {
  CheckBound(parameters, specs_);
  parameters_ = std::move(parameters);
}

absl::Status AdTransformer::SaveConfig(const std::string& folder,
                                       c10::ScalarType dtype) const {
  return WriteSizes(sizes_, folder, dtype);
}

absl::optional<TokenShare> AdTransformer::ShareOf(int parameter) const {
  const int last = LayerIndex(sizes_, sizes_.layers - 1);
  if (parameter < last) return absl::nullopt;
  // Of the rows of [3E, E], the queries' third.
  if (parameter == last) return TokenShare{2.0 / 3.0, 1.0 / 3.0};
  return TokenShare{0.0, 1.0};
}

HistorySpec AdTransformer::history_spec() const {
  return {sizes_.observation, sizes_.actions, sizes_.n_transit,
          sizes_.compressed};
}

std::vector<at::Tensor> AdTransformer::EmbeddingWeights() const {
  return std::vector<at::Tensor>(
      parameters_.begin(), parameters_.begin() + EmbeddingParameters(sizes_));
}

kernels::EncoderBlockWeights AdTransformer::LayerWeights(int64_t layer) const {
  kernels::EncoderBlockWeights weights;
  std::copy_n(parameters_.begin() + LayerIndex(sizes_, layer), weights.size(),
              weights.begin());
  return weights;
}

at::Tensor AdTransformer::Head(const at::Tensor& last,
                               UnitRunner& runner) const {
  const std::vector<at::Tensor> p(parameters_.begin() + HeadIndex(sizes_),
                                  parameters_.end());
  return runner.Run(head_unit(), last, [p](const at::Tensor& x) {
    at::Tensor logits = at::linear(x, p[0], p[1]);
    if (p.size() > 2) logits = at::cat({logits, at::linear(x, p[2], p[3])}, 1);
    return logits.to(at::kFloat);
  });
}

at::Tensor AdTransformer::LastLogits(const HistoryInput& input,
                                     UnitRunner& runner) {
  CHECK(!parameters_.empty()) << "Bind comes first";
  const int64_t length = input.kinds.size(1);
  CHECK_LE(length, sizes_.n_transit)
      << "histories are longer than the model's n_transit";
  const at::Device device = parameters_[0].device();
  const bool fused =
      !plain_ && kernels::CanFuseEncoderBlock(parameters_[0], sizes_.embedding,
                                              sizes_.feed_forward);
  kernels::EncoderBlockOptions options;
  options.rows = RowsOf(input.lengths.to(device), length, fused);
  options.heads = sizes_.heads;
  options.max_length = sizes_.n_transit;
  if (input.sample_positions.defined()) {
    options.dropout = {sizes_.dropout, input.seed,
                       input.sample_positions.to(device).contiguous()};
  }
  const Sizes sizes = sizes_;
  const std::vector<at::Tensor> weights = EmbeddingWeights();
  const at::Tensor kinds = input.kinds.to(device);
  at::Tensor x = runner.Run(
      0, input.transitions.to(device),
      [sizes, weights, kinds, fused,
       rows = options.rows](const at::Tensor& transitions) {
        return fused ? FusedEmbedding(sizes, transitions, kinds, rows, weights)
                     : PlainEmbedding(sizes, transitions, kinds, at::Tensor(),
                                      weights);
      });
  for (int layer = 0; layer < sizes_.layers; ++layer) {
    options.layer = layer;
    options.last_only = layer + 1 == sizes_.layers;
    x = runner.Run(
        1 + layer, x,
        [block = LayerWeights(layer), options, fused](const at::Tensor& input) {
          return fused ? FusedEncoderBlock(input, block, options)
                       : PlainEncoderBlock(input, block, options);
        });
  }
  return Head(x, runner);
}

std::unique_ptr<HistoryCache> AdTransformer::NewCache(int64_t rows) const {
  CHECK(!parameters_.empty()) << "Bind comes first";
  return std::make_unique<KeysAndValues>(
      rows, sizes_, parameters_[kPositions].options().requires_grad(false));
}

at::Tensor AdTransformer::NextLogits(HistoryCache& cache,
                                     const HistoryInput& input,
                                     UnitRunner& runner) {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "a cache is for use without gradients");
  auto* const own = dynamic_cast<KeysAndValues*>(&cache);
  TORCH_CHECK(own != nullptr,
              "the cache is another model's: a model continues only what its "
              "own NewCache has made");
  KeysAndValues& past = *own;
  const at::Device device = parameters_[0].device();
  const at::Tensor kinds = input.kinds.to(device);
  const auto step = std::make_shared<const KeysAndValues::Step>(
      past.Begin(input.lengths.cpu(), kinds.size(1)));
  const Sizes sizes = sizes_;
  const std::vector<at::Tensor> weights = EmbeddingWeights();
  at::Tensor x = runner.Run(
      0, input.transitions.to(device), [=](const at::Tensor& transitions) {
        return PlainEmbedding(sizes, transitions, kinds, step->first, weights);
      });
  for (int layer = 0; layer < sizes_.layers; ++layer) {
    x = runner.Run(1 + layer, x,
                   [&past, step, layer,
                    block = LayerWeights(layer)](const at::Tensor& input) {
                     return past.Layer(*step, layer, block, input);
                   });
  }
  past.End(input.kinds.cpu(), input.lengths.cpu());
  return Head(x.index_select(0, step->last), runner);
}

std::vector<UnitMemory> AdTransformer::PlanUnits(
    int64_t samples, int64_t length, c10::ScalarType compute) const {
  kernels::EncoderBlockShape layer = {samples,
                                      length > 0 ? length : sizes_.n_transit,
                                      sizes_.embedding,
                                      sizes_.feed_forward,
                                      sizes_.heads,
                                      compute,
                                      /*last_only=*/false,
                                      sizes_.dropout > 0.0,
                                      CurrentRunDevice().gpu};
  int64_t embedding = 0, head = 0;  // bytes of gradients
  for (const ParameterSpec& spec : specs_) {
    const int64_t bytes = spec.numel() * kernels::ElementBytes(compute);
    if (spec.unit == 0) embedding += bytes;
    if (spec.unit == head_unit()) head += bytes;
  }
  std::vector<UnitMemory> units = {PlanUnit(
      PlanEmbedding(sizes_, layer.rows(), compute, layer.fused(), embedding),
      layer.Bytes(layer.rows(), sizes_.embedding), specs_, 0, compute)};
  for (int i = 0; i < sizes_.layers; ++i) {
    layer.last_only = i + 1 == sizes_.layers;
    units.push_back(PlanUnit(kernels::PlanEncoderBlock(layer),
                             layer.Bytes(layer.queries(), sizes_.embedding),
                             specs_, 1 + i, compute));
  }
  const int64_t logits =
      samples * history_spec().logits() * kernels::kFloatBytes;
  units.push_back(
      PlanUnit({logits, 0, layer.Bytes(samples, sizes_.embedding) + head},
               logits, specs_, head_unit(), compute));
  units.back().logits_passing = 3 * logits;
  return units;
}

CAPSTAN_PLUGIN(Model, AdTransformer, capstan::ad_transformer::Config,
               "Algorithm Distillation's causal encoder over learning "
               "histories; of given sizes or from a folder");

}  // namespace capstan::ad_transformer
