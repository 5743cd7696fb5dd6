// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/exit_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// For a stack that has overflown.
char crash_stack[64 << 10];

// A line that is put together without allocating: the heap may be what is
// broken.
class Line {
 public:
  Line& operator<<(const char* text) {
    for (; *text != '\0' && size_ < sizeof(text_) - 1; ++text) {
      text_[size_++] = *text;
    }
    return *this;
  }
  Line& operator<<(int64_t number) {
    char digits[24];
    char* at = digits + sizeof(digits) - 1;
    *at = '\0';
    do {
      *--at = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << at;
  }
  void Write() {
    text_[size_++] = '\n';
    const ssize_t written = write(STDERR_FILENO, text_, size_);
    (void)written;
  }

 private:
  char text_[1024];
  size_t size_ = 0;
};

// The error of a process that a plugin ended by exit(code) during training,
// with the step, the phase, and whose code runs in it. `on_main` says whether
// the thread that trains called exit.
std::string ExitText(const Session& session, int code, bool on_main) {
  const PluginNames& plugins = session.plugins;
  const absl::string_view phase(session.phase);
  std::vector<std::string> whose;
  if (phase == kForwardPhase) {
    whose.push_back(plugins.objective);
  }
  if (phase == kForwardPhase || phase == kBackwardPhase) {
    whose.push_back(plugins.model);
  }
  if (phase == kOptimizerPhase) {
    whose.push_back(plugins.optimizer);
  }
  if (phase == kBackwardPhase || phase == kOptimizerPhase) {
    whose.push_back(plugins.strategy);
  }
  // Batches are also read on another thread.
  if (phase == kDataPhase || !on_main) {
    whose.push_back(plugins.train_data);
  }
  return absl::StrCat("step ", session.state.step + 1,
                      phase.empty() ? "" : absl::StrCat(" (", phase, ")"),
                      ": exit(", code, ") was called, which no plugin may do",
                      whose.empty() ? "" : "; at that time ran ",
                      absl::StrJoin(whose, ", "));
}

}  // namespace

std::atomic<const ExitGuard*> ExitGuard::current_{nullptr};

ExitGuard::ExitGuard(const Session* session)
    : session_(*session), pid_(getpid()), thread_(pthread_self()) {
  static const int installed = on_exit(&OnExit, nullptr);
  (void)installed;
  current_ = this;
  stack_t stack = {};
  stack.ss_sp = crash_stack;
  stack.ss_size = sizeof(crash_stack);
  sigaltstack(&stack, nullptr);
  for (const int signal : kCrashes) {
    struct sigaction before = {};
    // A sanitizer or a debugger's library has its own.
    if (sigaction(signal, nullptr, &before) != 0 ||
        (before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) {
      continue;
    }
    struct sigaction action = {};
    action.sa_sigaction = &OnCrash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, &action, nullptr);
  }
}

ExitGuard::~ExitGuard() { current_ = nullptr; }

void ExitGuard::OnExit(int code, void*) {
  const ExitGuard* const guard = current_;
  if (guard == nullptr || guard->pid_ != getpid()) return;
  const bool on_main = pthread_equal(guard->thread_, pthread_self()) != 0;
  // Our launcher prints an error of its own.
  const bool alone = guard->session_.job.folder.path.empty();
  std::cerr << (alone ? "ERROR: " : "")
            << ExitText(guard->session_, code, on_main) << std::endl;
  fflush(nullptr);
  // Static destructors would run beside threads that are still at work.
  _exit(code == 0 ? 1 : code);
}

// What crashed then does so once more, so that the launcher, a core file and a
// debugger see it where it is.
void ExitGuard::OnCrash(int signal, siginfo_t* info, void*) {
  // Another handler may have called this one.
  ::signal(signal, SIG_DFL);
  const ExitGuard* const guard = current_.exchange(nullptr);
  if (guard != nullptr && guard->pid_ == getpid()) guard->TellOfCrash(signal);
  // Sent, as by abort(), rather than made by an instruction.
  if (info->si_code <= 0) raise(signal);
}

void ExitGuard::TellOfCrash(int signal) const {
  const char* const phase = session_.phase;
  Line line;
  line << "SIG" << sigabbrev_np(signal) << " on rank "
       << int64_t{session_.rank.rank} << " in step " << session_.state.step + 1;
  if (phase[0] != '\0') line << " (" << phase << ")";
  const WhoseCode* const code = WhoseCode::current();
  if (code != nullptr && code->OnThisThread()) {
    line << ", in the code of " << code->whose().c_str();
    if (code->function()[0] != '\0') line << ", " << code->function();
    if (code->unit() != nullptr) {
      line << ", unit '" << code->unit()->c_str() << "'";
    }
  } else if (pthread_equal(thread_, pthread_self()) == 0) {
    line << ", on another thread than the one that trains";
    if (code != nullptr) line << ", which is in " << code->whose().c_str();
    line << "; " << session_.plugins.train_data.c_str() << " has one";
  } else {
    line << ", in none of its plugins' steps";
  }
  line.Write();
}

}  // namespace capstan
