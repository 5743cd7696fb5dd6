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
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// LibTorch's registry of operators takes about 42 MB.
constexpr size_t kHeapAtStart = size_t{48} << 20;

// Requests huge pages for the start of the heap: loading LibTorch allocates
// half a million small objects, and with small pages the kernel's share of
// that, and of forking the ranks, is several times as large. Uses no memory
// until touched.
void BackHeapWithHugePages() {
  // The maxima of glibc's dynamic thresholds: the block below comes from the
  // heap and stays there when freed.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_TOP_PAD, kHeapAtStart);
  void* const block = malloc(kHugePage);
  mallopt(M_TOP_PAD, 128 << 10);
  if (block == nullptr) return;
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(block) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(sbrk(0));
  // Falls back to small pages.
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
  free(block);
}

// How often libgomp looks for the next parallel region before its thread
// sleeps. Its own 300,000 times are milliseconds, in which waiting threads keep
// those that have work from the cores: with one other program on two cores, two
// threads trained a third slower than with this, and two such trainers twenty
// times. Waiting for some ten microseconds bridges what lies between two
// kernels, and is as fast on an idle machine. Whoever says otherwise in the
// environment is obeyed.
void LetIdleThreadsSleep() {
  if (getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "600", 0);
}

// With standard output closed (`>&-`) the next file that is opened would take
// its number, and get what is meant for the user.
void OpenStandardFiles() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", O_RDWR) != fd) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start_seconds =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  OpenStandardFiles();
  BackHeapWithHugePages();
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
  void* library = dlopen(core.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  using MainFunction = int (*)(int, char**, double);
  auto main_function =
      library == nullptr
          ? nullptr
          : reinterpret_cast<MainFunction>(dlsym(library, "capstan_main"));
  if (main_function == nullptr) {
    std::fprintf(stderr, "ERROR: the trainer's core does not load: %s\n",
                 dlerror());
    return 1;
  }
  const int code = main_function(argc, argv, start_seconds);
  std::fflush(nullptr);
  // Destroying LibTorch's registry takes half as long as building it.
  _exit(code);
}
