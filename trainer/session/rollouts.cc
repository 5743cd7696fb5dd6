// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/rollouts.h"

#include <ATen/core/grad_mode.h>

#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/profile.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/launcher.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/objective.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/initial_weights.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// Is thrown on all ranks at once, where the run is to stop.
struct Stopped {};

class Rollouts {
 public:
  Rollouts(Session* session, const StepInFlight& step)
      : session_(*session), step_(step.number) {}

  absl::Status Run(DataLoader& loader, std::deque<Batch>* ahead) {
    CAPSTAN_RETURN_IF_ERROR(Read(loader));
    {
      const ProfileScope profile(session_.phase = kRolloutPhase);
      const at::NoGradGuard no_grad;
      const MemoryScope scope(MemoryCategory::kActivations);
      CAPSTAN_RETURN_IF_ERROR(Call());
      FinishForward();
    }
    CAPSTAN_RETURN_IF_ERROR(Annotate(Check(), Name()));
    ahead->assign(std::make_move_iterator(batches_.begin()),
                  std::make_move_iterator(batches_.end()));
    return absl::OkStatus();
  }

 private:
  std::string Name() const {
    return absl::StrCat(session_.plugins.objective, ", Rollout");
  }

  absl::Status Read(DataLoader& loader) {
    const ProfileScope profile(session_.phase = kDataPhase);
    for (int64_t i = 0; i < session_.job.batch.accumulation; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(Batch batch, loader.Next());
      before_.push_back({batch.at(kSamplePosition).clone(), {}});
      for (const auto& [name, tensor] : batch) {
        if (tensor.dim() > 0) before_.back().rows[name] = tensor.size(0);
      }
      batches_.push_back(std::move(batch));
    }
    return absl::OkStatus();
  }

  absl::Status Call() {
    ProcessGroup& group = *session_.group;
    RolloutInfo info;
    info.seed = session_.config.train().seed();
    info.step = step_;
    info.rank = group.rank();
    info.world_size = group.size();
    info.sequence_ranks = session_.mesh().sequence;
    info.sequence_index =
        session_.mesh().index(MeshAxis::kSequence, group.rank());
    info.all_done = [this, &group](bool done) {
      // Before other collectives.
      FinishForward();
      double sums[] = {done ? 0.0 : 1.0, StopRequested() != 0 ? 1.0 : 0.0,
                       session_.control.AsksToStop() ? 1.0 : 0.0};
      group.AllReduceHost(absl::MakeSpan(sums));
      if (sums[2] > 0.0) session_.control_requested = true;
      if (sums[1] + sums[2] > 0.0) throw Stopped();
      return sums[0] == 0.0;
    };
    info.all_sum = [this, &group](absl::Span<double> values) {
      FinishForward();
      group.AllReduceHost(values);
    };
    info.first_position = session_.state.samples;
    info.global_batch_size = session_.job.batch.global_batch_size;
    info.with_initial_weights =
        [this](const std::function<absl::Status()>& forwards) {
          FinishForward();
          return WithInitialWeights(&session_, [&]() -> absl::Status {
            CAPSTAN_RETURN_IF_ERROR(forwards());
            FinishForward();
            return absl::OkStatus();
          });
        };
    session_.runner.TakeRan();
    const WhoseCode code(session_.plugins.objective, "Rollout");
    try {
      return Annotate(
          session_.parts.objective->Rollout(*session_.parts.model, &batches_,
                                            info, session_.runner),
          Name());
    } catch (const Stopped&) {
      return absl::CancelledError("stopped in a rollout");
    }
  }

  // Of a forward that has run.
  void FinishForward() {
    if (!session_.runner.TakeRan()) return;
    const WhoseCode code(session_.plugins.strategy, "FinishForward");
    session_.parts.strategy->FinishForward();
  }

  // Checks that there are as many micro-batches, of as many rows, as before.
  absl::Status Check() {
    if (batches_.size() != before_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("returned ", batches_.size(), " micro-batches for ",
                       before_.size(), ": their number must stay"));
    }
    for (size_t i = 0; i < batches_.size(); ++i) {
      Batch& batch = batches_[i];
      batch[kSamplePosition] = before_[i].positions;
      for (const auto& [name, rows] : before_[i].rows) {
        const auto now = batch.find(name);
        const bool there = now != batch.end() && now->second.defined();
        if (there && (now->second.dim() == 0 || now->second.size(0) != rows)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "returned another number of rows of '", name, "' in micro-batch ",
              i + 1, " than ", rows, ": it must stay"));
        }
        RenewHostCopy(name, there ? now->second : at::Tensor(), &batch);
      }
    }
    return absl::OkStatus();
  }

  // The copy is of what was read.
  static void RenewHostCopy(const std::string& name, const at::Tensor& tensor,
                            Batch* batch) {
    const auto copy = batch->find(HostCopyName(name));
    if (copy == batch->end()) return;
    if (tensor.defined()) {
      copy->second = tensor.cpu();
    } else {
      batch->erase(copy);
    }
  }

  // A micro-batch as it was read.
  struct Before {
    at::Tensor positions;  // a copy of kSamplePosition
    std::map<std::string, int64_t> rows;
  };

  Session& session_;
  const int64_t step_;
  std::vector<Batch> batches_;
  std::vector<Before> before_;
};

}  // namespace

absl::Status RollOut(Session* session, DataLoader& loader, StepInFlight* step) {
  const Range range("rollout");
  const absl::Status mine =
      ExplainMemory(WhoseCode::Explain(CatchAll([&] {
                      return Rollouts(session, *step).Run(loader, &step->ahead);
                    })),
                    *session, /*micro_batch=*/-1);
  session->phase = "";
  if (absl::IsCancelled(mine)) {
    step->left = true;
    // All ranks have left it in the same place.
    return session->StopIfCancelled(
        AgreeOrStop(*session->group,
                    session->control_requested ? mine : StopStatus(), "stop"));
  }
  // The others may be in the collectives of a forward, or ask whether all are
  // done.
  return Annotate(AgreeAfterCollectives(*session->group, mine, "roll out"),
                  absl::StrCat("step ", step->number));
}

}  // namespace capstan
