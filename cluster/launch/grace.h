// SPDX-License-Identifier: Apache-2.0
//
// The time between the signal by which a scheduler asks a run to stop and the
// one that kills it, if the scheduler tells.
#ifndef CAPSTAN_CLUSTER_LAUNCH_GRACE_H_
#define CAPSTAN_CLUSTER_LAUNCH_GRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace capstan {

// Reads the environment for StopNote: CAPSTAN_STOP_GRACE, the seconds from
// signal to kill (a pod's terminationGracePeriodSeconds), and
// SLURM_JOB_END_TIME, the job's end in seconds of the Unix epoch.
void ReadGrace();

// Writes the message of a run that `signal` asks to stop at `now` (Unix
// seconds): how much time is left, whether that is enough for a step, and how
// to stop at once. `step_ms` is the time of its last step (negative: unknown).
// Writes at most `size` characters, without an end of line, and returns how
// many. Async-signal-safe.
size_t StopNote(int signal, int64_t now, int64_t step_ms, char* out,
                size_t size);

// Returns that message as of now, after the signal's name: "SIGTERM: stopping;
// ..".
std::string StopText(int signal);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_GRACE_H_
