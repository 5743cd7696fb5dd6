// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/rank_times.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "desk/run_folder/json_fields.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

using nlohmann::json;

constexpr size_t kMostShown = 64;
constexpr size_t kMostActions = 100;  // names; a run has a dozen
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr int kParts = static_cast<int>(std::size(kWorkParts));

// The means of a series by column. A line tells of the steps before it, too:
// what a column lacks is what the next one has.
std::vector<double> Columns(const Curves& curves, const char* name,
                            int64_t width, int64_t columns) {
  std::vector<double> means(columns, kUnknown);
  const Curves::Series* series = curves.Find(name);
  if (series == nullptr) return means;
  std::vector<double> counts(columns, 0.0);
  for (const CurveBucket& bucket : series->buckets) {
    const int64_t at = bucket.at * curves.width() / width;
    if (at >= columns) continue;
    means[at] = (counts[at] == 0.0 ? 0.0 : means[at]) + bucket.sum;
    counts[at] += bucket.count;
  }
  double next = kUnknown;
  for (int64_t i = columns - 1; i >= 0; --i) {
    if (counts[i] > 0.0) next = means[i] / counts[i];
    means[i] = next;
  }
  return means;
}

double MedianOfKnown(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(),
                              [](double value) { return std::isnan(value); }),
               values.end());
  return values.empty() ? kUnknown : Median(std::move(values));
}

double MeanOf(const Curves::Series& series) {
  double sum = 0.0, count = 0.0;
  for (const CurveBucket& bucket : series.buckets) {
    sum += bucket.sum;
    count += bucket.count;
  }
  return sum / count;
}

// Each rank's parts by column: [part][rank][column].
using Parts = std::vector<std::vector<std::vector<double>>>;

// What the column has of each rank, of one part or (-1) of all.
std::vector<double> ColumnOf(const Parts& parts, int part, int64_t column) {
  std::vector<double> values;
  for (size_t r = 0; r < parts[0].size(); ++r) {
    double value = part < 0 ? 0.0 : parts[part][r][column];
    for (int p = 0; part < 0 && p < kParts; ++p) value += parts[p][r][column];
    values.push_back(value);
  }
  return values;
}

// Fills column `c` of all rows.
void CompareColumn(const Parts& parts, int64_t c, std::vector<RankRow>* rows,
                   std::vector<std::vector<double>>* lost) {
  const std::vector<double> work = ColumnOf(parts, -1, c);
  const double median = MedianOfKnown(work);
  std::vector<double> medians;
  for (int p = 0; p < kParts; ++p) {
    medians.push_back(MedianOfKnown(ColumnOf(parts, p, c)));
  }
  for (size_t r = 0; r < rows->size(); ++r) {
    RankRow& row = (*rows)[r];
    row.late[c] = work[r] - median;
    double most = 0.0;
    for (int p = 0; p < kParts; ++p) {
      const double part = parts[p][r][c] - medians[p];
      if (std::isnan(part)) continue;
      (*lost)[r][p] += part;
      if (part > most) {
        most = part;
        row.cause[c] = p;
      }
    }
  }
}

// What holds over all columns.
void Summarise(const std::vector<std::vector<double>>& lost,
               RankTimeline* timeline) {
  for (int64_t c = 0; c < timeline->columns; ++c) {
    RankRow* latest = nullptr;
    for (RankRow& row : timeline->rows) {
      if (std::isnan(row.late[c])) continue;
      row.mean_late += row.late[c] / static_cast<double>(timeline->columns);
      if (latest == nullptr || row.late[c] > latest->late[c]) latest = &row;
    }
    if (latest == nullptr || timeline->rows.size() < 2) continue;
    latest->latest_share += 1.0 / static_cast<double>(timeline->columns);
  }
  for (size_t r = 0; r < timeline->rows.size(); ++r) {
    timeline->rows[r].mean_cause = static_cast<int>(
        std::max_element(lost[r].begin(), lost[r].end()) - lost[r].begin());
  }
}

// Over all ranks, by the timeline's columns.
json UsageJson(const std::map<int, WatchedRank>& ranks,
               const RankTimeline& timeline) {
  Curves usage(timeline.columns + 1, timeline.width);
  for (const auto& [rank, record] : ranks) {
    for (const char* name : {"rss_bytes", "cpu_cores", "steal", "iowait"}) {
      const std::vector<double> means =
          Columns(record.curves, name, timeline.width, timeline.columns);
      for (int64_t c = 0; c < timeline.columns; ++c) {
        if (std::isnan(means[c])) continue;
        usage.Add(c * timeline.width, name, means[c]);
      }
    }
  }
  return usage.AsJson(timeline.columns + 1);
}

}  // namespace

void WatchedRank::Add(const nlohmann::ordered_json& line) {
  if (!line.is_object()) return;
  if (IsRankFacts(line)) {
    facts = RankFactsOf(line);
    return;
  }
  const RankTimes times = RankTimesOf(line, kUnknown);
  const double step = NumberOf(line, "step").value_or(kUnknown);
  const double steps = times.steps;
  if (!(step >= 0.0) || !(steps > 0.0)) return;
  const auto at = static_cast<int64_t>(step);
  const auto add = [&](const char* name, double value) {
    if (std::isfinite(value)) curves.Add(at, name, value);
  };
  const std::pair<const char*, double> parts[] = {
      {"data", times.data},         {"forward", times.forward},
      {"backward", times.backward}, {"optimizer", times.optimizer},
      {"rest", times.rest},         {"exposed", times.exposed},
      {"outside", times.outside},   {"step_seconds", times.step_seconds}};
  for (const auto& [part, value] : parts) add(part, value / steps);
  const double seconds =
      times.step_seconds + (std::isnan(times.outside) ? 0.0 : times.outside);
  if (seconds > 0.0) {
    add("cpu_cores", times.cpu_seconds / seconds);
    add("steal", times.steal_seconds / seconds);
    add("iowait", times.iowait_seconds / seconds);
  }
  add("rss_bytes", NumberOf(line, "rss_bytes").value_or(kUnknown));
  for (const auto& [name, value] : times.actions) {
    if (actions.size() < kMostActions || actions.count(name) > 0) {
      actions[name] += value;
    }
  }
}

RankTimeline TimelineOf(const std::map<int, WatchedRank>& ranks) {
  RankTimeline timeline;
  int64_t last = 0;
  for (const auto& [rank, record] : ranks) {
    timeline.width = std::max(timeline.width, record.curves.width());
  }
  for (const auto& [rank, record] : ranks) {
    for (const Curves::Series& series : record.curves.all()) {
      last = std::max(
          last, (series.buckets.back().at + 1) * record.curves.width() - 1);
    }
  }
  if (last == 0) return timeline;
  timeline.columns = last / timeline.width + 1;
  Parts parts(kParts);
  for (const auto& [rank, record] : ranks) {
    RankRow row;
    row.rank = rank;
    row.late.assign(timeline.columns, kUnknown);
    row.cause.assign(timeline.columns, 0);
    for (const Curves::Series& series : record.curves.all()) {
      row.means[series.name] = MeanOf(series);
    }
    timeline.rows.push_back(std::move(row));
    for (int p = 0; p < kParts; ++p) {
      parts[p].push_back(Columns(record.curves, kWorkParts[p], timeline.width,
                                 timeline.columns));
    }
  }
  std::vector<std::vector<double>> lost(ranks.size(),
                                        std::vector<double>(kParts, 0.0));
  std::vector<double> medians;
  for (int64_t c = 0; c < timeline.columns; ++c) {
    CompareColumn(parts, c, &timeline.rows, &lost);
    medians.push_back(MedianOfKnown(ColumnOf(parts, -1, c)));
  }
  timeline.median_work = MedianOfKnown(std::move(medians));
  Summarise(lost, &timeline);
  return timeline;
}

const RankRow* RankTimeline::Late() const {
  const RankRow* late = nullptr;
  for (const RankRow& row : rows) {
    // Of lines that lack a part of the work nothing is known: NaN.
    if (!(row.mean_late >= 0.05 * median_work)) continue;
    if (late == nullptr || row.mean_late > late->mean_late) late = &row;
  }
  return rows.size() > 1 ? late : nullptr;
}

std::string LateText(const std::map<int, WatchedRank>& ranks,
                     const RankTimeline& timeline) {
  const RankRow* row = timeline.Late();
  if (row == nullptr) return "";
  const std::string& host = ranks.at(row->rank).facts.host;
  return absl::StrCat("rank ", row->rank,
                      host.empty() ? "" : absl::StrCat(" on ", host),
                      " is late: it works ", ShortDuration(row->mean_late),
                      absl::StrFormat(" (%.0f %%)", 100.0 * row->mean_late /
                                                        timeline.median_work),
                      " longer a step than the median rank, most of it in ",
                      kWorkParts[row->mean_cause], "; the others wait for it");
}

json RanksJson(const std::map<int, WatchedRank>& ranks) {
  const RankTimeline timeline = TimelineOf(ranks);
  std::vector<const RankRow*> shown;
  for (const RankRow& row : timeline.rows) shown.push_back(&row);
  if (shown.size() > kMostShown) {
    std::stable_sort(shown.begin(), shown.end(),
                     [](const RankRow* a, const RankRow* b) {
                       return a->mean_late > b->mean_late;
                     });
    shown.resize(kMostShown);
    std::sort(
        shown.begin(), shown.end(),
        [](const RankRow* a, const RankRow* b) { return a->rank < b->rank; });
  }
  json rows = json::array();
  for (const RankRow* row : shown) {
    const WatchedRank& record = ranks.at(row->rank);
    json late = json::array();
    for (const double value : row->late) {
      late.push_back(std::isnan(value) ? json(nullptr)
                                       : json(std::round(value * 1e5) / 1e5));
    }
    rows.push_back({{"rank", row->rank},
                    {"host", record.facts.host},
                    {"device", record.facts.device},
                    {"restart", record.facts.restart},
                    {"late", std::move(late)},
                    {"cause", row->cause},
                    {"latest_share", row->latest_share},
                    {"means", row->means},
                    {"actions", record.actions}});
  }
  return {{"width", timeline.width},
          {"columns", timeline.columns},
          {"parts", kWorkParts},
          {"median_work", timeline.median_work},
          {"all", timeline.rows.size()},
          {"late", LateText(ranks, timeline)},
          {"usage", UsageJson(ranks, timeline)},
          {"rows", std::move(rows)}};
}

}  // namespace capstan
