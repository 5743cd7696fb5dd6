// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "testing/standin/device.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan::standin {
namespace {

using GraphsTest = InAllOrders;

INSTANTIATE_TEST_SUITE_P(Orders, GraphsTest, ::testing::ValuesIn(Orders()));

cudaGraphExec_t Instantiated(cudaGraph_t graph) {
  cudaGraphExec_t launchable = nullptr;
  CAPSTAN_CHECK_CUDA(cudaGraphInstantiateWithFlags(&launchable, graph, 0));
  CAPSTAN_CHECK_CUDA(cudaGraphDestroy(graph));
  return launchable;
}

// a = a + 1 on `stream`; b = a + 10 on `side`; a = a + b on `stream`, of which
// the last is left to a work that reads both.
cudaGraphExec_t Forked(float* a, float* b, cudaStream_t stream,
                       cudaStream_t side) {
  const cudaEvent_t fork = NewEvent();
  const cudaEvent_t join = NewEvent();
  CAPSTAN_CHECK_CUDA(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Add("one", a, a, 8, 1, stream);
  CAPSTAN_CHECK_CUDA(cudaEventRecord(fork, stream));
  CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, fork, 0));
  Add("ten", b, a, 8, 10, side);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CAPSTAN_CHECK_CUDA(cudaStreamIsCapturing(side, &status));
  CAPSTAN_CHECK(status == cudaStreamCaptureStatusActive);
  CAPSTAN_CHECK_CUDA(cudaEventRecord(join, side));
  CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(stream, join, 0));
  Add("hundred", b, b, 8, 100, stream);
  cudaGraph_t graph = nullptr;
  CAPSTAN_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CAPSTAN_CHECK_CUDA(cudaStreamIsCapturing(side, &status));
  CAPSTAN_CHECK(status == cudaStreamCaptureStatusNone);
  size_t nodes = 0;
  CAPSTAN_CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CAPSTAN_CHECK(nodes == 3);
  return Instantiated(graph);
}

TEST_P(GraphsTest, EachLaunchRunsItAnew) {
  const Outcome outcome = RunWell([] {
    float* const a = DeviceFloats(8);
    float* const b = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaStream_t side = NewStream();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, stream));
    const cudaGraphExec_t graph = Forked(a, b, stream, side);
    CAPSTAN_CHECK(Value(a, stream) == 0);  // capturing runs nothing
    for (int i = 0; i < 3; ++i) {
      CAPSTAN_CHECK_CUDA(cudaGraphLaunch(graph, stream));
    }
    CAPSTAN_CHECK(Value(a, stream) == 3);
    CAPSTAN_CHECK(Value(b, stream) == 113);
    CAPSTAN_CHECK_CUDA(cudaGraphExecDestroy(graph));
  });
  EXPECT_NE(outcome.trace.find("{\"graph_launch\": 1, \"nodes\": 3"),
            std::string::npos);
}

// What a launch touches takes part in races as any work does.
TEST_P(GraphsTest, LaunchesRace) {
  const Outcome outcome = RunOnStandin(GetParam(), [] {
    float* const a = DeviceFloats(8);
    float* const b = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaStream_t side = NewStream();
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, stream));
    const cudaGraphExec_t graph = Forked(a, b, stream, side);
    CAPSTAN_CHECK_CUDA(cudaGraphLaunch(graph, stream));
    Add("use", b, b, 8, 0, side);
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
  });
  EXPECT_NE(outcome.Count("\"race\""), 0) << outcome.report;
}

TEST_P(GraphsTest, ARaceWithinAGraph) {
  const Outcome outcome = RunOnStandin(GetParam(), [] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaStream_t side = NewStream();
    const cudaEvent_t fork = NewEvent();
    const cudaEvent_t join = NewEvent();
    CAPSTAN_CHECK_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(fork, stream));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, fork, 0));
    Add("first", a, a, 8, 1, stream);
    Add("second", a, a, 8, 1, side);
    CAPSTAN_CHECK_CUDA(cudaEventRecord(join, side));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(stream, join, 0));
    cudaGraph_t graph = nullptr;
    CAPSTAN_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.Count("\"race\""), 0) << outcome.report;
}

TEST_P(GraphsTest, StreamsMustBeJoined) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaStream_t side = NewStream();
    const cudaEvent_t fork = NewEvent();
    CAPSTAN_CHECK_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CAPSTAN_CHECK_CUDA(cudaEventRecord(fork, stream));
    CAPSTAN_CHECK_CUDA(cudaStreamWaitEvent(side, fork, 0));
    Add("lost", a, a, 8, 1, side);
    cudaGraph_t graph = nullptr;
    CAPSTAN_CHECK_ERROR(cudaStreamEndCapture(stream, &graph),
                        cudaErrorStreamCaptureUnjoined);
  });
}

// Each of these ends a capture.
TEST_P(GraphsTest, WhatCapturesForbid) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    const cudaStream_t other = NewStream();
    const cudaEvent_t outside = NewEvent();
    CAPSTAN_CHECK_CUDA(cudaEventRecord(outside, other));
    float host = 0;
    void* memory = nullptr;
    const std::vector<std::pair<std::function<cudaError_t()>, cudaError_t>>
        forbidden = {
            {[&] { return cudaStreamSynchronize(stream); },
             cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaStreamQuery(stream); },
             cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaDeviceSynchronize(); },
             cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaMalloc(&memory, 512); },
             cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaFree(a); }, cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaEventQuery(outside); },
             cudaErrorStreamCaptureUnsupported},
            {[&] {
               return cudaMemcpyAsync(&host, a, 4, cudaMemcpyDefault, stream);
             },
             cudaErrorStreamCaptureUnsupported},
            {[&] { return cudaStreamWaitEvent(stream, outside, 0); },
             cudaErrorStreamCaptureIsolation},
        };
    for (const auto& [call, error] : forbidden) {
      CAPSTAN_CHECK_CUDA(
          cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      CAPSTAN_CHECK(call() == error);
      CAPSTAN_CHECK_ERROR(cudaMemsetAsync(a, 0, 4, stream),
                          cudaErrorStreamCaptureInvalidated);
      cudaGraph_t graph = nullptr;
      CAPSTAN_CHECK_ERROR(cudaStreamEndCapture(stream, &graph),
                          cudaErrorStreamCaptureInvalidated);
      CAPSTAN_CHECK(graph == nullptr);
      CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 4, stream));
      CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stream));
    }
  });
}

TEST_P(GraphsTest, ModesSayWhoseCallsAreForbidden) {
  RunWell([] {
    const cudaStream_t stream = NewStream();
    void* memory = nullptr;
    cudaGraph_t graph = nullptr;
    // Another thread's call matters in the global mode alone.
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
      CAPSTAN_CHECK_CUDA(cudaStreamBeginCapture(stream, mode));
      std::thread([&] {
        CAPSTAN_CHECK((cudaMalloc(&memory, 512) == cudaSuccess) ==
                      (mode == cudaStreamCaptureModeThreadLocal));
      }).join();
      CAPSTAN_CHECK((cudaStreamEndCapture(stream, &graph) == cudaSuccess) ==
                    (mode == cudaStreamCaptureModeThreadLocal));
    }
    // As LibTorch's allocator does.
    CAPSTAN_CHECK_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CAPSTAN_CHECK_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CAPSTAN_CHECK_CUDA(cudaMalloc(&memory, 512));
    CAPSTAN_CHECK_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CAPSTAN_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  });
}

TEST_P(GraphsTest, LegacyStream) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    cudaStream_t blocking = nullptr;
    CAPSTAN_CHECK_CUDA(cudaStreamCreate(&blocking));
    CAPSTAN_CHECK_ERROR(
        cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
        cudaErrorStreamCaptureUnsupported);
    CAPSTAN_CHECK_CUDA(
        cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
    CAPSTAN_CHECK_ERROR(cudaMemsetAsync(a, 0, 4, nullptr),
                        cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph = nullptr;
    CAPSTAN_CHECK_ERROR(cudaStreamEndCapture(blocking, &graph),
                        cudaErrorStreamCaptureInvalidated);
  });
}

// A collective in a graph whose peers aren't there yet.
TEST_P(GraphsTest, ANodeThatCantGoOn) {
  RunWell([] {
    float* const a = DeviceFloats(8);
    const cudaStream_t stream = NewStream();
    static int tries = 0;
    CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 32, stream));
    CAPSTAN_CHECK_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    Work work;
    work.name = "collective";
    work.run = [] {
      return ++tries % 4 == 0 ? Progress::kDone : Progress::kNotYet;
    };
    CAPSTAN_CHECK(Enqueue(stream, work) == 0);
    Add("after", a, a, 8, 1, stream);
    cudaGraph_t graph = nullptr;
    CAPSTAN_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    const cudaGraphExec_t launchable = Instantiated(graph);
    CAPSTAN_CHECK_CUDA(cudaGraphLaunch(launchable, stream));
    CAPSTAN_CHECK_CUDA(cudaGraphLaunch(launchable, stream));
    CAPSTAN_CHECK(Value(a, stream) == 2);
    CAPSTAN_CHECK(tries == 8);
  });
}

}  // namespace
}  // namespace capstan::standin
