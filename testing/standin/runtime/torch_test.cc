// SPDX-License-Identifier: Apache-2.0
//
// The bugs of planted_test.cc as a program of LibTorch has them: with its own
// streams, caching allocators and CUDA graphs. Started by run.sh.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

#include <string>

#include "testing/standin/runtime/standin_testing.h"

namespace capstan::standin {
namespace {

using at::Tensor;

class TorchTest : public ::testing::TestWithParam<std::string> {
 protected:
  Outcome Run(const std::function<void()>& body,
              const std::string& more = "memory=1G") {
    return RunOnStandin(GetParam() + "," + more, [&] {
      at::globalContext().lazyInitDevice(at::kCUDA);
      body();
      // LibTorch's own end isn't what is tested.
      std::fflush(nullptr);
      cudaDeviceSynchronize();
      _exit(0);
    });
  }
  void ExpectClean(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.Findings(), "") << outcome.report;
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, TorchTest, ::testing::ValuesIn(Orders()));

const at::TensorOptions kOnGpu = at::TensorOptions().device(at::kCUDA);

// A tensor of the default stream is read on another one and freed; its memory
// goes to the next tensor.
void UseOnASideStream(bool record_stream) {
  const auto compute = c10::cuda::getCurrentCUDAStream();
  const auto side = c10::cuda::getStreamFromPool();
  Tensor result;
  {
    const Tensor made = at::ones({1024}, kOnGpu);
    at::cuda::CUDAEvent event;
    event.record(compute);
    event.block(side);
    const c10::cuda::CUDAStreamGuard guard(side);
    result = made.mul(3);
    if (record_stream) made.record_stream(side);
  }
  const Tensor next = at::zeros({1024}, kOnGpu);
  CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(side.stream()));
  CAPSTAN_CHECK(!record_stream || result.cpu().eq(3).all().item<bool>());
}

TEST_P(TorchTest, MissingRecordStream) {
  const Outcome outcome = Run([] { UseOnASideStream(false); });
  EXPECT_NE(outcome.Count("allocator::free on stream 0 of device 0 gives back "
                          "what aten::mul"),
            0)
      << outcome.report << outcome.output;
  ExpectClean(Run([] { UseOnASideStream(true); }));
}

TEST_P(TorchTest, MissingEvent) {
  const auto body = [](bool event_there) {
    const auto side = c10::cuda::getStreamFromPool();
    const Tensor made = at::ones({1024}, kOnGpu);
    if (event_there) {
      at::cuda::CUDAEvent event;
      event.record(c10::cuda::getCurrentCUDAStream());
      event.block(side);
    }
    const c10::cuda::CUDAStreamGuard guard(side);
    const Tensor result = made.mul(3);
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
  };
  EXPECT_NE(Run([&] { body(false); }).Count("\"race\""), 0);
  ExpectClean(Run([&] { body(true); }));
}

TEST_P(TorchTest, HostDereference) {
  const Outcome outcome = Run([] {
    const Tensor a = at::ones({8}, kOnGpu);
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    CAPSTAN_CHECK(
        *static_cast<const volatile float*>(a.const_data_ptr<float>()) == 1);
  });
  EXPECT_EQ(outcome.status, -SIGSEGV);
  EXPECT_EQ(outcome.Findings(), "host_access") << outcome.report;
}

TEST_P(TorchTest, Item) {
  const auto waits = [&](bool item) {
    const Outcome outcome = Run([=] {
      const Tensor a = at::ones({8}, kOnGpu);
      const Tensor b = a.add(1).mul(2);
      if (item) CAPSTAN_CHECK(b[3].item<float>() == 4);
    });
    ExpectClean(outcome);
    return outcome.Count("\"wait\"");
  };
  EXPECT_GT(waits(true), waits(false));
}

TEST_P(TorchTest, PinnedResultReadTooEarly) {
  const auto body = [](bool wait) {
    const Tensor a = at::ones({1024}, kOnGpu);
    const Tensor back =
        at::empty({1024}, at::TensorOptions().pinned_memory(true));
    back.copy_(a, /*non_blocking=*/true);
    if (wait) CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    const float value =
        *static_cast<const volatile float*>(back.const_data_ptr<float>());
    CAPSTAN_CHECK(!wait || value == 1);
  };
  const Outcome outcome = Run([&] { body(false); });
  if (GetParam() == "order=late") {
    EXPECT_EQ(outcome.Findings(), "host_access") << outcome.report;
  }
  ExpectClean(Run([&] { body(true); }));
}

TEST_P(TorchTest, OutOfMemory) {
  ExpectClean(Run(
      [] {
        bool out_of_memory = false;
        try {
          const Tensor a = at::empty({64 << 20}, kOnGpu);
        } catch (const c10::OutOfMemoryError&) {
          out_of_memory = true;
        }
        CAPSTAN_CHECK(out_of_memory);
        const Tensor small = at::ones({8}, kOnGpu);
        CAPSTAN_CHECK(small.sum().item<float>() == 8);
      },
      "memory=64M"));
}

// Replays of a graph, whose memory LibTorch keeps in a pool of its own.
TEST_P(TorchTest, Graphs) {
  ExpectClean(Run([] {
    const Tensor input = at::ones({256}, kOnGpu);
    Tensor output;
    at::cuda::CUDAGraph graph;
    const auto stream = c10::cuda::getStreamFromPool();
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      graph.capture_begin();
      const Tensor inner = input.mul(2);
      output = inner.add(inner).relu();
      graph.capture_end();
    }
    for (int i = 1; i <= 3; ++i) {
      input.fill_(static_cast<float>(i));
      graph.replay();
      CAPSTAN_CHECK(output.eq(4 * i).all().item<bool>());
    }
  }));
}

// The trainer's ranges are LibTorch's NVTX.
TEST_P(TorchTest, RangesOfNvtxAreSteps) {
  const Outcome outcome = Run([] {
    const Tensor a = at::ones({8}, kOnGpu);
    const auto* const ranges = torch::profiler::impl::cudaStubs();
    for (const char* step : {"step 1", "step 2"}) {
      ranges->rangePush(step);
      ranges->rangePush("forward");
      const Tensor b = a.add(1);
      ranges->rangePop();
      if (std::string(step) == "step 2") CAPSTAN_CHECK(b[0].item<float>() == 2);
      ranges->rangePop();
    }
  });
  ExpectClean(outcome);
  EXPECT_EQ(outcome.Count("{\"step\": 1, \"works\": 1, \"launches\": 1, "
                          "\"waits\": 0, "),
            1)
      << outcome.report;
  EXPECT_EQ(outcome.Count("{\"step\": 2, "), 1);
  EXPECT_EQ(outcome.Count("\"step\": 2, \"where\": [\""),
            outcome.Count("\"wait\""))
      << outcome.report;
  EXPECT_NE(outcome.trace.find("\"step\": 1, \"range\": \"forward\""),
            std::string::npos)
      << outcome.trace;
}

// What PyTorch's users know: a wait within a capture ends it.
TEST_P(TorchTest, ItemWithinACapture) {
  ExpectClean(Run([] {
    const Tensor input = at::ones({256}, kOnGpu);
    at::cuda::CUDAGraph graph;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    graph.capture_begin();
    bool refused = false;
    try {
      input.sum().item<float>();
    } catch (const c10::Error&) {
      refused = true;
    }
    CAPSTAN_CHECK(refused);
    _exit(0);  // the graph is in no state to be destroyed
  }));
}

}  // namespace
}  // namespace capstan::standin
