// SPDX-License-Identifier: Apache-2.0
//
// CUDA's execution model on one host thread, for tests: each thread of a block
// is a fiber, and blocks run one after another. Slow, but strict: a barrier
// that not all threads reach aborts with a message, dynamic shared memory is
// initially NaN, and threads can run in reverse order to expose results that
// depend on it (a missing barrier).
//
// Replaces what nvcc provides to kernels/cuda/device.h, which comes after it.
#ifndef CAPSTAN_TESTING_CUDA_EMULATOR_H_
#define CAPSTAN_TESTING_CUDA_EMULATOR_H_

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __launch_bounds__(...)
#define __device__
#define __forceinline__ inline
// Blocks don't overlap in time, so one copy serves all.
#define __shared__ static

namespace capstan::kernels::cuda {
namespace emulator {

struct Index {
  int x = 0;
};
// The indices of the running fiber.
extern Index thread_index, block_index, block_size, grid_size;

// Runs body() once for every thread of every block. Not reentrant.
void Run(int blocks, int threads, size_t shared_bytes,
         const std::function<void()>& body);

// From the next Run on, runs the last thread first.
void RunBackwards(bool backwards);

float* SharedFloats();

enum class Wait { kWarp, kBlock };
// Blocks until all threads of the warp or block wait, too.
void Await(Wait what);

// What a thread shows its warp: 8 bytes, double-buffered, so that an exchange
// needs only one barrier. A warp's threads have turns alike.
struct Slots {
  unsigned char bytes[2][8];
  int turn = 0;
};
constexpr int kMaxThreads = 1024;  // of a block
extern Slots slots[kMaxThreads];   // by thread

template <typename T>
T Exchange(T value, int from_lane) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles 4 and 8 bytes");
  const int thread = thread_index.x, turn = slots[thread].turn;
  std::memcpy(slots[thread].bytes[turn], &value, sizeof(T));
  Await(Wait::kWarp);
  slots[thread].turn = 1 - turn;
  std::memcpy(&value, slots[thread / 32 * 32 + from_lane].bytes[turn],
              sizeof(T));
  return value;
}

inline float FromBFloat16(uint16_t bits) {
  return c10::BFloat16(bits, c10::BFloat16::from_bits());
}
inline float FromFloat16(uint16_t bits) {
  return c10::Half(bits, c10::Half::from_bits());
}
inline uint16_t ToBFloat16(float x) { return c10::BFloat16(x).x; }
inline uint16_t ToFloat16(float x) { return c10::Half(x).x; }

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

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_TESTING_CUDA_EMULATOR_H_
