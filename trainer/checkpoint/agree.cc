// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/agree.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {

absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what) {
  std::vector<double> failed(group.size(), 0.0);
  failed[group.rank()] = mine.ok() ? 0.0 : 1.0;
  group.AllReduceHost(absl::MakeSpan(failed));
  if (!mine.ok()) return mine;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (failed[rank] == 0.0) continue;
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " could not ", what(rank)));
  }
  return absl::OkStatus();
}

absl::Status AgreeOnError(ProcessGroup& group, const absl::Status& mine,
                          const char* what) {
  // It can't agree with them.
  if (absl::IsUnavailable(mine)) return mine;
  try {
    return Agree(group, mine, [what](int) { return std::string(what); });
  } catch (...) {
    return mine.ok() ? CurrentExceptionToStatus() : mine;
  }
}

absl::Status CatchAll(const std::function<absl::Status()>& fn) {
  try {
    return fn();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

}  // namespace capstan
