// SPDX-License-Identifier: Apache-2.0
#include "base/python_random.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "glog/logging.h"

namespace capstan {
namespace {

// Seeds MT19937 like Python: "init_by_array" (Matsumoto and Nishimura,
// mt19937ar.c) with the seed's 32-bit halves, low one first, without the high
// one if it is 0.
class PythonSeed {
 public:
  using result_type = uint32_t;

  explicit PythonSeed(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  // Called by std::mt19937 for its whole state.
  void generate(uint32_t* const words, uint32_t* const end) const {
    const auto count = static_cast<int>(end - words);
    const int key_length = key_[1] != 0 ? 2 : 1;
    const auto mixed = [words](int i, uint32_t factor) {
      return (words[i - 1] ^ (words[i - 1] >> 30)) * factor;
    };
    words[0] = 19650218;
    for (int i = 1; i < count; ++i) words[i] = mixed(i, 1812433253) + i;
    int i = 1;
    const auto advance = [&] {
      if (++i < count) return;
      words[0] = words[count - 1];
      i = 1;
    };
    for (int k = 0, j = 0; k < count; ++k, j = (j + 1) % key_length) {
      words[i] = (words[i] ^ mixed(i, 1664525)) + key_[j] + j;
      advance();
    }
    for (int k = 1; k < count; ++k) {
      words[i] = (words[i] ^ mixed(i, 1566083941)) - i;
      advance();
    }
    words[0] = 0x80000000;
  }

 private:
  const uint32_t key_[2];
};

std::mt19937 EngineOf(uint64_t seed) {
  PythonSeed sequence(seed);
  return std::mt19937(sequence);
}

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) : engine_(EngineOf(seed)) {}

uint32_t PythonRandom::Below(uint32_t bound) {
  const int spare_bits = __builtin_clz(bound);
  uint32_t drawn;
  do {
    drawn = Bits() >> spare_bits;
  } while (drawn >= bound);
  return drawn;
}

std::vector<int64_t> PythonRandom::Sample(int64_t population, int64_t count) {
  CHECK_LE(count, population);
  CHECK_LE(population, std::numeric_limits<uint32_t>::max());
  const auto below = [this](int64_t end) {
    return static_cast<int64_t>(Below(static_cast<uint32_t>(end)));
  };
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
      const int64_t at = below(population - i);
      drawn.push_back(left[at]);
      left[at] = left[population - i - 1];
    }
    return drawn;
  }
  std::unordered_set<int64_t> taken;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const int64_t at = below(population);
    if (taken.insert(at).second) drawn.push_back(at);
  }
  return drawn;
}

}  // namespace capstan
