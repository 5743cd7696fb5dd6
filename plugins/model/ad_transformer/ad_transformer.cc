// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/ad_transformer/ad_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/ad_transformer/ad_transformer_weights.h"
#include "plugins/model/ad_transformer/history_attention.h"
#include "plugins/model/ad_transformer/history_embedding.h"
#include "plugins/model/common/check_weights.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {
namespace ad_transformer {
namespace {

using kernels::EncoderRows;

// The rows of [B, T] histories: as many as the lengths say, or T each.
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
  Config alone;
  alone.set_pretrained(config.pretrained());
  if (config.has_dropout()) alone.set_dropout(config.dropout());
  if (alone.SerializeAsString() != config.SerializeAsString()) {
    return FieldError("pretrained",
                      "is set beside sizes, which the folder's config.json "
                      "gives: set the one or the others");
  }
  const std::string& folder = config.pretrained();
  absl::StatusOr<Sizes> sizes = ReadSizes(folder);
  if (!sizes.ok()) return FieldError("pretrained", sizes.status().message());
  if (config.has_dropout()) sizes->dropout = config.dropout();
  if (!(sizes->dropout >= 0.0 && sizes->dropout < 1.0)) {
    return FieldError(
        "dropout",
        absl::StrCat("must be at least 0 and below 1, is ", sizes->dropout));
  }
  auto weights = SafetensorsReader::Open(folder);
  if (!weights.ok()) {
    return FieldError("pretrained", weights.status().message());
  }
  const absl::Status fits =
      CheckWeights(ParameterSpecs(*sizes), **weights, folder);
  if (!fits.ok()) return FieldError("pretrained", fits.message());
  return std::unique_ptr<AdTransformer>(
      new AdTransformer(*sizes, *std::move(weights)));
}

AdTransformer::AdTransformer(const Sizes& sizes,
                             std::unique_ptr<SafetensorsReader> weights)
    : sizes_(sizes),
      weights_(std::move(weights)),
      specs_(ParameterSpecs(sizes)),
      units_(UnitNames(sizes)) {}

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
  CHECK_EQ(parameters.size(), specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    CHECK(parameters[i].sizes() == at::IntArrayRef(specs_[i].shape))
        << specs_[i].name;
  }
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
  auto& past = static_cast<KeysAndValues&>(cache);
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

}  // namespace ad_transformer
}  // namespace capstan
