// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/agent_store.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/meet/admission.h"
#include "cluster/meet/listen.h"
#include "cluster/meet/network.h"
#include "cluster/meet/wait_notes.h"

namespace capstan {
namespace {

constexpr char kJoined[] = "capstan/joined";
constexpr char kAll[] = "capstan/all";

std::string RankKey(int rank) { return absl::StrCat("capstan/rank/", rank); }

std::string Address(const RankInfo& info) {
  return absl::StrCat(info.master_addr, ":", info.master_port);
}

c10::intrusive_ptr<c10d::Store> OpenStore(const RankInfo& info,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.numWorkers = info.world_size;
  options.timeout = timeout;
  // Joined() below waits instead, and can name missing ranks.
  options.waitWorkers = false;
  options.isServer = false;
  c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  // The agent's store survives restarts of the ranks.
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (restarts == nullptr) return store;
  return c10::make_intrusive<c10d::PrefixStore>(
      absl::StrCat("/worker/attempt_", restarts), std::move(store));
}

std::vector<int> MissingRanks(const RankInfo& info, c10d::Store* store) {
  std::vector<int> missing;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (!store->check({RankKey(rank)})) missing.push_back(rank);
  }
  return missing;
}

// Whether all have joined by `deadline`.
bool AwaitAll(Deadline deadline, c10d::Store* store) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - MeetingClock::now());
  try {
    store->wait({kAll}, std::max(left, std::chrono::milliseconds(1)));
  } catch (const std::exception&) {
    // If the store is gone, this throws the reason.
    return store->check({kAll});
  }
  return true;
}

// False if some rank doesn't join in time.
bool Joined(const RankInfo& info, std::chrono::milliseconds timeout,
            c10d::Store* store) {
  const Deadline deadline = MeetingClock::now() + timeout;
  WaitNotes notes;
  store->set(RankKey(info.rank), std::vector<uint8_t>{1});
  if (store->add(kJoined, 1) == info.world_size) {
    store->set(kAll, std::vector<uint8_t>{1});
    return true;
  }
  // One rank of a host speaks for all.
  while (info.local_rank == 0 && notes.next() < deadline) {
    if (AwaitAll(notes.next(), store)) return true;
    notes.SayIfDue([&] {
      return absl::StrCat("rank ", info.rank, " waits for the others at ",
                          Address(info), " (",
                          AreMissing(MissingRanks(info, store)), ")");
    });
  }
  return AwaitAll(deadline, store);
}

// This host's address in the traffic between the ranks.
absl::StatusOr<SocketAddress> HostAddress(const RankInfo& info) {
  // torchrun always tells how many of the ranks are on this host.
  if (info.local_world_size == info.world_size) {
    return *SocketAddress::Parse("127.0.0.1", 0);
  }
  const HostNetwork network = ThisHostsNetwork();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<SocketAddress> master,
                           Resolve(info.master_addr, info.master_port));
  const bool stays = StaysOnHost(info, master);
  if (!stays && !info.interface.empty()) {
    const auto chosen = AddressOfInterface(info.interface, network);
    if (chosen.ok()) return chosen;
    return absl::FailedPreconditionError(chosen.status().message());
  }
  for (const SocketAddress& address : master) {
    const absl::optional<SocketAddress> own = AddressTowards(address);
    // On the agent's host its name may stand for loopback, by which the other
    // hosts' ranks don't come.
    if (own.has_value() && (stays || !own->IsLoopback())) return *own;
  }
  return DefaultAddress(network);
}

}  // namespace

absl::StatusOr<Meeting> MeetAtAgent(const RankInfo& info,
                                    std::chrono::milliseconds timeout) {
  try {
    Meeting meeting;
    meeting.store = OpenStore(info, timeout);
    // Before the others count on this rank.
    CAPSTAN_ASSIGN_OR_RETURN(const SocketAddress host, HostAddress(info));
    if (!Joined(info, timeout, meeting.store.get())) {
      return absl::UnavailableError(
          absl::StrCat("rank ", info.rank, " waited ", timeout.count() / 1000,
                       " s at ", Address(info), ": ",
                       OnlySomeCame(info.world_size,
                                    MissingRanks(info, meeting.store.get()))));
    }
    meeting.host_address = host.host();
    meeting.interface = InterfaceOf(host);
    return meeting;
  } catch (...) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", info.rank, " could not meet the other ranks at ",
        Address(info), ": ", CurrentExceptionToStatus().message()));
  }
}

}  // namespace capstan
