// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_
#define CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_

#include <string>

#include "desk/watch/live_runs.h"

namespace capstan {

// The runs in characters, up to `lines` lines of up to `columns`: how far each
// is, its loss, ranks, events, other curves and the newest sample; what comes
// last is left out if it doesn't fit. `colors`: with a terminal's escape
// sequences, by which curves of several runs are told apart. Without, as files
// and programs get it, they are by letters, and only the charts are as wide as
// `columns`: a line of text is as long as it is.
std::string TerminalPicture(const LiveRuns& runs, int columns, int lines,
                            bool colors);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_TERMINAL_PICTURE_H_
