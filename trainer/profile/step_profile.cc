// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/step_profile.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/string_view.h"

namespace capstan {
namespace {

constexpr const char* kPhases[] = {
    kDataPhase,    kForwardPhase, kBackwardPhase, kOptimizerPhase,
    kExposedPhase, kRestPhase,    kHiddenPhase,   kOtherThreadsPhase};

int Order(absl::string_view phase) {
  return static_cast<int>(
      std::find(std::begin(kPhases), std::end(kPhases), phase) -
      std::begin(kPhases));
}

bool OpenedByStep(absl::string_view name) {
  return name == kDataPhase || name == kForwardPhase ||
         name == kBackwardPhase || name == kOptimizerPhase;
}

// The part of the step that a record lies in.
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
    // The scope of backward has counted it, too, waiting on its own thread.
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

}  // namespace capstan
