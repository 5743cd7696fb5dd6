// SPDX-License-Identifier: Apache-2.0
#include "desk/track/measures.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/rank_lines.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

// How much a new step's time counts, once there are many, in the mean that the
// time left is estimated by.
constexpr double kLeastWeight = 0.05;
// Of a rank's file: some lines, which are of a second each.
constexpr int64_t kTailBytes = 8192;

// A rank's newest seconds, as ranks/rank-00003.jsonl has them.
struct RankNow {
  int rank = 0;
  double work_seconds = 0.0;  // a step, without the wait for other ranks
  double rss_bytes = 0.0;
  bool has_steps = false;
};

RankNow ReadRank(int rank, const std::string& path) {
  RankNow now;
  now.rank = rank;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (size < 0) return now;
  const std::streamoff from = std::max<std::streamoff>(0, size - kTailBytes);
  file.seekg(from);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.read(&text[0], static_cast<std::streamsize>(text.size()));
  RankTimes times;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const Json json = ParseJson<Json>(line);  // the first may be cut
    if (!json.is_object()) continue;
    if (IsRankFacts(json)) {
      times = RankTimes();  // of another process
      continue;
    }
    now.rss_bytes = NumberOf(json, "rss_bytes").value_or(now.rss_bytes);
    times.Add(RankTimesOf(json));
  }
  now.has_steps = times.steps > 0.0;
  if (now.has_steps) now.work_seconds = times.own() / times.steps;
  return now;
}

// The rank whose own work takes longest, and by how much longer than that of
// the rank in the middle.
void AddRanks(const Follower& follower, std::vector<Measure>* list) {
  Measure memory = {"resident_memory_bytes",
                    "Memory of a rank's process that is in RAM.", "By"};
  std::vector<RankNow> working;
  for (const auto& [number, path] : RankFiles(follower.folder())) {
    // A run that was resumed on fewer ranks has more files than ranks.
    if (follower.world_size() > 0 && number >= follower.world_size()) break;
    const RankNow rank = ReadRank(number, path);
    if (rank.rss_bytes > 0.0) {
      memory.values.push_back({rank.rank, rank.rss_bytes});
    }
    if (rank.has_steps) working.push_back(rank);
  }
  if (!memory.values.empty()) list->push_back(std::move(memory));
  if (working.size() < 2) return;
  std::sort(working.begin(), working.end(),
            [](const RankNow& a, const RankNow& b) {
              return a.work_seconds < b.work_seconds;
            });
  const RankNow& late = working.back();
  const RankNow& middle = working[(working.size() - 1) / 2];
  list->push_back({"late_rank",
                   "The rank whose own work in a step takes longest.",
                   "1",
                   false,
                   {{-1, static_cast<double>(late.rank)}}});
  list->push_back(
      {"late_rank_seconds",
       "How much longer that is, a step, than the work of the median rank.",
       "s",
       false,
       {{-1, late.work_seconds - middle.work_seconds}}});
}

struct FromMetrics {
  const char* metric;
  Measure measure;
};

// What metrics.jsonl has under that name, as it is.
const std::vector<FromMetrics>& MetricsAsTheyAre() {
  static const auto* const list = new std::vector<FromMetrics>{
      {"loss", {"loss", "Training loss of the newest step.", "1"}},
      {"eval_loss", {"eval_loss", "Loss of the newest evaluation.", "1"}},
      {"grad_norm",
       {"gradient_norm", "Norm of the newest step's gradient.", "1"}},
      {"lr", {"learning_rate", "Learning rate of the newest step.", "1"}},
      {"tokens",
       {"tokens_total", "Input tokens so far, without padding.", "1", true}},
      {"samples", {"samples_total", "Samples so far.", "1", true}},
      {"tokens_per_second",
       {"tokens_per_second", "Input tokens a second, in the newest step.",
        "1/s"}},
      {"samples_per_second",
       {"samples_per_second", "Samples a second, in the newest step.", "1/s"}},
      {"step_seconds", {"step_seconds", "How long the newest step took.", "s"}},
      {"communication_seconds",
       {"communication_seconds", "Communication in the newest step.", "s"}},
      {"exposed_seconds",
       {"exposed_communication_seconds",
        "Communication that the newest step has waited for.", "s"}},
      {"mfu",
       {"mfu_ratio", "Share of the devices' peak that the step used.", "1"}},
      {"gpu_allocated_bytes",
       {"gpu_allocated_bytes", "GPU memory in tensors.", "By"}},
      {"gpu_reserved_bytes",
       {"gpu_reserved_bytes", "GPU memory that the allocator holds.", "By"}},
      {"gpu_peak_bytes",
       {"gpu_peak_bytes", "Most GPU memory that tensors had.", "By"}},
  };
  return *list;
}

void AddOne(Measure measure, double value, std::vector<Measure>* list) {
  if (!std::isfinite(value)) return;
  measure.values = {{-1, value}};
  list->push_back(std::move(measure));
}

int CountOf(const std::vector<Event>& events, absl::string_view kind) {
  return static_cast<int>(
      std::count_if(events.begin(), events.end(),
                    [kind](const Event& event) { return event.kind == kind; }));
}

// That the run goes to: as it has ended, as it was last told while it ran
// (train.control, whose answer has this text), or as its config says; 0: not
// known.
double StepsOf(const Settings& settings, const std::vector<Event>& events,
               const RunState& state) {
  if (state.ended && state.status == "completed") {
    const absl::optional<double> steps = NumberOf(state.summary, "steps");
    if (steps.has_value()) return *steps;
  }
  double steps = 0.0;
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    absl::string_view text = event->text;
    if (event->kind == "control" &&
        absl::ConsumePrefix(&text, "the run ends after step ") &&
        absl::SimpleAtod(text.substr(0, text.find(' ')), &steps)) {
      return steps;
    }
  }
  return absl::SimpleAtod(SettingOf(settings, "train.max_steps"), &steps)
             ? steps
             : 0.0;
}

}  // namespace

absl::optional<double> Measures::Get(const std::string& name) const {
  for (const Measure& measure : list) {
    if (name == measure.name && measure.values.front().rank < 0) {
      return measure.values.front().value;
    }
  }
  return absl::nullopt;
}

void Meter::Add(const Row& row, const std::vector<double>& begins) {
  const absl::optional<double> seconds = row.Get("step_seconds");
  const double took = seconds.value_or(0.0);
  if (!begin_.has_value()) begin_ = row.time - took;
  if (seconds.has_value()) {
    if (row.Get("skipped").value_or(0.0) > 0.0) {
      ++skipped_;
    } else {
      counted_seconds_ += took;
    }
    // From line to line there are saving and evaluating, too.
    const bool began = std::any_of(
        begins.begin(), begins.end(),
        [&](double begin) { return begin > last_time_ && begin <= row.time; });
    const bool next =
        row.step == last_step_ + 1 && row.time > last_time_ && !began;
    const double whole =
        next && last_time_ > 0.0 ? row.time - last_time_ : took;
    mean_seconds_ +=
        std::max(kLeastWeight, 1.0 / ++timed_) * (whole - mean_seconds_);
    last_time_ = row.time;
  }
  last_step_ = row.step;
  last_.step = row.step;
  last_.time = row.time;
  for (const auto& [name, value] : row.metrics) {
    const auto found = std::find_if(
        last_.metrics.begin(), last_.metrics.end(),
        [name = &name](const auto& metric) { return metric.first == *name; });
    if (found == last_.metrics.end()) {
      last_.metrics.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
}

Measures Meter::Take(const Follower& follower, const Settings& settings,
                     const RunState& state) const {
  Meter meter = *this;
  if (follower.newest().has_value()) {
    meter.Add(*follower.newest(), follower.begins());
  }
  return meter.Now(follower, settings, state);
}

Measures Meter::Now(const Follower& follower, const Settings& settings,
                    const RunState& state) const {
  Measures now;
  now.id = follower.id();
  now.folder = follower.folder();
  now.time = state.end_time;
  now.start_time = begin_.value_or(now.time);
  const std::vector<Event>& events = follower.events();
  if (!events.empty() && events.front().time > 0.0) {
    now.start_time = std::min(now.start_time, events.front().time);
  }
  std::vector<Measure>* const list = &now.list;
  AddOne({"running", "1 while the run has not ended.", "1"},
         state.ended ? 0.0 : 1.0, list);
  AddOne({"step", "The newest step.", "1"}, static_cast<double>(last_step_),
         list);
  const double steps = StepsOf(settings, events, state);
  if (steps > 0.0) {
    const double left = std::max(0.0, steps - static_cast<double>(last_step_));
    now.progress = 100.0 * (1.0 - left / steps);
    now.seconds_left = state.ended ? 0.0 : left * mean_seconds_;
    AddOne({"steps", "Steps that the run goes to.", "1"}, steps, list);
    AddOne({"progress_ratio", "Share of the steps that are done.", "1"},
           1.0 - left / steps, list);
    AddOne({"time_left_seconds", "Estimated time to the last step.", "s"},
           *now.seconds_left, list);
  }
  for (const FromMetrics& from : MetricsAsTheyAre()) {
    AddOne(from.measure, last_.Get(from.metric).value_or(NAN), list);
  }
  const double wall = now.time - now.start_time;
  AddOne({"goodput_ratio",
          "Share of the time since the start that went into steps that count: "
          "what a restart lost, skipped steps, saving and waiting are out.",
          "1"},
         wall > 0.0 ? std::min(1.0, counted_seconds_ / wall) : NAN, list);
  AddOne({"skipped_steps_total", "Steps without an update.", "1", true},
         static_cast<double>(skipped_), list);
  AddOne(
      {"restarts_total",
       "How often ranks were started anew, or the run was resumed.", "1", true},
      CountOf(events, "restart") + CountOf(events, "resume"), list);
  AddRanks(follower, list);
  return now;
}

}  // namespace capstan::track
