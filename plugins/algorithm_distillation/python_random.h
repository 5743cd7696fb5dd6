// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PYTHON_RANDOM_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PYTHON_RANDOM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace capstan {
namespace darkroom {

// Python's `random` module, to reproduce splits made with it: MT19937
// (Matsumoto and Nishimura, "Mersenne Twister", 1998). Use base/random.h for
// anything else.
class PythonRandom {
 public:
  // random.seed(seed).
  explicit PythonRandom(uint64_t seed);

  // random.getrandbits(32).
  uint32_t Bits();
  // random.randrange(bound), bound > 0.
  uint32_t Below(uint32_t bound);

  // random.shuffle(items).
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (std::size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1], (*items)[Below(static_cast<uint32_t>(i))]);
    }
  }

 private:
  static constexpr int kWords = 624;

  void Refill();

  std::array<uint32_t, kWords> words_;
  int next_ = kWords;
};

}  // namespace darkroom
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PYTHON_RANDOM_H_
