// SPDX-License-Identifier: Apache-2.0
//
// The page of `watch`, served.
#ifndef CAPSTAN_DESK_WATCH_WATCH_PAGE_H_
#define CAPSTAN_DESK_WATCH_WATCH_PAGE_H_

#include "desk/http/server.h"
#include "desk/watch/live_runs.h"
#include "desk/watch/step_rows.h"

namespace capstan {

// Has `server` answer, for `runs`, which must outlive it, as must `rows`:
//   GET  /             the page
//   GET  /api/runs     a list of RunJson
//   GET  /api/events   the same and what changes of it, as server-sent events
//   GET  /api/curves?run=0&from=1&to=100&points=500  a part of its curves
//   GET  /api/rows?run=0&step=100  the rows of a step: StepRows
//   POST /api/control  {"run": 0, "do": "save"} tells a run
void AddWatchRoutes(LiveRuns* runs, StepRows* rows, HttpServer* server);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_WATCH_PAGE_H_
