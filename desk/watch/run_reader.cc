// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/run_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/run_record.h"
#include "desk/watch/metrics_lines.h"
#include "trainer/metrics/event_log.h"

namespace capstan {
namespace {

using nlohmann::json;

// Of a call of Poll: what another thread may wait for.
constexpr int64_t kBytesAtOnce = int64_t{8} << 20;
constexpr int64_t kMostSmallFile = int64_t{16} << 20;
constexpr int64_t kLinesAPlace = 256;
constexpr size_t kPaceSteps = 256;
double Number(const json& object, const char* key) {
  return NumberOf(object, key).value_or(0.0);
}

int64_t Step(const json& object) {
  const double step = Number(object, "step");
  return step >= 0.0 && step < kMostSteps ? static_cast<int64_t>(step) : 0;
}

}  // namespace

RunReader::RunReader(std::string folder, std::string name)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      metrics_(std::make_unique<MetricsLines>()),
      metrics_file_(folder_ + "/metrics.jsonl"),
      control_file_(folder_ + "/control.jsonl"),
      events_file_(folder_ + "/events.jsonl"),
      samples_file_(folder_ + "/generations.jsonl") {}

RunReader::~RunReader() = default;

bool RunReader::Poll() {
  // First: a run says how it ended before it lets go of its lock.
  held_ = LockIsHeld(folder_);
  PollControl();
  PollEvents();
  PollFiles();  // what events say of the summary is known
  PollSamples();
  PollRanks();
  PollMetrics();
  return behind_;
}

void RunReader::PollFiles() {
  changed_ = std::max(WrittenAt(folder_ + "/metrics.jsonl"),
                      WrittenAt(folder_ + "/events.jsonl"));
  const std::string config_path = folder_ + "/config.pbtxt";
  const double config_time = WrittenAt(config_path);
  if (config_time > 0.0 && config_time != config_time_) {
    const absl::StatusOr<std::string> text =
        ReadWholeFile(config_path, kMostSmallFile);
    if (text.ok()) {
      config_ = *text;
      fields_.clear();
      for (const auto& [name, values] : FieldsOfConfig(config_)) {
        fields_[name] = absl::StrJoin(values, ", ");
      }
      config_time_ = config_time;
      ++versions_.config;
    }
  }
  const double summary_time = WrittenAt(folder_ + "/summary.json");
  if (summary_time == summary_time_ && !has_begun_) return;
  summary_ = json(SummaryOf(folder_));
  summary_time_ = summary_time;
  has_begun_ = false;
  ++versions_.summary;
}

void RunReader::PollMetrics() {
  const int64_t before = lines_;
  behind_ = metrics_file_.Poll(
      [this](absl::string_view line, int64_t offset) {
        metrics_->Add(line, offset,
                      [this](const MetricsLine& whole) { AddMetrics(whole); });
      },
      [this] { Restart(); }, kBytesAtOnce);
  if (lines_ != before) ++versions_.curves;
}

void RunReader::Restart() {
  metrics_->Clear();
  curves_.Clear();
  step_ = 0;
  places_.clear();
  settled_ = 0;
  lines_ = 0;
  pace_.clear();
  ++versions_.curves;
  ++versions_.restarts;
}

// The steps from `step` on are taken again: what comes takes their place.
void RunReader::GoBack(int64_t step, int64_t offset) {
  curves_.CutFrom(step);
  while (!places_.empty() && places_.back().first >= step) places_.pop_back();
  places_.emplace_back(step, offset);
  settled_ = offset;
  pace_.clear();
  ++versions_.restarts;  // pages have the other values
}

void RunReader::AddMetrics(const MetricsLine& line) {
  double time = 0.0, seconds = 0.0;
  bool trained = false;
  if (line.step < step_) GoBack(line.step, line.offset);
  step_ = line.step;
  line.ForEach([&](absl::string_view key, double value) {
    curves_.Add(step_, key, value);
    if (key == "time" && value > 0.0) time = value;
    if (key == "step_seconds" && value > 0.0) seconds = value;
    trained = trained || key == "loss";
  });
  if (lines_ % kLinesAPlace == 0) places_.emplace_back(step_, line.offset);
  ++lines_;
  if (!trained) return;
  // Older runs' lines have no time.
  if (time == 0.0) {
    time = pace_.empty() ? seconds : pace_.back().second + seconds;
  }
  pace_.emplace_back(step_, time);
  if (pace_.size() > kPaceSteps) pace_.pop_front();
}

void RunReader::PollControl() {
  control_file_.Poll(
      [this](absl::string_view line, int64_t) {
        const json request = ParseJson<json>(line);
        if (!request.is_object() || TextOf(request, "do") != "max_steps")
          return;
        const double value = Number(request, "value");
        if (!(value > 0.0 && value < kMostSteps)) return;
        asked_ends_[TextOf(request, "id")] = static_cast<int64_t>(value);
      },
      [this] { asked_ends_.clear(); });
}

void RunReader::AddEvent(const json& line) {
  if (!line.is_object()) return;
  WatchedEvent event = {Number(line, "time"),    Step(line),
                        TextOf(line, "kind"),    TextOf(line, "text"),
                        Number(line, "seconds"), TextOf(line, "id")};
  // The kind says it.
  if (event.kind == "warning" && absl::StartsWith(event.text, "WARNING: ")) {
    event.text.erase(0, sizeof("WARNING: ") - 1);
  }
  if (IsFirstEvent(event.kind)) {
    has_begun_ = true;
    if (event.kind != kRestartEvent) end_ = 0;
  }
  const auto asked = asked_ends_.find(event.id);
  if (event.kind == "control" && asked != asked_ends_.end() &&
      !absl::StartsWith(event.text, "refused")) {
    end_ = asked->second;
  }
  events_.push_back(std::move(event));
  if (events_.size() > kMostEvents) events_.pop_front();
  ++versions_.events;
}

void RunReader::PollEvents() {
  events_file_.Poll([this](absl::string_view line,
                           int64_t) { AddEvent(ParseJson<json>(line)); },
                    [this] {
                      events_.clear();
                      ++versions_.events;
                    });
}

void RunReader::PollSamples() {
  samples_file_.Poll(
      [this](absl::string_view line, int64_t) {
        const json object = ParseJson<json>(line);
        if (!object.is_object()) return;
        samples_.push_back(
            {Step(object), TextOf(object, "prompt"), TextOf(object, "text")});
        sample_bytes_ +=
            samples_.back().prompt.size() + samples_.back().text.size();
        while (sample_bytes_ > kMostSampleBytes && samples_.size() > 1) {
          sample_bytes_ -=
              samples_.front().prompt.size() + samples_.front().text.size();
          samples_.pop_front();
        }
        ++versions_.samples;
      },
      [this] {
        samples_.clear();
        sample_bytes_ = 0;
        ++versions_.samples;
      });
}

void RunReader::PollRanks() {
  for (const auto& [rank, path] : RankFiles(folder_)) {
    if (static_cast<int>(rank_files_.size()) >= kMostRanks) break;
    rank_files_.emplace(rank, LineFollower(path));
  }
  ranks_.merge(gone_ranks_);
  for (auto& [rank, file] : rank_files_) {
    WatchedRank& record = ranks_[rank];
    record.rank = rank;
    file.Poll(
        [&, this](absl::string_view line, int64_t) {
          record.Add(ParseJson<nlohmann::ordered_json>(line));
          ++versions_.ranks;
        },
        [&, this] {
          record = WatchedRank();
          record.rank = rank;
          ++versions_.ranks;
        });
  }
  // A run that was resumed on fewer ranks has more files than ranks.
  const auto first = ranks_.find(0);
  if (first == ranks_.end() || first->second.facts.world_size == 0) {
    return;
  }
  const int size = first->second.facts.world_size;
  for (auto it = ranks_.lower_bound(size); it != ranks_.end();) {
    gone_ranks_.insert(ranks_.extract(it++));
  }
}

std::map<std::string, double> RunReader::Latest() const {
  std::map<std::string, double> latest;
  for (const Curves::Series& series : curves_.all()) {
    if (series.name == "step" || series.name == "time") continue;
    latest[series.name] = series.latest;
  }
  return latest;
}

RunReader::State RunReader::state() const {
  if (behind_) return State::kReading;
  const bool ended = !summary_.empty() &&
                     Number(summary_, "steps") >= static_cast<double>(step_);
  if (ended) return State::kEnded;
  if (held_ == false) return State::kFailed;
  if (changed_ == 0.0) return State::kWaiting;
  return SecondsSilent() > PatienceFor(SecondsPerStep()) ? State::kSilent
                                                         : State::kRunning;
}

int64_t RunReader::unreadable_lines() const { return metrics_->unreadable(); }

int64_t RunReader::max_steps() const {
  if (end_ > 0) return end_;
  int64_t steps = 0;
  const auto field = fields_.find("train.max_steps");
  if (field != fields_.end() && absl::SimpleAtoi(field->second, &steps)) {
    return steps;
  }
  return 0;
}

double RunReader::SecondsPerStep() const {
  if (pace_.size() < 2) return -1.0;
  const auto& [first, began] = pace_.front();
  const auto& [last, ended] = pace_.back();
  if (last <= first || ended <= began) return -1.0;
  return (ended - began) / static_cast<double>(last - first);
}

double RunReader::SecondsLeft() const {
  const double pace = SecondsPerStep();
  if (pace < 0.0 || max_steps() < step_) return -1.0;
  return pace * static_cast<double>(max_steps() - step_);
}

double RunReader::SecondsSilent() const {
  return changed_ == 0.0 ? -1.0 : std::max(0.0, NowSeconds() - changed_);
}

bool RunReader::control() const {
  const auto field = fields_.find("train.control");
  return field != fields_.end() && field->second == "true";
}

RunReader::Place RunReader::PlaceOf(int64_t step) const {
  auto place = std::upper_bound(places_.begin(), places_.end(),
                                std::make_pair(step, int64_t{0}));
  if (place != places_.begin()) --place;
  return {place == places_.end() ? 0 : place->second, settled_};
}

Curves RunReader::Detail(const std::string& folder, const Place& place,
                         int64_t from, int64_t to, int64_t points) {
  from = std::max<int64_t>(from, 0);
  to = std::max(from, to);
  points = std::max<int64_t>(points, 1);
  const int64_t width = (to - from) / points + 1;
  Curves curves(to / width + 1, width);
  MetricsLines metrics(from);
  LineFollower lines(folder + "/metrics.jsonl", place.first);
  bool past = false;
  int64_t last = 0;
  const auto use = [&](const MetricsLine& line) {
    if (line.step < last) curves.CutFrom(line.step);
    last = line.step;
    past = line.step > to && line.offset >= place.settled;
    if (line.step < from || line.step > to) return;
    line.ForEach([&](absl::string_view key, double value) {
      curves.Add(line.step, key, value);
    });
  };
  const auto add = [&](absl::string_view line, int64_t offset) {
    metrics.Add(line, offset, use);
  };
  while (!past && lines.Poll(
                      add, [] {}, kBytesAtOnce)) {
  }
  return curves;
}

}  // namespace capstan
