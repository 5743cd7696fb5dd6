// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). A number is a function of key and
// position alone, hence the same on every rank, at any world size and after a
// resume, with no generator state to save.
#ifndef CAPSTAN_BASE_RANDOM_H_
#define CAPSTAN_BASE_RANDOM_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan {

// A key for one use of random numbers, from the run's seed and the purpose,
// e.g. RandomKey(seed, "model.norm.weight").
uint64_t RandomKey(uint64_t seed, absl::string_view purpose);

// The 128 random bits at `position` (a 128-bit counter, high and low half).
std::array<uint32_t, 4> RandomBits(uint64_t key, uint64_t low, uint64_t high);

// Uniform in [0, 1), 53 bits.
double RandomUniform(uint64_t key, uint64_t position);

// Uniform in [0, bound), bound > 0.
uint64_t RandomBelow(uint64_t key, uint64_t position, uint64_t bound);

// out[i] = mean + stddev * z(begin + i), z standard normal (Box-Muller).
// Filling a range in pieces gives the same values as filling it at once.
void FillNormal(uint64_t key, int64_t begin, int64_t count, float mean,
                float stddev, float* out);

// A pseudo-random permutation of [0, size), evaluated at `index`. Uses no
// memory (a Feistel network with cycle walking).
int64_t PermutedIndex(uint64_t key, int64_t index, int64_t size);

}  // namespace capstan

#endif  // CAPSTAN_BASE_RANDOM_H_
