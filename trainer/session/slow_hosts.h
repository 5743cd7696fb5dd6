// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SLOW_HOSTS_H_
#define CAPSTAN_TRAINER_SESSION_SLOW_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "trainer/session/session.h"

namespace capstan {

// Ends this rank, as all ranks do at once, so that their launchers go on
// without host `node`; first rank 0 notes `why` and writes the host's name to
// OUTPUT/hosts_left_out.txt, for the scheduler. Returns only if the run can't
// go on without it (launch.max_restarts, min_processes).
void LeaveOutHost(const Session& session, const std::string& host, int node,
                  const std::string& why, const char* kind);

// Checks slow_host_factor and slow_host_steps.
absl::Status CheckSlowHosts(const Launch& launch);

// The host whose slowest rank takes at least `factor` times as long as the
// median host's (of an even number, the faster of the two in the middle), the
// slowest of these; nullopt if there is none. `seconds` is by rank.
struct SlowHost {
  int node = 0;
  double times = 0.0;
};
absl::optional<SlowHost> FindSlowHost(const std::vector<double>& seconds,
                                      int ranks_per_host, double factor);

// Leaves out a host that is slow twice in a row (launch.slow_host_factor). What
// counts is the time of a rank's steps in which it didn't wait for others. Used
// by the steps' thread.
class SlowHosts {
 public:
  explicit SlowHosts(Session* session) : session_(*session) {}

  void StepBegins();
  void StepEnds();
  // Whether Judge is due after this step.
  bool Due() const;
  // Collective. Mayn't return (LeaveOutHost).
  absl::Status Judge();

 private:
  // Of this rank, so far.
  double Waited() const;

  Session& session_;
  double began_ = 0.0;
  double waited_before_ = 0.0;
  double seconds_ = 0.0;  // since the last Judge
  int slow_ = -1;         // the host that was slow at the last Judge, or -1
  bool told_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SLOW_HOSTS_H_
