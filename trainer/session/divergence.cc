// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/divergence.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/process_group/agree.h"
#include "trainer/session/non_finite.h"

namespace capstan {
namespace {

// This many consecutive skipped steps mean a broken run, not bad luck.
constexpr int64_t kMaxSkippedSteps = 20;

constexpr char kBroken[] =
    " holds NaN, infinity or numbers too large to compute with";

std::string CauseText(const std::string& cause) {
  return cause.empty() ? "" : absl::StrCat("; ", cause);
}

// No tensor.
constexpr double kNone = std::numeric_limits<double>::max();

// The first of this rank's frozen parameters with non-finite values, or kNone.
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

// The least of all ranks' values. Collective, so that `mine` may fail on one.
absl::StatusOr<double> LeastOf(
    ProcessGroup& group, const char* what,
    const std::function<absl::StatusOr<double>()>& mine) {
  double value = kNone;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(value, mine());
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(Agree(group, status, what));
  const std::vector<double> all = FromAllRanks(group, value);
  return *std::min_element(all.begin(), all.end());
}

}  // namespace

// The name of the first non-finite tensor on any rank.
absl::StatusOr<absl::optional<std::string>> Divergence::FirstNonFinite() {
  const CheckpointParts parts = session_.Checkpointed();
  const std::vector<StateKind> kinds = AllKinds(parts);
  const auto count = static_cast<int64_t>(kinds.size());
  CAPSTAN_ASSIGN_OR_RETURN(
      const double least, LeastOf(*session_.group, "check its weights", [&] {
        const absl::optional<NonFiniteTensor> found = FindNonFinite(parts);
        return found.has_value()
                   ? static_cast<double>(found->parameter * count + found->kind)
                   : kNone;
      }));
  if (least == kNone) return absl::optional<std::string>();
  const auto first = static_cast<int64_t>(least);
  const std::string name =
      absl::StrCat("'", (*parts.specs)[first / count].name, "'");
  const int64_t kind = first % count;
  return kind == 0 ? absl::make_optional(name)
                   : absl::StrCat(kinds[kind].spec.name, " of ", name);
}

absl::Status Divergence::CheckStart() {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> bad,
                           FirstNonFinite());
  finite_step_ = session_.state.step;
  if (!bad.has_value()) return absl::OkStatus();
  if (session_.first_step > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(session_.resumed_from, ": ", *bad, kBroken,
                     ": remove that folder to resume from the "
                     "checkpoint before, or start anew in another output_dir"));
  }
  return session_.job.loaded.Locate(
      absl::FailedPreconditionError(
          absl::StrCat("the initial value of ", *bad, kBroken,
                       ": the weights that the model starts from are broken")),
      "model");
}

absl::Status Divergence::CheckFinite() {
  if (finite_step_ == session_.state.step) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> bad,
                           FirstNonFinite());
  if (!bad.has_value()) {
    finite_step_ = session_.state.step;
    return absl::OkStatus();
  }
  // What was saved before was good.
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  const std::string newest = NewestCheckpoint(session_.output_dir);
  return Fail(absl::FailedPreconditionError(
      absl::StrCat("after step ", session_.state.step, " ", *bad, kBroken,
                   " (none did after step ", finite_step_,
                   "): ", session_.parts.optimizer_name, " with learning_rate ",
                   session_.parts.optimizer->learning_rate(),
                   " has overflowed; lower optimizer.learning_rate, or set "
                   "train.max_grad_norm. Nothing of it is saved",
                   newest.empty() ? ""
                                  : absl::StrCat("; ", newest,
                                                 " is the newest good "
                                                 "checkpoint"))));
}

absl::Status Divergence::CheckFits(c10::ScalarType dtype) {
  // The others have float32's range.
  if (dtype != at::kHalf) return absl::OkStatus();
  constexpr double kMostOfHalf = 65504.0;
  const CheckpointParts parts = session_.Checkpointed();
  CAPSTAN_ASSIGN_OR_RETURN(
      const double least, LeastOf(*session_.group, "check its weights", [&] {
        const int first = FirstBeyond(parts.shards, parts.owned, kMostOfHalf);
        return first < 0 ? kNone : static_cast<double>(first);
      }));
  if (least == kNone) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "after step ", session_.state.step, " '",
      (*parts.specs)[static_cast<size_t>(least)].name,
      "' holds numbers beyond float16's 65504, which final/ would have as "
      "infinity: it isn't written. The checkpoints hold the weights in "
      "float32; "
      "train on from there with capstan.bf16 or capstan.fp32")));
}

// Checks frozen parameters, which no checkpoint contains.
absl::Status Divergence::CheckFrozen() {
  CAPSTAN_ASSIGN_OR_RETURN(
      const double least,
      LeastOf(*session_.group, "check its frozen weights", [this] {
        return FirstBadFrozen(*session_.parts.model,
                              session_.config.train().seed(),
                              session_.group->rank(), session_.group->size());
      }));
  if (least == kNone) return absl::OkStatus();
  return Fail(session_.job.loaded.Locate(
      absl::FailedPreconditionError(absl::StrCat(
          "no step's loss or gradients have been finite, since '",
          session_.parts.model->parameters()[static_cast<size_t>(least)].name,
          "', which is frozen, isn't: the weights that the model starts from "
          "are broken")),
      "model"));
}

absl::Status Divergence::AfterStep(bool finite, bool at_minimum) {
  skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
  const int64_t skipped = skipped_in_a_row_;
  const bool power_of_two = (skipped & (skipped - 1)) == 0;
  const bool too_many = at_minimum && skipped >= kMaxSkippedSteps;
  if (skipped < 2 || !(power_of_two || too_many)) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(CheckFinite());
  // A run that hasn't made a step yet.
  if (at_minimum && (skipped == 2 || too_many) &&
      session_.state.step - session_.first_step == skipped) {
    CAPSTAN_RETURN_IF_ERROR(CheckFrozen());
  }
  if (!too_many) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "loss or gradients have not been finite for ", skipped,
      " steps in a row (since step ", session_.state.step + 1 - skipped,
      CauseText(cause_),
      "): lower the learning rate, or train in a wider precision")));
}

bool Divergence::AwaitsGoodStep() const {
  return skipped_in_a_row_ >= 2 && session_.scaler.at_minimum() &&
         !session_.stopping && session_.state.best_step != session_.state.step;
}

absl::Status Divergence::CheckEnd() {
  if (skipped_in_a_row_ >= 2 && session_.state.optimizer_steps == 0) {
    CAPSTAN_RETURN_IF_ERROR(CheckFrozen());
  }
  const bool broken = skipped_in_a_row_ >= 2 && session_.scaler.at_minimum();
  const bool diverged = skipped_in_a_row_ > 0 &&
                        session_.eval_loss.has_value() &&
                        !std::isfinite(*session_.eval_loss);
  if (!broken && !diverged) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "the run ends in steps whose loss or gradients are not finite (since "
      "step ",
      session_.state.step + 1 - skipped_in_a_row_, CauseText(cause_),
      "): ", session_.parts.optimizer_name, " with learning_rate ",
      session_.parts.optimizer->learning_rate(),
      " has diverged; lower it, or train in a wider precision. Nothing of "
      "them is saved")));
}

absl::Status Divergence::Fail(const absl::Status& error) {
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  RunSummary summary = records_.Summary();
  summary.status = "failed";
  if (session_.reporter != nullptr) session_.reporter->Finish(summary);
  return error;
}

}  // namespace capstan
