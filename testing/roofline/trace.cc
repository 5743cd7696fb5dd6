// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

int64_t Number(const Json& line, const char* field, int64_t absent = 0) {
  const auto it = line.find(field);
  return it == line.end() ? absent : it->get<int64_t>();
}

TraceEntry WorkOf(const Json& line) {
  TraceEntry entry;
  entry.name = line.at("work");
  entry.range = line.value("range", "");
  entry.graph = Number(line, "graph");
  entry.flops = line.value("flops", 0.0);
  entry.read = Number(line, "read");
  entry.written = Number(line, "written");
  entry.launches = Number(line, "launches");
  entry.sent = Number(line, "sent");
  entry.ranks = Number(line, "ranks");
  entry.product = {Number(line, "products"), Number(line, "m"),
                   Number(line, "n"), Number(line, "k")};
  absl::string_view stride = entry.range;
  if (entry.ranks > 1 && absl::ConsumePrefix(&stride, kStrideRange) &&
      !absl::SimpleAtoi(stride, &entry.stride)) {
    entry.stride = 1;
  }
  const std::string unit = line.value("unit", "vector");
  if (unit == "half") {
    entry.unit = TraceUnit::kHalf;
  } else if (unit == "tf32") {
    entry.unit = TraceUnit::kTf32;
  } else if (unit == "fp8") {
    entry.unit = TraceUnit::kFp8;
  }
  return entry;
}

// Nothing for lines that aren't calls, and for those of later formats.
absl::optional<TraceEntry> EntryOf(const Json& line) {
  TraceEntry entry;
  if (line.contains("work")) {
    entry = WorkOf(line);
  } else if (line.contains("copy")) {
    entry.kind = TraceKind::kCopy;
    entry.name = line.at("copy");
    entry.bytes = Number(line, "bytes");
  } else if (line.contains("graph_launch")) {
    entry.kind = TraceKind::kGraphLaunch;
    entry.graph = Number(line, "graph_launch");
  } else if (line.contains("record")) {
    entry.kind = TraceKind::kRecord;
    entry.event = Number(line, "record");
  } else if (line.contains("wait_event")) {
    entry.kind = TraceKind::kWaitEvent;
    entry.event = Number(line, "wait_event");
  } else if (line.contains("host_wait")) {
    entry.kind = TraceKind::kHostWait;
    entry.name = line.at("host_wait");
    entry.event = Number(line, "event", -1);
  } else if (line.contains("malloc") || line.contains("free")) {
    const bool made = line.contains("malloc");
    entry.kind = made ? TraceKind::kMalloc : TraceKind::kFree;
    entry.bytes = Number(line, made ? "malloc" : "free");
  } else {
    return absl::nullopt;
  }
  entry.stream = Number(line, "stream", -1);
  return entry;
}

// Collects the steps.
class Reader {
 public:
  void Add(const Json& line) {
    if (line.contains("step_begin")) {
      step_.emplace();
      step_->step = Number(line, "step_begin");
      peak_ = held_;
      return;
    }
    if (line.contains("step_end")) {
      if (!step_.has_value()) return;
      step_->peak_bytes = peak_;
      steps_.push_back(*std::move(step_));
      step_.reset();
      return;
    }
    absl::optional<TraceEntry> entry = EntryOf(line);
    if (!entry.has_value()) return;
    if (entry->kind == TraceKind::kMalloc) held_ += entry->bytes;
    if (entry->kind == TraceKind::kFree) held_ -= entry->bytes;
    peak_ = std::max(peak_, held_);
    if (step_.has_value()) step_->entries.push_back(*std::move(entry));
  }
  std::vector<TracedStep> Take() { return std::move(steps_); }

 private:
  std::vector<TracedStep> steps_;
  absl::optional<TracedStep> step_;
  int64_t held_ = 0, peak_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TracedStep>> ReadTrace(std::istream& in) {
  Reader reader;
  std::string line, wrong;
  int64_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (!wrong.empty()) return absl::DataLossError(wrong);
    if (line.empty()) continue;
    try {
      reader.Add(Json::parse(line));
    } catch (const Json::exception& e) {
      wrong = absl::StrCat("line ", number,
                           " of the trace can't be read: ", e.what());
    }
  }
  return reader.Take();
}

}  // namespace capstan
