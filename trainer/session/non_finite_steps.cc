// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/non_finite_steps.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/data/data_loader.h"

namespace capstan {

NonFiniteSteps::NonFiniteSteps(Session* session, Divergence* divergence,
                               const DataOrder* order, MicroSteps* micro_steps)
    : session_(*session),
      divergence_(*divergence),
      order_(*order),
      micro_steps_(*micro_steps) {}

absl::Status NonFiniteSteps::Explain(const StepInFlight& step, bool late) {
  constexpr int kMostExplanations = 20;
  if (explained_ || explanations_ == kMostExplanations ||
      (!session_.scaler.at_minimum() && std::isfinite(step.sums.loss_sum))) {
    return absl::OkStatus();
  }
  NonFiniteStep where;
  where.losses = &step.losses;
  where.position = step.position;
  where.late = late;
  CAPSTAN_ASSIGN_OR_RETURN(const NonFiniteCause cause,
                           ExplainNonFinite(where, order_, &session_));
  std::string why = cause.text;
  if (cause.gradient_alone && explanations_ == 0) {
    if (late) {
      // The next step's gradients are still needed.
      late_origin_ = {session_.state.step, step.position};
    } else {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string origin,
                               FindOrigin(step.position));
      absl::StrAppend(&why, "; ", origin);
    }
  }
  explained_ = true;
  ++explanations_;
  divergence_.set_cause(
      absl::StrCat("in step ", session_.state.step, " ", why));
  session_.Note(absl::StrCat(
      "step ", session_.state.step, " makes no update: ", why,
      explanations_ == kMostExplanations ? "; further such steps aren't named"
                                         : ""));
  return absl::OkStatus();
}

// Tries the step's micro-batches one at a time, all ranks the same one, until
// one gives a gradient that isn't finite. Only once in a run and in up to
// kMostTries micro-steps, after a step that is skipped anyway.
absl::StatusOr<std::string> NonFiniteSteps::FindOrigin(int64_t position) {
  constexpr int64_t kMostTries = 128;
  const int world = session_.group->size();
  const int64_t tries = session_.job.batch.accumulation * world;
  std::string origin =
      "tried again one at a time, all micro-batches give finite ones";
  if (tries > kMostTries) return std::string("not tried again");
  for (int64_t i = 0; i < tries; ++i) {
    const MicroBatchPlace place = PlaceOf(
        session_, order_, position, static_cast<int>(i % world), i / world);
    bool completed = false;
    const absl::Status mine = TryMicroBatch(place, &completed);
    if (IsLostPeer(mine) || !completed) return mine;
    double sums[] = {mine.ok() ? 0.0 : 1.0, 0.0};
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      sums[1] = session_.parts.strategy->GradientSquaredSum().item<double>();
      session_.group->AllReduceHost(absl::MakeSpan(sums));
      return absl::OkStatus();
    }));
    if (sums[0] > 0) origin = "trying it again failed";
    if (sums[0] == 0 && !std::isfinite(sums[1])) {
      origin = absl::StrCat("it comes from ", place.text);
    }
    if (sums[0] > 0 || !std::isfinite(sums[1])) break;
  }
  session_.phase = "";
  return origin;
}

absl::Status NonFiniteSteps::FindLateOrigin() {
  if (!late_origin_.has_value()) return absl::OkStatus();
  const auto [step, position] = *late_origin_;
  late_origin_.reset();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string origin, FindOrigin(position));
  session_.Note(absl::StrCat("the gradient of step ", step,
                             " that wasn't finite: ", origin));
  return absl::OkStatus();
}

absl::Status NonFiniteSteps::TryMicroBatch(const MicroBatchPlace& place,
                                           bool* completed) {
  const auto read = [&]() -> absl::StatusOr<Batch> {
    CAPSTAN_ASSIGN_OR_RETURN(Batch batch, ReadBatch(session_.train_reader(),
                                                    place.samples, at::kCPU));
    // As the loader gave it.
    int64_t* const positions =
        batch.at(kSamplePosition).mutable_data_ptr<int64_t>();
    std::iota(positions, positions + place.samples.size(), place.position);
    for (auto& [name, tensor] : batch) {
      tensor = tensor.to(session_.group->device());
    }
    return batch;
  };
  return micro_steps_.Backpropagate(session_.state.step, read, completed);
}

}  // namespace capstan
