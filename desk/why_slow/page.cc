// SPDX-License-Identifier: Apache-2.0
#include "desk/why_slow/page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/console.h"

namespace capstan::why_slow {
namespace {

using Rows = std::vector<std::pair<std::string, double>>;

// What a step and the time after it consist of, in seconds, in order.
Rows Parts(const Summary& summary) {
  const Times& mean = summary.mean;
  Rows rows = {{"data", mean.data},
               {"rollout", mean.rollout},
               {"forward", mean.forward},
               {"backward", mean.backward},
               {"optimizer", mean.optimizer},
               {"waiting for other ranks", mean.exposed},
               {"rest of the step", mean.rest}};
  double named = 0.0;
  for (const auto& [name, seconds] : mean.actions) {
    rows.emplace_back(name, seconds);
    named += seconds;
  }
  rows.emplace_back("else between steps", std::max(0.0, mean.outside - named));
  return rows;
}

double Share(double seconds, const Summary& summary) {
  return seconds / std::max(summary.wall, 1e-12);
}

std::string Head(const SpeedRecord& run, const Summary& summary) {
  const size_t ranks = run.ranks.size();
  return absl::StrFormat(
      "%s: %.0f steps, %s each with what follows it, %s %s/s, %d %s (%s)\n",
      run.folder, summary.run_steps, ShortDuration(summary.wall),
      ShortCount(run.tokens / std::max(summary.wall, 1e-12)), run.unit, ranks,
      ranks == 1 ? "rank" : "ranks", run.ranks.front().device);
}

// What remains is computing, and what that is limited by.
std::string Computing(const SpeedRecord& run, const Summary& summary) {
  const double seconds = summary.mean.forward + summary.mean.backward;
  std::string text = absl::StrFormat(
      "computing: forward and backward are %s of a step's time, %.0f %%",
      ShortDuration(seconds), 100.0 * Share(seconds, summary));
  const auto ranks = static_cast<double>(run.ranks.size());
  if (run.parameters > 0.0 && run.tokens > 0.0 && run.unit == "tokens") {
    const double rows = run.tokens / ranks;
    absl::StrAppendFormat(
        &text, ": %.3g GFLOP/s a rank (6 for each parameter and token)",
        6e-9 * run.parameters * rows / std::max(seconds, 1e-12));
    constexpr double kFewRows = 64.0;
    absl::StrAppend(&text, rows < kFewRows
                               ? "; with so few tokens memory bandwidth limits "
                                 "it, as each weight is read for little work"
                               : "; products limit it");
  }
  for (const auto& [name, of_scope] : run.scopes) {
    absl::StrAppend(&text, "; ", name, " ", ShortDuration(of_scope));
  }
  return text;
}

}  // namespace

std::string PageText(const SpeedRecord& run, const Summary& summary,
                     const std::vector<Cause>& causes, int columns) {
  std::string text = Head(run, summary);
  absl::StrAppend(&text, "\nWhere a step's time goes (mean of the ranks)\n");
  constexpr double kShown = 0.002;
  for (const auto& [name, seconds] : Parts(summary)) {
    if (Share(seconds, summary) < kShown) continue;
    absl::StrAppendFormat(&text, "  %-24s %10s %5.1f %%\n", name,
                          ShortDuration(seconds),
                          100.0 * Share(seconds, summary));
  }
  absl::StrAppend(&text, "\nWhat slows it, by what undoing it would save\n");
  const auto add = [&text, columns](const std::string& line) {
    absl::StrAppend(&text, WrappedText(line, 5, columns));
  };
  for (size_t i = 0; i < causes.size(); ++i) {
    const Cause& cause = causes[i];
    absl::StrAppendFormat(&text, "%3d. %s: about %s a step, %.0f %%\n", i + 1,
                          cause.name, ShortDuration(cause.gain),
                          100.0 * Share(cause.gain, summary));
    add(cause.text);
    add(absl::StrCat("-> ", cause.advice));
  }
  if (causes.empty()) add("nothing but its work");
  absl::StrAppend(&text, "\nWhat else it does\n");
  add(Computing(run, summary));
  const double final_evaluation = OnlyFinalEvaluation(run);
  if (final_evaluation > 0.0) {
    add(absl::StrCat("evaluation: ", ShortDuration(final_evaluation),
                     " once, at the end"));
  }
  return text;
}

nlohmann::ordered_json PageJson(const SpeedRecord& run, const Summary& summary,
                                const std::vector<Cause>& causes) {
  nlohmann::ordered_json json = {
      {"run", run.folder},
      {"ranks", run.ranks.size()},
      {"steps", summary.run_steps},
      {"seconds", summary.wall},
      {run.unit + "_per_second", run.tokens / std::max(summary.wall, 1e-12)}};
  for (const auto& [name, seconds] : Parts(summary)) {
    json["parts"][name] = seconds;
  }
  json["causes"] = nlohmann::ordered_json::array();
  for (const Cause& cause : causes) {
    json["causes"].push_back({{"name", cause.name},
                              {"text", cause.text},
                              {"advice", cause.advice},
                              {"gain", cause.gain},
                              {"share", Share(cause.gain, summary)}});
  }
  return json;
}

}  // namespace capstan::why_slow
