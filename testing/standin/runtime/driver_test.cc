// SPDX-License-Identifier: Apache-2.0
//
// What a launcher asks before any CUDA: the driver and NVML.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

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

// Memory is mapped piece by piece behind one another, is one allocation then,
// and counts as long as its handle lives.
TEST(DriverTest, MapsMemory) {
  const Outcome outcome = RunOnStandin("memory=8M", [] {
    constexpr size_t kPiece = size_t{2} << 20;
    CAPSTAN_CHECK(cuInit(0) == CUDA_SUCCESS);
    int maps = 0;
    CAPSTAN_CHECK(cuDeviceGetAttribute(
                      &maps,
                      CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      0) == CUDA_SUCCESS &&
                  maps == 1);
    CAPSTAN_CHECK_CUDA(cudaSetDevice(0));
    CUdeviceptr begin = 0, other = 0;
    CAPSTAN_CHECK(cuMemAddressReserve(&begin, 16 * kPiece, 0, 0, 0) ==
                  CUDA_SUCCESS);
    CAPSTAN_CHECK(cuMemAddressReserve(&other, 16 * kPiece, 0, 0, 0) ==
                  CUDA_SUCCESS);
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handles[5];
    for (int i = 0; i < 4; ++i) {
      CAPSTAN_CHECK(cuMemCreate(&handles[i], kPiece, &prop, 0) == CUDA_SUCCESS);
    }
    CAPSTAN_CHECK(cuMemCreate(&handles[4], kPiece, &prop, 0) ==
                  CUDA_ERROR_OUT_OF_MEMORY);
    const auto map = [&](CUdeviceptr at, int i) {
      return cuMemMap(at, kPiece, 0, handles[i], 0);
    };
    CAPSTAN_CHECK(map(begin, 0) == CUDA_SUCCESS);
    CAPSTAN_CHECK(map(begin, 1) != CUDA_SUCCESS);  // it is taken
    CAPSTAN_CHECK(map(begin + 2 * kPiece, 1) == CUDA_SUCCESS);
    char* const p = reinterpret_cast<char*>(begin);
    std::vector<char> bytes(3 * kPiece, 1);
    // There is a gap, whose address loses the device: so only up to it.
    CAPSTAN_CHECK_CUDA(
        cudaMemcpy(p, bytes.data(), kPiece, cudaMemcpyHostToDevice));
    CAPSTAN_CHECK(map(begin + kPiece, 2) == CUDA_SUCCESS);
    CAPSTAN_CHECK_CUDA(
        cudaMemcpy(p, bytes.data(), 3 * kPiece, cudaMemcpyHostToDevice));
    CAPSTAN_CHECK(cuMemAddressFree(begin, 16 * kPiece) != CUDA_SUCCESS);
    CAPSTAN_CHECK(cuMemUnmap(begin + kPiece, kPiece) == CUDA_SUCCESS);
    CAPSTAN_CHECK(cuMemRelease(handles[2]) == CUDA_SUCCESS);
    CAPSTAN_CHECK(cuMemCreate(&handles[2], kPiece, &prop, 0) == CUDA_SUCCESS);
    CAPSTAN_CHECK(map(other, 2) == CUDA_SUCCESS);
    // New memory is NaN.
    CAPSTAN_CHECK_CUDA(cudaMemcpy(bytes.data(), reinterpret_cast<void*>(other),
                                  kPiece, cudaMemcpyDeviceToHost));
    CAPSTAN_CHECK(bytes[0] == '\xff' && bytes[kPiece - 1] == '\xff');
    CAPSTAN_CHECK(cudaMemcpy(bytes.data(), p, 2 * kPiece,
                             cudaMemcpyDeviceToHost) != cudaSuccess);
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
