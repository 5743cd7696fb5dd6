// SPDX-License-Identifier: Apache-2.0
#include "testing/sim/globals.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace capstan::sim {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kLine = 64;

typedef uint64_t Line __attribute__((vector_size(kLine)));

struct Range {
  char* begin;
  char* end;
};

// Never destroyed: the handler may run until the end.
struct State {
  decltype(&sigaction) real_sigaction = nullptr;
  std::vector<std::string> names;
  std::vector<Range> ranges;
  std::vector<Range> code;
  std::vector<Range> thread_locals;
  std::vector<const char*> initial;  // of each range: nullptr and zeros, or
  std::vector<size_t> initial_bytes;
  // Those that have been written to, in that order, and what was there before.
  std::vector<char*> pages;
  Pages pristine;
  // Of each of these, by bits: the lines that have differed from that. Most
  // never do.
  std::vector<uint64_t> changed;
};
State& TheState() {
  static auto* const state = new State;
  return *state;
}

char* PageOf(void* address) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(address) / kPage *
                                 kPage);
}

void OnFault(int signal, siginfo_t* info, void*) {
  State& state = TheState();
  char* const page = PageOf(info->si_addr);
  const bool ours = std::any_of(
      state.ranges.begin(), state.ranges.end(),
      [&](const Range& r) { return page >= r.begin && page < r.end; });
  if (!ours || std::count(state.pages.begin(), state.pages.end(), page) > 0) {
    struct sigaction normal = {};
    state.real_sigaction(signal, &normal, nullptr);
    return;  // happens again, and ends this process
  }
  // What malloc had locked can't be: variables aren't written by it.
  state.pages.push_back(page);
  state.pristine.emplace_back(new char[kPage]);
  memcpy(state.pristine.back().get(), page, kPage);
  state.changed.push_back(0);
  mprotect(page, kPage, PROT_READ | PROT_WRITE);
}

int LookAt(dl_phdr_info* info, size_t, void*) {
  State& state = TheState();
  const std::string path = info->dlpi_name;
  const bool watched = std::any_of(
      state.names.begin(), state.names.end(), [&](const std::string& name) {
        return path.find(name) != std::string::npos;
      });
  // libc's are the real thread's. The others' are large, and buffers and caches
  // that nobody uses across a wait.
  const char* const kOthers[] = {"/libc.so", "ld-linux",  "libtorch_cpu",
                                 "libglog",  "libcudart", "libcupti"};
  const bool shared = std::any_of(
      std::begin(kOthers), std::end(kOthers),
      [&](const char* name) { return path.find(name) != std::string::npos; });
  uintptr_t read_only_end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_RELRO) read_only_end = begin + part.p_memsz;
    if (part.p_type == PT_TLS && !shared && info->dlpi_tls_data != nullptr) {
      char* const data = static_cast<char*>(info->dlpi_tls_data);
      state.thread_locals.push_back({data, data + part.p_memsz});
      state.initial.push_back(reinterpret_cast<const char*>(begin));
      state.initial_bytes.push_back(part.p_filesz);
    }
  }
  if (!watched) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
      char* const code =
          reinterpret_cast<char*>(info->dlpi_addr + part.p_vaddr);
      state.code.push_back({code, code + part.p_memsz});
    }
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0) continue;
    uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    const uintptr_t end = begin + part.p_memsz;
    begin = std::max(begin, read_only_end);
    begin = (begin + kPage - 1) / kPage * kPage;
    if (begin >= end) continue;
    const uintptr_t whole = (end + kPage - 1) / kPage * kPage;
    state.ranges.push_back(
        {reinterpret_cast<char*>(begin), reinterpret_cast<char*>(whole)});
  }
  return 0;
}

std::unique_ptr<char[]> CopyOf(const char* page) {
  std::unique_ptr<char[]> copy(new char[kPage]);
  memcpy(copy.get(), page, kPage);
  return copy;
}

// A bit for each line.
#ifdef __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t
Differences(const char* a, const char* b) {
  static_assert(kPage / kLine == 64);
  uint64_t differ = 0;
  for (uint64_t i = 0; i < 64; ++i) {
    Line x, y;
    memcpy(&x, a + i * kLine, kLine);
    memcpy(&y, b + i * kLine, kLine);
    x ^= y;
    uint64_t any = 0;
    for (size_t word = 0; word < kLine / 8; ++word) any |= x[word];
    if (any != 0) differ |= uint64_t{1} << i;
  }
  return differ;
}

void CopyLines(uint64_t lines, const char* from, char* to) {
  for (; lines != 0; lines &= lines - 1) {
    const uintptr_t at = __builtin_ctzll(lines) * kLine;
    memcpy(to + at, from + at, kLine);
  }
}

}  // namespace

void WatchGlobals(const std::vector<std::string>& names) {
  State& state = TheState();
  if (!state.names.empty()) return;
  state.names = names;
  // libstdc++ takes short cuts in a process of one thread.
  __libc_single_threaded = 0;
  state.real_sigaction =
      reinterpret_cast<decltype(&sigaction)>(dlsym(RTLD_NEXT, "sigaction"));
  dl_iterate_phdr(LookAt, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  for (const Range& range : state.ranges) {
    if (mprotect(range.begin, range.end - range.begin, PROT_READ) != 0) {
      perror("mprotect of the subject's variables");
      _exit(1);
    }
  }
}

void SwapGlobals(Pages* from, const Pages* to) {
  State& state = TheState();
  for (size_t i = 0; i < state.pages.size(); ++i) {
    const char* const pristine = state.pristine[i].get();
    state.changed[i] |= Differences(state.pages[i], pristine);
    if (from != nullptr) {
      if (from->size() <= i) from->push_back(CopyOf(pristine));
      CopyLines(state.changed[i], state.pages[i], (*from)[i].get());
    }
    const bool own = to != nullptr && i < to->size();
    CopyLines(state.changed[i], own ? (*to)[i].get() : pristine,
              state.pages[i]);
  }
}

Pages CopyGlobals() {
  Pages copy;
  State& state = TheState();
  for (size_t i = 0; i < state.pages.size(); ++i) {
    // They may be as in pristine again before the next swap.
    state.changed[i] |= Differences(state.pages[i], state.pristine[i].get());
    copy.push_back(CopyOf(state.pages[i]));
  }
  return copy;
}

bool IsSubject(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  for (const Range& range : TheState().code) {
    if (at >= range.begin && at < range.end) return true;
  }
  return false;
}

size_t SwappedPages() { return TheState().pages.size(); }

void SwapThreadLocals(std::string* from, std::string* to) {
  State& state = TheState();
  size_t total = 0;
  for (const Range& range : state.thread_locals) {
    total += range.end - range.begin;
  }
  if (from != nullptr) {
    from->resize(total);
    size_t at = 0;
    for (const Range& range : state.thread_locals) {
      const size_t bytes = range.end - range.begin;
      memcpy(&(*from)[at], range.begin, bytes);
      at += bytes;
    }
  }
  size_t at = 0;
  for (size_t i = 0; i < state.thread_locals.size(); ++i) {
    const Range& range = state.thread_locals[i];
    const size_t bytes = range.end - range.begin;
    if (!to->empty()) {
      memcpy(range.begin, to->data() + at, bytes);
    } else {
      memcpy(range.begin, state.initial[i], state.initial_bytes[i]);
      memset(range.begin + state.initial_bytes[i], 0,
             bytes - state.initial_bytes[i]);
    }
    at += bytes;
  }
}

}  // namespace capstan::sim
