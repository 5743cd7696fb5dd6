// SPDX-License-Identifier: Apache-2.0
//
// Steps made by hand, on a GPU of round numbers.
#include "testing/roofline/simulate.h"

#include <gtest/gtest.h>

#include <string>

namespace capstan {
namespace {

constexpr double kMs = 1e-3;

// 1 PFLOP/s, 1 TB/s, links of 100 GB/s.
GpuSpecs Gpu() {
  GpuSpecs gpu = {};
  gpu.key = "test";
  gpu.bf16 = 1e15;
  gpu.fp32 = 1e14;
  gpu.bandwidth = 1e12;
  gpu.link = 100e9;
  gpu.host = 10e9;
  return gpu;
}

// All of the peaks, and a host that takes 1 ms for a launch or an event.
RooflineAssumptions Assumed() {
  RooflineAssumptions assumed;
  assumed.products = assumed.vectors = assumed.memory = assumed.links = 1.0;
  assumed.attention = 0.5;
  assumed.kernel = assumed.latencies = 0.0;
  assumed.enqueue = assumed.enqueue_event = kMs;
  assumed.host_wait = 0.0;
  assumed.in_graph = 0.0;
  assumed.enqueue_graph = kMs;
  return assumed;
}

TraceEntry Kernel(double flops, int64_t bytes, int64_t stream = 0) {
  TraceEntry entry;
  entry.name = "aten::mm";
  entry.unit = TraceUnit::kHalf;
  entry.flops = flops;
  entry.read = bytes;
  entry.launches = 1;
  entry.stream = stream;
  return entry;
}

TraceEntry Collective(int64_t sent, int64_t stream) {
  TraceEntry entry;
  entry.name = "nccl::all_reduce";
  entry.sent = sent;
  entry.ranks = 8;
  entry.stream = stream;
  return entry;
}

TraceEntry Event(TraceKind kind, int64_t event, int64_t stream) {
  TraceEntry entry;
  entry.kind = kind;
  entry.event = event;
  entry.stream = stream;
  return entry;
}

PredictedStep Predict(std::vector<TraceEntry> entries) {
  TracedStep step;
  step.entries = std::move(entries);
  return Simulate(step, nullptr, Gpu(), Assumed());
}

TEST(Roofline, LuckIsARange) {
  for (const GpuSpecs& gpu : AllGpuSpecs()) {
    SCOPED_TRACE(gpu.key);
    TracedStep step;
    step.entries = {Kernel(1e12, 1 << 20), Kernel(1e9, 1 << 30),
                    Collective(1 << 28, 1)};
    step.entries.push_back(Kernel(1e12, 1 << 20));
    step.entries.back().name = "aten::_flash_attention_forward";
    const auto seconds = [&](Luck luck) {
      return Simulate(step, nullptr, gpu, AssumptionsFor(gpu, luck)).step;
    };
    EXPECT_LT(seconds(Luck::kGood), seconds(Luck::kLikely));
    EXPECT_LT(seconds(Luck::kLikely), seconds(Luck::kBad));
    const RooflineAssumptions likely = AssumptionsFor(gpu);
    for (const double fraction :
         {likely.products, likely.attention, likely.vectors, likely.memory,
          likely.links, likely.host}) {
      EXPECT_GT(fraction, 0.2);
      EXPECT_LT(fraction, 1.0);
    }
  }
  const std::string text = AssumptionsText(*FindGpuSpecs("a100"));
  EXPECT_NE(text.find("FlashAttention-2"), std::string::npos) << text;
}

TEST(Roofline, ProductsReachWhatTheirShapeAllows) {
  const GpuSpecs& h100 = *FindGpuSpecs("h100");
  TraceEntry square = Kernel(2.0 * 8192 * 8192 * 8192, 0);
  square.product = {1, 8192, 8192, 8192};
  TraceEntry thin = square;
  thin.product = {1, 8192, 128, 64};
  const RooflineAssumptions assumed = AssumptionsFor(h100);
  EXPECT_GT(TimeOf(thin, h100, assumed).seconds,
            2 * TimeOf(square, h100, assumed).seconds);
}

TEST(Roofline, CopiesToTheHostTakeItsLink) {
  TraceEntry copy;
  copy.kind = TraceKind::kCopy;
  copy.name = "d2h";
  copy.bytes = 10'000'000;
  EXPECT_NEAR(TimeOf(copy, Gpu(), Assumed()).seconds, kMs, 1e-9);
}

TEST(Roofline, IsTheLongerOfArithmeticAndMemory) {
  // 1e13 FLOP: 10 ms; 2e10 bytes: 20 ms.
  const WorkTime memory = TimeOf(Kernel(1e13, 20e9), Gpu(), Assumed());
  EXPECT_NEAR(memory.seconds, 20 * kMs, 1e-9);
  EXPECT_EQ(memory.bound, Bound::kMemory);
  const WorkTime arithmetic = TimeOf(Kernel(3e13, 20e9), Gpu(), Assumed());
  EXPECT_NEAR(arithmetic.seconds, 30 * kMs, 1e-9);
  EXPECT_EQ(arithmetic.bound, Bound::kArithmetic);
  TraceEntry attention = Kernel(1e13, 0);
  attention.name = "aten::_flash_attention_forward";
  EXPECT_NEAR(TimeOf(attention, Gpu(), Assumed()).seconds, 20 * kMs, 1e-9);
  const WorkTime link = TimeOf(Collective(1e9, 1), Gpu(), Assumed());
  EXPECT_NEAR(link.seconds, 10 * kMs, 1e-9);
  EXPECT_EQ(link.bound, Bound::kLinks);
}

TEST(Simulation, LongKernelsHideTheHost) {
  // Launches at 1 and 2 ms; the second begins when the first is done.
  const PredictedStep step = Predict({Kernel(1e13, 0), Kernel(1e13, 0)});
  EXPECT_NEAR(step.step, 21 * kMs, 1e-9);
  EXPECT_NEAR(step.busy, 20 * kMs, 1e-9);
  EXPECT_NEAR(step.exposed_host, 1 * kMs, 1e-9);
}

TEST(Simulation, ShortKernelsWaitForTheHost) {
  const PredictedStep step = Predict({Kernel(1e10, 0), Kernel(1e10, 0)});
  EXPECT_NEAR(step.step, 2.01 * kMs, 1e-9);
  EXPECT_NEAR(step.exposed_host, 1.99 * kMs, 1e-9);
}

TEST(Simulation, StreamsOverlapUnlessEventsOrderThem) {
  EXPECT_NEAR(Predict({Kernel(1e13, 0, 0), Collective(1e9, 1)}).step, 12 * kMs,
              1e-9);
  // The collective of 10 ms after the kernel, from 11 ms on; the kernel after
  // that.
  const PredictedStep ordered =
      Predict({Kernel(1e13, 0, 0), Event(TraceKind::kRecord, 5, 0),
               Event(TraceKind::kWaitEvent, 5, 1), Collective(1e9, 1),
               Event(TraceKind::kRecord, 6, 1),
               Event(TraceKind::kWaitEvent, 6, 0), Kernel(1e13, 0, 0)});
  EXPECT_NEAR(ordered.step, 31 * kMs, 1e-9);
  EXPECT_NEAR(ordered.exposed_communication, 10 * kMs, 1e-9);
  EXPECT_NEAR(ordered.communication, 10 * kMs, 1e-9);
}

// From 1 to 11 ms; the kernel beside it, from 2 ms on, has 4/5 of the device
// for 9 ms of its 10.
TEST(Simulation, ACollectiveSlowsWhatRunsBesideIt) {
  RooflineAssumptions assumed = Assumed();
  assumed.collective_share = 0.2;
  TracedStep step;
  step.entries = {Collective(1e9, 1), Kernel(1e13, 0, 0)};
  EXPECT_NEAR(Simulate(step, nullptr, Gpu(), assumed).step, 14.25 * kMs, 1e-9);
}

TEST(Simulation, AWaitOfTheHostEmptiesTheDevice) {
  const PredictedStep step = Predict(
      {Kernel(1e13, 0), Event(TraceKind::kHostWait, -1, 0), Kernel(1e13, 0)});
  EXPECT_NEAR(step.step, 22 * kMs, 1e-9);
  // For an event that came before it waits less.
  EXPECT_NEAR(Predict({Kernel(1e13, 0), Event(TraceKind::kRecord, 1, 0),
                       Kernel(1e13, 0), Event(TraceKind::kHostWait, 1, -1),
                       Kernel(1e13, 0)})
                  .step,
              31 * kMs, 1e-9);
}

TEST(Simulation, AGraphIsOneLaunch) {
  TraceEntry launch;
  launch.kind = TraceKind::kGraphLaunch;
  launch.graph = 1;
  TraceEntry inside = Kernel(1e10, 0);
  inside.graph = 1;
  const std::vector<TraceEntry> entries = {launch, inside, inside, inside};
  EXPECT_NEAR(Predict(entries).step, 1.03 * kMs, 1e-9);
  TracedStep step;
  step.entries = entries;
  const StepTotals totals = TotalsOf(step, Gpu(), Assumed());
  EXPECT_EQ(totals.launches, 1);
  EXPECT_EQ(totals.kernels.at("aten::mm").works, 3);
}

TEST(Simulation, TheHostsLeadOfAStepBeforeCounts) {
  TracedStep step;
  step.entries = {Kernel(1e13, 0), Kernel(1e13, 0)};
  // The first launch is made while the step before still runs.
  EXPECT_NEAR(Simulate(step, &step, Gpu(), Assumed()).step, 20 * kMs, 1e-9);
}

TEST(Totals, CountWaitsAllocationsAndBytes) {
  TracedStep step;
  TraceEntry allocation;
  allocation.kind = TraceKind::kMalloc;
  allocation.bytes = 100;
  step.entries = {Kernel(5, 7), Kernel(6, 8), Collective(11, 1), allocation,
                  Event(TraceKind::kHostWait, -1, -1)};
  const StepTotals totals = TotalsOf(step, Gpu(), Assumed());
  EXPECT_EQ(totals.launches, 2);
  EXPECT_EQ(totals.flops, 11);
  EXPECT_EQ(totals.bytes, 15);
  EXPECT_EQ(totals.sent, 11);
  EXPECT_EQ(totals.waits, 1);
  EXPECT_EQ(totals.allocations, 1);
}

}  // namespace
}  // namespace capstan
