// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"

namespace capstan::decoder {
namespace {

// Room on a GPU that a cache of all the model's positions begins with.
constexpr int64_t kFirstPositions = 2048;

// Of a joined cache: positions before all texts are dropped once they are so
// many and this part of all.
constexpr int64_t kMostUnused = 64, kUnusedPart = 4;

int64_t FirstRoom(const DecoderConfig& config, int64_t max_length,
                  const at::TensorOptions& options) {
  return options.device().is_cuda() &&
                 max_length == config.max_position_embeddings
             ? std::min(max_length, kFirstPositions)
             : max_length;
}

// What a new tensor can have: what the GPU has free, and what LibTorch keeps of
// freed ones.
int64_t FreeBytes(at::Device gpu) {
  auto* const allocator = c10::getDeviceAllocator(gpu.type());
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(gpu.index());
  return static_cast<int64_t>(allocator->getMemoryInfo(gpu.index()).first) +
         stats.reserved_bytes[kAll].current -
         stats.allocated_bytes[kAll].current;
}

absl::Status CheckFits(const kernels::CacheExtent& extent, int64_t layers) {
  const at::Device device = extent.options.device();
  if (!device.is_cuda()) return absl::OkStatus();
  const int64_t of_token =
      layers * 2 * extent.width *
      static_cast<int64_t>(extent.options.dtype().itemsize());
  // Any number of texts may be asked for.
  const double bytes = static_cast<double>(extent.batch) *
                       static_cast<double>(extent.max_length * of_token);
  const auto room = static_cast<double>(FreeBytes(device));
  if (bytes <= room) return absl::OkStatus();
  constexpr double kMiB = 1 << 20;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the keys and values of %d texts of %d tokens, %d bytes a token, take "
      "%.0f MiB, the GPU has %.0f MiB free beside the model: have fewer texts "
      "at once (--batch_size, --beams) or shorter ones (--max_new_tokens)",
      extent.batch, extent.max_length, of_token, bytes / kMiB, room / kMiB));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> DecoderCache::Create(
    const TokenModel* owner, const DecoderConfig& config, int64_t batch,
    int64_t max_length, const at::TensorOptions& options) {
  auto cache = absl::WrapUnique(
      new DecoderCache(owner, config, batch, max_length, options));
  const absl::Status fits = CheckFits(cache->extent_, config.num_hidden_layers);
  if (!fits.ok()) return fits;
  return cache;
}

DecoderCache::DecoderCache(const TokenModel* owner, const DecoderConfig& config,
                           int64_t batch, int64_t max_length,
                           const at::TensorOptions& options)
    : owner_(owner),
      max_length_(max_length),
      extent_{batch, FirstRoom(config, max_length, options),
              config.num_key_value_heads * config.head_dim, options},
      ropes_(config.ropes),
      layers_(config.num_hidden_layers, kernels::LayerCache(&extent_)) {}

DecoderCache* DecoderCache::Of(const TokenInput& input,
                               const TokenModel* owner) {
  if (input.cache == nullptr) return nullptr;
  auto* const cache = dynamic_cast<DecoderCache*>(input.cache);
  TORCH_CHECK(cache != nullptr && cache->owner_ == owner,
              "the cache is another model's: a model continues only what its "
              "own NewCache has made");
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "a cache is for use without gradients");
  if (cache->joined_) cache->DropUnused();
  kernels::CacheExtent& extent = cache->extent_;
  const int64_t length = extent.length + input.tokens.size(1);
  const int64_t unused = cache->joined_ ? cache->Unused() : 0;
  TORCH_CHECK(input.tokens.size(0) == extent.batch &&
                  length - unused <= cache->max_length_,
              "the cache is too small");
  if (length > extent.max_length) {
    extent.max_length =
        std::max(length, std::min(cache->max_length_, 2 * extent.max_length));
  }
  return cache;
}

void DecoderCache::KeepRows(const std::vector<int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong);
  if (first_.defined()) first_ = first_.index_select(0, index);
  extent_.batch = index.numel();
  if (!expected_.empty()) {
    std::vector<int64_t> expected;
    for (const int64_t row : rows) expected.push_back(expected_[row]);
    expected_ = std::move(expected);
  }
  for (kernels::LayerCache& layer : layers_) layer.KeepRows(index);
}

void DecoderCache::ExpectLengths(const std::vector<int64_t>& lengths) {
  TORCH_CHECK(static_cast<int64_t>(lengths.size()) == extent_.batch,
              "a length for each of ", extent_.batch, " rows is expected, not ",
              lengths.size());
  expected_ = lengths;
  if (extent_.length == 0) first_expected_ = lengths;
}

bool DecoderCache::FitsLength(int64_t length) const {
  if (extent_.length == 0) return true;
  return std::all_of(ropes_.begin(), ropes_.end(), [&](const Rope& rope) {
    const int64_t decisive = DecisiveLength(rope, length);
    // A text only grows, and so does what is decisive.
    const auto fits = [&](int64_t expected) {
      return DecisiveLength(rope, expected) == decisive;
    };
    return decisive == 0 ||
           (!expected_.empty() &&
            std::all_of(first_expected_.begin(), first_expected_.end(), fits) &&
            std::all_of(expected_.begin(), expected_.end(), fits));
  });
}

void DecoderCache::Join(KvCache& any) {
  auto* const other = dynamic_cast<DecoderCache*>(&any);
  TORCH_CHECK(other != nullptr && other->owner_ == owner_,
              "only caches of the same model can be joined");
  const int64_t length = std::max(extent_.length, other->extent_.length);
  first_ = at::cat({FirstAt(length), other->FirstAt(length)});
  expected_.resize(extent_.batch);
  other->expected_.resize(other->extent_.batch);
  expected_.insert(expected_.end(), other->expected_.begin(),
                   other->expected_.end());
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].Join(other->layers_[i], length);
  }
  joined_ = true;
  extent_.batch += other->extent_.batch;
  extent_.length = length;
  max_length_ = std::max(max_length_, other->max_length_);
  extent_.max_length =
      max_length_ + max_length_ / (kUnusedPart - 1) + kMostUnused;
}

int64_t DecoderCache::token_bytes() const {
  return static_cast<int64_t>(layers_.size()) * 2 * extent_.width *
         static_cast<int64_t>(extent_.options.dtype().itemsize());
}

at::Tensor DecoderCache::FirstAt(int64_t length) const {
  const int64_t moved = length - extent_.length;
  return first_.defined() ? first_ + moved
                          : at::full({extent_.batch}, moved, at::kLong);
}

int64_t DecoderCache::Unused() const {
  const int64_t* const first = first_.const_data_ptr<int64_t>();
  return *std::min_element(first, first + extent_.batch);
}

void DecoderCache::DropUnused() {
  const int64_t unused = Unused();
  // Rarely enough to cost little beside the attention to what is kept.
  if (unused < kMostUnused || unused < extent_.length / kUnusedPart) return;
  for (kernels::LayerCache& layer : layers_) layer.DropFront(unused);
  first_ -= unused;
  extent_.length -= unused;
}

void DecoderCache::NotePadding(const at::Tensor& positions) {
  if (!first_.defined()) first_ = at::zeros({extent_.batch}, at::kLong);
  const int64_t length = positions.size(1);
  const int64_t* position = positions.const_data_ptr<int64_t>();
  int64_t* first = first_.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < extent_.batch; ++row, position += length) {
    // Whether all before is padding.
    bool only_padding = first[row] == extent_.length;
    for (int64_t t = 0; t < length; ++t) {
      TORCH_CHECK(position[t] >= 0 || only_padding, "row ", row,
                  " has padding (position ", position[t], ") at ",
                  extent_.length + t, ", after its first token");
      only_padding = only_padding && position[t] < 0;
      if (only_padding) ++first[row];
    }
  }
}

}  // namespace capstan::decoder
