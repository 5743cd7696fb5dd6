// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/courier.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quiet_thread.h"

namespace capstan {
namespace {

constexpr std::chrono::seconds kInterval{1};
// How long the end waits for the store.
constexpr std::chrono::milliseconds kEndLimit{500};

std::string KeyOf(size_t host) {
  return absl::StrCat("capstan/watch/report/", host);
}

}  // namespace

// Shared with the thread, which may be waiting for the store for ever.
struct Courier::State {
  c10::intrusive_ptr<c10d::Store> store;
  size_t host = 0;
  std::vector<size_t> ranks;  // by host
  std::function<std::string()> report;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  bool ended = false;  // the thread
  std::vector<Heard> heard;
  int64_t asked_ns = 0;  // 0: the store isn't being asked

  // False if there was nothing to carry. Throws what the store throws.
  bool Exchange();
};

bool Courier::State::Exchange() {
  std::string bytes;
  {
    // Not once the watchdog may be gone.
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopped) return false;
    bytes = report();
    if (bytes.empty()) return false;
    asked_ns = LedgerNow();
  }
  store->set(KeyOf(host), std::vector<uint8_t>(bytes.begin(), bytes.end()));
  std::vector<std::string> keys;
  std::vector<size_t> hosts;
  for (size_t h = 0; h < ranks.size(); ++h) {
    if (h == host) continue;
    // Before its first report a wait would be long. Only this thread changes
    // what was heard.
    if (!heard[h].report.has_value() && !store->check({KeyOf(h)})) continue;
    keys.push_back(KeyOf(h));
    hosts.push_back(h);
  }
  std::vector<std::vector<uint8_t>> values;
  if (!keys.empty()) values = store->multiGet(keys);
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < values.size(); ++i) {
    absl::optional<HostReport> news = ParseHostReport(
        absl::string_view(reinterpret_cast<const char*>(values[i].data()),
                          values[i].size()),
        ranks[hosts[i]]);
    Heard& before = heard[hosts[i]];
    if (!news.has_value() ||
        (before.report.has_value() && before.report->count == news->count)) {
      continue;
    }
    before.report = std::move(news);
    before.at_ns = LedgerNow();
  }
  asked_ns = 0;
  return true;
}

Courier::Courier(const Ledgers& ledgers, std::function<std::string()> report)
    : state_(std::make_shared<State>()) {
  state_->store = ledgers.store;
  state_->host = static_cast<size_t>(ledgers.host);
  for (const Ledgers::Host& host : ledgers.hosts) {
    state_->ranks.push_back(host.ranks.size());
  }
  state_->report = std::move(report);
  state_->heard.resize(ledgers.hosts.size());
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
    state->changed.wait_for(lock, kInterval, [&] { return state->stopped; });
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
