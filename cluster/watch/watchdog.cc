// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/watchdog.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/exit_codes.h"
#include "base/progress.h"
#include "base/quiet_thread.h"
#include "base/status.h"
#include "cluster/watch/late.h"
#include "cluster/watch/stacks.h"

namespace capstan {
namespace {

constexpr int64_t kSecond = 1000 * 1000 * 1000;
constexpr int64_t kMostTick = kSecond / 2;
constexpr int64_t kLeastTick = kSecond / 20;
// Beyond its tick: a thread that has slept for longer was stopped with its
// process, or the whole machine was, and the others with it.
constexpr int64_t kOverslept = 2 * kSecond;
constexpr int64_t kStale = RankView::kStaleNs;
// A host not heard for so long, of reports that come each second.
constexpr int64_t kSilent = 5 * kSecond;
// From the decision to end to the end: for the other hosts to hear of it.
constexpr int64_t kEndDelay = 3 * kSecond;

int64_t Nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * static_cast<double>(kSecond));
}

// So it is with our launcher's ranks. On the main thread.
bool DiesWithParent() {
  int signal = 0;
  return prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGKILL;
}

// To standard error, which may be a pipe that nobody reads: not for ever.
void Print(absl::string_view text) {
  constexpr size_t kPiece = 2048;
  while (!text.empty()) {
    pollfd error = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&error, 1, 2000) <= 0) return;
    const ssize_t n =
        write(STDERR_FILENO, text.data(), std::min(text.size(), kPiece));
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

// ---- Activities, on the main thread.

Watchdog::Activity::Activity(Watchdog* watchdog, const char* name, int64_t step)
    : watchdog_(watchdog), name_(name), step_(step) {
  if (watchdog_ != nullptr) watchdog_->Begin(this);
}

Watchdog::Activity::~Activity() {
  if (watchdog_ != nullptr) watchdog_->End(this);
}

void Watchdog::Begin(Activity* activity) {
  activity->outer_ = current_;
  activity->since_ns_ = LedgerNow();
  activity->limit_ns_ = times_.Limit(activity->name_);
  current_ = activity;
  Publish(activity);
}

void Watchdog::End(Activity* activity) {
  const LedgerSlot& slot = ledgers_.own();
  const int64_t now = LedgerNow();
  const int64_t taken = now - activity->since_ns_;
  // Time during which all were suspended must not train the limit.
  const bool stopped = slot.counts_from_ns > activity->since_ns_ ||
                       now - slot.watched_ns > tick_ns_ + kOverslept;
  if (!stopped) times_.Add(activity->name_, taken);
  current_ = activity->outer_;
  // The outer one's clock stood still.
  if (current_ != nullptr) {
    current_->since_ns_ += taken + activity->inner_ns_;
    current_->inner_ns_ += taken + activity->inner_ns_;
  }
  Publish(current_);
}

void Watchdog::Publish(const Activity* activity) {
  LedgerSlot& slot = ledgers_.own();
  // Never the new time with the old limit.
  slot.activity_since_ns = 0;
  if (activity != nullptr) {
    slot.activity.Set(activity->name_);
    slot.limit_ns = activity->limit_ns_;
    slot.step = activity->step_;
    slot.activity_since_ns = activity->since_ns_;
  }
  ++slot.events;
}

// ---- The thread.

absl::StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(
    const WatchOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(Ledgers ledgers, TakeLedgers());
  PrepareStacks();
  auto watchdog = absl::WrapUnique(new Watchdog(options, std::move(ledgers)));
  Watchdog* const self = watchdog.get();
  if (self->ledgers_.store != nullptr) {
    self->courier_ = std::make_unique<Courier>(
        self->ledgers_, [self] { return self->OwnReport(); });
  }
  self->thread_ = QuietThread([self] { self->Run(); });
  return watchdog;
}

Watchdog::Watchdog(const WatchOptions& options, Ledgers ledgers)
    : options_(options),
      tick_ns_(std::min(
          kMostTick,
          std::max(kLeastTick, Nanoseconds(options.floor_seconds) / 8))),
      ledgers_(std::move(ledgers)),
      launcher_kills_(DiesWithParent()),
      times_(Nanoseconds(options.floor_seconds),
             Nanoseconds(options.ceiling_seconds)) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  thread_.join();
  // Another rank's end may be why this one's main thread has come here.
  if (ledgers_.segment->header().end_ns != 0) _exit(kHungExitCode);
  // Nobody looks any more.
  ledgers_.own().watched_ns = 0;
}

void Watchdog::Run() {
  pthread_setname_np(pthread_self(), "watchdog");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    Look();
    lock.lock();
    stop_.wait_for(lock, std::chrono::nanoseconds(tick_ns_),
                   [this] { return stopped_; });
  }
}

void Watchdog::Look() {
  LedgerSlot& slot = ledgers_.own();
  const int64_t now = LedgerNow();
  if (looked_ns_ == 0 || now - looked_ns_ > tick_ns_ + kOverslept) {
    slot.counts_from_ns = now;
  }
  looked_ns_ = now;
  slot.progress = ProgressCount();
  const int64_t since = slot.activity_since_ns;
  const int64_t from = std::max<int64_t>(since, slot.counts_from_ns);
  slot.alarm = since != 0 && now - from > slot.limit_ns ? 1 : 0;
  slot.watched_ns = now;
  if (slot.wants_stacks.exchange(0) != 0) {
    Print(absl::StrCat("stacks of rank ", slot.rank.load(), ":\n",
                       StacksOfThreads()));
    // Which took its time.
    looked_ns_ = LedgerNow();
  }
  const bool keeper = IsKeeper(now);
  if (keeper) Keep(now);
  {
    const std::lock_guard<std::mutex> lock(report_mutex_);
    keeps_ = keeper;
  }
  const int64_t end = ledgers_.segment->header().end_ns;
  if (end == 0) return;
  // All ranks of the host at once, so that none reports the loss of another.
  while (LedgerNow() < end) usleep(1000);
  if (keeper && !launcher_kills_) {
    // A stopped rank would stay.
    for (const RankView& view : LocalViews(LedgerNow())) {
      if (view.state == ProcessState::kStopped) kill(view.pid, SIGKILL);
    }
  }
  _exit(kHungExitCode);
}

bool Watchdog::IsKeeper(int64_t now) {
  for (int i = 0; i < ledgers_.local; ++i) {
    const LedgerSlot& slot = ledgers_.segment->slot(i);
    if (slot.pid != 0 && now - slot.watched_ns < kStale) return false;
  }
  return true;
}

std::vector<RankView> Watchdog::LocalViews(int64_t now) {
  const std::vector<int>& ranks = ledgers_.hosts[ledgers_.host].ranks;
  std::vector<RankView> views;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankView view = ViewOf(ledgers_.segment->slot(static_cast<int>(i)), now);
    view.rank = ranks[i];
    if (view.pid != 0) {
      view.state = processes_.Look(view.pid, view.start_ticks, now);
    }
    views.push_back(view);
  }
  return views;
}

std::vector<HostView> Watchdog::AllViews(int64_t now) {
  std::vector<Courier::Heard> heard;
  if (courier_ != nullptr) heard = courier_->heard();
  // The store is on the first host; without it no host hears of another.
  const bool cut_off = courier_ != nullptr && courier_->pending_ns() > kSilent;
  in_doubt_ = false;
  std::vector<HostView> hosts(ledgers_.hosts.size());
  for (size_t h = 0; h < hosts.size(); ++h) {
    HostView& view = hosts[h];
    view.name = ledgers_.hosts[h].name;
    if (static_cast<int>(h) == ledgers_.host) {
      view.ranks = LocalViews(now);
      continue;
    }
    if (heard[h].report.has_value()) {
      view.ranks = heard[h].report->ranks;
    } else {
      for (const int rank : ledgers_.hosts[h].ranks) {
        view.ranks.emplace_back();
        view.ranks.back().rank = rank;
      }
    }
    const int64_t silent = now - heard[h].at_ns;
    in_doubt_ |= heard[h].report_ns < alarm_since_ns_ && silent <= kSilent;
    if (silent <= kSilent) continue;
    view.silent_seconds = static_cast<double>(silent) / kSecond;
    view.hidden = cut_off && (h > 0 || ledgers_.host == 0);
  }
  return hosts;
}

void Watchdog::Keep(int64_t now) {
  // With one host only, the others' ledgers are of interest in an alarm alone.
  bool alarm = courier_ != nullptr;
  for (int i = 0; i < ledgers_.segment->slots() && !alarm; ++i) {
    const LedgerSlot& slot = ledgers_.segment->slot(i);
    alarm = slot.alarm != 0 && now - slot.watched_ns < kStale;
  }
  std::vector<HostView> hosts;
  int64_t age = -1;
  int64_t limit = 0;
  if (alarm) {
    hosts = AllViews(now);
    uint64_t moves = 0;
    for (const HostView& host : hosts) {
      for (const RankView& view : host.ranks) {
        moves += view.moves;
        if (!host.heard() || !view.InAlarm()) continue;
        if (view.activity_ns > age) {
          age = view.activity_ns;
          limit = view.limit_ns;
        }
      }
    }
    if (moves != moves_) moved_ns_ = now;
    moves_ = moves;
  }
  if (courier_ != nullptr) {
    bool theirs = false;
    for (const Courier::Heard& heard : courier_->heard()) {
      theirs |= heard.report.has_value() && heard.report->ending;
    }
    const std::lock_guard<std::mutex> lock(report_mutex_);
    report_.ranks = hosts[ledgers_.host].ranks;
    report_.ending = ending_ || theirs;
    ++report_.count;
  }
  if (courier_ != nullptr && !ending_ && report_.ending) EndAll(now);
  if (age < 0) {
    alarm_ = false;
    reported_ns_ = 0;
    return;
  }
  // At the next look it is known who computes.
  if (!std::exchange(alarm_, true)) {
    next_report_ns_ = limit;
    alarm_since_ns_ = now;
    return;
  }
  // If nothing has moved since, the end will say so.
  const bool news =
      reported_ns_ == 0 || !options_.abort || moved_ns_ > reported_ns_;
  const int64_t patience =
      std::max(limit, Nanoseconds(options_.patience_seconds));
  if (age > next_report_ns_ && !in_doubt_ && news) {
    Report(hosts, patience);
    next_report_ns_ = std::max(2 * next_report_ns_, limit);
    if (reported_ns_ == 0) reported_ns_ = now;
  }
  if (options_.abort && reported_ns_ != 0 && !ending_ &&
      now - std::max(moved_ns_, reported_ns_) > patience) {
    EndAll(now);
  }
}

void Watchdog::Report(const std::vector<HostView>& hosts, int64_t patience_ns) {
  const Judgement judgement = Judge(hosts);
  const std::vector<RankView>& own = hosts[ledgers_.host].ranks;
  for (size_t i = 0; i < own.size(); ++i) {
    const bool late = std::find(judgement.late.begin(), judgement.late.end(),
                                own[i].rank) != judgement.late.end();
    if (late) ledgers_.segment->slot(static_cast<int>(i)).wants_stacks = 1;
  }
  const auto first =
      std::find_if(hosts.begin(), hosts.end(),
                   [](const HostView& host) { return host.heard(); });
  if (first - hosts.begin() != ledgers_.host) return;
  std::string text =
      absl::StrCat("WARNING: ", Overdue(hosts), ": ", judgement.text);
  if (options_.abort) {
    absl::StrAppendFormat(&text,
                          "; unless something moves the run ends in %.0f s",
                          static_cast<double>(patience_ns) / kSecond);
  }
  Print(absl::StrCat(text, "\n"));
}

void Watchdog::EndAll(int64_t now) {
  ending_ = true;
  if (reported_ns_ != 0) {
    Print(absl::StrFormat(
        "ERROR: nothing has moved for %.0f s: the run ends with exit code %d "
        "(train.on_hang: REPORT would wait on) [run/hang]\n",
        static_cast<double>(now - std::max(moved_ns_, reported_ns_)) / kSecond,
        kHungExitCode));
  }
  const std::lock_guard<std::mutex> lock(report_mutex_);
  report_.ending = true;
  ++report_.count;
  // Who hears of it from another host is the last to do so.
  const bool first = courier_ != nullptr && reported_ns_ != 0;
  ledgers_.segment->header().end_ns = now + (first ? kEndDelay : 2 * tick_ns_);
}

Courier::Report Watchdog::OwnReport() {
  const std::lock_guard<std::mutex> lock(report_mutex_);
  if (!keeps_ || report_.ranks.empty()) return {};
  return {Encode(report_), HasAlarm(report_)};
}

}  // namespace capstan
