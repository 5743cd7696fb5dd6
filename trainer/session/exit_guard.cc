// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/exit_guard.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// For a stack that has overflown.
char crash_stack[128 << 10];
// How many frames are looked at, and told.
constexpr int kMostFrames = 64;
constexpr int kMostTold = 8;

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
  Line& operator<<(int64_t number) { return Append(number, 10); }
  Line& operator<<(const void* address) {
    *this << "0x";
    return Append(reinterpret_cast<uintptr_t>(address), 16);
  }
  void Write() {
    text_[size_++] = '\n';
    const ssize_t written = write(STDERR_FILENO, text_, size_);
    (void)written;
  }

 private:
  Line& Append(uint64_t number, int base) {
    char digits[24];
    char* at = digits + sizeof(digits) - 1;
    *at = '\0';
    do {
      *--at = "0123456789abcdef"[number % base];
      number /= base;
    } while (number > 0);
    return *this << at;
  }

  char text_[1024];
  size_t size_ = 0;
};

// Whether `file` is the library of a plugin named as in PluginNames: "model
// acme.tiny" is in libacme_tiny.so. Allocates nothing.
bool IsLibraryOf(const char* file, const std::string& plugin) {
  const size_t space = plugin.rfind(' ');
  if (space == std::string::npos || strncmp(file, "lib", 3) != 0) return false;
  file += 3;
  for (size_t i = space + 1; i < plugin.size(); ++i, ++file) {
    if (*file != (plugin[i] == '.' ? '_' : plugin[i])) return false;
  }
  return strcmp(file, ".so") == 0;
}

// A line for each frame of this thread in a library of `plugins`, the innermost
// first. The guard has had libgcc loaded, after which backtrace takes no lock.
// dladdr takes the loader's, which a thread within dlopen never gives back:
// then the alarm ends the process.
void TellFrames(const PluginNames& plugins) {
  constexpr unsigned kMostSeconds = 5;
  signal(SIGALRM, SIG_DFL);
  alarm(kMostSeconds);
  void* pcs[kMostFrames];
  const int frames = backtrace(pcs, kMostFrames);
  for (int i = 0, told = 0; i < frames && told < kMostTold; ++i) {
    Dl_info info = {};
    if (dladdr(pcs[i], &info) == 0 || info.dli_fname == nullptr) continue;
    const char* const slash = strrchr(info.dli_fname, '/');
    const char* const file = slash == nullptr ? info.dli_fname : slash + 1;
    bool is_plugins = false;
    for (const std::string* plugin :
         {&plugins.model, &plugins.objective, &plugins.strategy,
          &plugins.optimizer, &plugins.train_data, &plugins.eval_data}) {
      is_plugins = is_plugins || IsLibraryOf(file, *plugin);
    }
    if (!is_plugins) continue;
    // A return address may lie behind the function.
    char* const pc = static_cast<char*>(pcs[i]) - 1;
    char name[512];
    const bool known = absl::Symbolize(pc, name, sizeof(name));
    const auto offset = pc - static_cast<char*>(info.dli_fbase);
    Line line;
    line << "  in " << (known ? name : "?") << " (" << file << "+"
         << reinterpret_cast<const void*>(offset) << ")";
    line.Write();
    ++told;
  }
}

// The error of a process that a plugin ended by exit(code) during training,
// with the step, the phase, and whose code runs in it. `on_main` says whether
// the thread that trains called exit.
std::string ExitText(const Session& session, int code, bool on_main) {
  const PluginNames& plugins = session.plugins;
  const absl::string_view phase(session.phase);
  std::vector<std::string> whose;
  const bool forward = phase == kForwardPhase || phase == kRolloutPhase;
  if (forward) whose.push_back(plugins.objective);
  if (forward || phase == kBackwardPhase) {
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
  // Loads libgcc, and what finds names.
  void* pc = nullptr;
  backtrace(&pc, 1);
  absl::InitializeSymbolizer(nullptr);
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
    // Not what that one is in: it goes on meanwhile, and leaves its scopes.
    line << ", on another thread than the one that trains; "
         << session_.plugins.train_data.c_str() << " has one";
  } else {
    line << ", in none of its plugins' steps";
  }
  line.Write();
  TellFrames(session_.plugins);
}

}  // namespace capstan
