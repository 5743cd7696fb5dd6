// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/divergence.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/token_model.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/non_finite.h"

namespace capstan {
namespace {

// This many consecutive skipped steps mean a broken run, not bad luck.
constexpr int64_t kMaxSkippedSteps = 20;

// Losses whose median is the run's at its end: single ones are noisy.
constexpr size_t kLastLosses = 8;
// A loss of so many times the first one has left all that it began with. Losses
// of other kinds than text's begin lower, by chance.
constexpr double kTimesFirst = 10.0;
// What a fine-tune begins with may be tiny: a loss below this is none.
constexpr double kLeastDiverged = 1.0;
// Of texts: twice the first one, and half as much again as a guess that takes
// all tokens for equally likely.
constexpr double kTimesFirstOfText = 2.0;
constexpr double kTimesGuess = 1.5;

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

// The first non-finite tensor on any rank.
absl::StatusOr<absl::optional<Divergence::Bad>> Divergence::FirstNonFinite() {
  const CheckpointParts parts = session_.Checkpointed();
  const std::vector<StateKind> kinds = AllKinds(parts);
  const auto count = static_cast<int64_t>(kinds.size());
  // After all that isn't the strategy's.
  const auto strategys = static_cast<int64_t>(parts.specs->size()) * count;
  CAPSTAN_ASSIGN_OR_RETURN(
      const double least, LeastOf(*session_.group, "check its weights", [&] {
        const absl::optional<NonFiniteTensor> found = FindNonFinite(parts);
        if (!found.has_value()) return kNone;
        return static_cast<double>(
            found->parameter * count + found->kind +
            (IsStrategyKind(found->kind, parts) ? strategys : 0));
      }));
  if (least == kNone) return absl::optional<Bad>();
  const auto first = static_cast<int64_t>(least) % strategys;
  Bad bad;
  bad.text = absl::StrCat("'", (*parts.specs)[first / count].name, "'");
  const int64_t kind = first % count;
  if (kind > 0) {
    bad.text = absl::StrCat(WithoutRank(kinds[kind].name()), " of ", bad.text);
  }
  bad.strategys = IsStrategyKind(kind, parts);
  return absl::make_optional(bad);
}

absl::Status Divergence::CheckStart() {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<Bad> bad, FirstNonFinite());
  finite_step_ = session_.state.step;
  if (!bad.has_value()) return absl::OkStatus();
  if (session_.first_step > 0) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            session_.resumed_from, ": ", bad->text, kBroken,
            ": remove that folder to resume from the "
            "checkpoint before, or start anew in another output_dir")),
        "checkpoint/not-finite");
  }
  if (bad->strategys) {
    return session_.job.loaded.Locate(
        absl::InternalError(absl::StrCat(
            session_.parts.strategy_name, ": after its Setup ", bad->text,
            kBroken, "; that is state of its own, the weights are finite")),
        "strategy");
  }
  return session_.job.loaded.Locate(
      absl::FailedPreconditionError(
          absl::StrCat("the initial value of ", bad->text, kBroken,
                       ": the weights that the model starts from are broken")),
      "model");
}

absl::Status Divergence::CheckFinite() {
  if (finite_step_ == session_.state.step) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<Bad> bad, FirstNonFinite());
  if (!bad.has_value()) {
    finite_step_ = session_.state.step;
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string newest, NewestGood());
  const std::string why =
      bad->strategys
          ? absl::StrCat("that is state of ", session_.parts.strategy_name,
                         "'s own, and the weights are finite, so that it is "
                         "this strategy's error")
          : absl::StrCat(OptimizerText(),
                         " has overflowed; lower optimizer.learning_rate, or "
                         "set train.max_grad_norm");
  return Fail(absl::FailedPreconditionError(
      absl::StrCat("after step ", session_.state.step, " ", bad->text, kBroken,
                   " (none did after step ", finite_step_, "): ", why,
                   ". Nothing of it is saved", newest)));
}

std::string Divergence::OptimizerText() const {
  return absl::StrCat(session_.parts.optimizer_name, " with learning_rate ",
                      session_.parts.optimizer->learning_rate());
}

absl::StatusOr<std::string> Divergence::NewestGood() {
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  const std::string newest = NewestCheckpoint(session_.output_dir);
  return newest.empty()
             ? std::string()
             : absl::StrCat("; ", newest, " is the newest good checkpoint");
}

absl::Status Divergence::CheckReplicas() {
  if (session_.group->size() == 1) return absl::OkStatus();
  CheckpointParts parts;
  // Plugins tell what they hold, and one may throw on one rank.
  CAPSTAN_RETURN_IF_ERROR(Agree(*session_.group, CatchAll([&] {
    parts = session_.Checkpointed();
    return absl::OkStatus();
  }),
                                "tell what it holds"));
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<ReplicaDifference> found,
                           replicas_.Compare(parts));
  if (!found.has_value()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string newest, NewestGood());
  const bool weights = found->kind.empty();
  const std::string& strategy = session_.parts.strategy_name;
  const std::string why =
      weights
          ? absl::StrCat(
                "all ranks must compute with the same weights. Either ",
                strategy,
                " doesn't sum all gradients over the ranks; or their "
                "processors, GPUs or libraries differ and ",
                session_.parts.optimizer_name,
                " computes the same update on each with other roundings, where "
                "zero2 and fsdp compute it once; or the memory or processor of "
                "a rank is at fault")
          : absl::StrCat(
                "a checkpoint holds the state of one rank only, and a run that "
                "goes on from it would take another course. Either ",
                strategy,
                " lets ranks keep state of their own without saying so "
                "(Strategy::local_steps), or the memory or processor of a rank "
                "is at fault");
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "after step ", session_.state.step,
      found->ranks.size() == 1 ? " rank " : " ranks ",
      absl::StrJoin(found->ranks, ", "),
      found->ranks.size() == 1 ? " has" : " have", " other bits in ",
      weights ? "" : absl::StrCat(found->kind, " of "), "'", found->parameter,
      "' than rank ", found->other, ", which holds it, too: ", why,
      ". Nothing of it is saved", newest)));
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
  const absl::optional<double> loss = MetricIn(session_.measured, kEvalLoss);
  const bool diverged =
      skipped_in_a_row_ > 0 && loss.has_value() && !std::isfinite(*loss);
  if (!broken && !diverged) return absl::OkStatus();
  return Fail(absl::FailedPreconditionError(absl::StrCat(
      "the run ends in steps whose loss or gradients are not finite (since "
      "step ",
      session_.state.step + 1 - skipped_in_a_row_, CauseText(cause_),
      "): ", OptimizerText(),
      " has diverged; lower it, or train in a wider precision. Nothing of "
      "them is saved")));
}

void Divergence::TakeLoss(double loss) {
  TrainState& state = session_.state;
  state.last_loss = loss;
  // A skipped step's loss may be no number, by which nothing can be judged.
  if (state.step == 1 || !std::isfinite(state.first_loss)) {
    state.first_loss = loss;
  }
  if (!std::isfinite(loss)) return;
  last_losses_.push_back(loss);
  if (last_losses_.size() > kLastLosses) last_losses_.pop_front();
}

absl::Status Divergence::CheckLosses() const {
  const TrainState& state = session_.state;
  if (state.step == 0) return absl::OkStatus();
  std::vector<double> losses(last_losses_.begin(), last_losses_.end());
  if (losses.empty()) losses.push_back(state.last_loss);
  const double last = Median(losses);
  const TokenModel* const tokens = session_.parts.model->token_model();
  const bool text =
      tokens != nullptr && session_.parts.objective->unit() == kTokenUnit;
  const double guess =
      text ? std::log(static_cast<double>(tokens->vocab_size())) : 0.0;
  const double most =
      std::max((text ? kTimesFirstOfText : kTimesFirst) * state.first_loss,
               kTimesGuess * guess);
  // Without both nothing is known of the losses' scale.
  if (!(most > 0.0) || last <= std::max(most, kLeastDiverged)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the run has diverged: its last losses are about ", last,
      state.first_loss > 0.0
          ? absl::StrCat(", the first was ", state.first_loss)
          : "",
      text ? absl::StrCat(", and to take all tokens for equally likely gives ",
                          guess)
           : "",
      ": ", OptimizerText(),
      " has gone astray; lower it, or set train.max_grad_norm. What it has "
      "saved in ",
      session_.output_dir,
      " is of such weights, but for the best if they are "
      "kept"));
}

absl::Status Divergence::Fail(const absl::Status& error) {
  CAPSTAN_RETURN_IF_ERROR(session_.background_save.Settle(*session_.group));
  RunSummary summary = records_.Summary();
  summary.status = "failed";
  if (session_.reporter != nullptr) session_.reporter->Finish(summary);
  return WithCode(error, "run/diverged");
}

}  // namespace capstan
