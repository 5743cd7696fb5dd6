// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_
#define CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace capstan {

// Runs a foreign call in a forked child with its standard output and error
// captured. OK if it returned. Otherwise the message completes a sentence about
// it ("crashed: signal 11 (..)", "ended the process, with exit code 3") and
// ends with the tail of the child's output; `output`, if not null, gets all of
// that (up to 64 KiB). DEADLINE_EXCEEDED if it ran longer than `limit_seconds`
// and was killed. OK if the fork fails, as nothing is known then. `slow` is
// called once if it runs longer than 2 s.
absl::Status Probe(const std::function<void()>& call, double limit_seconds,
                   std::string* output = nullptr,
                   const std::function<void()>& slow = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PLUGIN_HOST_PROBE_H_
