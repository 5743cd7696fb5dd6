// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <torch/csrc/cuda/memory_snapshot.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/status.h"
#include "cluster/comm/backend_error.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/cpu_group.h"
#include "cluster/comm/device_times.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/comm/nccl/cuda_graph.h"
#include "cluster/comm/nccl/exact_pinned.h"
#include "cluster/comm/nccl/nccl_entry.h"
#include "cluster/comm/nccl_network.h"
#include "cluster/comm/single_group.h"
#include "cluster/meet/rendezvous.h"
#include "cluster/watch/ledger.h"
#include "plugins/sdk/sdk_hash.h"

namespace capstan {
namespace {

using c10d::ProcessGroupNCCL;

// ProcessGroupNCCL::Options contains NCCL's config struct, which grows between
// versions: with other headers LibTorch would write past its end.
static_assert(NCCL_MAJOR == 2 && NCCL_MINOR == 28,
              "LibTorch 2.11.0 is built with NCCL 2.28: use its nccl.h");

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

// Measures with CUDA events on the waiting stream and on NCCL's own, which
// ProcessGroupNCCL::enableCollectivesTiming turns on. Waits that a CUDA graph
// captures aren't measured.
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

// Events, the newest: about 100 MB of host memory with their stacks.
constexpr size_t kHistory = 100000;

// What the observer below has seen.
struct Failure {
  std::mutex mutex;
  std::string snapshot;
};

Failure& TheFailure() {
  static Failure* const failure = new Failure;  // outlives every tensor
  return *failure;
}

std::string NameOf(int device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))
      ->name;
}

// The allocator calls this before it throws: unwinding frees tensors that
// existed when memory ran out.
void KeepSnapshot(int64_t, size_t, size_t, size_t) {
  try {
    std::string snapshot = torch::cuda::_memory_snapshot_pickled();
    Failure& failure = TheFailure();
    const std::lock_guard<std::mutex> lock(failure.mutex);
    failure.snapshot = std::move(snapshot);
  } catch (...) {
    // The failed allocation is the error to report.
  }
}

void RecordHistory() {
  // By default each address is looked up by a process of addr2line, which takes
  // minutes for libraries of LibTorch's size.
  setenv("TORCH_SYMBOLIZE_MODE", "dladdr", /*overwrite=*/0);
  // As torch.cuda.memory._record_memory_history(): all events, with the stacks
  // of allocations and frees, of C++.
  torch::cuda::_record_memory_history(std::optional<std::string>("all"),
                                      std::optional<std::string>("all"),
                                      /*stacks=*/"all", kHistory);
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(&KeepSnapshot);
}

std::string Snapshot() {
  {
    Failure& failure = TheFailure();
    const std::lock_guard<std::mutex> lock(failure.mutex);
    if (!failure.snapshot.empty()) return std::move(failure.snapshot);
  }
  return torch::cuda::_memory_snapshot_pickled();
}

void Pin(void* memory, int64_t bytes) {
  C10_CUDA_CHECK(cudaHostRegister(memory, static_cast<size_t>(bytes),
                                  cudaHostRegisterDefault));
}

void Unpin(void* memory) {
  // At the process's end CUDA may be gone, and the pages are free anyway.
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

// With LibTorch's CUDA part.
const GpuTools kGpuTools = {
    NameOf, RecordHistory, Snapshot, NewCudaGraph, IdleGraphMemory, Pin, Unpin};

int log_file = -1;  // open for good: NCCL goes on writing to it
bool sets_subsystems = false;
bool set_by_user = false;

std::string LogSoFar() {
  std::string log;
  if (log_file < 0) return log;
  char piece[4096];
  ssize_t n;
  while ((n = pread(log_file, piece, sizeof(piece),
                    static_cast<off_t>(log.size()))) > 0) {
    log.append(piece, static_cast<size_t>(n));
  }
  return log;
}

// Has NCCL write what it chooses and what goes wrong into memory (NcclLog),
// unless the user has set NCCL_DEBUG or NCCL_DEBUG_FILE. Called before NCCL's
// first call, which reads the variables.
void KeepNcclLog() {
  if (log_file >= 0) return;
  set_by_user =
      getenv("NCCL_DEBUG") != nullptr || getenv("NCCL_DEBUG_FILE") != nullptr;
  if (set_by_user) return;
  log_file = memfd_create("nccl-log", MFD_CLOEXEC);
  if (log_file < 0) return;
  SetNcclLog(LogSoFar);
  setenv("NCCL_DEBUG", "INFO", /*overwrite=*/1);
  sets_subsystems = getenv("NCCL_DEBUG_SUBSYS") == nullptr;
  if (sets_subsystems) setenv("NCCL_DEBUG_SUBSYS", "INIT", /*overwrite=*/1);
  setenv("NCCL_DEBUG_FILE", absl::StrCat("/proc/self/fd/", log_file).c_str(),
         /*overwrite=*/1);
}

// NcclEntry::connection. Called once NCCL is connected; unsets the variables
// that KeepNcclLog has set.
std::string NcclConnection() {
  const std::string version = absl::StrCat("NCCL ", c10d::getNcclVersion());
  if (set_by_user) {
    return absl::StrCat(version, " (NCCL_DEBUG is set: see its log)");
  }
  const std::string network = NcclNetwork(LogSoFar());
  if (log_file >= 0) {
    // NCCL has read them; processes that this one starts needn't.
    unsetenv("NCCL_DEBUG");
    unsetenv("NCCL_DEBUG_FILE");
    if (sets_subsystems) unsetenv("NCCL_DEBUG_SUBSYS");
  }
  return network.empty() ? version : absl::StrCat(version, " over ", network);
}

void TakeGpu(at::Device device) {
  const std::string settings = GpuAllocatorSettings(Gpus().gpus);
  if (!settings.empty()) c10::CachingAllocator::setAllocatorSettings(settings);
  at::globalContext().lazyInitDevice(at::kCUDA);
  TakeExactPinnedMemory();
  c10::cuda::set_device(device.index());
}

c10::intrusive_ptr<ProcessGroupNCCL::Options> OptionsOf(
    const NcclSettings& settings) {
  // Collectives are few and short blocks, for which others wait: they go before
  // a product's.
  auto options =
      ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = kCollectiveTimeout;
  if (settings.timeout_seconds > 0) {
    options->timeout = std::chrono::ceil<std::chrono::milliseconds>(
        std::chrono::duration<double>(settings.timeout_seconds));
  }
  if (settings.min_ctas > 0) options->config.minCTAs = settings.min_ctas;
  if (settings.max_ctas > 0) options->config.maxCTAs = settings.max_ctas;
  return options;
}

// Sets what LibTorch does when a collective fails, unless the user has set the
// variables.
void ChooseErrorHandling() {
  constexpr int kKeep = 0;
  // Abort communicators, so that the next collective throws and the rank
  // reports an error of its own; by default LibTorch's thread aborts the
  // process (SIGABRT).
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", kKeep);
  // The same, if that thread sees a device's error before the rank does.
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", kKeep);
  // Otherwise the abort comes a minute later: LibTorch waits for the end of its
  // dump even if dumps are off (cluster/watch knows what each rank did).
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", kKeep);
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", kKeep);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinRanks(const RankInfo& info,
                                                        at::Device device) {
  Meeting meeting;
  std::unique_ptr<ProcessGroup> host;
  if (info.on_paper) {
    // There is nobody to meet.
    meeting.store = c10::make_intrusive<c10d::HashStore>();
  } else {
    CAPSTAN_RETURN_IF_ERROR(CheckCpuVariables(info));
    CAPSTAN_ASSIGN_OR_RETURN(meeting, Meet(info));
    JoinLedgers(info.rank, info.world_size, meeting.store);
    ChooseInterfaceOfNccl(info, meeting);
    CAPSTAN_ASSIGN_OR_RETURN(host, CreateCpuGroup(info, meeting));
    // Within a host no network is used, though NCCL chooses one.
    if (info.nodes > 1) KeepNcclLog();
  }
  ChooseErrorHandling();
  if (info.nccl.buffer_mib > 0) {
    setenv("NCCL_BUFFSIZE", absl::StrCat(info.nccl.buffer_mib << 20).c_str(),
           /*overwrite=*/1);
  }
  const auto connect = [store = meeting.store, device, settings = info.nccl](
                           const std::string& prefix, int rank, int size) {
    auto nccl = c10::make_intrusive<ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, size,
        OptionsOf(settings));
    nccl->enableCollectivesTiming();
    // Connect now, so that errors appear here rather than in the first step.
    nccl->setBoundDeviceId(device);
    try {
      nccl->eagerConnectSingleDevice(device);
    } catch (...) {
      // Its destructor would wait for the others and print advice about Python.
      nccl.release();
      throw;
    }
    return nccl;
  };
  auto group = std::make_unique<BackendGroup>(
      connect, "nccl", info.rank, info.world_size, device, std::move(host),
      std::make_unique<EventTimes>());
  if (!info.on_paper) MayLeave(meeting);
  return group;
}

// Within a catch clause.
absl::Status CouldNotConnect(const RankInfo& info) {
  return absl::UnavailableError(absl::StrCat(
      "rank ", info.rank, " could not connect to the other ranks with NCCL: ",
      CurrentExceptionToStatus().message()));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(const RankInfo& info) {
  const at::Device device(at::kCUDA,
                          static_cast<at::DeviceIndex>(info.GpuIndex()));
  try {
    TakeGpu(device);
  } catch (...) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", info.rank, " can't use GPU ", info.GpuIndex(),
                     ": ", CurrentExceptionToStatus().message()));
  }
  try {
    if (info.world_size == 1) return CreateSingleGroup(device);
    return JoinRanks(info, device);
  } catch (const c10::DistError& e) {
    if (IsOutOfMemory(e.what_without_backtrace())) {
      return NcclOutOfMemory(info.rank, info.GpuIndex());
    }
    return CouldNotConnect(info);
  } catch (...) {
    return CouldNotConnect(info);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const NcclEntry capstan_nccl_v1;
const NcclEntry capstan_nccl_v1 = {CAPSTAN_SDK_HASH, Create, &kGpuTools,
                                   NcclConnection};

}  // namespace capstan
