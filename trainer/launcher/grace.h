// SPDX-License-Identifier: Apache-2.0
//
// How long a scheduler waits between the signal that asks a run to stop and the
// one that kills it, as far as it says so.
#ifndef CAPSTAN_TRAINER_LAUNCHER_GRACE_H_
#define CAPSTAN_TRAINER_LAUNCHER_GRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace capstan {

// Reads the environment, once for StopNote: CAPSTAN_STOP_GRACE, the seconds
// from signal to kill (a pod's terminationGracePeriodSeconds), and
// SLURM_JOB_END_TIME, when the job's time is up, in seconds of the Unix epoch.
void ReadGrace();

// What a run says when `signal` asks it to stop at `now` (Unix seconds), its
// last step having taken `step_ms` (negative: unknown): how long is left,
// whether that is enough for a step, and what stops it at once. Writes at most
// `size` characters, without an end of line, and returns how many.
// Async-signal-safe.
size_t StopNote(int signal, int64_t now, int64_t step_ms, char* out,
                size_t size);

// The same, now, after the signal's name: "SIGTERM: stopping; ..".
std::string StopText(int signal);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_GRACE_H_
