// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_PYTHON_RANDOM_H_
#define CAPSTAN_BASE_PYTHON_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace capstan {

// Python's random.Random, to reproduce what was drawn with it: the same draws.
// Use random.h for anything else.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  // getrandbits(32).
  uint32_t Bits() { return static_cast<uint32_t>(engine_()); }
  // randrange(bound), bound > 0.
  uint32_t Below(uint32_t bound);

  // shuffle(items).
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1], (*items)[Below(static_cast<uint32_t>(i))]);
    }
  }

  // sample(range(population), count): indices; count <= population < 2^32.
  std::vector<int64_t> Sample(int64_t population, int64_t count);

 private:
  std::mt19937 engine_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_PYTHON_RANDOM_H_
