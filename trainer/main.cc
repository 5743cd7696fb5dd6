// SPDX-License-Identifier: Apache-2.0
//
// Records the start time, then loads the core from this executable's folder, or
// from lib/ beside bin/ in a folder that //:dist made, and calls it. (If
// linked, LibTorch would be loaded before the first line here runs, and the
// kernel only knows the time of the fork: under `bazel run`, when the build
// began.)
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string>

#include "base/heap.h"

namespace {

// LibTorch's registry of operators takes about 42 MB.
constexpr size_t kHeapAtStart = size_t{48} << 20;

// How many threads of all programs run or could run, this one among them.
int RunningThreads() {
  int running = INT_MAX;
  FILE* const file = fopen("/proc/loadavg", "re");
  if (file == nullptr) return running;
  if (fscanf(file, "%*f %*f %*f %d/", &running) != 1) running = INT_MAX;
  fclose(file);
  return running;
}

// Whether other programs use more than an eighth of the cores, or may use those
// of this one.
bool CoresAreShared() {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0 ||
      CPU_COUNT(&mine) < online) {
    return true;
  }
  // A program that has started this one may be about to wait for it.
  for (int i = 0; i < 5; ++i) {
    if (i > 0) usleep(1000);
    if (RunningThreads() - 1 <= online / 8) return false;
  }
  return true;
}

// How often libgomp looks for the next parallel region before its thread
// sleeps. Its own 300,000 times are milliseconds, in which waiting threads keep
// those that have work from the cores: with one other program on two cores, two
// threads took up to six times as long as with 600. On cores of their own 600
// are too few where waking a thread takes long (virtual machines: up to 1.8
// times as long as with 6,000). docs/decisions/kernels.md has what was
// measured. Whoever says otherwise in the environment is obeyed, but not a
// trainer that has started this one.
void LetIdleThreadsSleep() {
  if (getenv("OMP_WAIT_POLICY") != nullptr) return;
  constexpr char kSpins[] = "GOMP_SPINCOUNT", kOurs[] = "CAPSTAN_SPINCOUNT";
  const char* const set = getenv(kSpins);
  const char* const ours = getenv(kOurs);
  if (set != nullptr && (ours == nullptr || strcmp(set, ours) != 0)) return;
  const char* const chosen = CoresAreShared() ? "600" : "6000";
  setenv(kSpins, chosen, 1);
  setenv(kOurs, chosen, 1);
}

// Whoever started the trainer may ignore SIGCHLD, and that is inherited: the
// kernel would then keep no child's exit status, and none could be told from a
// success.
void KeepChildrensStatus() { signal(SIGCHLD, SIG_DFL); }

// With standard output closed (`>&-`) the next file that is opened would take
// its number, and get what is meant for the user.
void OpenStandardFiles() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", O_RDWR) != fd) return;
  }
}

// A small stack ends threads, and LibTorch's start, by SIGSEGV; one of
// gigabytes leaves no room for another thread's. False: it can't be had.
bool TakeStack() {
  constexpr rlim_t kLeast = 1 << 20;
  constexpr rlim_t kUsual = 8 << 20;
  constexpr rlim_t kMost = 64 << 20;
  rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) != 0) return true;
  if (limit.rlim_cur < kUsual) {
    limit.rlim_cur = limit.rlim_max < kUsual ? limit.rlim_max : kUsual;
    setrlimit(RLIMIT_STACK, &limit);
  }
  if (limit.rlim_cur < kLeast) {
    std::fprintf(stderr,
                 "ERROR: the stack may take %llu bytes (ulimit -s), and the "
                 "trainer needs %llu\n",
                 static_cast<unsigned long long>(limit.rlim_cur),
                 static_cast<unsigned long long>(kLeast));
    return false;
  }
  // glibc has read the limit before.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes,
                            limit.rlim_cur > kMost ? kUsual : limit.rlim_cur);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  return true;
}

// What LibTorch's libraries can't be loaded without, if there is a limit; "".
std::string AddressSpaceText() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return "; the limit of the address space is " +
         std::to_string(limit.rlim_cur) + " bytes (ulimit -v)";
}

// While the core is loaded nothing catches an exception.
[[noreturn]] void OutOfMemory() {
  std::fprintf(stderr,
               "ERROR: the trainer's core does not load: out of memory%s\n",
               AddressSpaceText().c_str());
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start_seconds =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  OpenStandardFiles();
  if (!TakeStack()) return 1;
  KeepChildrensStatus();
  capstan::BackHeapWithHugePages(kHeapAtStart);
  LetIdleThreadsSleep();
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  std::string folder(path, length > 0 ? length : 0);
  folder.resize(folder.rfind('/') + 1);
  std::string core = folder + "libcapstan_core.so";
  if (access(core.c_str(), F_OK) != 0) {
    core = folder + "../lib/libcapstan_core.so";
  }
  // Lazy binding: LibTorch imports 31,000 functions, and a run calls a few
  // hundred of them.
  std::set_new_handler(OutOfMemory);
  void* library = dlopen(core.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  std::set_new_handler(nullptr);
  using MainFunction = int (*)(int, char**, double);
  auto main_function =
      library == nullptr
          ? nullptr
          : reinterpret_cast<MainFunction>(dlsym(library, "capstan_main"));
  if (main_function == nullptr) {
    std::fprintf(stderr, "ERROR: the trainer's core does not load: %s%s\n",
                 dlerror(), AddressSpaceText().c_str());
    return 1;
  }
  const int code = main_function(argc, argv, start_seconds);
  std::fflush(nullptr);
  // Destroying LibTorch's registry takes half as long as building it.
  _exit(code);
}
