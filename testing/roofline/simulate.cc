// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/simulate.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace capstan {
namespace {

// A rank: its host and its device.
class Machine {
 public:
  // What takes no time, to see what it costs.
  struct Free {
    bool host = false;
    bool collectives = false;
  };

  Machine(const GpuSpecs& gpu, const RooflineAssumptions& assumed, Free free)
      : gpu_(gpu), assumed_(assumed), free_(free) {}

  void Do(const TracedStep& step) {
    for (const TraceEntry& entry : step.entries) Do(entry);
  }
  // When all that was enqueued is done, and the host has got there.
  double Now() const {
    double now = host_;
    for (const auto& [stream, state] : streams_) now = std::max(now, state.end);
    return now;
  }
  // Seconds of work by stream.
  double MostBusy() const {
    double most = 0.0;
    for (const auto& [stream, state] : streams_) {
      most = std::max(most, state.busy);
    }
    return most;
  }

 private:
  struct Stream {
    double end = 0.0;  // of what was enqueued so far
    double busy = 0.0;
  };

  void Do(const TraceEntry& entry);
  void Spend(double seconds) {
    if (!free_.host) host_ += seconds;
  }
  void Work(const TraceEntry& entry);
  // Seconds of [begin, end) in which a collective that is known runs.
  double BesideCollectives(double begin, double end) const;
  void HostWait(const TraceEntry& entry);

  const GpuSpecs& gpu_;
  const RooflineAssumptions assumed_;
  const Free free_;
  double host_ = 0.0;
  std::map<int64_t, Stream> streams_;
  std::map<int64_t, double> events_;                    // when each came last
  std::vector<std::pair<double, double>> collectives_;  // begin and end of each
};

double Machine::BesideCollectives(double begin, double end) const {
  double beside = 0.0;
  for (auto one = collectives_.rbegin();
       one != collectives_.rend() && one->second > begin; ++one) {
    beside +=
        std::max(0.0, std::min(end, one->second) - std::max(begin, one->first));
  }
  return beside;
}

void Machine::Work(const TraceEntry& entry) {
  const bool collective = entry.ranks > 1;
  // The host has paid for a graph's works with the graph.
  if (entry.graph == 0) {
    Spend(assumed_.enqueue *
          static_cast<double>(std::max<int64_t>(1, entry.launches)));
  }
  Stream& stream = streams_[entry.stream];
  const double begin = std::max(stream.end, host_);
  double seconds = collective && free_.collectives
                       ? 0.0
                       : TimeOf(entry, gpu_, assumed_).seconds;
  if (collective) {
    collectives_.emplace_back(begin, begin + seconds);
  } else {
    const double share = assumed_.collective_share;
    seconds += share / (1 - share) * BesideCollectives(begin, begin + seconds);
  }
  stream.end = begin + seconds;
  stream.busy += seconds;
}

void Machine::HostWait(const TraceEntry& entry) {
  double until = host_;
  if (entry.event >= 0) {
    until = std::max(until, events_[entry.event]);
  } else if (entry.stream >= 0) {
    until = std::max(until, streams_[entry.stream].end);
  } else {
    until = Now();
  }
  host_ = until;
  Spend(assumed_.host_wait);
}

void Machine::Do(const TraceEntry& entry) {
  switch (entry.kind) {
    case TraceKind::kWork:
    case TraceKind::kCopy:
      Work(entry);
      break;
    case TraceKind::kGraphLaunch:
      Spend(assumed_.enqueue_graph);
      break;
    case TraceKind::kRecord:
      Spend(assumed_.enqueue_event);
      events_[entry.event] = std::max(streams_[entry.stream].end, host_);
      break;
    case TraceKind::kWaitEvent: {
      Spend(assumed_.enqueue_event);
      double& end = streams_[entry.stream].end;
      end = std::max(end, events_[entry.event]);
      break;
    }
    case TraceKind::kHostWait:
      HostWait(entry);
      break;
    case TraceKind::kMalloc:
      Spend(assumed_.allocation);
      break;
    case TraceKind::kFree:
      // cudaFree waits for the device.
      host_ = Now();
      Spend(assumed_.allocation);
      break;
  }
}

struct Run {
  double step = 0.0;
  double busy = 0.0;
};

Run RunOf(const TracedStep& step, const TracedStep* before, const GpuSpecs& gpu,
          const RooflineAssumptions& assumed, Machine::Free free) {
  Machine machine(gpu, assumed, free);
  if (before != nullptr) machine.Do(*before);
  const double began = machine.Now(), busy = machine.MostBusy();
  machine.Do(step);
  return {machine.Now() - began, machine.MostBusy() - busy};
}

}  // namespace

StepTotals TotalsOf(const TracedStep& step, const GpuSpecs& gpu,
                    const RooflineAssumptions& assumed) {
  StepTotals totals;
  for (const TraceEntry& entry : step.entries) {
    switch (entry.kind) {
      case TraceKind::kWork: {
        KernelTotal& kernel = totals.kernels[entry.name];
        ++kernel.works;
        kernel.launches += entry.launches;
        kernel.flops += entry.flops;
        kernel.bytes += static_cast<double>(entry.read + entry.written);
        kernel.sent += static_cast<double>(entry.sent);
        kernel.seconds += TimeOf(entry, gpu, assumed).seconds;
        if (entry.graph == 0) totals.launches += entry.launches;
        totals.flops += entry.flops;
        totals.bytes += static_cast<double>(entry.read + entry.written);
        totals.sent += static_cast<double>(entry.sent);
        break;
      }
      case TraceKind::kCopy: {
        KernelTotal& copy = totals.kernels["copy " + entry.name];
        ++copy.works;
        copy.bytes += static_cast<double>(entry.bytes);
        copy.seconds += TimeOf(entry, gpu, assumed).seconds;
        break;
      }
      case TraceKind::kGraphLaunch:
        ++totals.launches;
        break;
      case TraceKind::kHostWait:
        ++totals.waits;
        break;
      case TraceKind::kMalloc:
      case TraceKind::kFree:
        ++totals.allocations;
        break;
      case TraceKind::kRecord:
      case TraceKind::kWaitEvent:
        break;
    }
  }
  return totals;
}

PredictedStep Simulate(const TracedStep& step, const TracedStep* before,
                       const GpuSpecs& gpu,
                       const RooflineAssumptions& assumed) {
  PredictedStep predicted;
  const auto run = [&](Machine::Free free) {
    return RunOf(step, before, gpu, assumed, free);
  };
  const Run all = run({});
  predicted.step = all.step;
  predicted.busy = all.busy;
  predicted.exposed_communication = std::max(
      0.0, all.step - run({/*host=*/false, /*collectives=*/true}).step);
  predicted.exposed_host = std::max(
      0.0, all.step - run({/*host=*/true, /*collectives=*/false}).step);
  for (const TraceEntry& entry : step.entries) {
    if (entry.kind != TraceKind::kWork && entry.kind != TraceKind::kCopy) {
      continue;
    }
    const WorkTime time = TimeOf(entry, gpu, assumed);
    if (entry.ranks > 1) {
      predicted.communication += time.seconds;
    } else if (time.bound == Bound::kArithmetic) {
      predicted.by_arithmetic += time.seconds;
    } else if (time.bound == Bound::kOverhead) {
      predicted.by_overhead += time.seconds;
    } else {
      predicted.by_memory += time.seconds;
    }
  }
  return predicted;
}

}  // namespace capstan
