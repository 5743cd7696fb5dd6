// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/late.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/watch/collective_log.h"

namespace capstan {
namespace {

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.0f s", static_cast<double>(ns) * 1e-9);
}

std::string CollectiveText(const RankView& view, int group) {
  const CollectiveView& one = view.groups[group].current;
  return capstan::CollectiveText(one.name, one.number, one.label, one.bytes,
                                 group);
}

// "in forward of step 13 for 21 s".
std::string PlaceText(const RankView& view) {
  const std::string activity = view.activity;
  if (view.activity_ns < 0) return "between two steps";
  if (activity != "step") {
    return absl::StrCat(
        "in ", activity,
        view.step > 0 ? absl::StrCat(" after step ", view.step) : "", " for ",
        Seconds(view.activity_ns));
  }
  if (*view.phase == '\0') {
    return absl::StrCat("in step ", view.step, " for ",
                        Seconds(view.activity_ns));
  }
  return absl::StrCat("in ", view.phase, " of step ", view.step, " for ",
                      Seconds(std::min(view.phase_ns, view.activity_ns)));
}

const char* StateText(ProcessState state) {
  switch (state) {
    case ProcessState::kComputing:
      return ", computing";
    case ProcessState::kWaiting:
      return ", waiting in the system";
    case ProcessState::kStopped:
      return ", stopped (SIGSTOP)";
    case ProcessState::kTraced:
      return ", stopped by a debugger";
    case ProcessState::kGone:
      return ", its process is gone";
    case ProcessState::kUnknown:
      break;
  }
  return "";
}

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", RankList(ranks));
}

std::string LateText(const RankView& view) {
  const int group = view.WaitsIn();
  return absl::StrCat(
      PlaceText(view),
      group < 0 ? "" : absl::StrCat(", in ", CollectiveText(view, group)),
      StateText(view.state));
}

// Describes a rank's collective without its number. Ranks in different
// collectives never meet.
std::string KindText(const RankView& view, int group) {
  const CollectiveView& one = view.groups[group].current;
  return absl::StrCat(group, "\n", one.name, "\n", one.label, "\n", one.bytes);
}

using Views = std::vector<const RankView*>;

std::vector<int> Numbers(const Views& views) {
  std::vector<int> ranks;
  for (const RankView* view : views) ranks.push_back(view->rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Ranks that say the same, in one clause; `verb` is for several and for one.
std::string Clauses(const std::vector<std::pair<std::string, int>>& said,
                    const char* many, const char* one) {
  std::vector<std::pair<std::string, std::vector<int>>> clauses;
  for (const auto& [text, rank] : said) {
    auto found =
        std::find_if(clauses.begin(), clauses.end(),
                     [&](const auto& clause) { return clause.first == text; });
    if (found == clauses.end()) {
      clauses.push_back({text, {}});
      found = clauses.end() - 1;
    }
    found->second.push_back(rank);
  }
  return absl::StrJoin(clauses, "; ", [&](std::string* out, const auto& c) {
    absl::StrAppend(out, Ranks(c.second), c.second.size() == 1 ? one : many,
                    c.first);
  });
}

class Judging {
 public:
  explicit Judging(const std::vector<HostView>& hosts) : hosts_(hosts) {}

  Judgement Run();

 private:
  // Sorts the ranks that are heard.
  void Sort();
  // Each sets late_ if that is the matter.
  void JudgeAtRest();
  void JudgeDivergence();
  void JudgeBehind();
  void JudgeIssued();

  std::string SilentText() const;
  std::string Text() const;

  const std::vector<HostView>& hosts_;
  std::vector<int> silent_;  // ranks of hosts that aren't heard
  std::vector<int> unseen_;  // whose memory can't be opened
  Views at_rest_, waiting_, others_;
  Views late_;
  bool diverged_ = false;
};

void Judging::Sort() {
  for (const HostView& host : hosts_) {
    for (const RankView& view : host.ranks) {
      if (host.silent()) {
        silent_.push_back(view.rank);
      } else if (host.hidden || view.pid == 0) {
        unseen_.push_back(view.rank);
      } else if (view.AtRest()) {
        at_rest_.push_back(&view);
      } else {
        (view.WaitsIn() >= 0 ? waiting_ : others_).push_back(&view);
      }
    }
  }
}

void Judging::JudgeAtRest() { late_ = at_rest_; }

// All wait, but not for the same collective. With one late rank they may, in
// different groups.
void Judging::JudgeDivergence() {
  if (!others_.empty() || waiting_.size() < 2) return;
  std::map<std::string, Views> kinds;
  std::map<uint64_t, Views> numbers;
  for (const RankView* view : waiting_) {
    const int group = view->WaitsIn();
    kinds[KindText(*view, group)].push_back(view);
    numbers[view->groups[group].current.number].push_back(view);
  }
  if (kinds.size() > 1) {
    diverged_ = true;
    late_ = std::min_element(kinds.begin(), kinds.end(),
                             [](const auto& a, const auto& b) {
                               return a.second.size() < b.second.size();
                             })
                ->second;
  } else if (numbers.size() > 1) {
    late_ = numbers.begin()->second;
  }
}

// Others wait in a collective that a rank hasn't come to.
void Judging::JudgeBehind() {
  if (waiting_.empty()) return;
  uint64_t least = ~uint64_t{0};
  for (const RankView* view : others_) {
    for (int g = 0; g < kLedgerGroups; ++g) {
      uint64_t awaited = 0;
      for (const RankView* waiting : waiting_) {
        if (waiting->WaitsIn() == g) {
          awaited = std::max(awaited, waiting->groups[g].current.number);
        }
      }
      if (awaited == 0 || view->groups[g].started >= awaited) continue;
      if (view->groups[g].started < least) late_.clear();
      least = std::min(least, view->groups[g].started);
      if (view->groups[g].started == least) late_.push_back(view);
      break;
    }
  }
  // Nobody is behind, but some are elsewhere.
  if (late_.empty()) late_ = others_;
}

// The host sees no ends, so the late ranks are those that have issued the
// fewest.
void Judging::JudgeIssued() {
  uint64_t least = ~uint64_t{0};
  uint64_t most = 0;
  const auto total = [](const RankView& view) {
    uint64_t sum = 0;
    for (const GroupView& group : view.groups) sum += group.issued;
    return sum;
  };
  for (const RankView* view : others_) {
    least = std::min(least, total(*view));
    most = std::max(most, total(*view));
  }
  const bool all_equal = least == most && others_.size() > 1;
  for (const RankView* view : others_) {
    if (!all_equal && total(*view) == least) late_.push_back(view);
  }
}

std::string Judging::SilentText() const {
  std::vector<std::string> texts;
  for (const HostView& host : hosts_) {
    if (!host.silent()) continue;
    std::vector<int> ranks;
    for (const RankView& view : host.ranks) ranks.push_back(view.rank);
    texts.push_back(absl::StrFormat("host %s (%s) doesn't answer since %.0f s",
                                    host.name, Ranks(ranks),
                                    host.silent_seconds));
  }
  return absl::StrJoin(texts, "; ");
}

std::string Judging::Text() const {
  std::vector<std::string> parts;
  if (!silent_.empty()) parts.push_back(SilentText());
  std::vector<std::pair<std::string, int>> late, waits, at;
  for (const RankView* view : late_) {
    late.push_back({LateText(*view), view->rank});
  }
  const auto is_late = [this](const RankView* view) {
    return std::find(late_.begin(), late_.end(), view) != late_.end();
  };
  for (const RankView* view : waiting_) {
    if (!diverged_ && is_late(view)) continue;
    waits.push_back({CollectiveText(*view, view->WaitsIn()), view->rank});
  }
  for (const RankView* view : others_) {
    if (is_late(view)) continue;
    // Where the host doesn't see what it waits for, what it has asked for.
    std::string place = PlaceText(*view);
    if (view->groups[0].current.number != 0) {
      absl::StrAppend(&place, ", having issued ", CollectiveText(*view, 0));
    }
    at.push_back({place, view->rank});
  }
  if (diverged_) {
    parts.push_back(absl::StrCat("the ranks' collectives differ: ",
                                 Clauses(waits, " wait in ", " waits in ")));
    return absl::StrJoin(parts, "; ");
  }
  if (!late.empty()) {
    parts.push_back(Clauses(late, " are late: ", " is late: "));
  } else if (silent_.empty()) {
    parts.push_back("no rank is behind the others");
  }
  if (!waits.empty()) {
    parts.push_back(Clauses(waits, " wait in ", " waits in "));
  }
  if (!at.empty()) parts.push_back(Clauses(at, " are ", " is "));
  if (!unseen_.empty()) {
    parts.push_back(
        absl::StrCat("what ", Ranks(unseen_), " does can't be seen from here"));
  }
  return absl::StrJoin(parts, "; ");
}

Judgement Judging::Run() {
  Sort();
  JudgeAtRest();
  if (late_.empty() && silent_.empty()) JudgeDivergence();
  if (late_.empty() && silent_.empty()) JudgeBehind();
  if (late_.empty() && silent_.empty() && waiting_.empty()) JudgeIssued();
  Judgement judgement;
  judgement.text = Text();
  judgement.late = Numbers(late_);
  judgement.late.insert(judgement.late.end(), silent_.begin(), silent_.end());
  std::sort(judgement.late.begin(), judgement.late.end());
  return judgement;
}

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i >= 4) {
      parts.push_back(absl::StrCat(ranks[i], "-", ranks[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) parts.push_back(absl::StrCat(ranks[k]));
    }
    i = end;
  }
  return absl::StrJoin(parts, ", ");
}

Judgement Judge(const std::vector<HostView>& hosts) {
  return Judging(hosts).Run();
}

std::string Overdue(const std::vector<HostView>& hosts) {
  const RankView* worst = nullptr;
  for (const HostView& host : hosts) {
    if (!host.heard()) continue;
    for (const RankView& view : host.ranks) {
      if (!view.alarm || view.activity_ns < 0) continue;
      if (worst == nullptr || view.activity_ns - view.limit_ns >
                                  worst->activity_ns - worst->limit_ns) {
        worst = &view;
      }
    }
  }
  if (worst == nullptr) return "";
  const std::string activity = worst->activity;
  const std::string taken = Seconds(worst->activity_ns);
  return absl::StrCat(activity == "step"
                          ? absl::StrCat("no step for ", taken)
                          : absl::StrCat(activity, " takes ", taken),
                      " (limit ", Seconds(worst->limit_ns), ")");
}

}  // namespace capstan
