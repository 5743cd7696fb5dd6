// SPDX-License-Identifier: Apache-2.0
//
// What the stand-in devices say they are.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_PROPERTIES_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_PROPERTIES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::standin {

struct Card {
  const char* setting;
  const char* name;
  int major;  // compute capability
  int minor;
  int multiprocessors;
  int64_t memory;     // bytes
  int shared_optin;   // bytes of shared memory that a block may ask for
  int shared_per_sm;  // bytes
  int threads_per_sm;
  int64_t l2;  // bytes
  int memory_bus_bits;
  int memory_khz;
  int clock_khz;
};

const Card& TheCard();

// Bytes of each device: the card's, or the setting `memory`.
int64_t DeviceMemory();

// Devices that programs may use: all, or those in CUDA_VISIBLE_DEVICES (numbers
// or the beginnings of UUIDs; the first that isn't there ends the list).
// The numbers among all devices.
const std::vector<int>& VisibleDevices();

// 16 bytes, by a device's number among all.
std::string UuidOf(int device);

// "GPU-xxxxxxxx-xxxx-..".
std::string UuidText(int device);

// "00000000:01:00.0".
std::string PciBusId(int device);

// The value of a cudaDeviceAttr (a CUdevice_attribute has the same numbers).
int DeviceAttribute(int attribute, int device);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_PROPERTIES_H_
