// SPDX-License-Identifier: Apache-2.0
//
// Notes when the run began, then loads the core, which lies beside this
// executable, and hands over to it. (Linked in the usual way, LibTorch would be
// loaded before the first line here could run, and the kernel only knows when
// the process was forked: under `bazel run` that is when the build began.)
#include <dlfcn.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start_seconds =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  std::string core(path, length > 0 ? length : 0);
  core = core.substr(0, core.rfind('/') + 1) + "libcapstan_core.so";
  void* library = dlopen(core.c_str(), RTLD_NOW | RTLD_GLOBAL);
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
  return main_function(argc, argv, start_seconds);
}
