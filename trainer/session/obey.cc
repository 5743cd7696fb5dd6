// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/obey.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/metrics/event_log.h"
#include "trainer/session/check_run.h"
#include "trainer/session/control.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 50;

// `status` with the name of the field that it is about.
absl::Status OfSection(const char* section, const absl::Status& status) {
  const absl::optional<std::string> field = FieldOf(status);
  return Annotate(
      status, field.has_value() ? absl::StrCat(section, ".", *field) : section);
}

// As for a resumed run with another max_steps. Returns what to answer.
absl::StatusOr<std::string> SetEnd(int64_t max_steps, Session* session) {
  const int64_t step = session->state.step;
  const int64_t before = session->max_steps;
  if (max_steps < step) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run has done ", step, " steps already"));
  }
  const Schedule& schedule = session->config.schedule();
  if (max_steps > kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("a run has at most ", kMostSteps, " steps"));
  }
  CAPSTAN_RETURN_IF_ERROR(
      OfSection("schedule", CheckSchedule(schedule, max_steps)));
  CAPSTAN_RETURN_IF_ERROR(
      OfSection("profile", CheckProfile(session->config.profile(), max_steps)));
  std::string answer = absl::StrCat("the run ends after step ", max_steps,
                                    " instead of ", before);
  if (!SameFactors(schedule, before, schedule, max_steps,
                   session->state.optimizer_steps)) {
    absl::StrAppend(&answer, "; this", kChangesSchedule,
                    ", whose length it is: the "
                    "learning rate goes on along another curve than before");
  }
  session->max_steps = max_steps;
  session->end_was_told = true;
  if (session->reporter != nullptr) {
    session->reporter->SetEnd(max_steps);
    SetMaxSteps(max_steps, &session->identity);
  }
  return answer;
}

// Returns what to answer; an error of the request's own refuses it.
absl::StatusOr<std::string> Do(const Request& request, RankRun* run,
                               absl::Status* ends) {
  Session& session = run->session;
  switch (request.what) {
    case Request::What::kSave: {
      const int64_t step = session.state.step;
      // What it goes back to is the newest checkpoint.
      if (session.going_back) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the run goes back from step ", step, ", a spike of the loss"));
      }
      *ends = run->checkpoints.Save();
      if (run->checkpoints.saved_step() != step) {
        return absl::FailedPreconditionError(absl::StrCat(
            "step ", step, " isn't saved before its weights have proved good"));
      }
      return absl::StrCat("step ", step, " is being saved");
    }
    case Request::What::kStop:
      // As a signal would.
      *ends = session.StopIfCancelled(AgreeOrStop(
          *session.group, absl::CancelledError("train.control"), "stop"));
      return absl::StrCat("the run stops after step ", session.state.step);
    case Request::What::kMaxSteps:
      return SetEnd(request.value, &session);
  }
  return absl::InternalError("no such request");
}

}  // namespace

absl::Status Obey(RankRun* run) {
  Session& session = run->session;
  session.control_requested = false;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string lines,
      FromRank0(*session.group, session.control.NewLines()));
  if (lines.empty()) return absl::OkStatus();
  // The run's numbers are those of this step.
  CAPSTAN_RETURN_IF_ERROR(run->step.CatchUp());
  for (const absl::string_view line :
       absl::StrSplit(lines, '\n', absl::SkipWhitespace())) {
    std::string id;
    absl::StatusOr<std::string> answer;
    const absl::StatusOr<Request> request =
        ParseRequest(std::string(line), &id);
    if (request.ok()) {
      absl::Status ends;
      answer = Do(*request, run, &ends);
      CAPSTAN_RETURN_IF_ERROR(ends);
    } else {
      answer = request.status();
    }
    RunEvent event = {kControlEvent, session.state.step,
                      answer.ok()
                          ? *answer
                          : absl::StrCat(kRefused, answer.status().message())};
    event.id = id;
    session.Tell(event);
  }
  return absl::OkStatus();
}

}  // namespace capstan
