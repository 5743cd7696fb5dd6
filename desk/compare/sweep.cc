// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/sweep.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/run_record.h"

namespace capstan {
namespace {

using SweepConfig = CompareConfig::Sweep;
using Settings = std::vector<std::pair<std::string, std::string>>;

// More is a slip.
constexpr size_t kMostPoints = 10000;

absl::Status CheckSweep(const LoadedCompare& loaded) {
  const SweepConfig& sweep = loaded.config.sweep();
  std::set<std::string> fields;
  for (int i = 0; i < sweep.setting_size(); ++i) {
    const SweepConfig::Setting& setting = sweep.setting(i);
    const std::string place = absl::StrCat("sweep.setting[", i, "]");
    if (setting.field().empty() || setting.value().empty()) {
      return FieldError(place,
                        "needs a field and its values, field: "
                        "\"optimizer.learning_rate\" value: \"1e-3\"");
    }
    if (!fields.insert(setting.field()).second) {
      return FieldError(place,
                        absl::StrCat(setting.field(), " is listed twice"));
    }
    for (const char* own :
         {"output_dir", "name", "train.resume", "train.seed"}) {
      if (setting.field() != own) continue;
      return FieldError(place,
                        absl::StrCat(own, " is what the sweep sets itself",
                                     own == std::string("train.seed")
                                         ? ": list seeds, seed: [1, 2]"
                                         : ""));
    }
    for (const std::string& set : loaded.overrides) {
      if (!Sets(set, setting.field())) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--set ", set, ": no run would get this: the sweep lists values"));
    }
    if (sweep.order() == SweepConfig::LIST &&
        setting.value_size() != sweep.setting(0).value_size()) {
      return FieldError(
          place, absl::StrCat("has ", setting.value_size(), " values, and ",
                              sweep.setting(0).field(), " has ",
                              sweep.setting(0).value_size(),
                              ": with order: LIST all have as many"));
    }
  }
  std::set<uint64_t> seeds;
  for (const uint64_t seed : sweep.seed()) {
    if (!seeds.insert(seed).second) {
      return FieldError("sweep.seed", absl::StrCat(seed, " is listed twice"));
    }
  }
  if (!sweep.has_halving()) return absl::OkStatus();
  if (sweep.halving().first_steps() < 1) {
    return FieldError("sweep.halving.first_steps", "must be 1 or more");
  }
  if (sweep.halving().factor() != 0 && sweep.halving().factor() < 2) {
    return FieldError("sweep.halving.factor", "must be 2 or more");
  }
  return absl::OkStatus();
}

// The settings of each point.
absl::StatusOr<std::vector<Settings>> Cross(const SweepConfig& sweep) {
  std::vector<Settings> points(1);
  if (sweep.order() == SweepConfig::LIST && sweep.setting_size() > 0) {
    points.resize(sweep.setting(0).value_size());
  }
  for (const SweepConfig::Setting& setting : sweep.setting()) {
    if (sweep.order() == SweepConfig::LIST) {
      for (size_t i = 0; i < points.size(); ++i) {
        points[i].emplace_back(setting.field(),
                               setting.value(static_cast<int>(i)));
      }
      continue;
    }
    std::vector<Settings> crossed;
    for (const Settings& point : points) {
      for (const std::string& value : setting.value()) {
        crossed.push_back(point);
        crossed.back().emplace_back(setting.field(), value);
      }
    }
    points = std::move(crossed);
    if (points.size() > kMostPoints) {
      return FieldError("sweep", absl::StrCat("has more than ", kMostPoints,
                                              " points: list fewer values"));
    }
  }
  return points;
}

}  // namespace

std::string SweepPoint::Label() const {
  if (settings.empty()) return "as it is";
  return absl::StrJoin(
      settings, " ", [](std::string* out, const auto& setting) {
        const std::string& field = setting.first;
        absl::StrAppend(out, field.substr(field.rfind('.') + 1), "=",
                        setting.second);
      });
}

absl::StatusOr<std::vector<SweepPoint>> PointsOf(const LoadedCompare& loaded,
                                                 const ConfigContext& context) {
  CAPSTAN_RETURN_IF_ERROR(CheckSweep(loaded));
  const SweepConfig& sweep = loaded.config.sweep();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Settings> crossed, Cross(sweep));
  std::vector<uint64_t> seeds(sweep.seed().begin(), sweep.seed().end());
  if (seeds.empty()) seeds = {loaded.shared.config.train().seed()};
  if (crossed.size() * seeds.size() == 1) {
    return FieldError("sweep",
                      "has a single run: list several values of a "
                      "setting, or several seeds");
  }
  std::vector<SweepPoint> points;
  for (const Settings& settings : crossed) {
    SweepPoint point;
    point.settings = settings;
    std::vector<std::string> overrides = loaded.overrides;
    for (const auto& [field, value] : settings) {
      overrides.push_back(absl::StrCat(field, "=", value));
    }
    CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig run,
                             LoadConfig(loaded.files, overrides, context));
    for (const uint64_t seed : seeds) {
      SweepRun one;
      one.id = absl::StrFormat("%02d-%s-seed%d", points.size() + 1,
                               FileName(point.Label()), seed);
      one.seed = seed;
      one.config = run.config;
      one.config.set_name(one.id);
      one.config.mutable_train()->set_seed(seed);
      one.config.mutable_train()->set_resume(Train::AUTO);
      point.runs.push_back(std::move(one));
    }
    points.push_back(std::move(point));
  }
  return points;
}

void Summarize(bool lower_is_better, SweepPoint* point) {
  std::vector<double> values;
  for (const SweepRun& run : point->runs) {
    if (run.value.has_value()) values.push_back(*run.value);
  }
  point->mean = point->deviation = point->best = absl::nullopt;
  // A seed with which it fails makes it no better.
  if (values.empty() || values.size() < point->runs.size()) return;
  const auto count = static_cast<double>(values.size());
  double mean = 0.0, squares = 0.0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  point->mean = mean;
  if (values.size() > 1) point->deviation = std::sqrt(squares / (count - 1));
  point->best = lower_is_better
                    ? *std::min_element(values.begin(), values.end())
                    : *std::max_element(values.begin(), values.end());
}

std::vector<size_t> Ranking(const Sweep& sweep) {
  std::vector<size_t> order(sweep.points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const SweepPoint& first = sweep.points[a];
    const SweepPoint& second = sweep.points[b];
    // Those that were ended early come after those that weren't.
    const auto steps = [](const SweepPoint& point) {
      return point.ended_at == 0 ? INT64_MAX : point.ended_at;
    };
    if (steps(first) != steps(second)) return steps(first) > steps(second);
    if (!first.mean.has_value() || !second.mean.has_value()) {
      return first.mean.has_value() && !second.mean.has_value();
    }
    return sweep.lower_is_better ? *first.mean < *second.mean
                                 : *first.mean > *second.mean;
  });
  return order;
}

std::vector<int64_t> Rungs(const SweepConfig::Halving& halving,
                           int64_t max_steps) {
  std::vector<int64_t> rungs;
  const int64_t factor = halving.factor() == 0 ? 2 : halving.factor();
  for (int64_t step = halving.first_steps(); step < max_steps; step *= factor) {
    rungs.push_back(step);
  }
  return rungs;
}

std::vector<size_t> Survivors(const Sweep& sweep,
                              const std::vector<size_t>& alive, int factor) {
  std::vector<size_t> best;
  for (const size_t i : Ranking(sweep)) {
    if (sweep.points[i].mean.has_value() &&
        std::find(alive.begin(), alive.end(), i) != alive.end()) {
      best.push_back(i);
    }
  }
  best.resize(std::min(best.size(), (alive.size() + factor - 1) / factor));
  std::sort(best.begin(), best.end());
  return best;
}

RungFollower::RungFollower(const std::string& folder, std::string metric,
                           int64_t step, int64_t eval_every)
    : lines_(folder + "/metrics.jsonl"),
      metric_(std::move(metric)),
      step_(step),
      evaluation_(absl::StartsWith(metric_, "eval_") && eval_every > 0
                      ? step - step % eval_every
                      : 0) {}

bool RungFollower::Reached() {
  lines_.Poll(
      [this](absl::string_view line, int64_t) {
        const auto json = ParseJson<nlohmann::ordered_json>(line);
        const absl::optional<double> step = NumberOf(json, "step");
        if (!step.has_value()) return;
        const auto at = static_cast<int64_t>(*step);
        if (json.contains("loss")) done_ = at;
        if (json.contains(metric_)) measured_ = at;
      },
      [this] { done_ = measured_ = 0; });
  // A step after the evaluation has only begun once that was through.
  return done_ >= step_ && (measured_ >= evaluation_ || done_ > evaluation_);
}

absl::optional<double> MetricAt(const std::string& folder,
                                const std::string& metric, int64_t step) {
  const bool evaluated = absl::StartsWith(metric, "eval_");
  const std::string mark = absl::StrCat("\"", metric, "\"");
  const size_t kept =
      evaluated ? 1 : static_cast<size_t>(std::max<int64_t>(1, step / 10));
  std::deque<double> values;
  ForEachLine(folder + "/metrics.jsonl", [&](absl::string_view line) {
    if (!absl::StrContains(line, mark)) return;
    const auto json = ParseJson<nlohmann::ordered_json>(line);
    if (!json.is_object() || !json.contains(metric)) return;
    if (NumberOf(json, "step").value_or(0.0) > static_cast<double>(step)) {
      return;
    }
    values.push_back(NumberOf(json, metric).value_or(NAN));
    if (values.size() > kept) values.pop_front();
  });
  if (values.empty()) return absl::nullopt;
  double mean = 0.0;
  for (const double value : values) mean += value / values.size();
  if (!std::isfinite(mean)) return absl::nullopt;
  return mean;
}

}  // namespace capstan
