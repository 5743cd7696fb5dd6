// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/report.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

constexpr size_t kTraceBuffer = 1 << 16;

struct Output {
  std::mutex mutex;  // taken last
  int report = -1;   // not yet opened; -2: nowhere
  int trace = -1;
  std::string buffered;  // of the trace
  int64_t step = -1;     // none has begun
  Counts total;
  Counts at_step;  // `total` when the step began
  int64_t cpu_us_at_step = 0;
  int64_t reserved = 0;  // bytes of cudaMalloc
  int64_t reserved_peak = 0;
  int64_t mapped = 0;  // bytes of cuMemMap
  int64_t blocks = 0;  // of the caching allocator
  int64_t blocks_peak = 0;
  bool blocks_watched = false;
  // The innermost range of the thread that has begun the step: that of works
  // of threads without any, as autograd's.
  std::string range_of_step;
  std::set<std::string> reported;  // keys of ReportOnce
};

Output& TheOutput() {
  static Output* const output = new Output;
  return *output;
}

// The names of the ranges that this thread is in.
std::vector<std::string>& Ranges() {
  thread_local std::vector<std::string> ranges;
  return ranges;
}

int Open(const std::string& folder, const char* ending) {
  if (folder.empty()) return -2;
  const auto& devices = VisibleDevices();
  const size_t last = LastDeviceSet();
  const int device = last < devices.size() ? devices[last] : 0;
  const std::string path = folder + "/gpu" + std::to_string(device) + "-" +
                           std::to_string(getpid()) + ending;
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    std::fprintf(stderr, "CAPSTAN_STANDIN: can't write '%s': %s\n",
                 path.c_str(), std::strerror(errno));
    return -2;
  }
  return file;
}

void WriteAll(int file, const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t wrote = write(file, text.data() + at, text.size() - at);
    if (wrote <= 0) return;
    at += wrote;
  }
}

void FlushLocked(Output* output) {
  if (output->trace >= 0 && !output->buffered.empty()) {
    WriteAll(output->trace, output->buffered);
  }
  output->buffered.clear();
}

void Report(Output* output, const std::string& line) {
  if (output->report == -1) {
    output->report = Open(TheSettings().report, ".jsonl");
  }
  if (output->report >= 0) WriteAll(output->report, line + "\n");
}

void Trace(Output* output, const std::string& line) {
  if (output->trace == -1) {
    output->trace = Open(TheSettings().trace, ".trace.jsonl");
  }
  if (output->trace < 0) return;
  output->buffered += line;
  output->buffered += '\n';
  if (output->buffered.size() > kTraceBuffer) FlushLocked(output);
}

bool Tracing() { return !TheSettings().trace.empty(); }

std::string Field(const char* name, int64_t value) {
  return std::string(", \"") + name + "\": " + std::to_string(value);
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

const char* UnitName(Unit unit) {
  switch (unit) {
    case Unit::kVector:
      return "vector";
    case Unit::kTf32:
      return "tf32";
    case Unit::kHalf:
      return "half";
    case Unit::kFp8:
      return "fp8";
  }
  return "vector";
}

std::string ThreadName() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

// "step 12" is 12; -1 for other ranges.
int64_t StepOf(const std::string& range) {
  if (range.rfind("step ", 0) != 0) return -1;
  char* end = nullptr;
  const int64_t step = std::strtoll(range.c_str() + 5, &end, 10);
  return *end == '\0' && end != range.c_str() + 5 ? step : -1;
}

// That all of the process's threads have taken.
int64_t CpuMicroseconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void BeginStep(Output* output, int64_t step) {
  output->step = step;
  output->at_step = output->total;
  output->cpu_us_at_step = CpuMicroseconds();
  output->reserved_peak = output->reserved;
  output->blocks_peak = output->blocks;
  Trace(output, "{\"step_begin\": " + std::to_string(step) + "}");
}

void EndStep(Output* output, int64_t step) {
  const Counts& now = output->total;
  const Counts& then = output->at_step;
  const int64_t peak =
      output->blocks_watched ? output->blocks_peak : output->reserved_peak;
  Report(output,
         "{\"step\": " + std::to_string(step) +
             Field("works", now.works - then.works) +
             Field("launches", now.launches - then.launches) +
             Field("waits", now.waits - then.waits) +
             Field("polls", now.polls - then.polls) +
             Field("mallocs", now.mallocs - then.mallocs) +
             Field("frees", now.frees - then.frees) +
             ", \"flops\": " + Number(now.flops - then.flops) +
             Field("bytes", now.bytes - then.bytes) +
             Field("bytes_sent", now.bytes_sent - then.bytes_sent) +
             Field("peak_bytes", peak) +
             Field("reserved_bytes", output->reserved_peak) +
             Field("mapped_bytes", output->mapped) +
             Field("cpu_us", CpuMicroseconds() - output->cpu_us_at_step) +
             (FaultCalls() < 0 ? "" : Field("fault_calls", FaultCalls())) +
             "}");
  Trace(output, "{\"step_end\": " + std::to_string(step) + "}");
  FlushLocked(output);
}

}  // namespace

std::string JsonString(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      json += code;
    } else {
      json += c;
    }
  }
  return json + "\"";
}

void NoteWork(const Work& work, int stream, int64_t graph) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  const Cost& cost = work.cost;
  ++output.total.works;
  // A graph is one launch of the host's, whatever is in it.
  if (graph == 0) output.total.launches += cost.launches;
  output.total.flops += cost.flops;
  output.total.bytes += cost.bytes_read + cost.bytes_written;
  output.total.bytes_sent += cost.bytes_sent;
  if (!Tracing()) return;
  const auto& ranges = Ranges();
  const std::string& range =
      ranges.empty() ? output.range_of_step : ranges.back();
  Trace(&output,
        "{\"work\": " + JsonString(work.name) + Field("stream", stream) +
            Field("step", output.step) + ", \"range\": " + JsonString(range) +
            ", \"flops\": " + Number(cost.flops) + ", \"unit\": \"" +
            UnitName(cost.unit) + "\"" + Field("read", cost.bytes_read) +
            Field("written", cost.bytes_written) +
            Field("launches", cost.launches) + Field("sent", cost.bytes_sent) +
            Field("ranks", cost.ranks) +
            (cost.products == 0
                 ? ""
                 : Field("products", cost.products) + Field("m", cost.m) +
                       Field("n", cost.n) + Field("k", cost.k)) +
            (graph == 0 ? "" : Field("graph", graph)) +
            (work.kernel.empty() ? ""
                                 : ", \"kernel\": " + JsonString(work.kernel)) +
            "}");
}

void NoteCopy(const char* direction, int64_t bytes, int stream) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.works;
  Trace(&output, std::string("{\"copy\": \"") + direction + "\"" +
                     Field("bytes", bytes) + Field("stream", stream) +
                     Field("step", output.step) + "}");
}

void NoteGraphLaunch(int64_t graph, int64_t nodes, int stream) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.launches;
  Trace(&output, "{\"graph_launch\": " + std::to_string(graph) +
                     Field("nodes", nodes) + Field("stream", stream) +
                     Field("step", output.step) + "}");
}

void NoteRecord(int64_t event, int stream) {
  if (!Tracing()) return;
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  Trace(&output, "{\"record\": " + std::to_string(event) +
                     Field("stream", stream) + "}");
}

void NoteWaitEvent(int64_t event, int stream) {
  if (!Tracing()) return;
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  Trace(&output, "{\"wait_event\": " + std::to_string(event) +
                     Field("stream", stream) + "}");
}

namespace {

// The calling thread's stack, for a list.
std::string Where() {
  std::string where;
  if (TheSettings().report.empty()) return where;
  for (const std::string& frame : Stack()) {
    where += (where.empty() ? "" : ", ") + JsonString(frame);
  }
  return where;
}

// How many ranges this thread is in up to the one that is a step; 0: in none.
thread_local size_t step_depth = 0;

}  // namespace

void NoteHostWait(const char* kind, const char* what, int64_t number,
                  int64_t behind) {
  const std::string where = Where();
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.waits;
  Report(&output, std::string("{\"wait\": \"") + kind + "\"" +
                      Field("step", output.step) +
                      (behind < 0 ? "" : Field("behind", behind)) +
                      ", \"where\": [" + where +
                      "], \"thread\": " + JsonString(ThreadName()) + "}");
  Trace(&output, std::string("{\"host_wait\": \"") + kind + "\"" +
                     (number < 0 ? "" : Field(what, number)) + "}");
}

void NotePoll(int64_t behind, bool first) {
  if (step_depth == 0) return;
  const std::string where = first ? Where() : "";
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.polls;
  if (!first) return;
  Report(&output, std::string("{\"poll\": \"event\"") +
                      Field("step", output.step) + Field("behind", behind) +
                      ", \"where\": [" + where + "]}");
}

void NoteMalloc(int64_t bytes) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.mallocs;
  Trace(&output, "{\"malloc\": " + std::to_string(bytes) + "}");
}

void NoteFree(int64_t bytes) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.frees;
  Trace(&output, "{\"free\": " + std::to_string(bytes) + "}");
}

void NoteReserved(int64_t bytes_more) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  output.reserved += bytes_more;
  output.reserved_peak = std::max(output.reserved_peak, output.reserved);
}

void NoteMapped(int64_t bytes_more) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  output.mapped += bytes_more;
}

void NoteBlocks(int64_t bytes_more) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  output.blocks_watched = true;
  output.blocks += bytes_more;
  output.blocks_peak = std::max(output.blocks_peak, output.blocks);
}

void PushRange(const std::string& name) {
  auto& ranges = Ranges();
  ranges.push_back(name);
  const bool begins = step_depth == 0 && StepOf(name) >= 0;
  if (begins) step_depth = ranges.size();
  if (step_depth == 0) return;
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  if (begins) BeginStep(&output, StepOf(name));
  output.range_of_step = name;
}

void PopRange() {
  auto& ranges = Ranges();
  if (ranges.empty()) return;
  const int64_t step = StepOf(ranges.back());
  ranges.pop_back();
  if (step_depth == 0) return;
  const bool ends = ranges.size() < step_depth;
  if (ends) step_depth = 0;
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  output.range_of_step = ends ? "" : ranges.back();
  if (ends) EndStep(&output, step);
}

void ReportFinding(const std::string& kind, const std::string& text) {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  ++output.total.findings;
  Report(&output, "{\"finding\": " + JsonString(kind) + ", \"text\": " +
                      JsonString(text) + Field("step", output.step) + "}");
  std::fprintf(stderr, "stand-in device: %s: %s\n", kind.c_str(), text.c_str());
}

void ReportFault(const std::string& kind) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string where = Where();
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  Report(&output,
         "{\"fault\": " + JsonString(kind) + Field("step", output.step) +
             Field("at_ms", now.tv_sec * 1000 + now.tv_nsec / 1000000) +
             ", \"where\": [" + where + "]}");
}

void ReportOnce(const std::string& kind, const std::string& key,
                const std::string& text) {
  {
    Output& output = TheOutput();
    std::lock_guard lock(output.mutex);
    if (!output.reported.insert(kind + ' ' + key).second) return;
  }
  ReportFinding(kind, text);
}

void FlushTrace() {
  Output& output = TheOutput();
  std::lock_guard lock(output.mutex);
  FlushLocked(&output);
}

}  // namespace capstan::standin
