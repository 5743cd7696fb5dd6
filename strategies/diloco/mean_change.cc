// SPDX-License-Identifier: Apache-2.0
#include "strategies/diloco/mean_change.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace capstan::diloco {
namespace {

// A part has so many elements at most: 32 MiB of float32.
constexpr int64_t kPart = int64_t{1} << 23;
// Values with one scale.
constexpr int64_t kBlock = 256;
constexpr double kLargest = 127.0;
// Up to so many ranks it is less to send all of a rank's bytes to all others
// than to sum slices in float32 first.
constexpr int kMostThatGather = 4;

int64_t Blocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// Of blocks in INT8: their values, then their float32 scales.
int64_t PackedBytes(int64_t blocks) {
  return blocks * (kBlock + static_cast<int64_t>(sizeof(float)));
}

// `values`, [blocks * kBlock], as PackedBytes(blocks).
at::Tensor Pack(const at::Tensor& values) {
  const int64_t blocks = values.numel() / kBlock;
  const at::Tensor rows = values.view({blocks, kBlock});
  // 0 where all values are; one that isn't finite makes its block NaN.
  const at::Tensor scale = rows.abs().amax(1, /*keepdim=*/true) / kLargest;
  const at::Tensor steps = at::where(scale > 0.0, rows / scale, rows).round();
  const at::Tensor packed =
      at::empty({PackedBytes(blocks)}, values.options().dtype(at::kByte));
  packed.narrow(0, 0, blocks * kBlock)
      .copy_(steps.to(at::kChar).view({-1}).view(at::kByte));
  packed.narrow(0, blocks * kBlock, packed.numel() - blocks * kBlock)
      .copy_(scale.view({-1}).view(at::kByte));
  return packed;
}

// The reverse.
at::Tensor Unpack(const at::Tensor& packed, int64_t blocks) {
  const at::Tensor steps = packed.narrow(0, 0, blocks * kBlock)
                               .view(at::kChar)
                               .view({blocks, kBlock})
                               .to(at::kFloat);
  const at::Tensor scale =
      packed.narrow(0, blocks * kBlock, packed.numel() - blocks * kBlock)
          .clone()
          .view(at::kFloat)
          .view({blocks, 1});
  return steps.mul_(scale).view({-1});
}

}  // namespace

MeanChange::MeanChange(const at::Tensor& shared, const at::Tensor& own,
                       Config::Deltas deltas, ProcessGroup* group)
    : shared_(shared), own_(own), deltas_(deltas), group_(*group) {}

bool MeanChange::Next() {
  begin_ = next_;
  const int64_t count = std::min(kPart, shared_.numel() - begin_);
  if (count <= 0) return false;
  next_ = begin_ + count;
  value_ = at::Tensor();  // before the next one is made
  value_ = shared_.narrow(0, begin_, count) - own_.narrow(0, begin_, count);
  if (group_.size() == 1) return true;
  if (deltas_ == Config::INT8) {
    AverageBytes();
  } else {
    AverageFloats();
  }
  return true;
}

void MeanChange::AverageFloats() {
  group_.AllReduce(value_)->Wait();
  value_.div_(group_.size());
}

void MeanChange::AverageBytes() {
  const int64_t count = value_.numel();
  const int ranks = group_.size();
  const bool gathers = ranks <= kMostThatGather;
  // Each rank packs all blocks, or the means of a slice of them.
  const int64_t blocks =
      gathers ? Blocks(count) : (Blocks(count) + ranks - 1) / ranks;
  const int64_t padded = blocks * kBlock * (gathers ? 1 : ranks);
  at::Tensor mine = at::constant_pad_nd(value_, {0, padded - count});
  value_ = at::Tensor();
  if (!gathers) {
    const at::Tensor slice = at::empty({blocks * kBlock}, mine.options());
    group_.ReduceScatter(slice, mine)->Wait();
    mine = slice.div_(ranks);
  }
  const at::Tensor packed = Pack(mine);
  const at::Tensor all = at::empty({ranks * packed.numel()}, packed.options());
  group_.AllGather(all, packed)->Wait();
  const at::Tensor mean =
      gathers ? mine.zero_() : at::empty({padded}, mine.options());
  // All ranks add in the order of the ranks.
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor its =
        Unpack(all.narrow(0, rank * packed.numel(), packed.numel()), blocks);
    if (gathers) {
      mean.add_(its);
    } else {
      mean.narrow(0, rank * its.numel(), its.numel()).copy_(its);
    }
  }
  if (gathers) mean.div_(ranks);
  value_ = mean.narrow(0, 0, count);
}

int64_t MeanChange::Sent(int64_t elements, Config::Deltas deltas, int ranks) {
  const auto floats = elements * static_cast<int64_t>(sizeof(float));
  const int64_t packed = PackedBytes(Blocks(elements));
  if (deltas != Config::INT8) return 2 * floats * (ranks - 1) / ranks;
  if (ranks <= kMostThatGather) return (ranks - 1) * packed;
  return (floats + packed) * (ranks - 1) / ranks;
}

int64_t MeanChange::Workspace(int64_t elements, Config::Deltas deltas,
                              int ranks) {
  const int64_t part = std::min(kPart, elements);
  const auto floats = part * static_cast<int64_t>(sizeof(float));
  if (ranks == 1 || deltas != Config::INT8) return floats;
  // What is packed, with its magnitudes or steps; then what all have sent.
  return 4 * floats +
         (std::min(ranks, kMostThatGather) + 1) * PackedBytes(Blocks(part));
}

}  // namespace capstan::diloco
