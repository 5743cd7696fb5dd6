// SPDX-License-Identifier: Apache-2.0
//
// Processes, signals, and hosts that fail.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>

#include "testing/sim/disk.h"
#include "testing/sim/network.h"
#include "testing/sim/objects.h"
#include "testing/sim/world.h"

namespace capstan::sim {
namespace {

uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

bool IsIgnored(const Process& process, int signal) {
  const struct sigaction& action = process.actions[signal];
  if (action.sa_handler == SIG_IGN) return true;
  return action.sa_handler == SIG_DFL &&
         (signal == SIGCHLD || signal == SIGURG || signal == SIGWINCH ||
          signal == SIGCONT);
}

}  // namespace

Process* World::NewProcess(int host, const std::string& name) {
  auto made = std::make_unique<Process>();
  Process* const process = made.get();
  process->pid = next_pid_++;
  process->group = process->pid;
  process->parent = 1;
  process->host = hosts_[host].get();
  process->name = name;
  processes_.push_back(std::move(made));
  by_pid_[process->pid] = process;
  return process;
}

Process* World::Spawn(int host, const std::string& name,
                      std::function<int()> main) {
  Process* const process = NewProcess(host, name);
  for (int fd = 0; fd < 3; ++fd) {
    process->files.push_back(std::make_shared<Console>());
  }
  NewFiber(process, [this, main = std::move(main)] {
    const int status = main();
    ExitProcess((status & 255) << 8);
  });
  Tell(process, "starts");
  return process;
}

Process* World::Find(pid_t pid) {
  const auto found = by_pid_.find(pid);
  return found == by_pid_.end() ? nullptr : found->second;
}

void World::NotifyParent(Process* process) {
  Process* const parent = Find(process->parent);
  if (parent == nullptr || !parent->alive()) {
    process->state = Process::kGone;
    return;
  }
  parent->ended.WakeAll();
  Signal(parent, SIGCHLD);
}

void World::End(Process* process, int status, bool silently) {
  if (!process->alive()) return;
  if (options_.tell) {
    Tell(process,
         silently ? "is gone with its host"
         : WIFSIGNALED(status)
             ? "is killed by signal " + std::to_string(WTERMSIG(status))
             : "ends with exit code " + std::to_string(WEXITSTATUS(status)));
  }
  Trace(static_cast<uint64_t>(process->pid) << 32 | status);
  process->state = Process::kZombie;
  process->status = status;
  process->began = true;
  process->beginning.WakeAll();
  if (on_end) on_end(process);
  for (Fiber* const fiber : process->fibers) Kill(fiber);
  if (silently) {
    for (const auto& file : process->files) {
      if (file != nullptr) file->Vanish();
    }
  }
  const auto files = std::move(process->files);
  process->files.clear();
  process->maps.clear();
  process->pages.clear();
  process->ended.WakeAll();
  for (const auto& other : processes_) {
    if (other->parent != process->pid || !other->alive()) continue;
    other->parent = 1;
    if (other->death_signal != 0) Signal(other.get(), other->death_signal);
  }
  NotifyParent(process);
}

void World::Signal(Process* process, int signal) {
  if (!process->alive()) return;
  if (signal == SIGKILL) return End(process, SIGKILL);
  if (signal == SIGCONT && process->state == Process::kStopped) {
    Tell(process, "goes on");
    process->state = Process::kAlive;
    for (Fiber* const fiber : process->fibers) {
      if (fiber->state == Fiber::kRunnable) MakeRunnable(fiber);
    }
  }
  if (signal == SIGSTOP) return DefaultAction(process, signal);
  process->pending |= Bit(signal);
  process->signals.WakeAll();
  const bool handled = process->actions[signal].sa_handler != SIG_DFL &&
                       process->actions[signal].sa_handler != SIG_IGN;
  for (Fiber* const fiber : process->fibers) {
    if (fiber->state == Fiber::kDead) continue;
    if ((fiber->blocked_signals & Bit(signal)) != 0) continue;
    if (!handled) {
      process->pending &= ~Bit(signal);
      if (!IsIgnored(*process, signal)) DefaultAction(process, signal);
      return;
    }
    // Interrupts its system call.
    if (fiber->state == Fiber::kBlocked) Wake(fiber, fiber->wait);
    return;
  }
  // Blocked by all: stays pending. An ignored one doesn't.
  if (process->actions[signal].sa_handler == SIG_IGN) {
    process->pending &= ~Bit(signal);
  }
}

void World::DefaultAction(Process* process, int signal) {
  if (signal == SIGSTOP || signal == SIGTSTP) {
    if (process->state != Process::kAlive) return;
    Tell(process, "is stopped");
    process->state = Process::kStopped;
    runnable_.erase(
        std::remove_if(runnable_.begin(), runnable_.end(),
                       [&](const Fiber* f) { return f->process == process; }),
        runnable_.end());
    return;
  }
  End(process, signal);
}

bool World::HandleSignals() {
  bool any = false;
  Process* const process = Mine();
  for (int signal = 1; process->pending != 0 && signal < 64; ++signal) {
    const uint64_t ready = process->pending & ~Self()->blocked_signals;
    if ((ready & Bit(signal)) == 0) continue;
    const struct sigaction action = process->actions[signal];
    process->pending &= ~Bit(signal);
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
    const uint64_t before = Self()->blocked_signals;
    Self()->blocked_signals |= Bit(signal);
    action.sa_handler(signal);
    Self()->blocked_signals = before;
    any = true;
  }
  return any;
}

void World::CrashHost(int index) {
  Host& host = *hosts_[index];
  if (!host.up) return;
  Tell(host.name, "loses power");
  host.up = false;
  host.paused = false;
  NoteReachability();
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process* const process = processes_[i].get();
    if (process->host != &host || !process->alive()) continue;
    process->parent = 1;
    End(process, SIGKILL, /*silently=*/true);
  }
  LoseUnsynced(*host.root, /*writer=*/-1, random_);
  LoseUnsynced(*shared_root, index, random_);
}

void World::CutDisk() { LoseUnsynced(*shared_root, /*writer=*/-1, random_); }

void World::BootHost(int index) {
  Host& host = *hosts_[index];
  if (host.up) return;
  host.up = true;
  ++host.boots;
  Tell(host.name, "is up again");
  NoteReachability();
}

void World::PauseHost(int index, bool paused) {
  Host& host = *hosts_[index];
  if (!host.up || host.paused == paused) return;
  host.paused = paused;
  Tell(host.name, paused ? "stands still" : "goes on");
  NoteReachability();
  const auto of_host = [&](const Fiber* f) {
    return f->process->host == &host;
  };
  if (paused) {
    runnable_.erase(std::remove_if(runnable_.begin(), runnable_.end(), of_host),
                    runnable_.end());
    return;
  }
  for (const auto& fiber : fibers_) {
    if (of_host(fiber.get()) && fiber->state == Fiber::kRunnable) {
      MakeRunnable(fiber.get());
    }
  }
}

void World::Partition(int a, int b, Time until) {
  const auto pair = std::minmax(a, b);
  partitions_[pair] = std::max(partitions_[pair], until);
  NoteReachability();
  At(until, [this] { NoteReachability(); });
}

bool World::Reachable(int from, int to) const {
  const Host& a = *hosts_[from];
  const Host& b = *hosts_[to];
  if (!a.up || !b.up || a.paused || b.paused) return false;
  if (from == to) return true;
  const auto cut = partitions_.find(std::minmax(from, to));
  return cut == partitions_.end() || cut->second <= now_;
}

void World::NoteReachability() {
  for (int a = 0; a < hosts(); ++a) {
    for (int b = a + 1; b < hosts(); ++b) {
      if (Reachable(a, b)) {
        unreachable_since_.erase({a, b});
      } else if (unreachable_since_.emplace(std::make_pair(a, b), now_)
                     .second) {
        NoteUnreachable(a, b);
      }
    }
  }
}

Time World::unreachable_since(int from, int to) const {
  const auto found = unreachable_since_.find(std::minmax(from, to));
  return found == unreachable_since_.end() ? kNever : found->second;
}

}  // namespace capstan::sim
