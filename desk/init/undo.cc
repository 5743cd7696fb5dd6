// SPDX-License-Identifier: Apache-2.0
#include "desk/init/undo.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace capstan::init {
namespace {

// All that live, of which nothing is destroyed at exit.
struct Undos {
  std::mutex mutex;
  std::vector<const Undo*> list;
};

Undos& All() {
  static auto* const all = new Undos;
  return *all;
}

sem_t ended;
std::atomic<int> ended_by{0};

void OnSignal(int signal) {
  const int error = errno;
  ended_by = signal;
  sem_post(&ended);
  errno = error;
}

void AwaitEnd() {
  while (sem_wait(&ended) != 0) {
  }
  // Held to the end: nothing new begins.
  All().mutex.lock();
  const std::vector<const Undo*>& list = All().list;
  std::for_each(list.rbegin(), list.rend(),
                [](const Undo* undo) { undo->Call(); });
  ::signal(ended_by, SIG_DFL);
  kill(getpid(), ended_by);
  for (;;) pause();
}

bool Watch() {
  sem_init(&ended, /*pshared=*/0, 0);
  std::thread(AwaitEnd).detach();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
  return true;
}

}  // namespace

Undo::Undo(std::function<void()> undo) : undo_(std::move(undo)) {
  static const bool watched = Watch();
  static_cast<void>(watched);
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().list.push_back(this);
}

Undo::~Undo() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  std::vector<const Undo*>& list = All().list;
  list.erase(std::find(list.begin(), list.end(), this));
  undo_();
}

}  // namespace capstan::init
