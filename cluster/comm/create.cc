// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/create.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/lost_peer.h"
#include "base/own_library.h"
#include "base/status.h"
#include "cluster/comm/cpu_group.h"
#include "cluster/comm/cuda_libraries.h"
#include "cluster/comm/nccl/nccl_entry.h"
#include "cluster/comm/nccl_network.h"
#include "cluster/comm/single_group.h"
#include "cluster/meet/rendezvous.h"
#include "cluster/watch/ledger.h"
#include "plugins/sdk/sdk_hash.h"

namespace capstan {
namespace {

absl::Status NoGpu(absl::string_view problem) {
  return absl::FailedPreconditionError(
      absl::StrCat("can't use the GPU: ", problem,
                   " (set CUDA_VISIBLE_DEVICES= to train on the CPU instead)"));
}

std::string FindNccl() {
  return FindOwnLibrary(kNcclLibrary, "cluster/comm/nccl");
}

absl::StatusOr<const NcclEntry*> LoadNccl() {
  const std::string path = FindNccl();
  if (path.empty()) {
    return NoGpu(
        absl::StrCat("there is no ", kNcclLibrary, " beside the trainer's core",
                     "; build the trainer with --repo_env=CAPSTAN_GPU=on"));
  }
  // CUDA's runtime opens it by name, and its error says less if it is missing.
  std::string problem;
  if (OpenDriverLibrary(/*root=*/"", &problem) == nullptr) {
    return NoGpu(absl::StrCat("the driver's library does not load: ", problem));
  }
  const absl::Status loaded = LoadLibTorchCuda();
  if (!loaded.ok()) return NoGpu(loaded.message());
  const absl::StatusOr<void*> symbol =
      LibrarySymbol(path, kNcclLibrary, kNcclEntrySymbol,
                    RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!symbol.ok()) return NoGpu(symbol.status().message());
  const auto* entry = static_cast<const NcclEntry*>(*symbol);
  if (entry->sdk_hash != std::string(CAPSTAN_SDK_HASH)) {
    return NoGpu(RefusedLibrary(path, "it is of another build").message());
  }
  return entry;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinCpuRanks(
    const RankInfo& info) {
  CAPSTAN_RETURN_IF_ERROR(CheckCpuVariables(info));
  CAPSTAN_ASSIGN_OR_RETURN(const Meeting meeting, Meet(info));
  try {
    JoinLedgers(info.rank, info.world_size, meeting.store);
  } catch (const c10::DistError&) {
    return CouldNotMeet(info);
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                           CreateCpuGroup(info, meeting));
  MayLeave(meeting);
  return group;
}

}  // namespace

bool HasGpuParts() { return !FindNccl().empty(); }

namespace {

absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(const RankInfo& info,
                                                     int gpus) {
  if (gpus == 0) {
    if (info.world_size == 1) return CreateSingleGroup(at::kCPU);
    return JoinCpuRanks(info);
  }
  if (info.GpuIndex() >= gpus) {
    return NoGpu(absl::StrCat("rank ", info.rank, " is number ",
                              info.local_rank + 1, " on this machine, which ",
                              "has ", gpus,
                              " GPUs: launch at most one rank a GPU"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const NcclEntry* entry, LoadNccl());
  SetGpuTools(entry->tools);
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                           entry->create(info));
  if (info.world_size > 1) SetGpuConnection(entry->connection());
  return info.on_paper ? info.on_paper(std::move(group)) : std::move(group);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateProcessGroup(
    const RankInfo& info, int gpus) {
  auto group = Create(info, gpus);
  // Only the other ranks can be unavailable here.
  if (!group.ok()) return MarkLostPeer(group.status());
  return group;
}

}  // namespace capstan
