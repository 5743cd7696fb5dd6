// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/sums.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/random.h"
#include "base/simd/instruction_set.h"
#include "kernels/gemm/gemm.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace capstan::kernels {
namespace {

typedef float Vector __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr int kLanes = kSumLanes;

ALWAYS_INLINE Vector LoadFloats(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
ALWAYS_INLINE Vector LoadFloats(const Bf16* p) {
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}
ALWAYS_INLINE Vector LoadFloats(const Fp16* p) {
  Vector v;
  for (int i = 0; i < kLanes; ++i) {
    v[i] = c10::Half(p[i].bits, c10::Half::from_bits());
  }
  return v;
}

ALWAYS_INLINE void StoreFloats(float* p, const Vector& v) {
  std::memcpy(p, &v, sizeof(v));
}

// The first `count`; the others are 0.
template <typename T>
ALWAYS_INLINE Vector LoadPart(const T* p, int64_t count) {
  T numbers[kLanes] = {};
  std::memcpy(numbers, p, count * sizeof(T));
  return LoadFloats(numbers);
}

ALWAYS_INLINE float SumOf(const Vector& v) {
  typedef float Half __attribute__((vector_size(32)));
  typedef float Quarter __attribute__((vector_size(16)));
  Half halves[2];
  std::memcpy(halves, &v, sizeof(v));
  const Half half = halves[0] + halves[1];
  Quarter quarters[2];
  std::memcpy(quarters, &half, sizeof(half));
  const Quarter quarter = quarters[0] + quarters[1];
  return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}

enum Wanted { kRight = 1, kLeft = 2, kColumnSquares = 4 };

// kRows rows from `row` on. Row sums are float32 in 16 lanes, whose rounding is
// far below that of the product that they are compared with.
template <typename T, int kWanted, int kRows>
ALWAYS_INLINE void SumRows(const T* x, int64_t stride, int64_t n, int64_t row,
                           MatrixSums* sums) {
  constexpr bool right = (kWanted & kRight) != 0;
  constexpr bool left = (kWanted & kLeft) != 0;
  constexpr bool column_squares = (kWanted & kColumnSquares) != 0;
  Vector dots[kRows] = {}, squares[kRows] = {};
  const float* const factors = sums->right;
  float* const columns = sums->column_sums;
  float* const squares_of_columns = sums->column_squares;
  float weights[kRows] = {};
  for (int r = 0; left && r < kRows; ++r) weights[r] = sums->left[row + r];
  const auto add = [&](int64_t j, auto load) __attribute__((always_inline)) {
    Vector factor = {}, column = {}, square = {};
    if (right) factor = LoadFloats(factors + j);
    if (left) column = LoadFloats(columns + j);
    if (column_squares) square = LoadFloats(squares_of_columns + j);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vector v = load(x + r * stride + j);
      if (right) dots[r] += v * factor;
      if (column_squares) {
        square += v * v;
      } else {
        squares[r] += v * v;
      }
      if (left) column += v * weights[r];
    }
    if (left) StoreFloats(columns + j, column);
    if (column_squares) StoreFloats(squares_of_columns + j, square);
  };
  const auto all = [](const T* p) __attribute__((always_inline)) {
    return LoadFloats(p);
  };
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) add(j, all);
  const auto part = [&](const T* p) __attribute__((always_inline)) {
    return LoadPart(p, n - j);
  };
  if (j < n) add(j, part);
  for (int r = 0; r < kRows; ++r) {
    if (right) sums->row_sums[row + r] = SumOf(dots[r]);
    if (column_squares) continue;
    const float square = SumOf(squares[r]);
    if (sums->row_squares != nullptr) sums->row_squares[row + r] = square;
    sums->squares += square;
  }
}

template <typename T, int kWanted>
ALWAYS_INLINE void SumMatrixOf(const T* x, int64_t stride, int64_t rows,
                               int64_t n, MatrixSums* sums) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    SumRows<T, kWanted, 4>(x + row * stride, stride, n, row, sums);
  }
  for (; row < rows; ++row) {
    SumRows<T, kWanted, 1>(x + row * stride, stride, n, row, sums);
  }
}

template <typename T>
void SumMatrixOfType(const T* x, int64_t stride, int64_t rows, int64_t n,
                     MatrixSums* sums) {
  const bool right = sums->right != nullptr, left = sums->left != nullptr;
  if (right && left) {
    static const auto both = BestOf<SumMatrixOf<T, kRight | kLeft>>();
    both(x, stride, rows, n, sums);
  } else if (right) {
    static const auto of_right = BestOf<SumMatrixOf<T, kRight>>();
    of_right(x, stride, rows, n, sums);
  } else if (sums->column_squares != nullptr) {
    static const auto squares =
        BestOf<SumMatrixOf<T, kLeft | kColumnSquares>>();
    squares(x, stride, rows, n, sums);
  } else {
    static const auto of_left = BestOf<SumMatrixOf<T, kLeft>>();
    of_left(x, stride, rows, n, sums);
  }
}

std::vector<float> MakeSigns(int64_t n) {
  std::vector<float> signs(Padded(n));
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = RandomBits(0x5eed, i / 128, 0)[i / 32 % 4];
    signs[i] = (bits >> (i % 32) & 1) != 0 ? 1.0f : -1.0f;
  }
  return signs;
}

}  // namespace

const float* RandomSigns(int64_t n, uint64_t round) {
  // What is beyond n is multiplied by zeros. Rounds begin at one of these many
  // places.
  constexpr int64_t kMost = int64_t{1} << 18, kPlaces = 4096;
  constexpr int64_t kSpare = kPlaces * kSumLanes;
  // Odd, so that all places come up.
  const int64_t place =
      static_cast<int64_t>(round * 1597 % kPlaces) * kSumLanes;
  static const std::vector<float>* const signs =
      new std::vector<float>(MakeSigns(kMost + kSpare));
  if (n <= kMost) return signs->data() + place;
  static std::mutex mutex;
  static std::map<int64_t, std::vector<float>>* const longer =
      new std::map<int64_t, std::vector<float>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<float>& found = (*longer)[n];
  if (found.empty()) found = MakeSigns(n + kSpare);
  return found.data() + place;
}

void SumMatrix(const ConstMatrix& x, int64_t rows, int64_t n,
               MatrixSums* sums) {
  switch (x.type) {
    case NumberType::kFloat:
      return SumMatrixOfType(static_cast<const float*>(x.data), x.stride, rows,
                             n, sums);
    case NumberType::kBf16:
      return SumMatrixOfType(static_cast<const Bf16*>(x.data), x.stride, rows,
                             n, sums);
    case NumberType::kFp16:
      return SumMatrixOfType(static_cast<const Fp16*>(x.data), x.stride, rows,
                             n, sums);
  }
}

}  // namespace capstan::kernels
