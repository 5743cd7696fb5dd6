// SPDX-License-Identifier: Apache-2.0
#include "strategies/diloco/exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace capstan::diloco {
namespace {

// Values with one scale.
constexpr int64_t kBlock = 256;
constexpr double kLargest = 127.0;
// Up to so many ranks it is less to send all of a rank's bytes to all others
// than to sum slices in float32 first.
constexpr int kMostThatGather = 4;
constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

int64_t Blocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// Of blocks in INT8: their values, then their float32 scales.
int64_t PackedBytes(int64_t blocks) { return blocks * (kBlock + kFloatBytes); }

bool Gathers(const ExchangeOptions& options, int ranks) {
  return options.overlaps || ranks <= kMostThatGather;
}

// `values`, [blocks * kBlock], as PackedBytes(blocks), and a mark behind them.
at::Tensor Pack(const at::Tensor& values, bool marked) {
  const int64_t blocks = values.numel() / kBlock;
  const at::Tensor rows = values.view({blocks, kBlock});
  // 0 where all values are; one that isn't finite makes its block NaN.
  const at::Tensor scale = rows.abs().amax(1, /*keepdim=*/true) / kLargest;
  const at::Tensor steps = at::where(scale > 0.0, rows / scale, rows).round();
  const int64_t bytes = PackedBytes(blocks);
  const at::Tensor packed =
      at::empty({bytes + (marked ? 1 : 0)}, values.options().dtype(at::kByte));
  packed.narrow(0, 0, blocks * kBlock)
      .copy_(steps.to(at::kChar).view({-1}).view(at::kByte));
  packed.narrow(0, blocks * kBlock, bytes - blocks * kBlock)
      .copy_(scale.view({-1}).view(at::kByte));
  if (marked) packed.narrow(0, bytes, 1).fill_(1);
  return packed;
}

// The reverse.
at::Tensor Unpack(const at::Tensor& packed, int64_t blocks) {
  const at::Tensor steps = packed.narrow(0, 0, blocks * kBlock)
                               .view(at::kChar)
                               .view({blocks, kBlock})
                               .to(at::kFloat);
  const at::Tensor scale =
      packed.narrow(0, blocks * kBlock, PackedBytes(blocks) - blocks * kBlock)
          .clone()
          .view(at::kFloat)
          .view({blocks, 1});
  return steps.mul_(scale).view({-1});
}

}  // namespace

Exchange::Exchange(const at::Tensor& shared, const at::Tensor& own,
                   const ExchangeOptions& options, ProcessGroup* group)
    : options_(options),
      group_(*group),
      home_(shared.device()),
      count_(shared.numel()) {
  // A mark behind the values shows that an exchange in progress was completed:
  // one that a failure elsewhere has cut off ends without an error (PhaseGroup
  // in cluster/comm).
  const bool marked = options.overlaps && options.deltas == Config::FLOAT32;
  value_ = at::empty({count_ + (marked ? 1 : 0)},
                     shared.options().pinned_memory(false));
  at::Tensor changes = value_.narrow(0, 0, count_);
  at::sub_out(changes, shared, own);
  if (marked) value_.narrow(0, count_, 1).fill_(1.0);
  value_ = value_.to(group->device());
  if (group->size() == 1) return;
  if (options.deltas == Config::INT8) {
    SendBytes();
  } else {
    work_ = group_.AllReduce(value_);
  }
}

void Exchange::SendBytes() {
  const int ranks = group_.size();
  gathers_ = Gathers(options_, ranks);
  // Each rank packs all blocks, or the means of a slice of them.
  const int64_t blocks =
      gathers_ ? Blocks(count_) : (Blocks(count_) + ranks - 1) / ranks;
  const int64_t padded = blocks * kBlock * (gathers_ ? 1 : ranks);
  value_ = at::constant_pad_nd(value_, {0, padded - count_});
  if (!gathers_) {
    all_ = value_;
    value_ = at::empty({blocks * kBlock}, all_.options());
    work_ = group_.ReduceScatter(value_, all_);
    return;
  }
  packed_ = Pack(value_, options_.overlaps);
  value_ = at::Tensor();
  all_ = at::empty({ranks * packed_.numel()}, packed_.options());
  if (options_.overlaps) {
    all_.view({ranks, -1}).select(1, packed_.numel() - 1).zero_();
  }
  work_ = group_.AllGather(all_, packed_);
}

void Exchange::CheckMarks(const at::Tensor& marks) const {
  // Only groups of CPU ranks go on after a failure.
  if (!options_.overlaps || !marks.device().is_cpu()) return;
  if (marks.sum().item<double>() == group_.size()) return;
  throw CommunicationError(
      "an outer exchange was cut off, since a rank has failed");
}

at::Tensor Exchange::Mean() {
  if (work_ != nullptr) {
    work_->Wait();
    if (options_.deltas == Config::INT8) {
      value_ = MeanOfBytes();
    } else {
      if (options_.overlaps) CheckMarks(value_.narrow(0, count_, 1));
      value_.div_(group_.size());
    }
    work_.reset();
  }
  return value_.narrow(0, 0, count_).to(home_);
}

at::Tensor Exchange::MeanOfBytes() {
  const int ranks = group_.size();
  if (!gathers_) {
    all_ = at::Tensor();
    packed_ = Pack(value_.div_(ranks), /*marked=*/false);
    value_ = at::Tensor();
    all_ = at::empty({ranks * packed_.numel()}, packed_.options());
    group_.AllGather(all_, packed_)->Wait();
  }
  const at::Tensor rows = all_.view({ranks, -1});
  const int64_t bytes = packed_.numel();
  if (options_.overlaps) CheckMarks(rows.select(1, bytes - 1));
  const int64_t blocks = bytes / (kBlock + kFloatBytes);
  const int64_t padded = blocks * kBlock * (gathers_ ? 1 : ranks);
  const at::Tensor mean = at::empty({padded}, all_.options().dtype(at::kFloat));
  if (gathers_) mean.zero_();
  // All ranks add in the order of the ranks.
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor its = Unpack(rows[rank], blocks);
    if (gathers_) {
      mean.add_(its);
    } else {
      mean.narrow(0, rank * its.numel(), its.numel()).copy_(its);
    }
  }
  if (gathers_) mean.div_(ranks);
  packed_ = all_ = at::Tensor();
  return mean;
}

int64_t Exchange::Sent(int64_t elements, const ExchangeOptions& options,
                       int replicas) {
  const int64_t floats = elements * kFloatBytes;
  const int64_t packed = PackedBytes(Blocks(elements));
  if (options.deltas != Config::INT8) {
    return 2 * floats * (replicas - 1) / replicas;
  }
  if (Gathers(options, replicas)) return (replicas - 1) * packed;
  return (floats + packed) * (replicas - 1) / replicas;
}

int64_t Exchange::Memory(int64_t elements, const ExchangeOptions& options,
                         int replicas) {
  const int64_t floats = elements * kFloatBytes;
  if (replicas == 1 || options.deltas != Config::INT8) return floats;
  const int64_t packed = PackedBytes(Blocks(elements));
  if (options.overlaps) return (replicas + 1) * packed;
  // What is packed, with its magnitudes or steps; then what all have sent.
  return 4 * floats + (std::min(replicas, kMostThatGather) + 1) * packed;
}

}  // namespace capstan::diloco
