// SPDX-License-Identifier: Apache-2.0
//
// What NVTX 3 and its tools agree on, as far as it's used here: numbers and
// layouts as in nvtx3/nvtxDetail/nvtxTypes.h, which isn't in all of the places
// that the build takes CUDA's headers from.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_NVTX_ABI_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_NVTX_ABI_H_

#include <cstddef>
#include <cstdint>

namespace capstan::standin {

constexpr uint32_t kNvtxCallbacksTable = 1;  // NVTX_ETID_CALLBACKS

enum NvtxModule : int { kNvtxCore = 1, kNvtxCore2 = 5 };

enum NvtxCoreCallback : unsigned {
  kNvtxRangePushEx = 8,
  kNvtxRangePushA = 9,
  kNvtxRangePop = 11,
};

enum NvtxCore2Callback : unsigned {
  kNvtxDomainRangePushEx = 4,
  kNvtxDomainRangePop = 5,
  kNvtxDomainRegisterStringA = 10,
  kNvtxDomainCreateA = 12,
};

using NvtxFunction = void (*)();
// Where the program keeps what it calls: the tool writes its own there.
using NvtxTable = NvtxFunction**;

struct NvtxCallbacks {
  size_t struct_size;
  int (*get_table)(int module, NvtxTable* table, unsigned* size);
};

using NvtxGetTable = const void* (*)(uint32_t id);

constexpr int32_t kNvtxAscii = 1;
constexpr int32_t kNvtxRegistered = 3;

struct NvtxAttributes {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  uint64_t payload;
  int32_t message_type;
  const void* message;  // characters, or what registering them has returned
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_NVTX_ABI_H_
