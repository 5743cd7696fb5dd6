// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/agree.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/status.h"

namespace capstan {

absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what) {
  std::vector<double> codes(group.size(), 0.0);
  codes[group.rank()] = static_cast<double>(mine.raw_code());
  group.AllReduceHost(absl::MakeSpan(codes));
  if (!mine.ok()) {
    if (group.size() == 1) return mine;
    return Annotate(mine, absl::StrCat("rank ", group.rank()));
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (codes[rank] == 0.0) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(static_cast<int>(codes[rank])),
        absl::StrCat("rank ", rank, " could not ", what(rank)));
  }
  return absl::OkStatus();
}

absl::Status CatchAll(const std::function<absl::Status()>& fn) {
  try {
    return fn();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

}  // namespace capstan
