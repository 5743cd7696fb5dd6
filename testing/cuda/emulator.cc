// SPDX-License-Identifier: Apache-2.0
#include "testing/cuda/emulator.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "testing/cuda/fiber.h"

namespace capstan::kernels::cuda::emulator {

Index thread_index, block_index, block_size, grid_size;
Slots slots[1024];

namespace {

constexpr size_t kStackBytes = 64 << 10;
// Tops of stacks lie apart by this more: else all would share a cache set.
constexpr size_t kStackShift = 9 * 64;

enum class State { kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  Context context;
  State state = State::kDone;
};

Context scheduler;
std::vector<Fiber> fibers;
// Of all fibers, uninitialised: most of it is never touched.
std::unique_ptr<char[]> stacks;
std::vector<float> shared;
const std::function<void()>* kernel = nullptr;
bool backwards_order = false;

Fiber& Current() { return fibers[thread_index.x]; }

void Body() {
  (*kernel)();
  Fiber& fiber = Current();
  fiber.state = State::kDone;
  Switch(&fiber.context, &scheduler);  // for good
}

[[noreturn]] void Stuck() {
  std::fprintf(stderr,
               "CUDA emulator: in block %d, some threads wait at a barrier "
               "that others don't reach\n",
               block_index.x);
  std::abort();
}

// Releases [begin, end) if all of them wait. Returns whether it did.
bool Release(State waiting, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    if (fibers[i].state != waiting) return false;
  }
  for (int i = begin; i < end; ++i) fibers[i].state = State::kReady;
  return true;
}

// Runs a warp's threads until each waits for the block or is done.
void RunWarp(int first) {
  const int last = first + 32;
  do {
    for (int i = first; i < last; ++i) {
      thread_index.x = backwards_order ? first + last - 1 - i : i;
      Fiber& fiber = Current();
      if (fiber.state == State::kReady) Switch(&scheduler, &fiber.context);
    }
  } while (Release(State::kAtWarp, first, last));
}

bool AllAre(State state, int threads) {
  for (int i = 0; i < threads; ++i) {
    if (fibers[i].state != state) return false;
  }
  return true;
}

void RunBlock() {
  const int threads = block_size.x;
  for (float& x : shared) x = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    Prepare(&fiber.context, stacks.get() + i * (kStackBytes + kStackShift),
            kStackBytes, Body);
    fiber.state = State::kReady;
    slots[i].turn = 0;
  }
  do {
    for (int w = 0; w < threads; w += 32) {
      RunWarp(backwards_order ? threads - 32 - w : w);
    }
    if (AllAre(State::kDone, threads)) return;
  } while (Release(State::kAtBlock, 0, threads));
  Stuck();
}

}  // namespace

void Run(int blocks, int threads, size_t shared_bytes,
         const std::function<void()>& body) {
  if (threads <= 0 || threads % 32 != 0 || threads > 1024 ||
      shared_bytes > (48 << 10)) {
    std::fprintf(stderr, "CUDA emulator: bad launch: %d threads, %zu bytes\n",
                 threads, shared_bytes);
    std::abort();
  }
  if (fibers.size() < static_cast<size_t>(threads)) {
    fibers = std::vector<Fiber>(threads);
    stacks.reset(new char[threads * (kStackBytes + kStackShift)]);
  }
  shared.resize(shared_bytes / sizeof(float));
  kernel = &body;
  grid_size.x = blocks;
  block_size.x = threads;
  for (int b = 0; b < blocks; ++b) {
    block_index.x = backwards_order ? blocks - 1 - b : b;
    RunBlock();
  }
}

void RunBackwards(bool backwards) { backwards_order = backwards; }

float* SharedFloats() { return shared.data(); }

void Await(Wait what) {
  Fiber& fiber = Current();
  fiber.state = what == Wait::kWarp ? State::kAtWarp : State::kAtBlock;
  Switch(&fiber.context, &scheduler);
}

float FromBFloat16(uint16_t bits) {
  return c10::BFloat16(bits, c10::BFloat16::from_bits());
}
float FromFloat16(uint16_t bits) {
  return c10::Half(bits, c10::Half::from_bits());
}
uint16_t ToBFloat16(float x) { return c10::BFloat16(x).x; }
uint16_t ToFloat16(float x) { return c10::Half(x).x; }

}  // namespace capstan::kernels::cuda::emulator
