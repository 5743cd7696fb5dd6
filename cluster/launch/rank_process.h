// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_RANK_PROCESS_H_
#define CAPSTAN_CLUSTER_LAUNCH_RANK_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/subprocess.h"
#include "cluster/launch/child_output.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/rank_info.h"

namespace capstan {

// Calls `rank_main` and converts exceptions to a status.
absl::Status CallRankMain(const RankMain& rank_main, const RankInfo& info);

// How a rank ended.
struct RankOutcome {
  enum Kind {
    kOk,
    kStopped,   // by a signal, as requested
    kLeft,      // as the run goes on with other hosts
    kFailed,    // a status of its own: it would fail again
    kDied,      // killed, crashed, or ended by the watchdog
    kLostPeer,  // saw another rank vanish
  };
  Kind kind = kOk;
  std::string message;
  int stop_signal = 0;  // if kStopped
  // If kDied: "was killed by signal 9 (SIGKILL)"; and unless by a signal, the
  // exit code.
  std::string how;
  int exit_code = 0;
};

// A forked rank, seen from the parent.
class RankProcess {
 public:
  // Forks. The child calls `before` (to release the parent's resources) and
  // `rank_main`, reports its status and calls _exit.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(
      const RankInfo& info, const std::function<void()>& before,
      const RankMain& rank_main);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // For polling; -1 once closed.
  int output_fd() const { return output_fd_; }
  int report_fd() const { return report_fd_; }

  // Reads available output; returns complete lines, prefixed.
  std::string ReadOutput();
  void ReadReport();
  // Checks, without blocking, whether the process has exited.
  void Reap();
  // Waits for a process that was killed.
  void WaitForExit();
  // Reads all remaining output of an exited process.
  std::string Drain();
  void Signal(int signal) const;
  // Kills the rank and the processes that it has started.
  void Kill() const;
  // Whether the rank is stopped (SIGSTOP), but not by a debugger.
  bool IsFrozen() const;
  // Called in another child after fork.
  void CloseInChild() const;

  bool exited() const { return end_.has_value(); }
  // nullopt while the rank runs. A rank may have reported but not yet exited.
  absl::optional<RankOutcome> Outcome() const;

 private:
  RankProcess(pid_t pid, int output_fd, int report_fd, std::string prefix)
      : pid_(pid),
        output_fd_(output_fd),
        report_fd_(report_fd),
        lines_(std::move(prefix)) {}

  absl::optional<RankOutcome> ReportedOutcome() const;

  const pid_t pid_;
  int output_fd_;
  int report_fd_;
  PrefixedLines lines_;
  std::string report_;
  absl::optional<ChildEnd> end_;  // nullopt: not yet reaped
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_RANK_PROCESS_H_
