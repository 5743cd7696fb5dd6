// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/due_actions.h"

#include <algorithm>

#include "base/status.h"
#include "trainer/session/evaluate_action.h"
#include "trainer/session/final_action.h"
#include "trainer/session/go_back_action.h"
#include "trainer/session/mirror_action.h"
#include "trainer/session/profile_action.h"
#include "trainer/session/sample_action.h"
#include "trainer/session/save_action.h"

namespace capstan {
namespace {

template <typename... Actions>
std::vector<std::unique_ptr<DueAction>> ListOf(RankRun* run) {
  std::vector<std::unique_ptr<DueAction>> list;
  (list.push_back(std::make_unique<Actions>(run)), ...);
  return list;
}

}  // namespace

// The order is the run's: what an action does may stop those after it, and all
// ranks make its collectives in this order.
DueActions::DueActions(RankRun* run)
    : run_(*run),
      at_start_(ListOf<CatchUpAction, FirstSave>(run)),
      after_step_(ListOf<GoBackAction, MirrorAction, EvaluateAction,
                         SampleAction, MirrorAgainAction, SaveAction>(run)),
      at_end_(ListOf<LastEvaluation, EndCheck, LastSave, BestWeightsAction,
                     LastSample, FinalAction>(run)),
      output_(ListOf<ProfileAction>(run)) {}

bool DueActions::Scheduled() const {
  return std::any_of(after_step_.begin(), after_step_.end(),
                     [](const auto& action) { return action->Scheduled(); });
}

absl::Status DueActions::DoDue(const List& actions) const {
  for (const std::unique_ptr<DueAction>& action : actions) {
    if (!action->Due()) continue;
    if (action->name() == nullptr) {
      CAPSTAN_RETURN_IF_ERROR(action->Do());
      continue;
    }
    const auto phase = run_.Doing(action->name());
    CAPSTAN_RETURN_IF_ERROR(action->Do());
  }
  return absl::OkStatus();
}

}  // namespace capstan
