// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <nccl.h>
#include <stdlib.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/status.h"
#include "cluster/comm/backend_error.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/cpu_group.h"
#include "cluster/comm/nccl/event_times.h"
#include "cluster/comm/nccl/memory_snapshot.h"
#include "cluster/comm/nccl/nccl_entry.h"
#include "cluster/comm/nccl/nccl_log.h"
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

void TakeGpu(at::Device device) {
  const std::string settings = GpuAllocatorSettings(Gpus().gpus);
  if (!settings.empty()) c10::CachingAllocator::setAllocatorSettings(settings);
  at::globalContext().lazyInitDevice(at::kCUDA);
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
  auto group = std::make_unique<BackendGroup>(connect, "nccl", info.rank,
                                              info.world_size, device,
                                              std::move(host), NewEventTimes());
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
