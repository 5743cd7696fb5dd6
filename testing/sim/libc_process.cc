// SPDX-License-Identifier: Apache-2.0
//
// Processes, signals, variables of the environment, random numbers, memory.
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "testing/sim/disk.h"
#include "testing/sim/objects.h"
#include "testing/sim/real.h"

namespace capstan::sim {
namespace {

uint64_t SetOf(const sigset_t* set) {
  uint64_t bits = 0;
  memcpy(&bits, set, sizeof(bits));
  return bits;
}

void ToSet(uint64_t bits, sigset_t* set) {
  memset(set, 0, sizeof(*set));
  memcpy(set, &bits, sizeof(bits));
}

int Mask(int how, const sigset_t* set, sigset_t* old) {
  uint64_t& blocked = Self()->blocked_signals;
  if (old != nullptr) ToSet(blocked, old);
  if (set == nullptr) return 0;
  const uint64_t bits = SetOf(set);
  if (how == SIG_BLOCK) blocked |= bits;
  if (how == SIG_UNBLOCK) blocked &= ~bits;
  if (how == SIG_SETMASK) blocked = bits;
  TheWorld()->HandleSignals();
  return 0;
}

int KillOne(Process* process, int signal) {
  if (signal != 0) TheWorld()->Signal(process, signal);
  return 0;
}

int Kill(pid_t pid, int signal) {
  World& world = *TheWorld();
  const Host* const host = Mine()->host;
  if (pid > 0) {
    Process* const process = world.Find(pid);
    if (process == nullptr || process->state == Process::kGone ||
        process->host != host) {
      return -ESRCH;
    }
    return KillOne(process, signal);
  }
  int killed = 0;
  const pid_t group = pid == 0 ? Mine()->group : -pid;
  for (size_t i = 0; i < world.processes().size(); ++i) {
    Process* const process = world.processes()[i].get();
    if (process->group != group || process->host != host) continue;
    if (process->state == Process::kGone) continue;
    KillOne(process, signal);
    ++killed;
  }
  return killed > 0 ? 0 : -ESRCH;
}

pid_t Wait(pid_t pid, int* status, int options) {
  World& world = *TheWorld();
  while (true) {
    world.BeginWait();
    bool any = false;
    for (const auto& child : world.processes()) {
      if (child->parent != Mine()->pid || child->state == Process::kGone) {
        continue;
      }
      if (pid > 0 && child->pid != pid) continue;
      any = true;
      if (child->state != Process::kZombie) continue;
      child->state = Process::kGone;
      if (status != nullptr) *status = child->status;
      return child->pid;
    }
    if (!any) return -ECHILD;
    if ((options & WNOHANG) != 0) return 0;
    Mine()->ended.Add(Self());
    if (world.Block(kNever) == Woken::kBySignal) return -EINTR;
  }
}

void* Map(size_t bytes, int flags, int fd, off_t offset) {
  Process& process = *Mine();
  std::shared_ptr<Region> region;
  const Held file(fd);
  auto* const memory = dynamic_cast<MemoryFile*>(file.get());
  auto* const disk = dynamic_cast<DiskFile*>(file.get());
  if (memory != nullptr) {
    region = memory->region;
    if (region == nullptr) return MAP_FAILED;
  } else {
    region = std::make_shared<Region>(bytes);
  }
  if (disk != nullptr) {
    disk->ReadAt(offset, region->data, bytes);
    offset = 0;
  } else if (memory == nullptr && (flags & MAP_ANONYMOUS) == 0) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  char* const address = region->data + offset;
  auto& entry = process.maps[address];
  entry.first = std::move(region);
  ++entry.second;
  return address;
}

}  // namespace
}  // namespace capstan::sim

using namespace capstan::sim;  // NOLINT: of the functions below

extern "C" {

pid_t fork() noexcept {
  SIM_REAL(fork);
  return TheWorld()->Fork();
}
pid_t getpid() noexcept {
  SIM_REAL(getpid);
  return Mine()->pid;
}
pid_t getppid() noexcept {
  SIM_REAL(getppid);
  return Mine()->parent;
}
int setpgid(pid_t pid, pid_t group) noexcept {
  SIM_REAL(setpgid, pid, group);
  Mine()->group = group == 0 ? Mine()->pid : group;
  return 0;
}
void _exit(int code) {
  if (Self() == nullptr) {
    static const auto real =
        reinterpret_cast<decltype(&_exit)>(dlsym(RTLD_NEXT, "_exit"));
    real(code);
  }
  TheWorld()->ExitProcess((code & 255) << 8);
}
void abort() noexcept {
  if (Self() == nullptr) {
    static const auto real =
        reinterpret_cast<decltype(&abort)>(dlsym(RTLD_NEXT, "abort"));
    real();
  }
  TheWorld()->Violate(Mine()->name + " aborts");
  TheWorld()->ExitProcess(SIGABRT);
}
int raise(int signal) noexcept {
  SIM_REAL(raise, signal);
  TheWorld()->Signal(Mine(), signal);
  TheWorld()->Yield();
  return 0;
}
int kill(pid_t pid, int signal) noexcept {
  SIM_REAL(kill, pid, signal);
  const int result = Result(Kill(pid, signal));
  TheWorld()->Yield();
  TheWorld()->HandleSignals();
  return result;
}
pid_t wait4(pid_t pid, int* status, int options, rusage* usage) noexcept {
  SIM_REAL(wait4, pid, status, options, usage);
  if (usage != nullptr) *usage = {};
  return Result(Wait(pid, status, options));
}
pid_t waitpid(pid_t pid, int* status, int options) {
  SIM_REAL(waitpid, pid, status, options);
  return Result(Wait(pid, status, options));
}
int prctl(int option, ...) noexcept {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (unsigned long& one : a) one = va_arg(list, unsigned long);
  va_end(list);
  SIM_REAL(prctl, option, a[0], a[1], a[2], a[3]);
  if (option == PR_SET_PDEATHSIG) Mine()->death_signal = static_cast<int>(a[0]);
  return 0;
}

int sigaction(int signal, const struct sigaction* action,
              struct sigaction* old) noexcept {
  SIM_REAL(sigaction, signal, action, old);
  if (signal < 1 || signal > 64) return Result(-EINVAL);
  if (old != nullptr) *old = Mine()->actions[signal];
  if (action != nullptr) Mine()->actions[signal] = *action;
  return 0;
}
sighandler_t signal(int number, sighandler_t handler) noexcept {
  SIM_REAL(signal, number, handler);
  struct sigaction& action = Mine()->actions[number];
  const sighandler_t before = action.sa_handler;
  action = {};
  action.sa_handler = handler;
  return before;
}
int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  SIM_REAL(sigprocmask, how, set, old);
  return Mask(how, set, old);
}
int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  SIM_REAL(pthread_sigmask, how, set, old);
  return Mask(how, set, old);
}
int sigaltstack(const stack_t* stack, stack_t* old) noexcept {
  SIM_REAL(sigaltstack, stack, old);
  if (old != nullptr) *old = {};
  return 0;
}
int signalfd(int fd, const sigset_t* set, int flags) noexcept {
  SIM_REAL(signalfd, fd, set, flags);
  auto file = std::make_shared<SignalFile>(SetOf(set));
  file->nonblocking = true;
  return NewDescriptor(std::move(file));
}

char* getenv(const char* name) noexcept {
  SIM_REAL(getenv, name);
  const auto found = Mine()->variables.find(name);
  return found == Mine()->variables.end() ? nullptr : &found->second[0];
}
char* secure_getenv(const char* name) noexcept {
  SIM_REAL(secure_getenv, name);
  return getenv(name);
}
int setenv(const char* name, const char* value, int replace) noexcept {
  SIM_REAL(setenv, name, value, replace);
  if (replace == 0 && Mine()->variables.count(name) > 0) return 0;
  Mine()->variables[name] = value;
  return 0;
}
int unsetenv(const char* name) noexcept {
  SIM_REAL(unsetenv, name);
  Mine()->variables.erase(name);
  return 0;
}
int gethostname(char* name, size_t size) noexcept {
  SIM_REAL(gethostname, name, size);
  strncpy(name, Mine()->host->name.c_str(), size);
  return 0;
}

ssize_t getrandom(void* out, size_t size, unsigned flags) {
  SIM_REAL(getrandom, out, size, flags);
  for (size_t i = 0; i < size; ++i) {
    static_cast<char*>(out)[i] = static_cast<char>(TheWorld()->random().Next());
  }
  return static_cast<ssize_t>(size);
}

// Simulated threads run one at a time.
int get_nprocs_conf() noexcept { return 1; }

int getentropy(void* out, size_t size) {
  SIM_REAL(getentropy, out, size);
  getrandom(out, size, 0);
  return 0;
}
int getrlimit(__rlimit_resource_t what, rlimit* limit) noexcept {
  SIM_REAL(getrlimit, what, limit);
  *limit = {RLIM_INFINITY, RLIM_INFINITY};
  return 0;
}
int setrlimit(__rlimit_resource_t what, const rlimit* limit) noexcept {
  SIM_REAL(setrlimit, what, limit);
  return 0;
}
int getrusage(__rusage_who_t who, rusage* usage) noexcept {
  SIM_REAL(getrusage, who, usage);
  *usage = {};
  return 0;
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
           off_t offset) noexcept {
  const bool own = (flags & MAP_ANONYMOUS) != 0 && (flags & MAP_SHARED) == 0;
  if (Self() == nullptr || own) {
    static const auto real =
        reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
    return real(address, bytes, protection, flags, fd, offset);
  }
  return Map(bytes, flags, fd, offset);
}
int munmap(void* address, size_t bytes) noexcept {
  if (Self() != nullptr) {
    auto& maps = Mine()->maps;
    const auto found = maps.find(address);
    if (found != maps.end()) {
      if (--found->second.second == 0) maps.erase(found);
      return 0;
    }
  }
  static const auto real =
      reinterpret_cast<decltype(&munmap)>(dlsym(RTLD_NEXT, "munmap"));
  return real(address, bytes);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  SIM_REAL(memfd_create, name, flags);
  return NewDescriptor(std::make_shared<MemoryFile>());
}

}  // extern "C"

// The processor's own random numbers, which no seed decides.
std::random_device::result_type std::random_device::_M_getval() {
  if (Self() != nullptr) {
    return static_cast<result_type>(TheWorld()->random().Next());
  }
  static uint64_t state = 0x12345;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<result_type>(state >> 32);
}
