// SPDX-License-Identifier: Apache-2.0
//
// Failing calls and lost devices, memory that runs out, processes that fork.
#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "testing/standin/device.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan::standin {
namespace {

void ExpectWell(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ErrorTest, TheLastErrorSticksUntilItIsAskedFor) {
  ExpectWell(RunOnStandin("", [] {
    CAPSTAN_CHECK_ERROR(cudaSetDevice(7), cudaErrorInvalidDevice);
    CAPSTAN_CHECK_CUDA(cudaSetDevice(0));
    CAPSTAN_CHECK_ERROR(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    CAPSTAN_CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
    CAPSTAN_CHECK_CUDA(cudaGetLastError());
    CAPSTAN_CHECK(std::strcmp(cudaGetErrorName(cudaErrorMemoryAllocation),
                              "cudaErrorMemoryAllocation") == 0);
  }));
}

class LostTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Orders, LostTest, ::testing::ValuesIn(Orders()));

TEST_P(LostTest, AnExceptionInAWorkLosesTheDevice) {
  const Outcome outcome = RunOnStandin(GetParam(), [] {
    float* const a = DeviceFloats(8);
    Work work;
    work.name = "gather";
    work.run = []() -> Progress { throw std::runtime_error("index 9 of 8"); };
    CAPSTAN_CHECK(Enqueue(nullptr, work) == 0);
    CAPSTAN_CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    // From now on all calls, and asking for the error doesn't clear it.
    CAPSTAN_CHECK_ERROR(cudaGetLastError(), cudaErrorLaunchFailure);
    CAPSTAN_CHECK_ERROR(cudaGetLastError(), cudaErrorLaunchFailure);
    CAPSTAN_CHECK_ERROR(cudaMemsetAsync(a, 0, 4, nullptr),
                        cudaErrorLaunchFailure);
    CAPSTAN_CHECK_ERROR(cudaFree(a), cudaErrorLaunchFailure);
    CAPSTAN_CHECK_ERROR(cudaSetDevice(0), cudaErrorLaunchFailure);
    int device = 1;
    CAPSTAN_CHECK_CUDA(cudaGetDevice(&device));
    CAPSTAN_CHECK(device == 0);
  });
  ExpectWell(outcome);
  EXPECT_EQ(outcome.Findings(), "failed_work");
  EXPECT_EQ(outcome.Count("gather: index 9 of 8"), 1) << outcome.report;
}

TEST_P(LostTest, AFailingLaunch) {
  const Outcome outcome = RunOnStandin(GetParam() + ",fault=launch:3", [] {
    float* const a = DeviceFloats(8);
    CAPSTAN_CHECK_CUDA(cudaMemset(a, 0, 32));  // is no launch
    Add("first", a, a, 8, 1, nullptr);
    Add("second", a, a, 8, 1, nullptr);
    CAPSTAN_CHECK(Value(a, nullptr) == 2);
    Work work;
    work.name = "third";
    // Seen by the call itself only where it runs at once.
    const int error = Enqueue(nullptr, work);
    CAPSTAN_CHECK(error == 0);
    CAPSTAN_CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  });
  ExpectWell(outcome);
}

TEST(MemoryTest, RunsOut) {
  ExpectWell(RunOnStandin("memory=16M", [] {
    void* first = nullptr;
    void* second = nullptr;
    size_t free_bytes = 0;
    size_t total = 0;
    CAPSTAN_CHECK_CUDA(cudaMalloc(&first, 10 << 20));
    CAPSTAN_CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total));
    CAPSTAN_CHECK(free_bytes == 6 << 20 && total == 16 << 20);
    CAPSTAN_CHECK_ERROR(cudaMalloc(&second, 10 << 20),
                        cudaErrorMemoryAllocation);
    CAPSTAN_CHECK(second == nullptr);
    CAPSTAN_CHECK_CUDA(cudaFree(first));
    CAPSTAN_CHECK_CUDA(cudaMalloc(&second, 10 << 20));
    // An address comes back as late as possible.
    CAPSTAN_CHECK(second != first);
    CAPSTAN_CHECK_ERROR(cudaFree(static_cast<char*>(second) + 512),
                        cudaErrorInvalidValue);
  }));
}

TEST(MemoryTest, FailsAtTheCallThatWasAskedFor) {
  ExpectWell(RunOnStandin("fault=malloc:2", [] {
    void* p = nullptr;
    CAPSTAN_CHECK_CUDA(cudaMalloc(&p, 512));
    CAPSTAN_CHECK_ERROR(cudaMalloc(&p, 512), cudaErrorMemoryAllocation);
    CAPSTAN_CHECK_CUDA(cudaMalloc(&p, 512));
  }));
}

TEST(MemoryTest, IsPoisoned) {
  ExpectWell(RunOnStandin("", [] {
    float* const a = DeviceFloats(8);
    const float value = Value(a, nullptr);
    CAPSTAN_CHECK(value != value);
  }));
}

TEST(MemoryTest, PointerAttributes) {
  ExpectWell(RunOnStandin("gpus=2", [] {
    CAPSTAN_CHECK_CUDA(cudaSetDevice(1));
    cudaPointerAttributes attributes;
    CAPSTAN_CHECK_CUDA(
        cudaPointerGetAttributes(&attributes, DeviceFloats(8) + 3));
    CAPSTAN_CHECK(attributes.type == cudaMemoryTypeDevice);
    CAPSTAN_CHECK(attributes.device == 1);
    CAPSTAN_CHECK_CUDA(cudaPointerGetAttributes(&attributes, PinnedFloats(8)));
    CAPSTAN_CHECK(attributes.type == cudaMemoryTypeHost);
    std::vector<float> host(1024);
    CAPSTAN_CHECK_CUDA(cudaPointerGetAttributes(&attributes, host.data()));
    CAPSTAN_CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CAPSTAN_CHECK_CUDA(cudaHostRegister(host.data(), 4096, 0));
    CAPSTAN_CHECK_CUDA(cudaPointerGetAttributes(&attributes, &host[9]));
    CAPSTAN_CHECK(attributes.type == cudaMemoryTypeHost);
    CAPSTAN_CHECK_CUDA(cudaHostUnregister(host.data()));
  }));
}

TEST(DevicesTest, PeersCopy) {
  ExpectWell(RunOnStandin("gpus=2", [] {
    float* const a = DeviceFloats(8);
    CAPSTAN_CHECK_CUDA(cudaMemset(a, 0, 32));
    CAPSTAN_CHECK_CUDA(cudaDeviceSynchronize());
    CAPSTAN_CHECK_CUDA(cudaSetDevice(1));
    float* const b = DeviceFloats(8);
    CAPSTAN_CHECK_CUDA(cudaMemcpyPeerAsync(b, 1, a, 0, 32, nullptr));
    CAPSTAN_CHECK(Value(b, nullptr) == 0);
  }));
}

TEST(DevicesTest, AreWhatTheSettingsSay) {
  ExpectWell(RunOnStandin("gpus=3,gpu=a100,memory=2G", [] {
    int count = 0;
    CAPSTAN_CHECK_CUDA(cudaGetDeviceCount(&count));
    CAPSTAN_CHECK(count == 3);
    cudaDeviceProp properties;
    CAPSTAN_CHECK_CUDA(cudaGetDeviceProperties(&properties, 2));
    CAPSTAN_CHECK(properties.major == 8 && properties.minor == 0);
    CAPSTAN_CHECK(properties.multiProcessorCount == 108);
    CAPSTAN_CHECK(properties.totalGlobalMem == size_t{2} << 30);
    int value = 0;
    CAPSTAN_CHECK_CUDA(cudaDeviceGetAttribute(
        &value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CAPSTAN_CHECK(value == 166912);
  }));
}

TEST(DevicesTest, AreThoseThatAreVisible) {
  const auto count = [](const char* visible) {
    return RunOnStandin(
               "gpus=4",
               [=] {
                 setenv("CUDA_VISIBLE_DEVICES", visible, 1);
                 int devices = 0;
                 cudaGetDeviceCount(&devices);
                 int driver = 0;
                 CAPSTAN_CHECK(cuDeviceGetCount(&driver) == CUDA_SUCCESS);
                 CAPSTAN_CHECK(driver == devices);
                 std::exit(10 + devices);
               })
               .status -
           10;
  };
  EXPECT_EQ(count("2"), 1);
  EXPECT_EQ(count("3,1"), 2);
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("1,7,0"), 1);  // the list ends where it is wrong
  EXPECT_EQ(count("1,1"), 0);
  EXPECT_EQ(count("-1"), 0);
}

// CUDA can't be used after a fork of what has used it.
TEST(ForkTest, TheChildIsRefused) {
  const Outcome outcome = RunOnStandin("", [] {
    int count = 0;
    CAPSTAN_CHECK_CUDA(cudaGetDeviceCount(&count));
    const pid_t child = fork();
    if (child == 0) {
      CAPSTAN_CHECK_ERROR(cudaSetDevice(0), cudaErrorInitializationError);
      std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CAPSTAN_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  });
  ExpectWell(outcome);
  EXPECT_EQ(outcome.Findings(), "fork") << outcome.report;
}

TEST(SettingsTest, AnUnknownValueIsRefused) {
  const Outcome outcome = RunOnStandin("order=sometimes", [] {
    int count = 0;
    cudaGetDeviceCount(&count);
  });
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.output.find("order=sometimes"), std::string::npos);
}

}  // namespace
}  // namespace capstan::standin
