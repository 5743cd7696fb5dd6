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

double MeanOf(const Curves::Series& series) {
  double sum = 0.0, count = 0.0;
  for (const CurveBucket& bucket : series.buckets) {
    sum += bucket.sum;
    count += bucket.count;
  }
  return sum / count;
}

// The lower one of two: a rank is compared with another, not with itself.
double MedianOfKnown(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(),
                              [](double value) { return std::isnan(value); }),
               values.end());
  if (values.empty()) return kUnknown;
  const auto middle = values.begin() + (values.size() - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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

// How much longer than the median rank one worked, and the part in which it
// lost most.
struct Lateness {
  double late = kUnknown;
  int cause = 0;
};

// By rank.
std::vector<Lateness> CompareRanks(const Parts& parts, int64_t column) {
  const std::vector<double> work = ColumnOf(parts, -1, column);
  const double median = MedianOfKnown(work);
  std::vector<Lateness> compared;
  for (const double seconds : work) compared.push_back({seconds - median, 0});
  std::vector<double> most(work.size(), 0.0);
  for (int p = 0; p < kParts; ++p) {
    const std::vector<double> part = ColumnOf(parts, p, column);
    const double usual = MedianOfKnown(part);
    for (size_t r = 0; r < part.size(); ++r) {
      if (!(part[r] - usual > most[r])) continue;
      most[r] = part[r] - usual;
      compared[r].cause = p;
    }
  }
  return compared;
}

// In how many columns each row was the latest.
void CountLatest(RankTimeline* timeline) {
  for (int64_t c = 0; c < timeline->columns; ++c) {
    RankRow* latest = nullptr;
    for (RankRow& row : timeline->rows) {
      if (std::isnan(row.late[c])) continue;
      if (latest == nullptr || row.late[c] > latest->late[c]) latest = &row;
    }
    if (latest == nullptr || timeline->rows.size() < 2) continue;
    latest->latest_share += 1.0 / static_cast<double>(timeline->columns);
  }
}

// The rows by their means.
void CompareMeans(RankTimeline* timeline) {
  Parts parts(kParts);  // of one column
  for (int p = 0; p < kParts; ++p) {
    for (const RankRow& row : timeline->rows) {
      const auto mean = row.means.find(kWorkParts[p]);
      parts[p].push_back({mean == row.means.end() ? kUnknown : mean->second});
    }
  }
  timeline->median_work = MedianOfKnown(ColumnOf(parts, -1, 0));
  const std::vector<Lateness> compared = CompareRanks(parts, 0);
  for (size_t r = 0; r < compared.size(); ++r) {
    timeline->rows[r].mean_late = compared[r].late;
    timeline->rows[r].mean_cause = compared[r].cause;
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
    lines = 0;
    all = without_first = RankTimes();
    return;
  }
  RankTimes times = RankTimesOf(line, kUnknown);
  // Older runs' lines don't have it.
  if (std::isnan(times.rollout)) times.rollout = 0.0;
  const double step = NumberOf(line, "step").value_or(kUnknown);
  const double steps = times.steps;
  if (!(step >= 0.0) || !(steps > 0.0)) return;
  const auto at = static_cast<int64_t>(step);
  const auto weight = static_cast<int32_t>(std::clamp(steps, 1.0, 1e6));
  const auto add = [&](const char* name, double value) {
    if (std::isfinite(value)) curves.Add(at, name, value, weight);
  };
  const std::pair<const char*, double> parts[] = {
      {"data", times.data},           {"rollout", times.rollout},
      {"forward", times.forward},     {"backward", times.backward},
      {"optimizer", times.optimizer}, {"rest", times.rest}};
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
  times.actions.clear();
  all.Add(times);
  if (lines++ > 0) without_first.Add(times);
}

std::map<std::string, double> WatchedRank::Means() const {
  const RankTimes mean = MeanPerStep(lines, all, without_first);
  const double seconds =
      mean.step_seconds + (std::isnan(mean.outside) ? 0.0 : mean.outside);
  std::map<std::string, double> means = {
      {"data", mean.data},
      {"rollout", mean.rollout},
      {"forward", mean.forward},
      {"backward", mean.backward},
      {"optimizer", mean.optimizer},
      {"rest", mean.rest},
      {"exposed", mean.exposed},
      {"outside", mean.outside},
      {"cpu_cores", mean.cpu_seconds / seconds},
      {"steal", mean.steal_seconds / seconds},
      {"iowait", mean.iowait_seconds / seconds}};
  if (const Curves::Series* const memory = curves.Find("rss_bytes")) {
    means["rss_bytes"] = MeanOf(*memory);
  }
  for (auto it = means.begin(); it != means.end();) {
    it = std::isfinite(it->second) ? std::next(it) : means.erase(it);
  }
  return means;
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
    row.means = record.Means();
    timeline.rows.push_back(std::move(row));
    for (int p = 0; p < kParts; ++p) {
      parts[p].push_back(Columns(record.curves, kWorkParts[p], timeline.width,
                                 timeline.columns));
    }
  }
  for (int64_t c = 0; c < timeline.columns; ++c) {
    const std::vector<Lateness> compared = CompareRanks(parts, c);
    for (size_t r = 0; r < compared.size(); ++r) {
      timeline.rows[r].late[c] = compared[r].late;
      timeline.rows[r].cause[c] = compared[r].cause;
    }
  }
  CountLatest(&timeline);
  CompareMeans(&timeline);
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
