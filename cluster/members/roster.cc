// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/roster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {
namespace {

// After a loss, others of the same cause are noticed within this.
constexpr std::chrono::milliseconds kLossGathering{100};

// A leader's connections end at about the same time for all, but a host may be
// busy.
constexpr std::chrono::seconds kTakeOver{2};

// Ranks that have lost others may say so before those are known to be gone.
constexpr std::chrono::seconds kHintGathering{1};

std::string NameOf(const std::string& id) {
  return absl::StrCat("host ", NameIn(id));
}

std::string RanksText(int ranks) {
  return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks");
}

}  // namespace

std::string NameIn(const std::string& id) {
  return id.substr(0, id.find_first_of("@/"));
}

std::string KeyIn(const std::string& id) {
  const std::string all = id.substr(0, id.find('/'));
  return all.substr(all.find('@') + 1);
}

const Roster::Host* Roster::Find(const std::string& id) const {
  const auto found = std::find_if(hosts_.begin(), hosts_.end(),
                                  [&](const Host& h) { return h.id == id; });
  return found == hosts_.end() ? nullptr : &*found;
}

bool Roster::InWorld(const std::string& id) const {
  return std::find(world_.hosts.begin(), world_.hosts.end(), id) !=
         world_.hosts.end();
}

void Roster::Because(const std::string& why, Deadline now) {
  why_.push_back(why);
  latest_ = now;
}

void Roster::TakeOver(World before, const Departure& last, Deadline now) {
  for (const std::string& id : before.hosts) {
    if (Find(id) == nullptr) hosts_.push_back({id});
    Find(id)->proven = true;
  }
  world_ = std::move(before);
  number_ = std::max(number_, world_.number);
  running_ = world_.hosts;
  broken_ = true;
  gentle_ = last.gentle;
  took_over_ = now;
  Because(absl::StrCat(NameOf(world_.hosts.front()),
                       last.told ? " has left" : " is gone"),
          now);
}

void Roster::Came(const std::string& id, Deadline now, int64_t number) {
  if (Find(id) == nullptr) {
    hosts_.push_back({id});
    // A launcher that was told so, and was started again.
    hosts_.back().left_out = left_out_.count(KeyIn(id)) > 0;
  }
  Find(id)->here = true;
  Find(id)->silent = false;
  number_ = std::max(number_, number);
  // A host of the former world comes to its new leader.
  if (InWorld(id)) {
    latest_ = now;
  } else if (!Find(id)->left_out) {
    Because(absl::StrCat(NameOf(id), " has come"), now);
  }
}

void Roster::Lost(const std::string& id, Deadline now, bool silent) {
  Host* const host = Find(id);
  if (host == nullptr || !host->here) return;
  host->here = false;
  host->silent = silent;
  if (InWorld(id)) {
    if (!host->left_out && IsNew(*host)) JoinFailed(now);
    broken_ = true;
    hint_ = false;
    Because(absl::StrCat(NameOf(id), " is gone"), now);
    return;
  }
  hosts_.erase(hosts_.begin() + (host - hosts_.data()));
}

void Roster::Leaving(const std::string& id, Deadline now) {
  Host* const host = Find(id);
  if (host == nullptr || host->leaving) return;
  host->leaving = true;
  if (InWorld(id)) Because(absl::StrCat(NameOf(id), " leaves"), now);
}

void Roster::Drop(Host* host) {
  host->left_out = true;
  left_out_.insert(KeyIn(host->id));
}

int64_t Roster::Steps() const {
  return progressed() ? last_step_ - first_step_ + 1 : 0;
}

void Roster::Progressed(int64_t step) {
  if (!progressed()) {
    first_step_ = step;
    running_ = world_.hosts;
  }
  last_step_ = std::max(last_step_, step);
  for (Host& host : hosts_) {
    if (host.proven || !InWorld(host.id) || IsNew(host)) continue;
    host.proven = true;
    failed_joins_ = 0;
  }
}

bool Roster::IsNew(const Host& host) const {
  return !host.proven && InWorld(host.id) &&
         host.steps + Steps() < kProvenSteps;
}

void Roster::JoinFailed(Deadline now) {
  ++failed_joins_;
  join_failed_ = now;
}

Deadline Roster::JoinsAt() const {
  if (failed_joins_ == 0) return began_;
  return join_failed_ +
         kJoinPause * (1 << std::min(failed_joins_ - 1, kMostDoublings));
}

bool Roster::DropNewcomers(Deadline now) {
  if (progressed() || newcomers_.empty()) return false;
  JoinFailed(now);
  for (const std::string& id : newcomers_) {
    if (Find(id) != nullptr) Drop(Find(id));
  }
  return true;
}

void Roster::StopAll() {
  for (Host& host : hosts_) host.leaving = false;
}

void Roster::LeaveOut(const std::string& id, const std::string& why,
                      Deadline now) {
  Host* const host = Find(id);
  if (host == nullptr || host->left_out) return;
  Drop(host);
  if (InWorld(id)) Because(why, now);
}

void Roster::Died(const std::string& id, int64_t world, int64_t step,
                  const std::string& how, bool themselves, Deadline now) {
  // Hosts of a world that was cut in two may count alike.
  if (world != world_.number || !InWorld(id)) return;
  if (step >= 0) Progressed(step);
  if (broken_ && !(hint_ && themselves)) return;
  broken_ = true;
  hint_ = !themselves;
  Because(absl::StrCat("on ", NameOf(id), " ", how), now);
  how_ = how;
  died_after_ = step;
  if (hint_) return;
  // Where a host is left out, all ranks end.
  const bool leaves_out = std::any_of(
      world_.hosts.begin(), world_.hosts.end(),
      [this](const std::string& one) { return Find(one)->left_out; });
  if (leaves_out) return;
  if (IsNew(*Find(id))) {
    JoinFailed(now);
    return Drop(Find(id));
  }
  exhausted_ = !restarts_.Again(step);
}

bool Roster::Failed(const std::string& id, int64_t world,
                    const std::string& how, Deadline now) {
  Host* const host = Find(id);
  if (host == nullptr || world != world_.number || !InWorld(id)) return true;
  if (!IsNew(*host)) return false;
  JoinFailed(now);
  Drop(host);
  broken_ = true;
  hint_ = false;
  Because(absl::StrCat(NameOf(id), " can't take part: ", how), now);
  return true;
}

std::vector<std::string> Roster::Eligible(Deadline now) const {
  std::vector<std::string> ids;
  for (const std::string& id : world_.hosts) {
    if (Find(id)->usable()) ids.push_back(id);
  }
  const std::vector<std::string> stay = Largest(ids);
  if (now < JoinsAt() && Enough(stay)) return stay;
  for (const Host& host : hosts_) {
    if (host.usable() && !InWorld(host.id)) ids.push_back(host.id);
  }
  return Largest(std::move(ids));
}

std::vector<std::string> Roster::Largest(std::vector<std::string> ids) const {
  const int ranks = options_.ranks_per_host;
  auto count =
      std::min<int>(static_cast<int>(ids.size()), options_.max_ranks / ranks);
  while (count > 0 && count * ranks % options_.multiple != 0) --count;
  ids.resize(count);
  return ids;
}

bool Roster::Enough(const std::vector<std::string>& hosts) const {
  const int ranks = static_cast<int>(hosts.size()) * options_.ranks_per_host;
  return ranks > 0 && ranks >= options_.min_ranks;
}

bool Roster::Full(const std::vector<std::string>& hosts) const {
  const int ranks = options_.ranks_per_host;
  return (static_cast<int>(hosts.size()) + 1) * ranks > options_.max_ranks;
}

void Roster::Wake(Deadline at) { next_event_ = std::min(next_event_, at); }

bool Roster::MayBegin(const std::vector<std::string>& hosts, Deadline now) {
  const int wanted = options_.first_hosts;
  if (Full(hosts) || (wanted > 0 && static_cast<int>(hosts.size()) >= wanted)) {
    return true;
  }
  const Deadline at =
      latest_ + (wanted > 0 ? options_.begin_patience : options_.settling);
  if (now >= at) return true;
  Wake(at);
  return false;
}

bool Roster::CutOff() const {
  if (world_.number == 0 || took_over_.has_value()) return false;
  const auto silent = std::count_if(
      world_.hosts.begin(), world_.hosts.end(), [this](const std::string& id) {
        return Find(id) != nullptr && Find(id)->silent;
      });
  return 2 * silent >= static_cast<int64_t>(world_.hosts.size());
}

Deadline Roster::ChangesAt(const std::vector<std::string>& hosts,
                           Deadline now) const {
  if (took_over_.has_value()) {
    const bool all_came_again =
        std::all_of(world_.hosts.begin() + 1, world_.hosts.end(),
                    [&](const std::string& id) { return Find(id)->here; });
    return all_came_again ? now : *took_over_ + kTakeOver;
  }
  if (hint_ && hosts == world_.hosts) return latest_ + kHintGathering;
  if (CutOff()) return latest_ + options_.patience;
  return latest_ + (broken_ ? kLossGathering : options_.gathering);
}

Roster::World Roster::Make(const std::vector<std::string>& hosts) const {
  World next;
  next.number = number_ + 1;
  next.hosts = hosts;
  next.gentle = world_.number > 0 && (!broken_ || gentle_);
  // Those of the world that the ranks are in, which they mayn't have left yet.
  const auto go = std::count_if(
      running_.begin(), running_.end(), [&](const std::string& id) {
        return std::find(hosts.begin(), hosts.end(), id) == hosts.end();
      });
  next.saves = next.gentle && go > 0 &&
               (go > 1 || go == static_cast<int64_t>(running_.size()));
  next.why = absl::StrJoin(why_, ", ");
  return next;
}

absl::optional<Roster::World> Roster::Next(Deadline now) {
  next_event_ = Deadline::max();
  if (exhausted_) return absl::nullopt;
  if (now < JoinsAt()) Wake(JoinsAt());
  const std::vector<std::string> hosts = Eligible(now);
  if (!Enough(hosts)) return absl::nullopt;
  too_few_since_.reset();
  if (world_.number == 0) {
    if (!MayBegin(hosts, now)) return absl::nullopt;
  } else if (!broken_ && hosts == world_.hosts) {
    if (now >= JoinsAt()) why_.clear();
    return absl::nullopt;
  } else {
    const Deadline at = ChangesAt(hosts, now);
    if (now < at) {
      Wake(at);
      return absl::nullopt;
    }
    // Who joins waits until the world is worth its change.
    const bool only_joins =
        !broken_ && hosts.size() > world_.hosts.size() &&
        std::equal(world_.hosts.begin(), world_.hosts.end(), hosts.begin());
    if (only_joins && !progressed()) return absl::nullopt;
  }
  if (hint_ && hosts == world_.hosts) {
    if (DropNewcomers(now)) return Next(now);
    exhausted_ = !restarts_.Again(died_after_);
    if (exhausted_) return absl::nullopt;
  }
  World next = Make(hosts);
  newcomers_.clear();
  for (const std::string& id : hosts) {
    Host* const host = Find(id);
    if (InWorld(id)) {
      host->steps += Steps();
    } else if (world_.number > 0) {
      newcomers_.insert(id);
    } else {
      host->proven = true;
    }
  }
  world_ = next;
  number_ = next.number;
  first_step_ = last_step_ = -1;
  broken_ = hint_ = gentle_ = false;
  took_over_.reset();
  why_.clear();
  hosts_.erase(std::remove_if(hosts_.begin(), hosts_.end(),
                              [](const Host& host) { return !host.here; }),
               hosts_.end());
  return next;
}

absl::optional<Roster::Ending> Roster::End(Deadline now) {
  if (exhausted_) {
    return Ending{absl::StrCat(how_, restarts_.Ending())};
  }
  const std::vector<std::string> hosts = Eligible(now);
  if (Enough(hosts)) return absl::nullopt;
  const int ranks = static_cast<int>(hosts.size()) * options_.ranks_per_host;
  const std::string few =
      absl::StrCat("of the ", options_.min_ranks,
                   " ranks at least (launch.min_processes) only ",
                   RanksText(ranks), ranks == 1 ? " is" : " are", " left");
  // Their leaving is the end, unless others come first.
  if (world_.number > 0 && !broken_) {
    const Deadline at = latest_ + options_.gathering;
    if (now >= at) return Ending{few, /*stops=*/true};
    Wake(at);
    return absl::nullopt;
  }
  if (!too_few_since_.has_value()) too_few_since_ = now;
  const bool begins = world_.number == 0;
  const Deadline since = begins ? latest_ : *too_few_since_;
  const Deadline at =
      since + (begins ? options_.begin_patience : options_.patience);
  if (now >= at) {
    const int64_t waited =
        std::chrono::duration_cast<std::chrono::seconds>(now - since).count();
    return Ending{absl::StrCat(few, ", and nobody has come in ", waited, " s (",
                               absl::StrJoin(why_, ", "), ")")};
  }
  Wake(at);
  return absl::nullopt;
}

}  // namespace capstan
