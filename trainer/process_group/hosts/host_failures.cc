// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/hosts/host_failures.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {

std::string HostFailures::Key() const {
  return absl::StrCat("capstan/failed/", epoch_.load());
}

void HostFailures::Tell(const PhaseFailure& failure) {
  const std::string text =
      absl::StrCat(failure.phase, " ", failure.rank, " ", failure.why);
  try {
    store_->set(Key(), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (...) {
    LOG(INFO) << "can't tell the other hosts: "
              << CurrentExceptionToStatus().message();
  }
}

bool HostFailures::Look() {
  try {
    if (!store_->check({Key()})) return false;
    const std::vector<uint8_t> bytes = store_->get(Key());
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

}  // namespace capstan
