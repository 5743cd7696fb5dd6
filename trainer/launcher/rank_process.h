// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_RANK_PROCESS_H_
#define CAPSTAN_TRAINER_LAUNCHER_RANK_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/launcher/child_output.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// `rank_main`'s status, with its exceptions turned into one.
absl::Status CallRankMain(const RankMain& rank_main, const RankInfo& info);

// How a rank has ended.
struct RankOutcome {
  enum Kind {
    kOk,
    kStopped,   // by SIGINT or SIGTERM, as asked
    kFailed,    // by itself: a status, a crash
    kLostPeer,  // saw another rank vanish
  };
  Kind kind = kOk;
  std::string message;
  int stop_signal = 0;  // of kStopped
};

// A forked rank, seen from the parent.
class RankProcess {
 public:
  // Forks. The child calls `before` (to let go of what is the parent's), then
  // `rank_main`, reports its status and leaves by _exit.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(
      const RankInfo& info, const std::function<void()>& before,
      const RankMain& rank_main);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // To be polled for input; -1 when closed.
  int output_fd() const { return output_fd_; }
  int report_fd() const { return report_fd_; }

  // Takes what there is to read now; returns whole lines of output, prefixed.
  std::string ReadOutput();
  void ReadReport();
  // Sees whether the process has ended.
  void Reap();
  // The same for a process that has been killed: waits.
  void WaitForExit();
  // Reads all that is left; for a process that has ended.
  std::string Drain();
  void Signal(int signal) const;
  // In another child, after fork.
  void CloseInChild() const;

  bool exited() const { return exited_; }
  // nullopt while the rank runs. A rank that has reported may not have exited.
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
  bool exited_ = false;
  int wait_status_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_RANK_PROCESS_H_
