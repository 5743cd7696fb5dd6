// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/create.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/gpus.h"
#include "base/lost_peer.h"
#include "base/machine.h"
#include "base/status.h"
#include "plugins/sdk/sdk_hash.h"
#include "trainer/launcher/environment.h"
#include "trainer/process_group/backend_group.h"
#include "trainer/process_group/cuda_libraries.h"
#include "trainer/process_group/hosts/hosts_group.h"
#include "trainer/process_group/meeting/network.h"
#include "trainer/process_group/nccl/nccl_entry.h"
#include "trainer/process_group/paper_group.h"
#include "trainer/process_group/rendezvous.h"
#include "trainer/process_group/single_group.h"
#include "trainer/watch/ledger.h"

namespace capstan {
namespace {

absl::Status NoGpu(absl::string_view problem) {
  return absl::FailedPreconditionError(
      absl::StrCat("can't use the GPU: ", problem,
                   " (set CUDA_VISIBLE_DEVICES= to train on the CPU instead)"));
}

std::string LoadError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error of the dynamic loader" : error;
}

std::vector<std::string> NcclFolders() {
  const std::string core =
      LibraryFolder(reinterpret_cast<const void*>(&CreateProcessGroup));
  const std::string trainer = ExecutableFolder();
  // The first is Bazel's output folder, relative to the core.
  return {core + "/process_group/nccl", core, trainer, trainer + "/plugins"};
}

absl::StatusOr<const NcclEntry*> LoadNccl() {
  const std::vector<std::string> folders = NcclFolders();
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", kNcclLibrary);
    if (access(path.c_str(), R_OK) != 0) continue;
    // CUDA's runtime asks for it by name, and says less if it isn't there.
    std::string problem;
    if (OpenDriverLibrary(/*root=*/"", &problem) == nullptr) {
      return NoGpu(
          absl::StrCat("the driver's library does not load: ", problem));
    }
    const absl::Status loaded = LoadLibTorchCuda();
    if (!loaded.ok()) return NoGpu(loaded.message());
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      return NoGpu(absl::StrCat(path, " does not load: ", LoadError()));
    }
    const auto* entry =
        static_cast<const NcclEntry*>(dlsym(library, kNcclEntrySymbol));
    if (entry == nullptr || entry->sdk_hash != std::string(CAPSTAN_SDK_HASH)) {
      return NoGpu(absl::StrCat(path, " is of another build"));
    }
    return entry;
  }
  return NoGpu(absl::StrCat(
      "there is no ", kNcclLibrary, " in ", absl::StrJoin(folders, ", "),
      "; build the trainer with --repo_env=CAPSTAN_GPU=on"));
}

using c10d::ProcessGroupGloo;

constexpr char kGlooInterface[] = "GLOO_SOCKET_IFNAME";
constexpr char kCollectives[] = "CAPSTAN_CPU_COLLECTIVES";

// What this process's environment says wrongly, before others count on it.
absl::Status CheckVariables(const RankInfo& info) {
  const std::string collectives = Variable(kCollectives).value_or("shm");
  if (collectives != "shm" && collectives != "gloo") {
    return VariableError(
        kCollectives,
        absl::StrCat("must be shm or gloo, is \"", collectives, "\""));
  }
  const absl::optional<std::string> interface = Variable(kGlooInterface);
  if (!interface.has_value() || (info.nodes == 1 && collectives != "gloo")) {
    return absl::OkStatus();
  }
  std::set<std::string> names;
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    names.insert(one.interface);
  }
  if (names.count(*interface) > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "environment variable ", kGlooInterface, " is \"", *interface,
      "\", but host ", HostName(), ", of rank ", info.rank,
      ", has no such network interface that is up and has an address; it has ",
      absl::StrJoin(names, ", "), ": set it to one of these, or unset it"));
}

std::shared_ptr<gloo::transport::Device> CreateDevice(const Meeting& meeting) {
  const absl::optional<std::string> interface = Variable(kGlooInterface);
  if (interface.has_value()) {
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  return ProcessGroupGloo::createDeviceForHostname(meeting.host_address);
}

// Connects ranks, which have met, with Gloo on the CPU: over the interface in
// GLOO_SOCKET_IFNAME, else by this host's address in the meeting. They have
// kJoinTimeout to come; `timeout` limits what then waits without a limit of its
// own.
BackendGroup::Connect GlooConnect(const Meeting& meeting,
                                  std::chrono::milliseconds timeout) {
  // For all groups of this rank, once one is connected.
  const auto device =
      std::make_shared<std::shared_ptr<gloo::transport::Device>>();
  return [meeting, timeout, device](const std::string& prefix, int rank,
                                    int size) {
    if (*device == nullptr) *device = CreateDevice(meeting);
    auto options = ProcessGroupGloo::Options::create(kJoinTimeout);
    options->devices.push_back(*device);
    auto gloo = c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, meeting.store), rank,
        size, options);
    gloo->setTimeout(timeout);
    return gloo;
  };
}

// A flat group: Gloo between all ranks.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGlooGroup(
    const RankInfo& info, const Meeting& meeting) {
  try {
    return std::make_unique<BackendGroup>(
        GlooConnect(meeting, kCollectiveTimeout), "gloo", at::kCPU, info.rank,
        info.world_size);
  } catch (...) {
    return absl::UnavailableError(
        absl::StrCat("rank ", info.rank, " could not connect to the other ",
                     "ranks with Gloo (GLOO_SOCKET_IFNAME names the network ",
                     "interface): ", CurrentExceptionToStatus().message()));
  }
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateCpuGroup(
    const RankInfo& info) {
  CAPSTAN_RETURN_IF_ERROR(CheckVariables(info));
  CAPSTAN_ASSIGN_OR_RETURN(const Meeting meeting, Meet(info));
  try {
    JoinLedgers(info.rank, info.world_size, meeting.store);
    CAPSTAN_ASSIGN_OR_RETURN(
        std::unique_ptr<ProcessGroup> group,
        CreateHostsGroup(info, meeting.store,
                         GlooConnect(meeting, kJoinTimeout)));
    if (group != nullptr) {
      MayLeave(meeting);
      return group;
    }
  } catch (const c10::DistError&) {
    return absl::UnavailableError(
        absl::StrCat("rank ", info.rank, " could not meet the other ranks: ",
                     CurrentExceptionToStatus().message()));
  }
  auto group = CreateGlooGroup(info, meeting);
  if (group.ok()) MayLeave(meeting);
  return group;
}

}  // namespace

bool HasGpuParts() {
  for (const std::string& folder : NcclFolders()) {
    const std::string path = absl::StrCat(folder, "/", kNcclLibrary);
    if (access(path.c_str(), R_OK) == 0) return true;
  }
  return false;
}

namespace {

absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(const RankInfo& info,
                                                     int gpus) {
  if (gpus == 0) {
    if (info.world_size == 1) return CreateSingleGroup(at::kCPU);
    return CreateCpuGroup(info);
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
  return info.on_paper ? CreatePaperGroup(std::move(group)) : std::move(group);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateProcessGroup(
    const RankInfo& info, int gpus) {
  auto group = Create(info, gpus);
  // Nothing else is unavailable here than the other ranks.
  if (!group.ok()) return MarkLostPeer(group.status());
  return group;
}

}  // namespace capstan
