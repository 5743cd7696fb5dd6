// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/cpu_group.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/hosts/hosts_group.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/network.h"

namespace capstan {
namespace {

using c10d::ProcessGroupGloo;

constexpr char kGlooInterface[] = "GLOO_SOCKET_IFNAME";
constexpr char kCollectives[] = "CAPSTAN_CPU_COLLECTIVES";

// The policy of threads that are created meanwhile.
class BatchThreads {
 public:
  BatchThreads() {
    if (usual_) Set(SCHED_BATCH);
  }
  ~BatchThreads() {
    if (usual_) Set(SCHED_OTHER);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static void Set(int policy) {
    const sched_param none = {};
    // What is refused leaves the thread as it is.
    pthread_setschedparam(pthread_self(), policy, &none);
  }
  // Whoever has set another one is obeyed.
  const bool usual_ = sched_getscheduler(0) == SCHED_OTHER;
};

// The thread that reads its sockets polls them in a tight loop while another
// one holds a connection's lock. It mustn't take a core from that one, which
// wakes it by what it sends: between two hosts of one busy core each a small
// collective took 1.5 ms by that, and takes half of it.
std::shared_ptr<gloo::transport::Device> CreateDevice(const Meeting& meeting) {
  const BatchThreads batch;
  const absl::optional<std::string> interface = Variable(kGlooInterface);
  if (interface.has_value()) {
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  return ProcessGroupGloo::createDeviceForHostname(meeting.host_address);
}

// Connects ranks, which have met, with Gloo on the CPU: over the interface in
// GLOO_SOCKET_IFNAME, else by this host's address in the meeting. Ranks must
// connect within kJoinTimeout; `timeout` limits later waits that have no limit
// of their own.
BackendGroup::Connect GlooConnect(const Meeting& meeting,
                                  std::chrono::milliseconds timeout) {
  // Applies to all groups of this rank, once one is connected.
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
        GlooConnect(meeting, kCollectiveTimeout), "gloo", info.rank,
        info.world_size);
  } catch (...) {
    return absl::UnavailableError(
        absl::StrCat("rank ", info.rank, " could not connect to the other ",
                     "ranks with Gloo (GLOO_SOCKET_IFNAME names the network ",
                     "interface): ", CurrentExceptionToStatus().message()));
  }
}

}  // namespace

absl::Status CheckCpuVariables(const RankInfo& info) {
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

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateCpuGroup(
    const RankInfo& info, const Meeting& meeting) {
  try {
    CAPSTAN_ASSIGN_OR_RETURN(
        std::unique_ptr<ProcessGroup> group,
        CreateHostsGroup(info, meeting.store,
                         GlooConnect(meeting, kJoinTimeout)));
    if (group != nullptr) return group;
  } catch (const c10::DistError&) {
    return CouldNotMeet(info);
  }
  return CreateGlooGroup(info, meeting);
}

}  // namespace capstan
