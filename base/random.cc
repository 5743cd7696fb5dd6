// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <algorithm>
#include <cstring>

#include "base/simd/instruction_set.h"

// All instruction sets must give the same bits, so that ranks on different
// machines agree: no fused multiply-add. The other flags enable vectorization.
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")

namespace capstan {
namespace {

#define CAPSTAN_ALWAYS_INLINE inline __attribute__((always_inline))

constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

// High halves of the counters, so that one key used in two ways doesn't yield
// the same bits.
constexpr uint64_t kUniformStream = 0;
constexpr uint64_t kNormalStream = 1;
constexpr uint64_t kPermutationStream = 2;
constexpr uint64_t kKeyStream = 3;
// Plus one for each value that RandomBelow rejects.
constexpr uint64_t kBelowStream = uint64_t{1} << 32;

// Normals come in groups of `kLanes` counters times their four words: value g *
// kGroup + word * kLanes + lane comes from counter g * kLanes + lane.
constexpr int kLanes = 16;
constexpr int kGroup = 4 * kLanes;

struct Words {
  uint32_t w[4];
};

CAPSTAN_ALWAYS_INLINE Words Philox(uint64_t key, Words x) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * x.w[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * x.w[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x.w[1] ^ key0,
         static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x.w[3] ^ key1,
         static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x;
}

CAPSTAN_ALWAYS_INLINE Words Counter(uint64_t low, uint64_t high) {
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
          static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
}

CAPSTAN_ALWAYS_INLINE float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

CAPSTAN_ALWAYS_INLINE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// log(x) for normal x > 0 to about 1 ulp: the polynomial of Cephes' logf.c on
// [sqrt(1/2), sqrt(2)).
CAPSTAN_ALWAYS_INLINE float Log(float x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3;
  const uint32_t shifted = BitsOfFloat(x) - kSqrtHalf;
  const int32_t exponent = static_cast<int32_t>(shifted) >> 23;
  const float m = FloatOfBits((shifted & 0x007fffff) + kSqrtHalf) - 1.0f;
  const float e = static_cast<float>(exponent);
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = m * z * p;
  y += e * -2.12194440e-4f;
  y -= 0.5f * z;
  return m + y + e * 0.693359375f;
}

// sqrt(x) for x >= 0 to about 1 ulp, by Newton's method for 1 / sqrt(x). (The
// library's sets errno, which prevents vectorization.)
CAPSTAN_ALWAYS_INLINE float Sqrt(float x) {
  const float half = 0.5f * x;
  float y = FloatOfBits(0x5f375a86 - (BitsOfFloat(x) >> 1));
  y = y * (1.5f - half * y * y);
  y = y * (1.5f - half * y * y);
  y = y * (1.5f - half * y * y);
  return x * y;
}

// sin and cos of 2 pi `turn` / 2^32: reduced exactly to within an eighth of a
// turn of the nearest quarter, then the polynomials of Cephes' sinf.c.
CAPSTAN_ALWAYS_INLINE void SinCos(uint32_t turn, float* sine, float* cosine) {
  constexpr float kRadians = 1.46291807926715968e-9f;  // 2 pi / 2^32
  const uint32_t quarter = (turn + (uint32_t{1} << 29)) >> 30;
  const int32_t rest = static_cast<int32_t>(turn - (quarter << 30));
  const float a = static_cast<float>(rest) * kRadians;
  const float z = a * a;
  float s = -1.9515295891e-4f;
  s = s * z + 8.3321608736e-3f;
  s = s * z - 1.6666654611e-1f;
  s = s * z * a + a;
  float c = 2.443315711809948e-5f;
  c = c * z - 1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  c = c * z * z - 0.5f * z + 1.0f;
  // Odd quarters swap sine and cosine; signs follow the quarter.
  const uint32_t swap = 0 - (quarter & 1);
  const uint32_t s_bits = BitsOfFloat(s);
  const uint32_t c_bits = BitsOfFloat(c);
  const uint32_t sine_sign = (quarter & 2) << 30;
  const uint32_t cosine_sign = ((quarter + 1) & 2) << 30;
  *sine = FloatOfBits(((c_bits & swap) | (s_bits & ~swap)) ^ sine_sign);
  *cosine = FloatOfBits(((s_bits & swap) | (c_bits & ~swap)) ^ cosine_sign);
}

// Two normals from two words (Box and Muller, 1958).
CAPSTAN_ALWAYS_INLINE void BoxMuller(uint32_t radius, uint32_t turn, float* z0,
                                     float* z1) {
  // (radius + 1/2) / 2^32, in (0, 1], from two signed halves, as there is no
  // vector conversion of unsigned integers; both are exact.
  const float high = static_cast<float>(static_cast<int32_t>(radius >> 16));
  const float low = static_cast<float>(static_cast<int32_t>(radius & 0xffff));
  const float u = high * 0x1p-16f + (low + 0.5f) * 0x1p-32f;
  const float r = Sqrt(-2.0f * Log(u));
  float sine;
  float cosine;
  SinCos(turn, &sine, &cosine);
  *z0 = r * cosine;
  *z1 = r * sine;
}

CAPSTAN_ALWAYS_INLINE void NormalGroups(uint64_t key, uint64_t group,
                                        int64_t groups, float mean,
                                        float stddev, float* out) {
  for (int64_t g = 0; g < groups; ++g, out += kGroup) {
    const Words first = Counter((group + g) * kLanes, kNormalStream);
    for (uint32_t i = 0; i < kLanes; ++i) {
      // No carry: `first` is a multiple of kLanes.
      const Words x =
          Philox(key, {first.w[0] + i, first.w[1], first.w[2], first.w[3]});
      float z[4];
      BoxMuller(x.w[0], x.w[1], &z[0], &z[1]);
      BoxMuller(x.w[2], x.w[3], &z[2], &z[3]);
      for (int word = 0; word < 4; ++word) {
        out[word * kLanes + i] = mean + stddev * z[word];
      }
    }
  }
}

using NormalGroupsFn = void (*)(uint64_t key, uint64_t group, int64_t groups,
                                float mean, float stddev, float* out);

void NormalGroupsPlain(uint64_t key, uint64_t group, int64_t groups, float mean,
                       float stddev, float* out) {
  NormalGroups(key, group, groups, mean, stddev, out);
}

SIMD_FUNCTION_AVX2 void NormalGroupsAvx2(uint64_t key, uint64_t group,
                                         int64_t groups, float mean,
                                         float stddev, float* out) {
  NormalGroups(key, group, groups, mean, stddev, out);
}

SIMD_FUNCTION_AVX512 void NormalGroupsAvx512(uint64_t key, uint64_t group,
                                             int64_t groups, float mean,
                                             float stddev, float* out) {
  NormalGroups(key, group, groups, mean, stddev, out);
}

// The first 64 bits at a position.
uint64_t Random64(uint64_t key, uint64_t low, uint64_t high) {
  const Words x = Philox(key, Counter(low, high));
  return uint64_t{x.w[1]} << 32 | x.w[0];
}

}  // namespace

uint64_t RandomKey(uint64_t seed, absl::string_view purpose) {
  // FNV-1a, then Philox to hide the hash's weaknesses.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : purpose) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return Random64(seed, hash, kKeyStream);
}

std::array<uint32_t, 4> RandomBits(uint64_t key, uint64_t low, uint64_t high) {
  const Words x = Philox(key, Counter(low, high));
  return {x.w[0], x.w[1], x.w[2], x.w[3]};
}

double RandomUniform(uint64_t key, uint64_t position) {
  return static_cast<double>(Random64(key, position, kUniformStream) >> 11) *
         0x1p-53;
}

uint64_t RandomBelow(uint64_t key, uint64_t position, uint64_t bound) {
  // Lemire, "Fast Random Integer Generation in an Interval", 2019: the high
  // half of a product, rejecting the few low halves that would introduce bias.
  const uint64_t unfair = (0 - bound) % bound;
  for (uint64_t attempt = 0;; ++attempt) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(
            Random64(key, position, kBelowStream + attempt)) *
        bound;
    if (static_cast<uint64_t>(product) >= unfair) {
      return static_cast<uint64_t>(product >> 64);
    }
  }
}

void FillNormal(uint64_t key, int64_t begin, int64_t count, float mean,
                float stddev, float* out) {
  static const auto fill = BestOf<NormalGroupsFn>(
      NormalGroupsPlain, NormalGroupsAvx2, NormalGroupsAvx512);
  const int64_t end = begin + count;
  for (int64_t at = begin; at < end;) {
    const int64_t offset = at % kGroup, whole = (end - at) / kGroup;
    float* const to = out + (at - begin);
    if (offset == 0 && whole > 0) {
      fill(key, at / kGroup, whole, mean, stddev, to);
      at += whole * kGroup;
    } else {
      float values[kGroup];
      fill(key, at / kGroup, 1, mean, stddev, values);
      const int64_t part = std::min(kGroup - offset, end - at);
      std::copy_n(values + offset, part, to);
      at += part;
    }
  }
}

int64_t PermutedIndex(uint64_t key, int64_t index, int64_t size) {
  // A Feistel network permutes [0, 4^half_bits), the smallest such range that
  // contains `size`; results beyond `size` go through it again (cycle walking,
  // Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): fewer
  // than four rounds on average.
  int half_bits = 1;
  while (half_bits < 32 &&
         static_cast<uint64_t>(size) > uint64_t{1} << (2 * half_bits)) {
    ++half_bits;
  }
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  constexpr int kFeistelRounds = 6;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half_bits;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < kFeistelRounds; ++round) {
      const uint64_t mixed =
          RandomBits(key, round << 32 | right, kPermutationStream)[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(x);
}

}  // namespace capstan
