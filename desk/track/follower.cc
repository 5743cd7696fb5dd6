// SPDX-License-Identifier: Apache-2.0
#include "desk/track/follower.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "base/json.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/rank_lines.h"
#include "desk/track/run_folder.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostReadBytes = int64_t{4} << 20;

std::string IdOf(absl::string_view line) {
  return Sha256Text(line).substr(0, 16);
}

double ValueOf(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  return value.is_number() ? value.get<double>() : NAN;
}

}  // namespace

absl::optional<double> Row::Get(absl::string_view name) const {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  return absl::nullopt;
}

Follower::Follower(const std::string& folder)
    : folder_(folder),
      metrics_(folder + "/metrics.jsonl"),
      event_lines_(folder + "/events.jsonl"),
      rank_lines_(folder + "/ranks/rank-00000.jsonl") {}

void Follower::StartOver(absl::string_view first) {
  if (first == first_line_) return;
  first_line_.clear();
  id_.clear();
  handed_out_ = std::numeric_limits<int64_t>::min();
}

std::vector<Row> Follower::Poll() {
  std::vector<std::string> lines;
  more_ = metrics_.Poll(
      [&lines](absl::string_view line, int64_t) { lines.emplace_back(line); },
      [this] {
        begun_anew_ = true;
        newest_.reset();
        clock_ = 0.0;
      },
      kMostReadBytes);
  if (begun_anew_ && !lines.empty()) {
    StartOver(lines.front());
    begun_anew_ = false;
  }
  // After the metrics: an event is written before the next step's line.
  ReadEvents();
  ReadWorldSize();
  std::vector<Row> rows;
  for (const std::string& line : lines) Add(line, &rows);
  return rows;
}

void Follower::ReadEvents() {
  event_lines_.Poll(
      [this](absl::string_view line, int64_t) {
        const Json json = ParseJson<Json>(line);
        if (!json.is_object()) return;
        Event event;
        event.time = NumberOf(json, "time").value_or(0.0);
        event.step = static_cast<int64_t>(NumberOf(json, "step").value_or(0.0));
        event.kind = TextOf(json, "kind");
        event.text = TextOf(json, "text");
        if (event.kind == "start" || event.kind == "resume" ||
            event.kind == "restart") {
          begins_.push_back(event.time);
        }
        events_.push_back(std::move(event));
      },
      [this] {
        events_.clear();
        begins_.clear();
        next_event_ = 0;
      });
}

void Follower::ReadWorldSize() {
  rank_lines_.Poll(
      [this](absl::string_view line, int64_t) {
        if (!absl::StrContains(line, "\"rank\"")) return;
        const Json json = ParseJson<Json>(line);
        if (IsRankFacts(json)) world_size_ = RankFactsOf(json).world_size;
      },
      [this] { world_size_ = 0; }, kMostReadBytes);
}

void Follower::Add(absl::string_view line, std::vector<Row>* rows) {
  const Json json = ParseJson<Json>(line);
  if (!json.is_object() || !json.contains("step")) return;
  const absl::optional<int64_t> step = JsonInteger(json["step"]);
  if (!step.has_value()) return;
  if (first_line_.empty()) {
    first_line_ = std::string(line);
    id_ = IdOf(line);
  }
  if (clock_ == 0.0) clock_ = WrittenAt(folder_ + "/config.pbtxt");
  clock_ += NumberOf(json, "step_seconds").value_or(0.0);
  clock_ = NumberOf(json, "time").value_or(clock_);
  if (newest_.has_value() && newest_->step != *step) Complete(rows);
  if (*step < handed_out_) return;
  const bool late = *step == handed_out_;
  std::vector<std::pair<std::string, double>> metrics;
  for (const auto& item : json.items()) {
    if (item.key() == "step" || item.key() == "time" ||
        (late && handed_out_names_.count(item.key()) > 0)) {
      continue;
    }
    if (item.value().is_primitive() && !item.value().is_string()) {
      metrics.emplace_back(item.key(), ValueOf(item.value()));
    }
  }
  if (late && metrics.empty()) return;
  if (!newest_.has_value()) {
    newest_.emplace();
    newest_->step = *step;
    newest_->time = clock_;
    newest_->late = late;
  }
  newest_->metrics.insert(newest_->metrics.end(), metrics.begin(),
                          metrics.end());
}

void Follower::Complete(std::vector<Row>* rows) {
  absl::optional<Row> row = TakeNewest();
  if (row.has_value()) rows->push_back(*std::move(row));
}

absl::optional<Row> Follower::TakeNewest() {
  absl::optional<Row> row;
  row.swap(newest_);
  if (!row.has_value()) return row;
  if (!row->late) handed_out_names_.clear();
  handed_out_ = row->step;
  for (const auto& [name, value] : row->metrics) handed_out_names_.insert(name);
  while (next_event_ < events_.size() &&
         events_[next_event_].step <= row->step) {
    row->events.push_back(events_[next_event_++]);
  }
  return row;
}

}  // namespace capstan::track
