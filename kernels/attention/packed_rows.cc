// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/context/work_recorder.h"
#include "kernels/to_device.h"

namespace capstan::kernels {

PackedRows::PackedRows(const at::Tensor& positions)
    : positions_(positions.contiguous()) {
  TORCH_CHECK(positions.dim() == 2 && positions.scalar_type() == at::kLong,
              "positions must be [rows, T] int64");
  if (positions.is_cpu()) FindDocuments(positions_);
}

PackedRows::PackedRows(const at::Tensor& host, const at::Tensor& positions)
    : PackedRows(positions) {
  TORCH_CHECK(host.is_cpu() && host.scalar_type() == at::kLong &&
                  host.sizes() == positions.sizes(),
              "the positions on the host must be those on the device");
  if (!knows_documents()) FindDocuments(host.contiguous());
  if (positions.is_cuda() && CurrentWorkRecorder() != nullptr) FitOthers();
}

void PackedRows::FitOthers() {
  if (!knows_documents()) return;
  int64_t count = 8;
  while (count < static_cast<int64_t>(documents_.size())) count *= 2;
  longest_ = positions_.size(1);
  offsets_ = MakeOffsets(count);
}

void PackedRows::FindDocuments(const at::Tensor& positions) {
  if (positions.numel() == 0) return;
  const int64_t length = positions.size(1);
  const int64_t* p = positions.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < positions.size(0); ++row, p += length) {
    for (int64_t t = 0; t < length; ++t) {
      if (p[t] == 0) {
        documents_.push_back({t, 0});
      } else {
        TORCH_CHECK(t > 0 && p[t] == p[t - 1] + 1, "the positions of row ", row,
                    " must begin at 0 and rise by 1 within a document; at ", t,
                    " stands ", p[t]);
      }
      longest_ = std::max(longest_, ++documents_.back().length);
    }
    row_ends_.push_back(static_cast<int64_t>(documents_.size()));
  }
}

const at::Tensor& PackedRows::offsets() const {
  if (!offsets_.defined()) {
    TORCH_CHECK(knows_documents(), "the documents' lengths are on the device");
    offsets_ = MakeOffsets(static_cast<int64_t>(documents_.size()));
  }
  return offsets_;
}

at::Tensor PackedRows::MakeOffsets(int64_t count) const {
  const at::Tensor host = at::empty({count + 1}, at::kInt);
  int32_t* const out = host.mutable_data_ptr<int32_t>();
  out[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length =
        i < static_cast<int64_t>(documents_.size()) ? documents_[i].length : 0;
    out[i + 1] = out[i] + static_cast<int32_t>(length);
  }
  return ToDevice(host, positions_.device());
}

const ChunkParts& PackedRows::parts(const RowChunk& chunk,
                                    int64_t length) const {
  TORCH_CHECK(knows_documents(), "the documents' lengths are on the device");
  const auto [found, is_new] = parts_.try_emplace(chunk.begin);
  ChunkParts& parts = found->second;
  if (!is_new) return parts;
  DocumentOffsets& offsets = parts.offsets;
  std::vector<int64_t> keys;
  std::vector<int32_t> query_offsets = {0}, key_offsets = {0};
  for (size_t b = 0; b < row_ends_.size(); ++b) {
    for (const Document& document : row(static_cast<int64_t>(b))) {
      const int64_t end = document.begin + document.length;
      const int64_t queries = std::min(end, chunk.begin + chunk.length) -
                              std::max(document.begin, chunk.begin);
      if (queries <= 0) continue;
      const int64_t seen = std::min(end, length) - document.begin;
      for (int64_t key = 0; key < seen; ++key) {
        keys.push_back(static_cast<int64_t>(b) * length + document.begin + key);
      }
      query_offsets.push_back(query_offsets.back() +
                              static_cast<int32_t>(queries));
      key_offsets.push_back(static_cast<int32_t>(keys.size()));
      offsets.most_queries = std::max(offsets.most_queries, queries);
      offsets.most_keys = std::max(offsets.most_keys, seen);
    }
  }
  const auto on_device = [this](auto& values, at::ScalarType type) {
    const at::Tensor host =
        at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                      type)
            .clone();
    return ToDevice(host, positions_.device());
  };
  parts.keys = on_device(keys, at::kLong);
  offsets.queries = on_device(query_offsets, at::kInt);
  offsets.keys = on_device(key_offsets, at::kInt);
  return parts;
}

const at::Tensor& PackedRows::mask(bool causal) const {
  at::Tensor& mask = masks_[causal ? 1 : 0];
  if (!mask.defined()) {
    const at::AutoGradMode no_gradients(false);
    const at::Tensor keys =
        at::arange(positions_.size(1), positions_.options());
    // The start of each token's document, which identifies it within a row.
    const at::Tensor first = keys - positions_;
    mask = first.unsqueeze(1).eq(first.unsqueeze(2));
    if (causal) mask &= keys <= keys.unsqueeze(1);
    mask.unsqueeze_(1);
  }
  return mask;
}

}  // namespace capstan::kernels
