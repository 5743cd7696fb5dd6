// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/host_failures.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cluster/meet/rendezvous.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

// How often a leader that waits for the others looks for failures.
constexpr std::chrono::milliseconds kLook{100};
// How long Look waits for rank 0's host.
constexpr std::chrono::seconds kAnswer{10};

std::vector<uint8_t> Bytes(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

}  // namespace

HostFailures::HostFailures(c10::intrusive_ptr<c10d::Store> store,
                           ShmMeeting* meeting)
    : store_(std::move(store)), look_(store_->clone()), meeting_(meeting) {
  look_->setTimeout(kAnswer);
}

std::string HostFailures::Key() const {
  return absl::StrCat("capstan/failed/", epoch_.load());
}

void HostFailures::Tell(const PhaseFailure& failure) {
  const std::string text =
      absl::StrCat(failure.phase, " ", failure.rank, " ", failure.why);
  try {
    store_->set(Key(), Bytes(text));
  } catch (...) {
    LOG(INFO) << "can't tell the other hosts: "
              << CurrentExceptionToStatus().message();
  }
}

bool HostFailures::Look() {
  try {
    if (!look_->check({Key()})) return false;
    const std::vector<uint8_t> bytes = look_->get(Key());
    const std::vector<std::string> parts = absl::StrSplit(
        std::string(bytes.begin(), bytes.end()), absl::MaxSplits(' ', 2));
    PhaseFailure failure = {};
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &failure.phase) ||
        !absl::SimpleAtoi(parts[1], &failure.rank)) {
      return false;
    }
    failure.why = parts[2];
    meeting_->Fail(failure);
    return true;
  } catch (...) {
    // Rank 0 is gone, and its store.
    return false;
  }
}

bool HostFailures::LeadersCome(const std::string& name, int hosts) {
  const std::string come =
      absl::StrCat("capstan/leaders/", epoch_.load(), "/", name);
  // The first leader decides for all, since connecting needs all of them.
  const std::string decision = absl::StrCat(come, "/decision");
  const std::string all_come = "all have come";
  const auto decide = [&](const std::string& what) {
    store_->compareSet(decision, {}, Bytes(what));
  };
  if (store_->add(come, 1) == hosts) decide(all_come);
  const auto begin = std::chrono::steady_clock::now();
  while (!store_->check({decision})) {
    if (Look()) {
      decide("a rank has failed");
    } else if (std::chrono::steady_clock::now() - begin > kJoinTimeout) {
      C10_THROW_ERROR(DistStoreError, "another host has not connected again");
    } else {
      try {
        store_->wait({decision}, kLook);
      } catch (const c10::DistError&) {
        // Looks again.
      }
    }
  }
  return store_->get(decision) == Bytes(all_come);
}

}  // namespace capstan
