// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/device_progress.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <utility>
#include <vector>

#include "base/collective_label.h"
#include "base/quiet_thread.h"

namespace capstan {
namespace {

constexpr std::chrono::milliseconds kTick{20};
// A look is a few queries of events. Much less than the launcher waits for a
// rank's error, which may be told only after this.
constexpr std::chrono::milliseconds kHangs{500};
// A host is a thousand launches ahead of its device at most.
constexpr size_t kMost = 4096;

}  // namespace

uint64_t GroupProgress::Entered(const char* name, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++entered_;
  if (followed_.size() >= kMost) {
    // Nobody looks any more, or not for long. The numbers stay right.
    ++followed_.back().untold;
    return entered_;
  }
  Followed last;
  last.number = entered_;
  last.name = name;
  last.label = std::string(CollectiveLabel::Current());
  last.bytes = bytes;
  followed_.push_back(std::move(last));
  return entered_;
}

void GroupProgress::Issued(uint64_t number, std::unique_ptr<DeviceWork> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = followed_.rbegin(); it != followed_.rend(); ++it) {
    if (it->number < number) return;  // isn't followed
    if (it->number > number) continue;
    it->work = std::move(work);
    it->entered = false;
    return;
  }
}

void GroupProgress::Look() {
  for (;;) {
    Followed first;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (followed_.empty()) return;
      first = followed_.front();
    }
    // Without the lock: a call of CUDA may hang.
    if (first.logged == 0 && (first.work == nullptr || first.work->Started())) {
      const CollectiveLabel label(first.label);
      first.logged = log_.Issued(first.name, first.bytes);
      log_.Started(first.logged);
    }
    bool ended = !first.entered;
    if (first.work != nullptr) {
      if (first.logged == 0) return;
      // NCCL records its error before it lets the device go on.
      ended = first.work->Ended() && !failed_();
    }
    if (ended) log_.Finished(first.logged);
    uint64_t untold = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      followed_.front().logged = first.logged;
      if (!ended) return;
      untold = followed_.front().untold;
      followed_.pop_front();
    }
    for (; untold > 0; --untold) log_.Finished(log_.Issued(first.name, 0));
  }
}

std::string GroupProgress::Failed() const {
  if (!failed_()) return "";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (followed_.empty()) return "";
  const Followed& first = followed_.front();
  return CollectiveText(first.name, first.number, first.label, first.bytes);
}

struct ProgressThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, stopped = false;
  std::vector<std::shared_ptr<GroupProgress>> groups;
};

ProgressThread::ProgressThread() : state_(std::make_shared<State>()) {
  QuietThread([state = state_] {
    pthread_setname_np(pthread_self(), "collectives");
    std::unique_lock<std::mutex> lock(state->mutex);
    while (!state->stop) {
      const auto groups = state->groups;
      lock.unlock();
      try {
        for (const auto& group : groups) group->Look();
      } catch (const std::exception&) {
        // The device is lost; whoever calls it next says so.
        lock.lock();
        break;
      }
      lock.lock();
      state->changed.wait_for(lock, kTick, [&] { return state->stop; });
    }
    state->stopped = true;
    state->changed.notify_all();
  }).detach();
}

ProgressThread::~ProgressThread() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kHangs, [this] { return state_->stopped; });
}

void ProgressThread::Add(std::shared_ptr<GroupProgress> group) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->groups.push_back(std::move(group));
}

}  // namespace capstan
