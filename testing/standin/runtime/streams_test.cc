// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and copies: what CUDA promises holds in all orders, and what
// it doesn't promise isn't so.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "testing/standin/device.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan::standin {
namespace {

INSTANTIATE_TEST_SUITE_P(Orders, InAllOrders, ::testing::ValuesIn(Orders()));

TEST_P(InAllOrders, AStreamKeepsItsOrder) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, stream));
    for (int i = 0; i < 100; ++i) Add("add", a, a, 8, 1, stream);
    CAPSTAN_CHECK(Value(a, stream) == 100);
  });
}

TEST_P(InAllOrders, AnEventOrdersStreams) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    float* const b = DeviceFloats(8);
    const cudaStream_t first = NewStream();
    const cudaStream_t second = NewStream();
    const cudaEvent_t event = NewEvent();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, first));
    Add("make", a, a, 8, 3, first);
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, first));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(second, event, 0));
    Add("use", b, a, 8, 1, second);
    CAPSTAN_CHECK(Value(b, second) == 4);
  });
}

TEST_P(InAllOrders, AnEventIsItsLastRecordAtTheWait) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t first = NewStream();
    const cudaStream_t second = NewStream();
    const cudaEvent_t event = NewEvent();
    // Never recorded: done, and nothing to wait for.
    CAPSTAN_CHECK_CUDA(cudaEventQuery(event));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(second, event, 0));
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, first));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, first));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(second, event, 0));
    Add("add", a, a, 8, 1, second);
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, second));
    CAPSTAN_CHECK_CUDA(cudaEventDestroy(event));  // is done when it's done
    CAPSTAN_CHECK(Value(a, second) == 1);
  });
}

TEST_P(InAllOrders, TheLegacyStreamIsOrderedWithBlockingOnes) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    cudaStream_t blocking = nullptr;
    CAPSTAN_CHECK_CUDA(cudaStreamCreate(&blocking));
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, nullptr));
    Add("one", a, a, 8, 1, blocking);
    Add("two", a, a, 8, 1, nullptr);
    Add("three", a, a, 8, 1, blocking);
    CAPSTAN_CHECK(Value(a, nullptr) == 3);
  });
}

TEST_P(InAllOrders, APageableSourceMayBeReusedAtOnce) {
  RunWell([] {
    float* const a = DeviceFloats(1024);
    std::vector<float> host(1024, 5);
    const cudaStream_t stream = NewStream();
    CAPSTAN_CHECK_CUDA(
        cudaMemcpyAsync(a, host.data(), 4096, cudaMemcpyHostToDevice, stream));
    host.assign(1024, 6);
    CAPSTAN_CHECK(Value(a, stream) == 5);
  });
}

TEST_P(InAllOrders, APageableTargetIsThereAtTheReturn) {
  const Outcome outcome = RunWell([] {
    float* const a = DeviceFloats(8);
    CAPSTAN_CHECK_CUDA(cudaMemset(a, 0, 32));
    CAPSTAN_CHECK(Value(a, nullptr) == 0);
  });
  EXPECT_EQ(outcome.Count("{\"wait\": \"pageable_copy\""), 1);
}

TEST_P(InAllOrders, PinnedMemoryIsThereAfterAWait) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    float* const pinned = PinnedFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaEvent_t event = NewEvent();
    pinned[0] = 7;
    CAPSTAN_CHECK_CUDA(
        cudaMemcpyAsync(a, pinned, 32, cudaMemcpyDefault, stream));
    Add("add", a, a, 8, 1, stream);
    CAPSTAN_CHECK_CUDA(
        cudaMemcpyAsync(pinned, a, 32, cudaMemcpyDefault, stream));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, stream));
    // sleeps: polls
    while (cudaEventQuery(event) == cudaErrorNotReady) usleep(100);
    CAPSTAN_CHECK(pinned[0] == 8);
    pinned[0] = 1;
  });
}

TEST_P(InAllOrders, CopiesOfMemoryOfTheHost) {
  RunWell([] {
    float* const a = DeviceFloats(4);
    const float source[6] = {1, 2, 9, 3, 4, 9};
    float target[4] = {0, 0, 0, 0};
    CAPSTAN_CHECK_CUDA(
        cudaMemcpy2DAsync(a, 8, source, 12, 8, 2, cudaMemcpyDefault, nullptr));
    CAPSTAN_CHECK_CUDA(cudaMemcpy(target, a, 16, cudaMemcpyDeviceToHost));
    CAPSTAN_CHECK(target[0] == 1 && target[1] == 2 && target[2] == 3 &&
                  target[3] == 4);
    CAPSTAN_CHECK_ERROR(cudaMemcpy(a, target, 16, cudaMemcpyDeviceToHost),
                        cudaErrorInvalidValue);
    CAPSTAN_CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
    CAPSTAN_CHECK_CUDA(cudaGetLastError());
  });
}

TEST_P(InAllOrders, AWorkThatCantGoOnHoldsUpNobodyElse) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stuck = NewStream();
    const cudaStream_t other = NewStream();
    static std::atomic<bool> go{false};
    Work work;
    work.name = "collective";
    work.run = [] { return go ? Progress::kDone : Progress::kNotYet; };
    CAPSTAN_CHECK(Enqueue(stuck, work) == 0);
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, other));
    Add("add", a, a, 8, 1, other);
    CAPSTAN_CHECK(Value(a, other) == 1);
    CAPSTAN_CHECK_ERROR(cudaStreamQuery(stuck), cudaErrorNotReady);
    go = true;
    CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stuck));
    CAPSTAN_CHECK_CUDA(cudaStreamQuery(stuck));
  });
}

TEST_P(InAllOrders, WorksRunThoughNothingWaits) {
  RunWell([] {
    static std::atomic<bool> ran{false};
    CAPSTAN_CHECK_CUDA(cudaLaunchHostFunc(
        NewStream(), [](void*) { ran = true; }, nullptr));
    // sleeps: polls
    for (int i = 0; i < 30000 && !ran; ++i) usleep(1000);
    CAPSTAN_CHECK(ran);
  });
}

TEST_P(InAllOrders, EventsMeasureTime) {
  RunWell([] {
    const cudaStream_t stream = NewStream();
    const cudaEvent_t from = NewEvent();
    const cudaEvent_t to = NewEvent();
    CAPSTAN_CHECK_CUDA(cudaEventRecord(from, stream));
    CAPSTAN_CHECK_CUDA(cudaLaunchHostFunc(
        // sleeps: a slow work
        stream, [](void*) { usleep(20000); }, nullptr));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(to, stream));
    CAPSTAN_CHECK_CUDA(cudaEventSynchronize(to));
    float milliseconds = 0;
    CAPSTAN_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, from, to));
    CAPSTAN_CHECK(milliseconds >= 19.9f && milliseconds < 5000);
  });
}

// Two streams may use one buffer if one of them has been waited for.
TEST_P(InAllOrders, WhatTheHostHasSeenIsOrdered) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t first = NewStream();
    const cudaStream_t second = NewStream();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, first));
    CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(first));
    Add("add", a, a, 8, 1, second);
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    Add("again", a, a, 8, 1, first);
    CAPSTAN_CHECK(Value(a, first) == 2);
  });
}

TEST_P(InAllOrders, MoreWorksThanAQueueHolds) {
  RunWell([] {
    float* const a = DeviceFloats(1);
    const cudaStream_t stream = NewStream();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 4, stream));
    for (int i = 0; i < 20000; ++i) Add("add", a, a, 1, 1, stream);
    CAPSTAN_CHECK(Value(a, stream) == 20000);
  });
}

TEST(LateTest, NothingRunsBeforeItMust) {
  const Outcome outcome = RunOnStandin("order=late,idle_ms=60000", [] {
    float* const a = DeviceFloats(8);
    const cudaStream_t waited = NewStream();
    const cudaStream_t other = NewStream();
    static int ran = 0;
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, waited));
    CAPSTAN_CHECK_CUDA(cudaLaunchHostFunc(
        other, [](void*) { ++ran; }, nullptr));
    CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(waited));
    CAPSTAN_CHECK(ran == 0);
    CAPSTAN_CHECK_ERROR(cudaStreamQuery(other), cudaErrorNotReady);
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    CAPSTAN_CHECK(ran == 1);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(EagerTest, EverythingRunsAtOnce) {
  const Outcome outcome = RunOnStandin("order=eager", [] {
    static int ran = 0;
    CAPSTAN_CHECK_CUDA(cudaLaunchHostFunc(
        NewStream(), [](void*) { ++ran; }, nullptr));
    CAPSTAN_CHECK(ran == 1);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(PaperTest, NothingRunsAndTheHostReadsZeros) {
  const Outcome outcome = RunOnStandin("paper,gpu=b200", [] {
    // Far more than the machine has.
    float* const a = DeviceFloats(int64_t{40} << 30);
    Work work;
    work.name = "never";
    work.run = []() -> Progress { std::abort(); };
    CAPSTAN_CHECK(Enqueue(nullptr, work) == 0);
    CAPSTAN_CHECK(OnPaper());
    float value = 3;
    CAPSTAN_CHECK_CUDA(cudaMemcpy(&value, a, 4, cudaMemcpyDeviceToHost));
    CAPSTAN_CHECK(value == 0);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.trace.find("{\"work\": \"never\""), std::string::npos);
}

}  // namespace
}  // namespace capstan::standin
