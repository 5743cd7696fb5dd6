// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/batch_slot.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "base/status.h"

namespace capstan {

namespace {

// Waits without occupying a core, which Event::synchronize would. The copy is
// mostly long done: a slot's turn comes again when all others had theirs.
void AwaitCopy(const c10::Event& copied) {
  constexpr std::chrono::microseconds kPause{50};
  while (!copied.query()) std::this_thread::sleep_for(kPause);
}

}  // namespace

bool Unshared(const Batch& batch) {
  for (const auto& [name, tensor] : batch) {
    if (!tensor.has_storage() || tensor.use_count() != 1 ||
        tensor.storage().use_count() != 1) {
      return false;
    }
  }
  // Counts are read without an order of their own; they are let go of with one.
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

void SetSamplePositions(absl::Span<const int64_t> positions, Batch* batch) {
  at::Tensor& tensor = (*batch)[kSamplePosition];
  const auto count = static_cast<int64_t>(positions.size());
  if (!tensor.defined() || tensor.numel() != count) {
    tensor = at::empty({count}, at::kLong);
  }
  std::copy(positions.begin(), positions.end(),
            tensor.mutable_data_ptr<int64_t>());
}

absl::Status BatchSlot::Read(const DatasetReader& reader,
                             absl::Span<const int64_t> samples,
                             int64_t position) {
  // Out of the reader's sight; the entry is kept for its memory.
  Batch::node_type own = host_.extract(kSamplePosition);
  CAPSTAN_RETURN_IF_ERROR(reader.Read(samples, &host_));
  if (!own.empty()) host_.insert(std::move(own));
  positions_.resize(samples.size());
  std::iota(positions_.begin(), positions_.end(), position);
  SetSamplePositions(positions_, &host_);
  return absl::OkStatus();
}

absl::Status BatchSlot::Fill(const DatasetReader& reader,
                             absl::Span<const int64_t> samples,
                             int64_t position, const c10::Stream& copies) {
  try {
    if (copied_ != nullptr) AwaitCopy(*copied_);
    if (!Unshared(host_)) host_.clear();
    CAPSTAN_RETURN_IF_ERROR(Read(reader, samples, position));
    if (copies.device().is_cuda()) CopyToDevice(copies);
    return absl::OkStatus();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

void BatchSlot::CopyToDevice(const c10::Stream& copies) {
  const c10::StreamGuard guard(copies);
  for (auto& [name, tensor] : host_) {
    if (name == kTokenCounts) {
      // A copy, since the next batch is written into this one.
      device_[name] = tensor.clone();
      continue;
    }
    // The first time only, if the reader writes into what it is given.
    if (!tensor.is_pinned()) tensor = tensor.pin_memory();
    device_[name] = tensor.to(copies.device(), /*non_blocking=*/true);
    if (name == kLabels || name == kPositions || name == kSamplePosition) {
      device_[HostCopyName(name)] = tensor.clone();
    }
  }
  if (copied_ == nullptr) {
    copied_ = std::make_unique<c10::Event>(copies.device_type());
  }
  copied_->record(copies);
}

Batch BatchSlot::Take() {
  if (copied_ == nullptr) return host_;
  const c10::impl::VirtualGuardImpl device(copied_->device_type());
  const c10::Stream current = device.getStream(copied_->device());
  copied_->block(current);
  // Made on the copies' stream: their memory must outlast the work on this one.
  for (auto& [name, tensor] : device_) {
    if (tensor.is_cuda()) tensor.record_stream(current);
  }
  return std::exchange(device_, Batch());
}

int64_t BatchSlot::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : host_) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace capstan
