// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/ad_transformer/ad_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/ad_transformer/history_layers.h"
#include "plugins/model/common/config_check.h"
#include "plugins/model/common/pretrained.h"
#include "plugins/model/common/units.h"
#include "plugins/sdk/plugin.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {
namespace ad_transformer {
namespace {

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

absl::StatusOr<std::unique_ptr<AdTransformer>> AdTransformer::Create(
    const Config& config) {
  if (config.pretrained().empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(config));
    return std::unique_ptr<AdTransformer>(new AdTransformer(sizes, nullptr));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckAlone(config, {"pretrained", "dropout"}));
  const std::string& folder = config.pretrained();
  absl::StatusOr<Sizes> sizes = ReadSizes(folder);
  if (!sizes.ok()) return FieldError("pretrained", sizes.status().message());
  if (config.has_dropout()) sizes->dropout = config.dropout();
  ConfigCheck check;
  check.Rate("dropout", sizes->dropout);
  CAPSTAN_RETURN_IF_ERROR(check.status());
  CAPSTAN_ASSIGN_OR_RETURN(auto weights,
                           OpenPretrained(folder, ParameterSpecs(*sizes)));
  return std::unique_ptr<AdTransformer>(
      new AdTransformer(*sizes, std::move(weights)));
}

AdTransformer::AdTransformer(const Sizes& sizes,
                             std::unique_ptr<SafetensorsReader> weights)
    : sizes_(sizes),
      weights_(std::move(weights)),
      specs_(ParameterSpecs(sizes)),
      units_(UnitNames(sizes.layers)) {}

absl::Status AdTransformer::InitialValue(int index, uint64_t seed,
                                         int64_t begin, int64_t count,
                                         float* out) const {
  if (weights_ != nullptr) {
    return weights_->ReadFloats(specs_[index].name, begin, count, out);
  }
  RandomValue(sizes_, index, specs_[index], seed, begin, count, out);
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

HistorySpec AdTransformer::history_spec() const {
  return {sizes_.grid, sizes_.actions, sizes_.n_transit, sizes_.compressed};
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
  CHECK(!at::GradMode::is_enabled()) << "a cache is for use without gradients";
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
                                      sizes_.dropout > 0.0};
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
               "histories of a grid world; of given sizes or from a folder");

}  // namespace ad_transformer
}  // namespace capstan
