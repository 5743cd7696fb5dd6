// SPDX-License-Identifier: Apache-2.0
#include "testing/cuda/emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "testing/cuda/fiber.h"

namespace capstan::kernels::cuda::emulator {

Index thread_index, block_index, block_size, grid_size;
Slots slots[kMaxThreads];

namespace {

constexpr size_t kStackBytes = 16 << 10;
// Tops of stacks lie apart by this more: else all would share a cache set.
constexpr size_t kStackShift = 9 * 64;
constexpr int kWarp = 32;

enum class State : uint8_t { kNew, kReady, kAtWarp, kAtBlock, kDone };

Context scheduler;
// Of the block's threads.
Context contexts[kMaxThreads];
State states[kMaxThreads];
// What is running: its warp and lane in the order of the run, from 0 on.
int warp = 0, lane = 0;
// Blocks that are done.
int blocks_done = 0;

// All stacks, uninitialised (most of it is never touched), and those that no
// thread has.
std::unique_ptr<char[]> stacks;
int stack_count = 0;
std::vector<char*> free_stacks;
char* given = nullptr;  // to the fiber that begins

std::vector<float> shared;
const std::function<void()>* kernel = nullptr;
bool backwards_order = false;

[[noreturn]] void Stuck() {
  std::fprintf(stderr,
               "CUDA emulator: in block %d, some threads wait at a barrier "
               "that others don't reach\n",
               block_index.x);
  std::abort();
}

bool AllAre(State state, int begin, int threads) {
  for (int i = begin; i < begin + threads; ++i) {
    if (states[i] != state) return false;
  }
  return true;
}

// Releases threads if all of them wait. Returns whether it did.
bool Release(State waiting, int begin, int threads) {
  if (!AllAre(waiting, begin, threads)) return false;
  std::fill_n(states + begin, threads, State::kReady);
  return true;
}

void BeginBlock() {
  std::fill(shared.begin(), shared.end(),
            std::numeric_limits<float>::quiet_NaN());
  std::fill_n(states, block_size.x, State::kNew);
  block_index.x = backwards_order ? grid_size.x - 1 - blocks_done : blocks_done;
  warp = 0;
  lane = -1;
}

// The first thread of the running warp.
int FirstOfWarp() {
  return backwards_order ? block_size.x - kWarp * (warp + 1) : kWarp * warp;
}

// Makes the thread that runs next the current one; false: all are done. A
// warp's threads run in turn until each waits for the block or is done, and
// warps in turn, and blocks.
bool Next() {
  for (;;) {
    const int first = FirstOfWarp();
    while (++lane < kWarp) {
      const int thread = first + (backwards_order ? kWarp - 1 - lane : lane);
      if (states[thread] > State::kReady) continue;
      thread_index.x = thread;
      return true;
    }
    lane = -1;
    if (Release(State::kAtWarp, first, kWarp)) continue;
    if (++warp < block_size.x / kWarp) continue;
    warp = 0;
    if (Release(State::kAtBlock, 0, block_size.x)) continue;
    if (!AllAre(State::kDone, 0, block_size.x)) Stuck();
    if (++blocks_done == grid_size.x) return false;
    BeginBlock();
  }
}

// A thread that ends leaves its stack to the next one, if that hasn't begun: a
// kernel without barriers needs but one.
void Body() {
  char* const stack = given;
  do {
    states[thread_index.x] = State::kReady;
    (*kernel)();
    states[thread_index.x] = State::kDone;
    if (!Next()) {
      free_stacks.push_back(stack);
      Context ended;
      Switch(&ended, &scheduler);
    }
  } while (states[thread_index.x] == State::kNew);
  free_stacks.push_back(stack);
  Context ended;
  Switch(&ended, &contexts[thread_index.x]);
}

// Goes on with the current thread, from `from`.
void SwitchToCurrent(Context* from) {
  Context* const to = &contexts[thread_index.x];
  if (states[thread_index.x] == State::kNew) {
    given = free_stacks.back();
    free_stacks.pop_back();
    Prepare(to, given, kStackBytes, Body);
  }
  Switch(from, to);
}

}  // namespace

void Run(int blocks, int threads, size_t shared_bytes,
         const std::function<void()>& body) {
  if (blocks <= 0 || threads <= 0 || threads % kWarp != 0 ||
      threads > kMaxThreads || shared_bytes > (48 << 10)) {
    std::fprintf(stderr,
                 "CUDA emulator: bad launch: %d blocks of %d threads, %zu "
                 "bytes\n",
                 blocks, threads, shared_bytes);
    std::abort();
  }
  if (stack_count < threads) {
    constexpr size_t kStride = kStackBytes + kStackShift;
    stacks.reset(new char[threads * kStride]);
    stack_count = threads;
    free_stacks.clear();
    for (int i = 0; i < threads; ++i) {
      free_stacks.push_back(stacks.get() + i * kStride);
    }
  }
  shared.resize(shared_bytes / sizeof(float));
  kernel = &body;
  grid_size.x = blocks;
  block_size.x = threads;
  blocks_done = 0;
  BeginBlock();
  if (Next()) SwitchToCurrent(&scheduler);
}

void RunBackwards(bool backwards) { backwards_order = backwards; }

float* SharedFloats() { return shared.data(); }

void Await(Wait what) {
  const int thread = thread_index.x;
  states[thread] = what == Wait::kWarp ? State::kAtWarp : State::kAtBlock;
  Next();  // this one isn't done
  SwitchToCurrent(&contexts[thread]);
}

}  // namespace capstan::kernels::cuda::emulator
