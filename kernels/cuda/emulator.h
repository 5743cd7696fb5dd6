// SPDX-License-Identifier: Apache-2.0
//
// CUDA's execution model on one host thread, for tests: each thread of a block
// is a fiber, blocks run one after the other. Slow, but strict: a barrier that
// not all threads reach ends the program with a message, dynamic shared memory
// starts as NaN, and threads can be run in the opposite order, so that a result
// that depends on it (a missing barrier) shows.
//
// This header takes the place of what nvcc brings: it is for device.h alone.
#ifndef CAPSTAN_KERNELS_CUDA_EMULATOR_H_
#define CAPSTAN_KERNELS_CUDA_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __forceinline__ inline
// Blocks don't overlap in time, so one copy serves all.
#define __shared__ static

namespace capstan {
namespace kernels {
namespace cuda {
namespace emulator {

struct Index {
  int x = 0;
};
// Those of the fiber that runs.
extern Index thread_index, block_index, block_size, grid_size;

// Runs body() once for every thread of every block. Not reentrant.
void Run(int blocks, int threads, size_t shared_bytes,
         const std::function<void()>& body);

// Last thread first, from the next Run on.
void RunBackwards(bool backwards);

float* SharedFloats();

enum class Wait { kWarp, kBlock };
// Until all threads of the warp or block wait, too.
void Await(Wait what);

// A place of 8 bytes that this thread shows its warp; lane's one. Two in turn,
// so that one barrier an exchange is enough.
unsigned char* MySlot();
const unsigned char* SlotOf(int lane);
void NextSlots();

template <typename T>
T Exchange(T value, int from_lane) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles 4 and 8 bytes");
  std::memcpy(MySlot(), &value, sizeof(T));
  Await(Wait::kWarp);
  std::memcpy(&value, SlotOf(from_lane), sizeof(T));
  NextSlots();
  return value;
}

float FromBFloat16(uint16_t bits);
float FromFloat16(uint16_t bits);
uint16_t ToBFloat16(float x);
uint16_t ToFloat16(float x);

}  // namespace emulator

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::Await(emulator::Wait::kBlock); }

template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lane_mask) {
  return emulator::Exchange(value, threadIdx.x % 32 ^ lane_mask);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CUDA_EMULATOR_H_
