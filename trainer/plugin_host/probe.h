// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_
#define CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace capstan {

// What a foreign call does to a process: runs it in a forked child, whose
// standard output and error are kept from the user. OK if it returned. Else the
// message completes a sentence about it ("crashed: signal 11 (..)", "ended the
// process, with exit code 3"), followed by the last of what the child has
// printed; `output`, if not null, gets all of that (up to 64 KiB).
// DEADLINE_EXCEEDED if it ran for longer than `limit_seconds`, and was killed.
// A fork that fails is OK: then nothing is known.
absl::Status Probe(const std::function<void()>& call, double limit_seconds,
                   std::string* output = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_
