// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_
#define CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_

#include <string>

#include "desk/watch/live_runs.h"

namespace capstan {

// The runs in characters, lines of up to `columns`: how far each is, curves,
// ranks, events and the newest sample. `colors`: with a terminal's escape
// sequences, by which curves of several runs are told apart.
std::string TerminalPicture(const LiveRuns& runs, int columns, bool colors);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_
