// SPDX-License-Identifier: Apache-2.0
//
// The report and the trace (testing/standin/README.md): findings, waits,
// counts of steps. All thread-safe.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_REPORT_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "testing/standin/device.h"

namespace capstan::standin {

// What has happened since the process or the step began.
struct Counts {
  int64_t works = 0;
  int64_t launches = 0;
  int64_t waits = 0;
  int64_t polls = 0;  // by the step's thread
  int64_t mallocs = 0;
  int64_t frees = 0;
  double flops = 0;
  int64_t bytes = 0;  // read and written
  int64_t bytes_sent = 0;
  int64_t findings = 0;
};

// A work was enqueued. `graph`: the launch of a graph that it came with, or 0.
void NoteWork(const Work& work, int stream, int64_t graph);
void NoteCopy(const char* direction, int64_t bytes, int stream);
void NoteGraphLaunch(int64_t graph, int64_t nodes, int stream);
void NoteRecord(int64_t event, int stream);
void NoteWaitEvent(int64_t event, int stream);

// The host waits for the device; what: {"stream": 3} or {"event": 4}; nothing
// where `number` is negative. behind: as NotePoll's; negative: not known.
void NoteHostWait(const char* kind, const char* what, int64_t number,
                  int64_t behind = -1);

// The host asks again for an event that isn't ready, behind which so many works
// are queued: the device has them to go on with meanwhile. Counted where the
// thread is in a step, and reported the first time.
void NotePoll(int64_t behind, bool first);

void NoteMalloc(int64_t bytes);
void NoteFree(int64_t bytes);

// Bytes in use have changed: of cudaMalloc, or of the caching allocator's
// blocks where it is watched.
void NoteReserved(int64_t bytes_more);
void NoteMapped(int64_t bytes_more);  // cuMemMap's
void NoteBlocks(int64_t bytes_more);

// A range of this thread began or ended (nvtx.cc). One named "step N" is a
// step.
void PushRange(const std::string& name);
void PopRange();

// A finding that is reported once for each key.
void ReportOnce(const std::string& kind, const std::string& key,
                const std::string& text);

// faults.cc: calls of the kind that is to fail, so far; -1: none is.
int64_t FaultCalls();

// Writes out what is buffered.
void FlushTrace();

// The calling thread's stack: "function (library)", innermost first, from the
// first frame outside of this library.
std::vector<std::string> Stack();

// A symbol as it was written; itself if it is no C++ symbol.
std::string Demangled(const char* symbol);

std::string JsonString(const std::string& text);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_REPORT_H_
