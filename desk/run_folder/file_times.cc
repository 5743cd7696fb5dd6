// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/file_times.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>

namespace capstan {

double NowSeconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double WrittenAt(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return 0.0;
  return static_cast<double>(info.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

double PatienceFor(double step_seconds) {
  constexpr double kSeconds = 120.0, kSteps = 20.0;
  return std::max(kSeconds, kSteps * step_seconds);
}

}  // namespace capstan
