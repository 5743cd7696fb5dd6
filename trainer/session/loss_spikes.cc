// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/loss_spikes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultWindow = 100;
constexpr int64_t kLeastLosses = 8;
constexpr int64_t kLongestWindow = 100000;
// Relative to the mean: losses that are all alike have no deviation.
constexpr double kLeastDeviation = 1e-6;

}  // namespace

LossSpikeJudge::LossSpikeJudge(const LossSpikes& config)
    : z_score_(config.z_score()),
      window_(config.window() > 0 ? config.window() : kDefaultWindow) {}

absl::Status LossSpikeJudge::Check(const LossSpikes& config) {
  constexpr char kField[] = "loss_spikes";
  if (!std::isfinite(config.z_score()) || config.z_score() < 0) {
    return FieldError(kField,
                      absl::StrCat("z_score must be a number of standard "
                                   "deviations, or 0 for none, is ",
                                   config.z_score()));
  }
  if (config.window() != 0 &&
      (config.window() < kLeastLosses || config.window() > kLongestWindow)) {
    return FieldError(
        kField,
        absl::StrCat("window must be between ", kLeastLosses, " and ",
                     kLongestWindow, " steps, or 0 for the default, is ",
                     config.window()));
  }
  if (config.z_score() == 0 && config.action() != LossSpikes::NOTE) {
    return FieldError(
        kField,
        "set z_score, too: without it no loss is a spike (6 is a cautious "
        "choice)");
  }
  return absl::OkStatus();
}

int64_t LossSpikeJudge::Needed() const {
  return std::max(kLeastLosses, window_ / 4);
}

LossSpikeJudge::Spread LossSpikeJudge::SpreadOf(const TrainState& state) const {
  const std::vector<double>& losses = state.recent_losses;
  const auto count = static_cast<double>(losses.size());
  Spread spread;
  for (const double loss : losses) spread.mean += loss / count;
  double squares = 0.0;
  for (const double loss : losses) {
    squares += (loss - spread.mean) * (loss - spread.mean);
  }
  spread.deviation = std::max(std::sqrt(squares / std::max(count - 1, 1.0)),
                              kLeastDeviation * std::abs(spread.mean));
  return spread;
}

double LossSpikeJudge::Limit(const TrainState& state) const {
  if (!enabled() ||
      static_cast<int64_t>(state.recent_losses.size()) < Needed()) {
    return std::numeric_limits<double>::infinity();
  }
  const Spread spread = SpreadOf(state);
  return spread.mean + z_score_ * spread.deviation;
}

double LossSpikeJudge::Score(const TrainState& state, double loss) const {
  const Spread spread = SpreadOf(state);
  return (loss - spread.mean) /
         std::max(spread.deviation, std::numeric_limits<double>::min());
}

bool LossSpikeJudge::Take(double loss, bool spike, TrainState* state) const {
  if (!enabled()) return false;
  std::vector<double>& losses = state->recent_losses;
  if (spike) {
    if (++state->spikes_in_a_row < Needed()) return false;
    losses.clear();
  }
  state->spikes_in_a_row = 0;
  losses.push_back(loss);
  const auto length = static_cast<int64_t>(losses.size());
  // More than one if a resumed run has a shorter window.
  if (length > window_) losses.erase(losses.begin(), losses.end() - window_);
  return spike;
}

std::string SpikeText(const LossSpikes& config, const TrainState& state,
                      double loss, double score) {
  const char* action = "";
  if (config.action() == LossSpikes::SKIP) action = "; there is no update";
  if (config.action() == LossSpikes::GO_BACK) action = "; the run goes back";
  return absl::StrFormat(
      "step %d: the loss %.4f is a spike: %.1f standard deviations above the "
      "mean of the %d losses before it (train.loss_spikes)%s",
      state.step, loss, score, state.recent_losses.size(), action);
}

}  // namespace capstan
