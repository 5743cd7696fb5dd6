// SPDX-License-Identifier: Apache-2.0
//
// Weights that are no longer finite end a run, and are never saved.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/session/train_loop.h"

namespace capstan {
namespace {

// After that many skipped steps in a row a run is broken, not unlucky.
constexpr int64_t kMaxSkippedSteps = 20;

constexpr char kBroken[] =
    " holds NaN, infinity or numbers too large to compute with";

// No tensor.
constexpr double kNone = std::numeric_limits<double>::max();

// The first frozen parameter of this rank's part of them whose values aren't
// finite, or kNone.
absl::StatusOr<double> FirstBadFrozen(const Model& model, uint64_t seed,
                                      int rank, int world_size) {
  constexpr int64_t kValues = 1 << 20;
  std::vector<float> values(kValues);
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = rank; i < specs.size(); i += world_size) {
    if (specs[i].trainable) continue;
    for (int64_t begin = 0; begin < specs[i].numel(); begin += kValues) {
      const int64_t count = std::min(kValues, specs[i].numel() - begin);
      CAPSTAN_RETURN_IF_ERROR(model.InitialValue(static_cast<int>(i), seed,
                                                 begin, count, values.data()));
      if (!std::all_of(values.begin(), values.begin() + count,
                       [](float value) { return std::isfinite(value); })) {
        return static_cast<double>(i);
      }
    }
  }
  return kNone;
}

}  // namespace

absl::StatusOr<absl::optional<std::string>> TrainLoop::FirstNonFinite() {
  const CheckpointParts parts = Checkpointed();
  const int64_t kinds = 1 + static_cast<int64_t>(parts.state_names.size());
  double mine = kNone;
  const absl::Status status = CatchAll([&] {
    const absl::optional<NonFiniteTensor> found = FindNonFinite(parts);
    if (found.has_value()) {
      mine = static_cast<double>(found->parameter * kinds + found->kind);
    }
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "check its weights"));
  const std::vector<double> all = FromAllRanks(mine);
  const double least = *std::min_element(all.begin(), all.end());
  if (least == kNone) return absl::optional<std::string>();
  const auto first = static_cast<int64_t>(least);
  const std::string name =
      absl::StrCat("'", (*parts.specs)[first / kinds].name, "'");
  const int64_t kind = first % kinds;
  return kind == 0 ? absl::make_optional(name)
                   : absl::StrCat(parts.state_names[kind - 1], " of ", name);
}

absl::Status TrainLoop::CheckStart() {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> bad,
                           FirstNonFinite());
  finite_step_ = state_.step;
  if (!bad.has_value()) return absl::OkStatus();
  if (first_step_ > 0) {
    const std::string checkpoint = NewestCheckpoint(output_dir_);
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint, ": ", *bad, kBroken,
                     ": remove that folder to resume from the "
                     "checkpoint before, or start anew in another output_dir"));
  }
  return job_->loaded.Locate(
      absl::FailedPreconditionError(
          absl::StrCat("the initial value of ", *bad, kBroken,
                       ": the weights that the model starts from are broken")),
      "model");
}

absl::Status TrainLoop::CheckFinite() {
  if (finite_step_ == state_.step) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> bad,
                           FirstNonFinite());
  if (!bad.has_value()) {
    finite_step_ = state_.step;
    return absl::OkStatus();
  }
  const std::string newest = NewestCheckpoint(output_dir_);
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "after step ", state_.step, " ", *bad, kBroken, " (none did after step ",
      finite_step_, "): ", parts_.optimizer_name, " with learning_rate ",
      parts_.optimizer->learning_rate(),
      " has overflowed; lower optimizer.learning_rate, or set "
      "train.max_grad_norm. Nothing of it is saved",
      newest.empty() ? ""
                     : absl::StrCat("; ", newest,
                                    " is the newest good "
                                    "checkpoint"))));
}

absl::Status TrainLoop::CheckFrozen() {
  double mine = kNone;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(
        mine, FirstBadFrozen(*parts_.model, config_.train().seed(),
                             group_->rank(), group_->size()));
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(AgreeOnError(status, "check its frozen weights"));
  const std::vector<double> all = FromAllRanks(mine);
  const double least = *std::min_element(all.begin(), all.end());
  if (least == kNone) return absl::OkStatus();
  return Fail(job_->loaded.Locate(
      absl::FailedPreconditionError(absl::StrCat(
          "no step's loss or gradients have been finite, since '",
          parts_.model->parameters()[static_cast<size_t>(least)].name,
          "', which is frozen, isn't: the weights that the model starts from "
          "are broken")),
      "model"));
}

absl::Status TrainLoop::CheckSkipped(bool at_minimum) {
  const int64_t skipped = skipped_in_a_row_;
  const bool power_of_two = (skipped & (skipped - 1)) == 0;
  const bool too_many = at_minimum && skipped >= kMaxSkippedSteps;
  if (skipped < 2 || !(power_of_two || too_many)) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(CheckFinite());
  // A run that has made no step yet.
  if (at_minimum && (skipped == 2 || too_many) &&
      state_.step - first_step_ == skipped) {
    CAPSTAN_RETURN_IF_ERROR(CheckFrozen());
  }
  if (!too_many) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "loss or gradients have not been finite for ", skipped,
      " steps in a row (since step ", state_.step + 1 - skipped,
      "): lower the learning rate, or train in a wider precision")));
}

bool TrainLoop::AwaitsGoodStep() const {
  return skipped_in_a_row_ >= 2 && scaler_.at_minimum() && !stopping_ &&
         state_.best_step != state_.step;
}

absl::Status TrainLoop::CheckEnd() {
  if (skipped_in_a_row_ >= 2 && state_.optimizer_steps == 0) {
    CAPSTAN_RETURN_IF_ERROR(CheckFrozen());
  }
  const bool broken = skipped_in_a_row_ >= 2 && scaler_.at_minimum();
  const bool diverged = skipped_in_a_row_ > 0 && eval_loss_.has_value() &&
                        !std::isfinite(*eval_loss_);
  if (!broken && !diverged) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "the run ends in steps whose loss or gradients are not finite (since "
      "step ",
      state_.step + 1 - skipped_in_a_row_, "): ", parts_.optimizer_name,
      " with learning_rate ", parts_.optimizer->learning_rate(),
      " has diverged; lower it, or train in a wider precision. Nothing of "
      "them is saved")));
}

absl::Status TrainLoop::Fail(const absl::Status& error) {
  RunSummary summary = Summary();
  summary.status = "failed";
  if (reporter_ != nullptr) reporter_->Finish(summary);
  return error;
}

}  // namespace capstan
