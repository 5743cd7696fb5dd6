// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/agent_store.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/meet/meeting_file.h"

namespace capstan {
namespace {

constexpr char kPlace[] = "capstan/place";

// Within a catch clause.
absl::Status AgentError() {
  return absl::UnavailableError(
      absl::StrCat("torchrun's agent: ", CurrentExceptionToStatus().message()));
}

}  // namespace

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenAgentStore(
    const RankInfo& info, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.numWorkers = info.world_size;
  options.timeout = timeout;
  options.waitWorkers = false;
  options.isServer = false;
  try {
    c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
    // The agent's store survives restarts of the ranks.
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (restarts == nullptr) return store;
    return c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat("/worker/attempt_", restarts), std::move(store));
  } catch (...) {
    return AgentError();
  }
}

absl::Status PublishPlace(c10d::Store& agent, const MeetingPlace& place) {
  try {
    agent.set(kPlace, Encode(place));
    return absl::OkStatus();
  } catch (...) {
    return AgentError();
  }
}

absl::StatusOr<MeetingPlace> PublishedPlace(c10d::Store& agent) {
  try {
    if (agent.check({kPlace}))
      return ParseMeetingPlace(agent.get_to_str(kPlace));
    return absl::UnavailableError("it hasn't published its address yet");
  } catch (...) {
    return AgentError();
  }
}

}  // namespace capstan
