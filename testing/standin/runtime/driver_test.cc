// SPDX-License-Identifier: Apache-2.0
//
// What a launcher asks before any CUDA: the driver and NVML.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "testing/standin/runtime/standin_testing.h"

// As nvml.h, which isn't in every CUDA Toolkit.
extern "C" {
int nvmlInit_v2();
int nvmlShutdown();
int nvmlSystemGetDriverVersion(char* version, unsigned length);
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle);
int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned length);
int nvmlDeviceGetName(void* handle, char* name, unsigned length);
}

namespace capstan::standin {
namespace {

TEST(DriverTest, KnowsTheVisibleDevices) {
  const Outcome outcome = RunOnStandin("gpus=3,gpu=h200", [] {
    setenv("CUDA_VISIBLE_DEVICES", "2", 1);
    CAPSTAN_CHECK(cuInit(0) == CUDA_SUCCESS);
    int count = 0;
    CAPSTAN_CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 1);
    int version = 0;
    CAPSTAN_CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
    CAPSTAN_CHECK(version == 13000);
    char name[64];
    CAPSTAN_CHECK(cuDeviceGetName(name, sizeof(name), 0) == CUDA_SUCCESS);
    CAPSTAN_CHECK(std::strcmp(name, "NVIDIA H200") == 0);
    CAPSTAN_CHECK(cuDeviceGetName(name, sizeof(name), 1) ==
                  CUDA_ERROR_INVALID_DEVICE);
    char bus[32];
    CAPSTAN_CHECK(cuDeviceGetPCIBusId(bus, sizeof(bus), 0) == CUDA_SUCCESS);
    CAPSTAN_CHECK(std::string(bus) == "00000000:03:00.0");
    // No context before the device is used.
    unsigned flags = 0;
    int active = 1;
    CAPSTAN_CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) ==
                  CUDA_SUCCESS);
    CAPSTAN_CHECK(active == 0);
    CAPSTAN_CHECK_CUDA(cudaSetDevice(0));
    CAPSTAN_CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) ==
                  CUDA_SUCCESS);
    CAPSTAN_CHECK(active == 1);
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(NvmlTest, KnowsAllDevices) {
  const Outcome outcome = RunOnStandin("gpus=3,driver=570.1", [] {
    setenv("CUDA_VISIBLE_DEVICES", "2", 1);
    CAPSTAN_CHECK(nvmlInit_v2() == 0);
    unsigned count = 0;
    CAPSTAN_CHECK(nvmlDeviceGetCount_v2(&count) == 0 && count == 3);
    void* handle = nullptr;
    CAPSTAN_CHECK(nvmlDeviceGetHandleByIndex_v2(3, &handle) != 0);
    CAPSTAN_CHECK(nvmlDeviceGetHandleByIndex_v2(2, &handle) == 0);
    char uuid[96];
    CAPSTAN_CHECK(nvmlDeviceGetUUID(handle, uuid, sizeof(uuid)) == 0);
    CAPSTAN_CHECK(std::string(uuid).rfind("GPU-", 0) == 0);
    char text[96];
    CAPSTAN_CHECK(nvmlDeviceGetName(handle, text, sizeof(text)) == 0);
    CAPSTAN_CHECK(std::strcmp(text, "NVIDIA H100 80GB HBM3") == 0);
    CAPSTAN_CHECK(nvmlSystemGetDriverVersion(text, sizeof(text)) == 0);
    CAPSTAN_CHECK(std::strcmp(text, "570.1") == 0);
    CAPSTAN_CHECK(nvmlShutdown() == 0);
    // Counting in this way is no use of CUDA: a child may use it.
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(VisibleTest, ByUuid) {
  const Outcome outcome = RunOnStandin("gpus=3", [] {
    void* handle = nullptr;
    char uuid[96];
    CAPSTAN_CHECK(nvmlDeviceGetHandleByIndex_v2(1, &handle) == 0);
    CAPSTAN_CHECK(nvmlDeviceGetUUID(handle, uuid, sizeof(uuid)) == 0);
    uuid[12] = '\0';  // its beginning is enough
    setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
    char bus[32];
    CAPSTAN_CHECK_CUDA(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
    CAPSTAN_CHECK(std::string(bus) == "00000000:02:00.0");
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

}  // namespace
}  // namespace capstan::standin
