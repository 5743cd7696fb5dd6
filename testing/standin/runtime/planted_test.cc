// SPDX-License-Identifier: Apache-2.0
//
// Bugs of the kinds that real CUDA programs have, each beside the same program
// without it. The first must be caught in all orders of execution, the second
// must report nothing. testing/standin/README.md lists them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>

#include "testing/standin/device.h"
#include "testing/standin/runtime/blocks.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan::standin {
namespace {

class Planted : public ::testing::TestWithParam<std::string> {
 protected:
  Outcome Run(const std::function<void()>& body) {
    return RunOnStandin(GetParam() + ",memory=64M", body);
  }
  void ExpectClean(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.Findings(), "") << outcome.report;
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, Planted, ::testing::ValuesIn(Orders()));

// A stream uses what another one makes.
void TwoStreams(bool with_event) {
  float* const a = DeviceFloats(1024);
  float* const b = DeviceFloats(1024);
  const cudaStream_t compute = NewStream();
  const cudaStream_t side = NewStream();
  const cudaEvent_t event = NewEvent();
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 4096, compute));
  Add("gradient", a, a, 1024, 2, compute);
  CAPSTAN_CHECK_CUDA(cudaEventRecord(event, compute));
  if (with_event) CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, event, 0));
  Add("reduce", b, a, 1024, 1, side);
  CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
}

TEST_P(Planted, MissingEvent) {
  const Outcome outcome = Run([] { TwoStreams(false); });
  EXPECT_EQ(outcome.Findings(), "race") << outcome.report;
  EXPECT_EQ(outcome.Count("reduce on stream 2 of device 0 reads what gradient "
                          "on stream 1 of device 0 writes"),
            1)
      << outcome.report;
  ExpectClean(Run([] { TwoStreams(true); }));
}

// An event that was recorded too early: before the work that matters.
void EventBeforeTheWork(bool early) {
  float* const a = DeviceFloats(64);
  float* const b = DeviceFloats(64);
  const cudaStream_t compute = NewStream();
  const cudaStream_t side = NewStream();
  const cudaEvent_t event = NewEvent();
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 256, compute));
  if (early) CAPSTAN_CHECK_CUDA(cudaEventRecord(event, compute));
  Add("step", a, a, 64, 2, compute);
  if (!early) CAPSTAN_CHECK_CUDA(cudaEventRecord(event, compute));
  CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, event, 0));
  Add("gather", b, a, 64, 1, side);
  CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
}

TEST_P(Planted, EventRecordedTooEarly) {
  EXPECT_EQ(Run([] { EventBeforeTheWork(true); }).Findings(), "race");
  ExpectClean(Run([] { EventBeforeTheWork(false); }));
}

// A block of the caching allocator, made on one stream, used on another, and
// freed. With record_stream the allocator gives it back only once an event of
// the other stream has been seen.
void BlockOnTwoStreams(bool record_stream) {
  float* const segment = DeviceFloats(1024);
  const cudaStream_t compute = NewStream();
  const cudaStream_t side = NewStream();
  const cudaEvent_t made = NewEvent();
  const cudaEvent_t used = NewEvent();
  Block block;
  block.begin = segment;
  block.bytes = 4096;
  block.stream = compute;
  BlockAllocated(block);
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(segment, 0, 4096, compute));
  CAPSTAN_CHECK_CUDA(cudaEventRecord(made, compute));
  CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, made, 0));
  float* const sum = DeviceFloats(1024);
  Add("all_reduce", sum, segment, 1024, 0, side);
  if (record_stream) {
    CAPSTAN_CHECK_CUDA(cudaEventRecord(used, side));
    CAPSTAN_CHECK_CUDA(cudaEventSynchronize(used));
  }
  BlockFreed(block);
  BlockAllocated(block);
  Add("next", segment, sum, 0, 0, compute);
  CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
}

TEST_P(Planted, MissingRecordStream) {
  const Outcome outcome = Run([] { BlockOnTwoStreams(false); });
  EXPECT_NE(outcome.Count("\"race\""), 0) << outcome.report;
  EXPECT_NE(outcome.Count("allocator::free on stream 1 of device 0 gives back "
                          "what all_reduce on stream 2 of device 0 reads"),
            0)
      << outcome.report;
  ExpectClean(Run([] { BlockOnTwoStreams(true); }));
}

void UseOfAFreedBlock(bool after) {
  float* const segment = DeviceFloats(1024);
  const cudaStream_t stream = NewStream();
  float* const result = DeviceFloats(1024);
  Block block;
  block.begin = segment;
  block.bytes = 4096;
  block.stream = stream;
  BlockAllocated(block);
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(segment, 0, 4096, stream));
  if (after) BlockFreed(block);
  Add("use", result, segment, 1024, 0, stream);
  if (!after) BlockFreed(block);
  // What it reads is poisoned, in all orders.
  CAPSTAN_CHECK(std::isnan(Value(result, stream)) == after);
}

TEST_P(Planted, UseOfABlockAfterItsFree) {
  const Outcome outcome = Run([] { UseOfAFreedBlock(true); });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.Findings(), "use_after_free") << outcome.report;
  ExpectClean(Run([] { UseOfAFreedBlock(false); }));
}

TEST_P(Planted, UseOfFreedMemory) {
  const Outcome outcome = Run([] {
    float* const a = DeviceFloats(64);
    CAPSTAN_CHECK_CUDA(cudaFree(a));
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 256, nullptr));
    CAPSTAN_CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.Findings(), "use_after_free") << outcome.report;
}

TEST_P(Planted, BeyondAnAllocationsEnd) {
  const Outcome outcome = Run([] {
    float* const a = DeviceFloats(64);
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 257, nullptr));
    CAPSTAN_CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  });
  EXPECT_EQ(outcome.Findings(), "use_after_free") << outcome.report;
}

TEST_P(Planted, HostReadsDeviceMemory) {
  const Outcome outcome = Run([] {
    float* const a = DeviceFloats(64);
    CAPSTAN_CHECK_CUDA(cudaMemset(a, 0, 256));
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    CAPSTAN_CHECK(*const_cast<volatile float*>(a) == 0);
  });
  EXPECT_EQ(outcome.status, -SIGSEGV) << outcome.output;
  EXPECT_EQ(outcome.Findings(), "host_access");
  EXPECT_EQ(outcome.Count("host code reads memory of a device"), 1)
      << outcome.report;
}

// A pinned buffer is filled again for the next batch while the copy of the
// last one may not have run yet.
void RefillPinned(bool wait) {
  float* const device = DeviceFloats(1024);
  float* const pinned = PinnedFloats(1024);
  const cudaStream_t stream = NewStream();
  const cudaEvent_t copied = NewEvent();
  for (int batch = 0; batch < 3; ++batch) {
    if (wait) CAPSTAN_CHECK_CUDA(cudaEventSynchronize(copied));
    pinned[5] = static_cast<float>(batch);
    CAPSTAN_CHECK_CUDA(
        cudaMemcpyAsync(device, pinned, 4096, cudaMemcpyHostToDevice, stream));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(copied, stream));
  }
  CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stream));
}

// What the host reads of a pinned buffer before the copy into it is done.
void ReadPinned(bool wait) {
  float* const device = DeviceFloats(1024);
  float* const pinned = PinnedFloats(1024);
  const cudaStream_t stream = NewStream();
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(device, 0, 4096, stream));
  CAPSTAN_CHECK_CUDA(
      cudaMemcpyAsync(pinned, device, 4096, cudaMemcpyDeviceToHost, stream));
  if (wait) CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stream));
  const float loss = *const_cast<volatile float*>(pinned);
  CAPSTAN_CHECK(!wait || loss == 0);
}

TEST_P(Planted, PinnedMemoryUsedTooEarly) {
  const Outcome refill = Run([] { RefillPinned(false); });
  const Outcome read = Run([] { ReadPinned(false); });
  EXPECT_EQ(refill.status, 0) << refill.output;
  EXPECT_EQ(read.status, 0) << read.output;
  // As the bug has it, it shows only where the copy is late.
  if (GetParam() == "order=late") {
    EXPECT_EQ(refill.Findings(), "host_access") << refill.report;
    EXPECT_EQ(refill.Count("the host writes pinned memory that copy h2d"), 1);
    EXPECT_EQ(read.Findings(), "host_access") << read.report;
  }
  ExpectClean(Run([] { RefillPinned(true); }));
  ExpectClean(Run([] { ReadPinned(true); }));
}

// Parts of one buffer, of which the device has only some: not a bug.
TEST_P(Planted, OtherPartsOfAPinnedBufferAreTheHosts) {
  ExpectClean(Run([] {
    float* const device = DeviceFloats(1024);
    float* const pinned = PinnedFloats(1024);
    const cudaStream_t stream = NewStream();
    for (int i = 0; i < 1024; ++i) pinned[i] = 1;
    CAPSTAN_CHECK_CUDA(
        cudaMemcpyAsync(device, pinned, 2048, cudaMemcpyHostToDevice, stream));
    pinned[512] = 7;
    CAPSTAN_CHECK_CUDA(cudaMemcpyAsync(pinned + 768, device, 1024,
                                       cudaMemcpyDeviceToHost, stream));
    CAPSTAN_CHECK(pinned[512] == 7);
    CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stream));
    CAPSTAN_CHECK(pinned[768] == 1);
  }));
}

// An `.item()` in a loop: no error, but the host waits.
void Steps(bool item) {
  float* const loss = DeviceFloats(1);
  const cudaStream_t stream = NewStream();
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(loss, 0, 4, stream));
  for (int step = 0; step < 3; ++step) {
    Add("step", loss, loss, 1, 1, stream);
    if (item)
      CAPSTAN_CHECK(Value(loss, stream) == static_cast<float>(step + 1));
  }
}

TEST_P(Planted, UnneededWait) {
  const Outcome waits = Run([] { Steps(true); });
  EXPECT_EQ(waits.Count("{\"wait\": \"pageable_copy\""), 3) << waits.report;
  // Where it waits begins outside of the runtime.
  EXPECT_EQ(waits.Count("libcudart"), 0) << waits.report;
  const Outcome none = Run([] { Steps(false); });
  EXPECT_EQ(none.Count("\"wait\""), 0) << none.report;
  ExpectClean(none);
}

}  // namespace
}  // namespace capstan::standin
