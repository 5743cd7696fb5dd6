// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/side_thread.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace capstan::grpo {
namespace {

// How long the owner waits between two looks at whether the run is to stop.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

struct SideThread::State {
  std::thread thread;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by `mutex`.
  std::function<absl::Status()> work;  // null: there is none, or it has ended
  bool quits = false;
  absl::Status status;
  std::exception_ptr thrown;
};

SideThread::SideThread() = default;

SideThread::~SideThread() {
  if (state_ == nullptr) return;
  bool idle = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->quits = true;
    idle = state_->work == nullptr;
  }
  state_->changed.notify_all();
  if (idle) {
    state_->thread.join();
  } else {
    state_->thread.detach();
  }
}

void SideThread::Run(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->changed.wait(lock,
                        [&] { return state->quits || state->work != nullptr; });
    if (state->work == nullptr) return;
    const std::function<absl::Status()> work = state->work;
    lock.unlock();
    absl::Status status;
    std::exception_ptr thrown;
    try {
      status = work();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    state->status = std::move(status);
    state->thrown = thrown;
    state->work = nullptr;
    state->changed.notify_all();
  }
}

void SideThread::Begin(std::function<absl::Status()> work) {
  // Not earlier, as ranks are forked from what made their objective.
  if (state_ == nullptr) {
    state_ = std::make_shared<State>();
    state_->thread = std::thread([state = state_] { Run(state); });
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->work = std::move(work);
  }
  state_->changed.notify_all();
}

bool SideThread::Ended() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->changed.wait_for(lock, kLook,
                                  [&] { return state_->work == nullptr; });
}

absl::Status SideThread::Take() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->thrown != nullptr) {
    std::rethrow_exception(std::exchange(state_->thrown, nullptr));
  }
  return state_->status;
}

}  // namespace capstan::grpo
