// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/profiler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/profile.h"
#include "base/status.h"
#include "cluster/comm/phase_group.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

constexpr const char* kPhases[] = {
    kDataPhase,     kRolloutPhase,   kForwardPhase,
    kBackwardPhase, kOptimizerPhase, kExposedPhase,
    kRestPhase,     kHiddenPhase,    kOtherThreadsPhase};

int Order(absl::string_view phase) {
  return static_cast<int>(
      std::find(std::begin(kPhases), std::end(kPhases), phase) -
      std::begin(kPhases));
}

bool OpenedByStep(absl::string_view name) {
  return name == kDataPhase || name == kRolloutPhase || name == kForwardPhase ||
         name == kBackwardPhase || name == kOptimizerPhase;
}

// The phase that a record belongs to.
absl::string_view PhaseOf(const ThreadRecord& r) {
  if (r.role == ThreadRole::kAutograd) return kBackwardPhase;
  return OpenedByStep(r.record.outermost)
             ? absl::string_view(r.record.outermost)
             : kRestPhase;
}

struct Sum {
  int64_t ns = 0;
  int64_t calls = 0;
};

class Rows {
 public:
  void Add(absl::string_view phase, absl::string_view name, int64_t ns,
           int64_t calls) {
    Sum& sum = sums_[{std::string(phase), std::string(name)}];
    sum.ns += ns;
    sum.calls += calls;
  }

  void AddRecord(const ThreadRecord& r) {
    const ProfileRecord& record = r.record;
    const absl::string_view name = record.name;
    if (r.role == ThreadRole::kOther) {
      Add(kOtherThreadsPhase, name, record.own_ns, 1);
      return;
    }
    const absl::string_view phase = PhaseOf(r);
    if (name == kExposedPhase) {
      Add(kExposedPhase, phase, record.own_ns, 1);
    } else {
      const bool whole = record.is_outermost && name == phase;
      Add(phase, whole ? "other" : name, record.own_ns, 1);
    }
    // Backward's scope includes it, too, while waiting on its own thread.
    if (r.role == ThreadRole::kAutograd && record.is_outermost) {
      Add(kBackwardPhase, "other", record.begin_ns - record.end_ns, 0);
    }
  }

  std::vector<ProfileRow> Means(size_t steps) const {
    std::vector<ProfileRow> rows;
    const auto count = static_cast<double>(steps);
    for (const auto& [key, sum] : sums_) {
      ProfileRow row;
      row.phase = key.first;
      row.name = key.second;
      row.seconds = 1e-9 * static_cast<double>(sum.ns) / count;
      row.calls = static_cast<double>(sum.calls) / count;
      row.in_step = Order(row.phase) <= Order(kRestPhase);
      rows.push_back(std::move(row));
    }
    std::sort(rows.begin(), rows.end(),
              [](const ProfileRow& a, const ProfileRow& b) {
                const int phases = Order(a.phase) - Order(b.phase);
                return phases != 0 ? phases < 0 : a.seconds > b.seconds;
              });
    return rows;
  }

 private:
  std::map<std::pair<std::string, std::string>, Sum> sums_;
};

using Json = nlohmann::ordered_json;

double Share(double seconds, const StepProfile& profile) {
  return profile.step_seconds > 0.0 ? seconds / profile.step_seconds : 0.0;
}

class Table {
 public:
  explicit Table(const StepProfile& profile) : profile_(profile) {}

  void Line(const std::string& title, double seconds, const std::string& calls,
            bool in_step) {
    lines_.push_back(
        {title, absl::StrFormat("%.3f", 1e3 * seconds),
         absl::StrFormat("%.1f %%", 100.0 * Share(seconds, profile_)), calls,
         in_step ? "" : "  beside the step"});
  }

  std::string Text() const {
    size_t width = 0;
    for (const auto& line : lines_) width = std::max(width, line[0].size());
    std::string text = absl::StrFormat("  %-*s  %10s  %8s  %6s\n", width, "",
                                       "ms", "share", "calls");
    for (const auto& line : lines_) {
      const std::string row =
          absl::StrFormat("  %-*s  %10s  %8s  %6s%s", width, line[0], line[1],
                          line[2], line[3], line[4]);
      absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
    }
    return text;
  }

 private:
  const StepProfile& profile_;
  std::vector<std::vector<std::string>> lines_;
};

const char* RoleName(ThreadRole role) {
  if (role == ThreadRole::kTraining) return "training";
  return role == ThreadRole::kAutograd ? "autograd" : "other";
}

Json Event(absl::string_view name, absl::string_view category, int64_t begin_ns,
           int64_t end_ns, int rank, int thread) {
  return {{"name", std::string(name)},
          {"cat", std::string(category)},
          {"ph", "X"},
          {"ts", 1e-3 * static_cast<double>(begin_ns)},
          {"dur", 1e-3 * static_cast<double>(end_ns - begin_ns)},
          {"pid", rank},
          {"tid", thread}};
}

Json NameEvent(const char* what, const std::string& name, int rank,
               int thread) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", rank},
          {"tid", thread},
          {"args", {{"name", name}}}};
}

int TrainingThread(const ProfiledStep& step) {
  for (const ThreadRecord& r : step.records) {
    if (r.role == ThreadRole::kTraining) return r.thread;
  }
  return 0;
}

class ProfiledWork : public Work {
 public:
  explicit ProfiledWork(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void Wait() override {
    const ProfileScope scope(kExposedPhase);
    work_->Wait();
  }

 private:
  const std::unique_ptr<Work> work_;
};

class ProfiledGroup : public ProcessGroup, public GroupAround {
 public:
  explicit ProfiledGroup(std::unique_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    return Profiled(group_->AllReduce(tensor));
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    return Profiled(group_->ReduceScatter(output, input));
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    return Profiled(group_->AllGather(output, input));
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    return Profiled(group_->Broadcast(tensor, root));
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override {
    return Profiled(group_->AllToAll(output, input));
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override {
    return Profiled(group_->SendRecv(output, from, input, to));
  }

  void AllReduceHost(absl::Span<double> values) override {
    const ProfileScope scope(kExposedPhase);
    group_->AllReduceHost(values);
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> part,
                             group_->Split(color));
    return ProfileWaits(std::move(part));
  }

  CommunicationStats stats() const override { return group_->stats(); }

  ProcessGroup& inner() override { return *group_; }

 private:
  static std::unique_ptr<Work> Profiled(std::unique_ptr<Work> work) {
    return std::make_unique<ProfiledWork>(std::move(work));
  }

  const std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

StepProfile Summarize(const std::vector<ProfiledStep>& steps) {
  StepProfile profile;
  Rows rows;
  int64_t total_ns = 0;
  for (const ProfiledStep& step : steps) {
    profile.steps.push_back(step.step);
    int64_t left = step.end_ns - step.begin_ns;
    total_ns += left;
    for (const ThreadRecord& r : step.records) {
      rows.AddRecord(r);
      if (r.role == ThreadRole::kTraining && r.record.is_outermost) {
        left -= r.record.end_ns - r.record.begin_ns;
      }
    }
    rows.Add(kRestPhase, "other", left, 1);
    if (step.hidden_seconds > 0.0) {
      rows.Add(kHiddenPhase, "collectives",
               static_cast<int64_t>(1e9 * step.hidden_seconds), 1);
    }
  }
  profile.step_seconds =
      1e-9 * static_cast<double>(total_ns) / static_cast<double>(steps.size());
  profile.rows = rows.Means(steps.size());
  return profile;
}

std::string ProfileTable(const StepProfile& profile) {
  Table table(profile);
  const std::vector<ProfileRow>& rows = profile.rows;
  for (size_t begin = 0, end; begin < rows.size(); begin = end) {
    double seconds = 0.0;
    for (end = begin; end < rows.size() && rows[end].phase == rows[begin].phase;
         ++end) {
      seconds += rows[end].seconds;
    }
    const bool parts = end - begin > 1;
    table.Line(rows[begin].phase, seconds,
               parts ? "" : absl::StrFormat("%g", rows[begin].calls),
               rows[begin].in_step);
    for (size_t i = begin; parts && i < end; ++i) {
      table.Line(absl::StrCat("  ", rows[i].name), rows[i].seconds,
                 absl::StrFormat("%g", rows[i].calls), /*in_step=*/true);
    }
  }
  return absl::StrCat("profile of ",
                      profile.steps.size() == 1 ? "step " : "steps ",
                      absl::StrJoin(profile.steps, ", "),
                      ", rank 0: ", ShortDuration(profile.step_seconds),
                      " a step\n", table.Text());
}

std::string ProfileJson(const StepProfile& profile) {
  Json rows = Json::array();
  for (const ProfileRow& row : profile.rows) {
    rows.push_back({{"phase", row.phase},
                    {"name", row.name},
                    {"seconds", row.seconds},
                    {"calls", row.calls},
                    {"share", Share(row.seconds, profile)},
                    {"in_step", row.in_step}});
  }
  Json json;
  json["steps"] = profile.steps;
  json["step_seconds"] = profile.step_seconds;
  json["rows"] = std::move(rows);
  return JsonText(json, 2) + "\n";
}

std::string TraceJson(const std::vector<ProfiledStep>& steps, int rank) {
  Json events = Json::array();
  std::map<int, ThreadRole> threads;
  for (const ProfiledStep& step : steps) {
    const int training = TrainingThread(step);
    threads[training] = ThreadRole::kTraining;
    events.push_back(Event(absl::StrCat("step ", step.step), "step",
                           step.begin_ns, step.end_ns, rank, training));
    for (const ThreadRecord& r : step.records) {
      threads[r.thread] = r.role;
      events.push_back(Event(r.record.name, r.record.outermost,
                             r.record.begin_ns, r.record.end_ns, rank,
                             r.thread));
    }
  }
  events.push_back(
      NameEvent("process_name", absl::StrCat("rank ", rank), rank, 0));
  for (const auto& [thread, role] : threads) {
    events.push_back(NameEvent("thread_name", RoleName(role), rank, thread));
  }
  const Json trace = {{"displayTimeUnit", "ms"},
                      {"traceEvents", std::move(events)}};
  return JsonText(trace) + "\n";
}

Profiler::~Profiler() {
  ProfileListeners::recording = false;
  SwitchScopes();
}

void Profiler::SwitchScopes() {
  ProfileScope::enabled_ =
      ProfileListeners::recording || ProfileListeners::push != nullptr;
}

void Profiler::BeginStep(int64_t step,
                         const CommunicationStats& communication) {
  if (steps_.count(step) == 0) return;
  ThreadRecords::Mine().set_role(ThreadRole::kTraining);
  communication_ = communication;
  now_ = ProfiledStep();
  now_.step = step;
  now_.begin_ns = MonotonicNanoseconds();
  on_ = true;
  ProfileListeners::recording = true;
  SwitchScopes();
}

void Profiler::EndStep(const CommunicationStats& communication) {
  if (!on_) return;
  on_ = false;
  ProfileListeners::recording = false;
  SwitchScopes();
  now_.end_ns = MonotonicNanoseconds();
  const double busy = communication.busy_seconds - communication_.busy_seconds;
  const double exposed =
      communication.exposed_seconds - communication_.exposed_seconds;
  now_.hidden_seconds = std::max(0.0, busy - exposed);
  for (ThreadRecords* records : ThreadRecords::All()) {
    for (const ProfileRecord& record : records->Take()) {
      // Another thread's scope may have begun in an earlier profiled step.
      if (record.begin_ns < now_.begin_ns) continue;
      now_.records.push_back({record, records->thread(), records->role()});
    }
  }
  done_.push_back(std::move(now_));
}

std::unique_ptr<ProcessGroup> ProfileWaits(
    std::unique_ptr<ProcessGroup> group) {
  return std::make_unique<ProfiledGroup>(std::move(group));
}

}  // namespace capstan
