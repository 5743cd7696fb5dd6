// SPDX-License-Identifier: Apache-2.0
//
// Exit codes of the trainer that launchers and scripts may act on
// (docs/promises.md).
#ifndef CAPSTAN_BASE_EXIT_CODES_H_
#define CAPSTAN_BASE_EXIT_CODES_H_

namespace capstan {

// The watchdog ended the run: nothing moved for too long. BSD's EX_TEMPFAIL:
// another try may go well.
constexpr int kHungExitCode = 75;

}  // namespace capstan

#endif  // CAPSTAN_BASE_EXIT_CODES_H_
