// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/profile_action.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/metrics/reporter.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/session.h"

namespace capstan {

absl::Status ProfileAction::Do() {
  const Session& session = run_.session;
  const std::vector<ProfiledStep>& steps = run_.profiler->steps();
  if (steps.empty()) {
    session.Note("profile: this run has done none of its steps");
    return absl::OkStatus();
  }
  const int rank = session.group->rank();
  const std::string trace =
      rank == 0 ? "trace.json" : absl::StrCat("trace.rank", rank, ".json");
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(
      absl::StrCat(session.output_dir, "/", trace), TraceJson(steps, rank)));
  Reporter* const reporter = session.reporter.get();
  if (reporter == nullptr) return absl::OkStatus();
  const StepProfile profile = Summarize(steps);
  reporter->Table(ProfileTable(profile));
  return ReplaceFile(session.output_dir + "/profile.json",
                     ProfileJson(profile));
}

}  // namespace capstan
