// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_loader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/random.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr int64_t kBatchesInGroup = 50;
// Minimum number of groups per epoch.
constexpr int64_t kLeastGroups = 4;

// Many batches ahead, so that the reader rarely wakes up; fewer if they are
// large, but enough to hide a slow read.
constexpr int64_t kMostAhead = 16;
constexpr int64_t kLeastAhead = 3;
constexpr int64_t kBytesAhead = int64_t{32} << 20;

int64_t AheadOf(int64_t bytes) {
  return std::clamp(kBytesAhead / std::max<int64_t>(bytes, 1), kLeastAhead,
                    kMostAhead);
}

// Lets this thread wake up without preempting a computing one: it runs when
// that waits or has used its share.
void YieldToComputation() {
  const sched_param none = {};
  sched_setscheduler(/*pid=*/0, SCHED_BATCH, &none);
}

c10::Stream StreamForCopies(c10::Device device) {
  if (!device.is_cuda()) return c10::Stream(c10::Stream::DEFAULT, device);
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device);
}

// Sets *batch's kSamplePosition, reusing a tensor of that length.
void SetSamplePositions(absl::Span<const int64_t> positions, Batch* batch) {
  at::Tensor& tensor = (*batch)[kSamplePosition];
  const auto count = static_cast<int64_t>(positions.size());
  if (!tensor.defined() || tensor.numel() != count) {
    tensor = at::empty({count}, at::kLong);
  }
  std::copy(positions.begin(), positions.end(),
            tensor.mutable_data_ptr<int64_t>());
}

class PrefetchingLoader final : public DataLoader {
 public:
  PrefetchingLoader(const DataLoaderOptions& options,
                    const DatasetReader& reader)
      : options_(options), reader_(reader), slots_(1) {
    thread_ = std::thread([this] { Run(); });
  }

  ~PrefetchingLoader() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    room_.notify_one();
    thread_.join();
  }

  absl::StatusOr<Batch> Next() override {
    std::unique_lock<std::mutex> lock(mutex_);
    more_.wait(lock, [this] { return read_ > taken_ || !error_.ok(); });
    if (read_ == taken_) return error_;
    BatchSlot& slot = slots_[taken_ % slots_.size()];
    lock.unlock();
    // Without the lock: the reader doesn't reuse this slot until taken_ is past
    // it.
    absl::StatusOr<Batch> batch = TakeFrom(slot);
    if (!batch.ok()) return batch;
    lock.lock();
    ++taken_;
    const bool low = read_ - taken_ == ahead_ / 2;
    lock.unlock();
    if (low) room_.notify_one();
    return batch;
  }

 private:
  static absl::StatusOr<Batch> TakeFrom(BatchSlot& slot) {
    try {
      return slot.Take();
    } catch (...) {
      return CurrentExceptionToStatus();
    }
  }

  void Run() {
    absl::Status status;
    try {
      YieldToComputation();
      // Otherwise this thread would allocate memory on the first GPU.
      const c10::DeviceGuard guard(options_.device);
      status = ReadAhead(StreamForCopies(options_.device));
    } catch (...) {
      status = CurrentExceptionToStatus();
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      error_ = std::move(status);
    }
    more_.notify_one();
  }

  // Returns when the loader is being destroyed, or with the reader's error.
  absl::Status ReadAhead(const c10::Stream& copies) {
    SampleSequence sequence(options_.order);
    std::vector<int64_t> samples, positions;
    const BatchShares& shares = options_.shares;
    const int64_t per_step = shares.micro_steps();
    for (int64_t batch = 0; AwaitRoom(batch); ++batch) {
      const int64_t first = shares.FirstSample(options_.rank, batch % per_step);
      const int64_t position = options_.start_position +
                               batch / per_step * shares.global_batch_size +
                               std::max<int64_t>(first, 0);
      samples.resize(first < 0 ? 1 : shares.micro_batch_size);
      positions.resize(samples.size());
      sequence.At(position, absl::MakeSpan(samples));
      std::iota(positions.begin(), positions.end(), position);
      RemoveForgotten(options_.forgotten, reader_, &samples, &positions);
      BatchSlot& slot = slots_[batch % slots_.size()];
      CAPSTAN_RETURN_IF_ERROR(slot.Fill(reader_, samples, positions, copies));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (batch == 0) {
          // The batch size is known only now. Plus one: the batch being trained
          // on still occupies its slot.
          ahead_ = AheadOf(slot.bytes());
          slots_.resize(ahead_ + 1);
        }
        ++read_;
      }
      more_.notify_one();
    }
    return absl::OkStatus();
  }

  // False when the loader is being destroyed. Once all slots are full, waits
  // until half of them are empty.
  bool AwaitRoom(int64_t batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (batch - taken_ >= ahead_) {
      room_.wait(lock,
                 [&] { return stopping_ || batch - taken_ <= ahead_ / 2; });
    }
    return !stopping_;
  }

  const DataLoaderOptions options_;
  const DatasetReader& reader_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable more_;
  int64_t ahead_ = 1;
  // Batch i is in slot i % size.
  std::vector<BatchSlot> slots_;
  int64_t read_ = 0;
  int64_t taken_ = 0;
  absl::Status error_;  // returned after all batches read before it
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

bool RemoveForgotten(const std::set<int64_t>& forgotten,
                     const DatasetReader& data, std::vector<int64_t>* samples,
                     std::vector<int64_t>* positions) {
  if (forgotten.empty()) return false;
  size_t kept = 0;
  for (size_t i = 0; i < samples->size(); ++i) {
    if (forgotten.count((*samples)[i]) > 0) continue;
    (*samples)[kept] = (*samples)[i];
    (*positions)[kept] = (*positions)[i];
    ++kept;
  }
  const bool none_left = kept == 0;
  if (none_left) {
    int64_t& sample = samples->front();
    while (forgotten.count(sample) > 0) {
      sample = data.draws_anew() ? sample + 1 : (sample + 1) % data.size();
    }
    kept = 1;
  }
  samples->resize(kept);
  positions->resize(kept);
  return none_left;
}

int64_t LongestSample(const DatasetReader& data, int64_t most) {
  int64_t longest = 0;
  int64_t length = -1;
  for (int64_t i = 0; i < std::min(data.size(), most); ++i) {
    const int64_t here = data.sample_length(i);
    if (here <= length) continue;
    length = here;
    longest = i;
  }
  return longest;
}

DataOrder OrderOf(const DatasetReader& data, uint64_t seed,
                  bool group_by_length, int64_t global_batch_size,
                  const RolloutPlan& rollouts) {
  DataOrder order;
  order.rollouts = rollouts;
  order.global_batch_size = global_batch_size;
  order.size = data.size();
  order.shuffle = data.shuffle();
  order.anew = data.draws_anew();
  order.seed = seed;
  if (!group_by_length) return order;
  const int64_t batches =
      std::clamp(order.size / (global_batch_size * kLeastGroups), int64_t{1},
                 kBatchesInGroup);
  order.group = batches * global_batch_size;
  order.length = [&data](int64_t sample) { return data.sample_length(sample); };
  order.longest = LongestSample(data, order.size);
  return order;
}

void SampleSequence::At(int64_t position, absl::Span<int64_t> samples) {
  const int64_t rows = order_.rollouts.rows_per_sample;
  const int64_t steps = order_.rollouts.steps_per_sample;
  if (rows == 1 && steps == 1) return Once(position, samples);
  const int64_t batch = order_.global_batch_size;
  for (int64_t& sample : samples) {
    const int64_t row = position / (batch * steps) * batch + position % batch;
    Once(row / rows, absl::MakeSpan(&sample, 1));
    ++position;
  }
}

void SampleSequence::Once(int64_t position, absl::Span<int64_t> samples) {
  while (!samples.empty()) {
    const int64_t epoch = position / order_.size;
    const int64_t first = position % order_.size;
    size_t here = std::min<size_t>(order_.size - first, samples.size());
    if (order_.group > 0) {
      const int64_t group = first / order_.group;
      SortGroup(epoch, group);
      const size_t begin = first - group * order_.group;
      here = std::min(here, sorted_.size() - begin);
      std::copy_n(sorted_.begin() + begin, here, samples.begin());
    } else {
      const uint64_t key = KeyOf(epoch);
      for (size_t i = 0; i < here; ++i) {
        samples[i] =
            FirstOf(epoch) + Unsorted(key, first + static_cast<int64_t>(i));
      }
    }
    samples.remove_prefix(here);
    position += static_cast<int64_t>(here);
  }
}

uint64_t SampleSequence::KeyOf(int64_t epoch) const {
  return order_.shuffle ? RandomKey(order_.seed, absl::StrCat("epoch ", epoch))
                        : 0;
}

int64_t SampleSequence::Unsorted(uint64_t key, int64_t index) const {
  const auto place = [&](int64_t i) {
    return order_.shuffle ? PermutedIndex(key, i, order_.size) : i;
  };
  const int64_t sample = place(index);
  if (order_.group == 0) return sample;
  const int64_t first = place(0);
  if (sample == first) return order_.longest;
  return sample == order_.longest ? first : sample;
}

void SampleSequence::SortGroup(int64_t epoch, int64_t group) {
  if (epoch == sorted_epoch_ && group == sorted_group_) return;
  const int64_t begin = group * order_.group;
  const int64_t end = std::min(begin + order_.group, order_.size);
  const uint64_t key = KeyOf(epoch);
  std::vector<std::pair<int64_t, int64_t>> by_length;  // and the sample
  by_length.reserve(end - begin);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sample = FirstOf(epoch) + Unsorted(key, i);
    by_length.emplace_back(order_.length(sample), sample);
  }
  std::stable_sort(
      by_length.begin(), by_length.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  sorted_.clear();
  for (const auto& [length, sample] : by_length) sorted_.push_back(sample);
  sorted_epoch_ = epoch;
  sorted_group_ = group;
}

DataLoader::~DataLoader() = default;

void AwaitEvent(const c10::Event& event) {
  constexpr std::chrono::microseconds kPause{50};
  while (!event.query()) std::this_thread::sleep_for(kPause);
}

std::unique_ptr<DataLoader> DataLoader::Create(const DataLoaderOptions& options,
                                               const DatasetReader& reader) {
  return std::make_unique<PrefetchingLoader>(options, reader);
}

bool Unshared(const Batch& batch) {
  for (const auto& [name, tensor] : batch) {
    if (!tensor.has_storage() || tensor.use_count() != 1 ||
        tensor.storage().use_count() != 1) {
      return false;
    }
  }
  // Use counts are read relaxed but decremented with release.
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

namespace {

// The reader's batch; an error if a file that is mapped lost bytes meanwhile.
absl::Status ReadWhole(const DatasetReader& reader,
                       absl::Span<const int64_t> samples, Batch* batch) {
  absl::Status status = reader.Read(samples, batch);
  // The cause, whatever the reader made of the zeros in their place.
  const absl::Status files = MappedFile::CheckAll();
  return files.ok() ? status : files;
}

}  // namespace

absl::StatusOr<Batch> ReadBatch(const DatasetReader& reader,
                                absl::Span<const int64_t> samples,
                                c10::Device device) {
  Batch batch;
  CAPSTAN_RETURN_IF_ERROR(ReadWhole(reader, samples, &batch));
  SetSamplePositions(samples, &batch);
  for (auto& [name, tensor] : batch) tensor = tensor.to(device);
  return batch;
}

absl::Status BatchSlot::Read(const DatasetReader& reader,
                             absl::Span<const int64_t> samples,
                             absl::Span<const int64_t> positions) {
  // Hidden from the reader; the node is kept for reuse.
  Batch::node_type own = host_.extract(kSamplePosition);
  CAPSTAN_RETURN_IF_ERROR(ReadWhole(reader, samples, &host_));
  if (!own.empty()) host_.insert(std::move(own));
  SetSamplePositions(positions, &host_);
  return absl::OkStatus();
}

absl::Status BatchSlot::Fill(const DatasetReader& reader,
                             absl::Span<const int64_t> samples,
                             absl::Span<const int64_t> positions,
                             const c10::Stream& copies) {
  try {
    // It has usually long completed: all other slots had their turn since.
    if (copied_ != nullptr) AwaitEvent(*copied_);
    if (!Unshared(host_)) host_.clear();
    CAPSTAN_RETURN_IF_ERROR(Read(reader, samples, positions));
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
      // Copied, since the next batch overwrites this one.
      device_[name] = tensor.clone();
      continue;
    }
    // Only the first time, if the reader reuses the tensors it is given.
    if (!tensor.is_pinned()) tensor = tensor.pin_memory();
    device_[name] = tensor.to(copies.device(), /*non_blocking=*/true);
    if (name == kInputIds || name == kLabels || name == kPositions ||
        tensor.dim() == 1) {
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
  // Allocated on the copies' stream: the memory must outlive this stream's
  // work.
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
