// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/python_random.h"

namespace capstan {
namespace darkroom {

// Like Python: the generator's "init_by_array" with the seed's 32-bit halves,
// low one first, without the high one if it is 0.
PythonRandom::PythonRandom(uint64_t seed) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed),
                           static_cast<uint32_t>(seed >> 32)};
  const int key_length = key[1] != 0 ? 2 : 1;
  words_[0] = 19650218;
  for (int i = 1; i < kWords; ++i) {
    words_[i] = 1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
  }
  const auto mixed = [this](int i, uint32_t factor) {
    return words_[i] ^ ((words_[i - 1] ^ (words_[i - 1] >> 30)) * factor);
  };
  int i = 1;
  const auto advance = [this, &i] {
    if (++i == kWords) {
      words_[0] = words_[kWords - 1];
      i = 1;
    }
  };
  for (int k = 0, j = 0; k < kWords; ++k, j = (j + 1) % key_length) {
    words_[i] = mixed(i, 1664525) + key[j] + j;
    advance();
  }
  for (int k = 1; k < kWords; ++k) {
    words_[i] = mixed(i, 1566083941) - i;
    advance();
  }
  words_[0] = 0x80000000;
}

void PythonRandom::Refill() {
  constexpr int kMiddle = 397;
  for (int i = 0; i < kWords; ++i) {
    const uint32_t y =
        (words_[i] & 0x80000000) | (words_[(i + 1) % kWords] & 0x7fffffff);
    words_[i] =
        words_[(i + kMiddle) % kWords] ^ (y >> 1) ^ (y % 2 * 0x9908b0df);
  }
  next_ = 0;
}

uint32_t PythonRandom::Bits() {
  if (next_ == kWords) Refill();
  uint32_t y = words_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680;
  y ^= (y << 15) & 0xefc60000;
  return y ^ (y >> 18);
}

uint32_t PythonRandom::Below(uint32_t bound) {
  const int spare_bits = __builtin_clz(bound);
  uint32_t r;
  do {
    r = Bits() >> spare_bits;
  } while (r >= bound);
  return r;
}

}  // namespace darkroom
}  // namespace capstan
