// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/courier.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/quiet_thread.h"
#include "cluster/meet/texts_of_ranks.h"

namespace capstan {
namespace {

// How long the end waits for the store.
constexpr std::chrono::milliseconds kEndLimit{500};

// Of the first host's news, after so many intervals: a host reads the reports
// itself. The alarm of a host that wasn't heard for as long is no news.
constexpr int kNewsLimit = 5;
constexpr int64_t kTenth = 100 * 1000 * 1000;  // of a second
constexpr char kNewsKey[] = "capstan/watch/news";

std::string KeyOf(size_t host) {
  return absl::StrCat("capstan/watch/report/", host);
}

// What the first host tells the others: "COUNT ALARM AGE AGE ..", with the
// time since it heard each host in tenths of a second.
struct News {
  uint64_t count = 0;
  bool alarm = false;
  std::vector<int64_t> ages_ns;
};

std::string Encode(const News& news) {
  std::string text = absl::StrCat(news.count, " ", news.alarm ? 1 : 0);
  for (const int64_t age : news.ages_ns)
    absl::StrAppend(&text, " ", age / kTenth);
  return text;
}

// Of so many hosts.
absl::optional<News> ParseNews(const std::string& text, size_t hosts) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  if (parts.size() != hosts + 2) return absl::nullopt;
  News news;
  int alarm = 0;
  if (!absl::SimpleAtoi(parts[0], &news.count) ||
      !absl::SimpleAtoi(parts[1], &alarm)) {
    return absl::nullopt;
  }
  news.alarm = alarm != 0;
  for (size_t h = 0; h < hosts; ++h) {
    int32_t tenths = 0;
    if (!absl::SimpleAtoi(parts[h + 2], &tenths)) return absl::nullopt;
    news.ages_ns.push_back(tenths * kTenth);
  }
  return news;
}

}  // namespace

// Shared with the thread, which may be waiting for the store for ever.
struct Courier::State {
  c10::intrusive_ptr<c10d::Store> store;
  size_t host = 0;
  std::vector<size_t> ranks;  // by host
  std::function<Report()> report;
  std::chrono::milliseconds interval;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  bool ended = false;  // the thread
  std::vector<Heard> heard;
  int64_t asked_ns = 0;  // 0: the store isn't being asked

  // The thread's.
  std::vector<bool> has_reported;  // by host
  // Of the reports that were read last; unset if none was since
  // ForgetReports.
  std::vector<absl::optional<uint64_t>> counts;  // by host
  std::string told;                              // this host's last report
  News news;            // the first host's, which were new ..
  int64_t news_ns = 0;  // .. then

  int64_t limit_ns() const {
    return std::chrono::nanoseconds(kNewsLimit * interval).count();
  }
  // Calls the store, noting since when it has been asked.
  template <typename Function>
  auto Ask(const Function& function);
  void Tell(const std::string& key, absl::string_view text);
  // False if there was nothing to carry. Throws what the store throws.
  bool Exchange();
  // The hosts, but this one, whose reports are in the store.
  std::vector<size_t> HostsThatReport();
  void ReadReports();
  // Returns whether the reports are to be read.
  bool ReadNews();
  void TellNews(bool alarm);
  void ForgetReports();
};

template <typename Function>
auto Courier::State::Ask(const Function& function) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    asked_ns = LedgerNow();
  }
  auto answer = function();
  const std::lock_guard<std::mutex> lock(mutex);
  asked_ns = 0;
  return answer;
}

void Courier::State::Tell(const std::string& key, absl::string_view text) {
  Ask([&] {
    store->set(key, ToStored(text));
    return true;
  });
}

bool Courier::State::Exchange() {
  Report mine;
  {
    // Not once the watchdog may be gone.
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopped) return false;
    mine = report();
    if (mine.bytes.empty()) return false;
    // Whoever makes the reports may hang.
    if (mine.bytes != told) heard[host].at_ns = LedgerNow();
  }
  Tell(KeyOf(host), mine.bytes);
  told = std::move(mine.bytes);
  if (host == 0) {
    ReadReports();
    TellNews(mine.alarm);
  } else if (ReadNews() || mine.alarm) {
    ReadReports();
  } else {
    ForgetReports();
  }
  return true;
}

std::vector<size_t> Courier::State::HostsThatReport() {
  std::vector<size_t> unknown;
  std::vector<std::string> keys;
  for (size_t h = 0; h < ranks.size(); ++h) {
    if (h == host || has_reported[h]) continue;
    unknown.push_back(h);
    keys.push_back(KeyOf(h));
  }
  // To ask for a report before the first would be a long wait.
  const bool all = keys.empty() || Ask([&] { return store->check(keys); });
  for (const size_t h : unknown) {
    has_reported[h] = all || Ask([&] { return store->check({KeyOf(h)}); });
  }
  std::vector<size_t> hosts;
  for (size_t h = 0; h < ranks.size(); ++h) {
    if (h != host && has_reported[h]) hosts.push_back(h);
  }
  return hosts;
}

void Courier::State::ReadReports() {
  const std::vector<size_t> hosts = HostsThatReport();
  if (hosts.empty()) return;
  std::vector<std::string> keys;
  for (const size_t h : hosts) keys.push_back(KeyOf(h));
  const std::vector<std::vector<uint8_t>> values =
      Ask([&] { return store->multiGet(keys); });
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t h = hosts[i];
    absl::optional<HostReport> report =
        ParseHostReport(FromStored(values[i]), ranks[h]);
    if (!report.has_value()) continue;
    // Only one that has changed is a sign of life: a host may be silent since
    // long before the first that is read.
    const auto before = std::exchange(counts[h], report->count);
    if (before.has_value() && *before != report->count) {
      heard[h].report_ns = heard[h].at_ns = LedgerNow();
    }
    heard[h].report = std::move(report);
  }
}

bool Courier::State::ReadNews() {
  const int64_t now = LedgerNow();
  if (news_ns == 0) news_ns = now;
  if (news.count != 0 || Ask([&] { return store->check({kNewsKey}); })) {
    absl::optional<News> fresh = ParseNews(
        FromStored(Ask([&] { return store->get(kNewsKey); })), ranks.size());
    if (fresh.has_value() && fresh->count != news.count) {
      news = *std::move(fresh);
      news_ns = now;
      const std::lock_guard<std::mutex> lock(mutex);
      for (size_t h = 0; h < heard.size(); ++h) {
        heard[h].at_ns = std::max(heard[h].at_ns, now - news.ages_ns[h]);
      }
    }
  }
  return news.alarm || now - news_ns > limit_ns();
}

void Courier::State::TellNews(bool alarm) {
  ++news.count;
  news.alarm = alarm;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const int64_t now = LedgerNow();
    news.ages_ns.clear();
    for (const Heard& one : heard) {
      const int64_t age = now - one.at_ns;
      news.ages_ns.push_back(age);
      news.alarm |=
          age <= limit_ns() && one.report.has_value() && HasAlarm(*one.report);
    }
  }
  Tell(kNewsKey, Encode(news));
}

void Courier::State::ForgetReports() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (Heard& one : heard) one.report.reset();
  counts.assign(counts.size(), absl::nullopt);
}

Courier::Courier(const Ledgers& ledgers, std::function<Report()> report,
                 std::chrono::milliseconds interval)
    : state_(std::make_shared<State>()) {
  state_->store = ledgers.store;
  state_->host = static_cast<size_t>(ledgers.host);
  for (const Ledgers::Host& host : ledgers.hosts) {
    state_->ranks.push_back(host.ranks.size());
  }
  state_->report = std::move(report);
  state_->heard.resize(ledgers.hosts.size());
  state_->interval = interval;
  state_->has_reported.resize(ledgers.hosts.size());
  state_->counts.resize(ledgers.hosts.size());
  // They are heard from now on.
  for (Heard& heard : state_->heard) heard.at_ns = LedgerNow();
  QuietThread([state = state_] { Run(state); }).detach();
}

void Courier::Run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "watch-courier");
  // After an error its connection is of no more use, and the hosts are silent.
  bool broken = false;
  std::unique_lock<std::mutex> lock(state->mutex);
  while (!state->stopped) {
    lock.unlock();
    try {
      if (!broken) state->Exchange();
    } catch (const std::exception&) {
      broken = true;
    }
    lock.lock();
    state->changed.wait_for(lock, state->interval,
                            [&] { return state->stopped; });
  }
  state->ended = true;
  state->store.reset();
  state->changed.notify_all();
}

Courier::~Courier() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopped = true;
  state_->report = nullptr;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kEndLimit, [&] { return state_->ended; });
}

std::vector<Courier::Heard> Courier::heard() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->heard;
}

int64_t Courier::pending_ns() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->asked_ns == 0 ? 0 : LedgerNow() - state_->asked_ns;
}

}  // namespace capstan
