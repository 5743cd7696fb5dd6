// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/rendezvous.h"

#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr char kJoined[] = "capstan/joined";
constexpr char kAll[] = "capstan/all";

std::string RankKey(int rank) { return absl::StrCat("capstan/rank/", rank); }

std::string Address(const RankInfo& info) {
  return absl::StrCat(info.master_addr, ":", info.master_port);
}

bool IsSet(const char* name, const char* value) {
  const char* found = std::getenv(name);
  return found != nullptr && std::string(found) == value;
}

c10::intrusive_ptr<c10d::Store> OpenStore(const RankInfo& info,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.numWorkers = info.world_size;
  options.timeout = timeout;
  // Joined() below waits instead, and can name missing ranks.
  options.waitWorkers = false;
  options.isServer = info.rank == 0;
  if (info.listen_fd >= 0) {
    options.masterListenFd = info.listen_fd;
  } else if (IsSet("TORCHELASTIC_USE_AGENT_STORE", "True")) {
    options.isServer = false;
  }
  c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  // torchrun's store survives restarts of the ranks.
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

// False if some rank doesn't join in time.
bool Joined(const RankInfo& info, std::chrono::milliseconds timeout,
            c10d::Store* store) {
  store->set(RankKey(info.rank), std::vector<uint8_t>{1});
  if (store->add(kJoined, 1) == info.world_size) {
    store->set(kAll, std::vector<uint8_t>{1});
    return true;
  }
  try {
    store->wait({kAll}, timeout);
  } catch (const std::exception&) {
    // If the store is gone, this throws the reason.
    return store->check({kAll});
  }
  return true;
}

}  // namespace

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> JoinStore(
    const RankInfo& info, std::chrono::milliseconds timeout) {
  try {
    c10::intrusive_ptr<c10d::Store> store = OpenStore(info, timeout);
    if (Joined(info, timeout, store.get())) return store;
    const std::vector<int> missing = MissingRanks(info, store.get());
    return absl::UnavailableError(
        absl::StrCat("rank ", info.rank, " waited ", timeout.count() / 1000,
                     " s at ", Address(info), ": only ",
                     info.world_size - missing.size(), " of ", info.world_size,
                     " ranks came; missing: ", absl::StrJoin(missing, ", ")));
  } catch (...) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", info.rank, " could not meet the other ranks at ",
        Address(info), ": ", CurrentExceptionToStatus().message()));
  }
}

}  // namespace capstan
