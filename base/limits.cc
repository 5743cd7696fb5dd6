// SPDX-License-Identifier: Apache-2.0
#include "base/limits.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"

namespace capstan {
namespace {

// Of the CPU time before the kernel's end of a process, what there is to save
// in; at most a quarter of all.
constexpr int64_t kSavingSeconds = 30;

absl::optional<int64_t> LimitOf(int resource, bool hard = false) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) {
    return absl::nullopt;
  }
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  if (value == RLIM_INFINITY) return absl::nullopt;
  return static_cast<int64_t>(value);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

// What OnCpuTime writes; nothing may be allocated there.
char cpu_message[256];

void OnCpuTime(int) {
  const ssize_t written =
      write(STDERR_FILENO, cpu_message, std::strlen(cpu_message));
  (void)written;
  _exit(1);
}

// The call fails with EFBIG.
void OnFileSize(int) {}

// Has SIGXCPU come before SIGKILL, which tells nothing.
void WarnOfCpuTime() {
  rlimit limit;
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) {
    return;
  }
  const auto most = static_cast<int64_t>(limit.rlim_max);
  const int64_t warning = std::max<int64_t>(
      1, most - std::max<int64_t>(1, std::min(kSavingSeconds, most / 4)));
  limit.rlim_cur = std::min(limit.rlim_cur, static_cast<rlim_t>(warning));
  setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace

std::string LimitText(int error) {
  constexpr struct {
    int error;
    int resource;
    const char* of;
    const char* unit;
  } kLimits[] = {{EFBIG, RLIMIT_FSIZE, "a file", " bytes (ulimit -f)"},
                 {ENOMEM, RLIMIT_AS, "the address space", " bytes (ulimit -v)"},
                 {EAGAIN, RLIMIT_NPROC, "this user's processes and threads",
                  " (ulimit -u)"},
                 {EMFILE, RLIMIT_NOFILE, "open files", " (ulimit -n)"}};
  for (const auto& [one, resource, of, unit] : kLimits) {
    if (one != error) continue;
    const absl::optional<int64_t> limit = LimitOf(resource);
    if (!limit.has_value()) return "";
    return absl::StrCat("; the limit of ", of, " is ", *limit, unit);
  }
  return "";
}

absl::optional<int64_t> MostAddressSpace() { return LimitOf(RLIMIT_AS); }

absl::optional<int64_t> MostCpuSeconds() {
  const absl::optional<int64_t> hard = LimitOf(RLIMIT_CPU, /*hard=*/true);
  return hard.has_value() ? hard : LimitOf(RLIMIT_CPU);
}

std::string CpuLimitText() {
  return absl::StrCat("the ", MostCpuSeconds().value_or(0),
                      " s of CPU time that a process may take (ulimit -t)");
}

void MeetLimits() {
  Handle(SIGXFSZ, OnFileSize);
  WarnOfCpuTime();
  if (!MostCpuSeconds().has_value()) return;
  const std::string message =
      absl::StrCat("ERROR: ", CpuLimitText(), " are used up\n");
  message.copy(cpu_message, sizeof(cpu_message) - 1);
  Handle(SIGXCPU, OnCpuTime);
}

absl::Status CheckThreads() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  int64_t threads = 0;
  // Others are an error where the number is needed.
  if (text == nullptr || !absl::SimpleAtoi(text, &threads)) {
    return absl::OkStatus();
  }
  const int most = kMostThreadsPerCore * AvailableCores();
  if (threads <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable OMP_NUM_THREADS is ", threads,
                   ", and this process "
                   "may use ",
                   AvailableCores(), " cores: set at most ", most,
                   "; as many threads as cores are fastest"));
}

}  // namespace capstan
