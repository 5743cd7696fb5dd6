// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_loader.h"

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "plugins/sdk/status.h"

namespace capstan {
namespace {

// Micro-batches that wait to be trained on: enough to hide a slow read, few
// enough to cost little memory.
constexpr size_t kDepth = 3;

class PrefetchingLoader final : public DataLoader {
 public:
  PrefetchingLoader(const DataLoaderOptions& options,
                    const DatasetReader& reader)
      : options_(options), reader_(reader) {
    thread_ = std::thread([this] { ReadAhead(); });
  }

  ~PrefetchingLoader() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  absl::StatusOr<Batch> Next() override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty(); });
    // An error is the last thing that the thread leaves: it stays.
    if (!ready_.front().ok()) return ready_.front().status();
    absl::StatusOr<Batch> batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return ToDevice(*std::move(batch));
  }

 private:
  void ReadAhead() {
    std::vector<int64_t> samples(options_.micro_batch_size);
    int64_t step_start = options_.start_position;
    const int64_t at_once = options_.micro_batch_size * options_.world_size;
    while (true) {
      for (int64_t begin = 0; begin < options_.global_batch_size;
           begin += at_once) {
        const int64_t first =
            step_start + begin + options_.rank * options_.micro_batch_size;
        for (size_t i = 0; i < samples.size(); ++i) {
          samples[i] = options_.order.SampleAt(first + i);
        }
        absl::StatusOr<Batch> batch = Read(samples);
        const bool ok = batch.ok();
        if (!Put(std::move(batch)) || !ok) return;
      }
      step_start += options_.global_batch_size;
    }
  }

  absl::StatusOr<Batch> Read(const std::vector<int64_t>& samples) const {
    try {
      Batch batch;
      CAPSTAN_RETURN_IF_ERROR(reader_.Read(samples, &batch));
      if (options_.device.is_cuda()) {
        for (auto& [name, tensor] : batch) tensor = tensor.pin_memory();
      }
      return batch;
    } catch (...) {
      return CurrentExceptionToStatus();
    }
  }

  // Waits for room; false when the loader is going away.
  bool Put(absl::StatusOr<Batch> batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || ready_.size() < kDepth; });
    if (stopping_) return false;
    ready_.push_back(std::move(batch));
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  // On the caller's stream, so that what follows on it sees the data.
  Batch ToDevice(Batch batch) const {
    if (!options_.device.is_cuda()) return batch;
    for (auto& [name, tensor] : batch) {
      tensor = tensor.to(options_.device, /*non_blocking=*/true);
    }
    return batch;
  }

  const DataLoaderOptions options_;
  const DatasetReader& reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<absl::StatusOr<Batch>> ready_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

DataLoader::~DataLoader() = default;

std::unique_ptr<DataLoader> DataLoader::Create(const DataLoaderOptions& options,
                                               const DatasetReader& reader) {
  return std::make_unique<PrefetchingLoader>(options, reader);
}

}  // namespace capstan
