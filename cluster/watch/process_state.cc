// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/process_state.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

// Shorter spans say little: a tick is 10 ms.
constexpr int64_t kShortestSpanNs = 200 * 1000 * 1000;
// Of a core. A rank that waits looks up now and then; one that would compute
// may not get more of a busy machine.
constexpr double kComputingShare = 0.3;
constexpr double kRunnableShare = 0.03;

}  // namespace

ProcessLook LookAtProcess(pid_t pid) {
  ProcessLook look;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return look;
  // PID (NAME) STATE ..; the name may hold anything. Fields by proc(5)'s
  // numbers.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 3) look.state = field[0];
    if (number == 14 || number == 15) look.cpu_ticks += std::stoull(field);
    if (number == 22) look.start_ticks = std::stoull(field);
  }
  return look;
}

ProcessState ProcessWatch::Look(pid_t pid, uint64_t start_ticks,
                                int64_t now_ns) {
  const ProcessLook look = LookAtProcess(pid);
  const bool same = look.start_ticks == start_ticks;
  if (!same || look.state == 'X' || look.state == 'Z') {
    return ProcessState::kGone;
  }
  if (look.state == 'T') return ProcessState::kStopped;
  if (look.state == 't') return ProcessState::kTraced;
  Sample& last = samples_[pid];
  const int64_t span = now_ns - last.at_ns;
  if (last.at_ns == 0 || span < 0) {
    last = {
        now_ns, look.cpu_ticks,
        look.state == 'R' ? ProcessState::kComputing : ProcessState::kWaiting};
  } else if (span >= kShortestSpanNs) {
    static const double ticks_per_second =
        static_cast<double>(sysconf(_SC_CLK_TCK));
    const double used =
        static_cast<double>(look.cpu_ticks - last.cpu_ticks) / ticks_per_second;
    const double share = look.state == 'R' ? kRunnableShare : kComputingShare;
    const bool computing = used >= share * static_cast<double>(span) * 1e-9;
    last = {now_ns, look.cpu_ticks,
            computing ? ProcessState::kComputing : ProcessState::kWaiting};
  }
  return last.state;
}

}  // namespace capstan
