// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl/event_times.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <deque>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

namespace capstan {
namespace {

using c10d::ProcessGroupNCCL;

// An event that takes the time.
class TimedEvent {
 public:
  TimedEvent() { C10_CUDA_CHECK(cudaEventCreate(&event_)); }
  // Events are leaked: the runtime may be destroyed before this object.
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void Record() {
    C10_CUDA_CHECK(
        cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream().stream()));
  }
  bool Passed() const {
    const cudaError_t state = cudaEventQuery(event_);
    // Otherwise a later call would report the error as its own.
    if (state != cudaSuccess) (void)cudaGetLastError();
    return state == cudaSuccess;
  }
  double SecondsSince(const TimedEvent& earlier) const {
    float milliseconds = 0.0f;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

bool Captures() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
         c10::cuda::CaptureStatus::None;
}

// A copy doesn't hold the tensors.
class FollowedWork final : public DeviceWork, ProcessGroupNCCL::WorkNCCL {
 public:
  explicit FollowedWork(const ProcessGroupNCCL::WorkNCCL& work)
      : ProcessGroupNCCL::WorkNCCL(work) {}
  bool Started() override {
    UseDevice();
    return startedGPUExecutionInternal();
  }
  bool Ended() override {
    UseDevice();
    return finishedGPUExecutionInternal();
  }

 private:
  // Otherwise a thread of its own would make a context on GPU 0.
  void UseDevice() const { c10::cuda::set_device(device_.index()); }
};

class EventTimes final : public DeviceTimes {
 public:
  void BeforeWait() override {
    if (Captures()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) free_.push_back(std::make_unique<Events>());
    Wait wait;
    wait.events = std::move(free_.back());
    free_.pop_back();
    wait.events->begin.Record();
    current_ = std::move(wait);
  }

  void AfterWait(c10d::Work& work) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (current_.events == nullptr) return;
    current_.events->end.Record();
    if (auto* const nccl = dynamic_cast<ProcessGroupNCCL::WorkNCCL*>(&work)) {
      // A copy doesn't hold the tensors.
      current_.work = c10::make_intrusive<ProcessGroupNCCL::WorkNCCL>(*nccl);
    }
    waits_.push_back(std::move(current_));
    current_ = Wait();
  }

  std::unique_ptr<DeviceWork> Follow(c10d::Work& work) override {
    const auto* const nccl =
        dynamic_cast<const ProcessGroupNCCL::WorkNCCL*>(&work);
    if (nccl == nullptr || Captures()) return nullptr;
    return std::make_unique<FollowedWork>(*nccl);
  }

  Seconds Take() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Seconds seconds;
    while (!waits_.empty() && waits_.front().events->end.Passed()) {
      Wait& wait = waits_.front();
      seconds.exposed += wait.events->end.SecondsSince(wait.events->begin);
      if (wait.work != nullptr) {
        seconds.busy += static_cast<double>(wait.work->getDuration()) / 1e3;
      }
      free_.push_back(std::move(wait.events));
      waits_.pop_front();
    }
    return seconds;
  }

 private:
  struct Events {
    TimedEvent begin, end;
  };
  struct Wait {
    std::unique_ptr<Events> events;
    c10::intrusive_ptr<ProcessGroupNCCL::WorkNCCL> work;
  };

  std::mutex mutex_;
  std::vector<std::unique_ptr<Events>> free_;
  Wait current_;  // between BeforeWait and AfterWait
  std::deque<Wait> waits_;
};

}  // namespace

std::unique_ptr<DeviceTimes> NewEventTimes() {
  return std::make_unique<EventTimes>();
}

}  // namespace capstan
