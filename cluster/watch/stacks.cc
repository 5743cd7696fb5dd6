// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/machine.h"

namespace capstan {
namespace {

constexpr int kMaxFrames = 48;
// The handler's own and the kernel's trampoline.
constexpr int kHandlerFrames = 2;
constexpr int kMaxThreads = 512;
constexpr long kPauseNs = 1000 * 1000;
constexpr int kPauses = 200;
constexpr int kLooks = 20;
// How many threads may fail to answer in time.
constexpr int kMostLate = 32;

// glibc has the first real-time signals for itself, and skips them here.
int Signal() { return SIGRTMIN + 7; }

// Where the thread that was asked writes its stack: one at a time is asked. One
// that is late may still write, so that its place is nobody else's.
struct Answer {
  std::atomic<pid_t> asked{0};
  std::atomic<int> frames{-1};  // -1: not yet
  void* pcs[kMaxFrames];
};
Answer answers[kMostLate];
std::atomic<int> place{0};

// glibc's backtrace takes no lock once libgcc is loaded, which PrepareStacks
// sees to: the unwinder finds tables by _dl_find_object (glibc 2.35).
void OnSignal(int, siginfo_t*, void*) {
  const int error = errno;
  const int mine = place.load();
  if (mine < kMostLate &&
      answers[mine].asked.load() == static_cast<pid_t>(syscall(SYS_gettid))) {
    Answer& answer = answers[mine];
    const int frames = backtrace(answer.pcs, kMaxFrames);
    answer.frames.store(frames);
  }
  errno = error;
}

std::vector<pid_t> Threads() {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task", error)) {
    int id = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &id)) {
      threads.push_back(id);
    }
  }
  // The main thread's is the process's.
  std::sort(threads.begin(), threads.end());
  return threads;
}

// Skips threads whose mask would keep the signal pending for ever.
bool Takes(pid_t thread) {
  std::ifstream status(absl::StrCat("/proc/self/task/", thread, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigBlk:", 0) != 0) continue;
    const uint64_t mask = std::stoull(line.substr(7), nullptr, 16);
    return (mask >> (Signal() - 1) & 1) == 0;
  }
  return false;
}

void Pause() {
  const timespec pause = {0, kPauseNs};
  nanosleep(&pause, nullptr);
}

// `interrupted`: the thread is at this instruction; else it will return there.
std::string FrameText(void* pc, bool interrupted) {
  char name[1024];
  Dl_info info = {};
  dladdr(pc, &info);
  const absl::string_view path =
      info.dli_fname != nullptr ? info.dli_fname : "?";
  const absl::string_view file = path.substr(path.rfind('/') + 1);
  // A return address may lie behind the function, and a loop may be at its
  // beginning.
  if (absl::Symbolize(static_cast<char*>(pc) - (interrupted ? 0 : 1), name,
                      sizeof(name))) {
    return absl::StrCat("    ", name, " (", file, ")");
  }
  return absl::StrCat("    ? (", file, "+0x",
                      absl::Hex(reinterpret_cast<uintptr_t>(pc) -
                                reinterpret_cast<uintptr_t>(info.dli_fbase)),
                      ")");
}

std::string StackOf(pid_t thread) {
  // glibc blocks signals for moments.
  for (int i = 0; !Takes(thread); ++i) {
    if (i == kLooks) return "    (takes no signals)";
    Pause();
  }
  if (place == kMostLate) return "    (isn't asked: too many don't answer)";
  Answer& answer = answers[place];
  answer.frames = -1;
  answer.asked = thread;
  if (syscall(SYS_tgkill, getpid(), thread, Signal()) != 0) return "";
  for (int i = 0; i < kPauses && answer.frames.load() < 0; ++i) {
    Pause();
  }
  answer.asked = 0;
  const int frames = answer.frames.load();
  if (frames < 0) {
    ++place;
    return "    (doesn't answer)";
  }
  std::vector<std::string> lines;
  for (int i = kHandlerFrames; i < frames; ++i) {
    lines.push_back(
        FrameText(answer.pcs[i], /*interrupted=*/i == kHandlerFrames));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace

void PrepareStacks() {
  void* pc = nullptr;
  backtrace(&pc, 1);
  absl::InitializeSymbolizer(nullptr);
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(Signal(), &action, nullptr);
}

std::string StacksOfThreads() {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  struct Group {
    std::string stack;
    std::vector<std::string> threads;
  };
  std::vector<Group> groups;
  int looked = 0;
  for (const pid_t thread : Threads()) {
    if (thread == self || ++looked > kMaxThreads) continue;
    const std::string stack = StackOf(thread);
    if (stack.empty()) continue;
    const std::string name =
        thread == getpid()
            ? "main"
            : FirstLineIn(absl::StrCat("/proc/self/task/", thread, "/comm"));
    auto found =
        std::find_if(groups.begin(), groups.end(),
                     [&](const Group& group) { return group.stack == stack; });
    if (found == groups.end()) {
      groups.push_back({stack, {}});
      found = groups.end() - 1;
    }
    found->threads.push_back(absl::StrCat(thread, " (", name, ")"));
  }
  std::string text;
  for (const Group& group : groups) {
    absl::StrAppend(
        &text, group.threads.size() == 1 ? "  thread " : "  threads ",
        absl::StrJoin(group.threads, ", "), ":\n", group.stack, "\n");
  }
  return text;
}

}  // namespace capstan
