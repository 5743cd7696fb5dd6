// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/python_random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "glog/logging.h"

namespace capstan::evaluate {
namespace {

constexpr uint32_t kWords = std::mt19937::state_size;

// init_by_array of Matsumoto and Nishimura's mt19937ar.c for a key of one word,
// which Python seeds by, as a seed sequence that hands out that state.
struct StateOf {
  using result_type = uint32_t;

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    std::array<uint32_t, kWords> state;
    state[0] = 19650218;
    for (uint32_t i = 1; i < kWords; ++i) {
      state[i] = 1812433253 * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    }
    uint32_t i = 1;
    const auto next = [&] {
      if (++i < kWords) return;
      state[0] = state[kWords - 1];
      i = 1;
    };
    for (uint32_t k = 0; k < kWords; ++k) {
      state[i] =
          (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525)) + seed;
      next();
    }
    for (uint32_t k = 1; k < kWords; ++k) {
      state[i] =
          (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941)) - i;
      next();
    }
    state[0] = 0x80000000;
    CHECK_EQ(static_cast<uint32_t>(end - begin), kWords);
    std::copy(state.begin(), state.end(), begin);
  }

  uint32_t seed;
};

std::mt19937 EngineOf(uint32_t seed) {
  StateOf state{seed};
  return std::mt19937(state);
}

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) : engine_(EngineOf(seed)) {}

int64_t PythonRandom::Below(int64_t end) {
  int bits = 0;
  while (end >> bits != 0) ++bits;
  CHECK_LE(bits, 32);
  uint32_t drawn = 0;
  do {
    drawn = engine_() >> (32 - bits);
  } while (drawn >= end);
  return drawn;
}

std::vector<int64_t> PythonRandom::Sample(int64_t population, int64_t count) {
  CHECK_LE(count, population);
  std::vector<int64_t> drawn;
  // As Lib/random.py decides between a list of what is left and a set of what
  // is taken.
  double set_size = 21;
  if (count > 5) {
    set_size += std::pow(4, std::ceil(std::log(count * 3.0) / std::log(4.0)));
  }
  if (static_cast<double>(population) <= set_size) {
    std::vector<int64_t> left(population);
    std::iota(left.begin(), left.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = Below(population - i);
      drawn.push_back(left[at]);
      left[at] = left[population - i - 1];
    }
    return drawn;
  }
  std::unordered_set<int64_t> taken;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const int64_t at = Below(population);
    if (taken.insert(at).second) drawn.push_back(at);
  }
  return drawn;
}

}  // namespace capstan::evaluate
