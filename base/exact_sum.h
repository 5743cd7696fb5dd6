// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_EXACT_SUM_H_
#define CAPSTAN_BASE_EXACT_SUM_H_

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace capstan {

// A sum of doubles without rounding, hence the same whatever their order and
// whoever adds which: a number of fixed point with all bits that doubles have
// (Kulisch and Miranker, "The Arithmetic of the Digital Computer: A New
// Approach", SIAM Review 28, 1986, section 2), in digits of 32 bits, whose
// carries wait. A number costs three additions of integers.
class ExactSum {
 public:
  // As so many doubles a sum can be added to others, e.g. over ranks.
  static constexpr int kNumbers = 69;

  void Add(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
    if (exponent == 0x7FF) {
      others_ += x;
      return;
    }
    uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
    // Of its lowest bit, in units of the smallest double.
    const int place = exponent == 0 ? 0 : exponent - 1;
    if (exponent != 0) mantissa |= uint64_t{1} << 52;
    const int shift = place % 32;
    const uint64_t low = mantissa << shift;  // of 85 bits, the lower 64
    const auto high =
        static_cast<int64_t>(shift == 0 ? 0 : mantissa >> (64 - shift));
    const int64_t sign = static_cast<int64_t>(bits) < 0 ? -1 : 1;
    int64_t* const digit = &digits_[place / 32];
    digit[0] += sign * static_cast<int64_t>(low & 0xFFFFFFFF);
    digit[1] += sign * static_cast<int64_t>(low >> 32);
    digit[2] += sign * high;
    if (++pending_ == kMostPending) Carry();
  }
  void Add(const ExactSum& other);

  // The sum, rounded: the same bits for the same sum, but not always the
  // nearest double. Non-finite if a number was.
  double Value() const;

  // Writes it to kNumbers doubles. Sums of these, of up to 2^20 sums, are exact
  // and of the same form.
  void Save(absl::Span<double> numbers) const;
  static ExactSum Load(absl::Span<const double> numbers);

 private:
  // 2098 bits, and room for carries.
  static constexpr int kDigits = kNumbers - 1;
  static constexpr int64_t kMostPending = int64_t{1} << 30;

  // Leaves all digits but the last in [0, 2^32).
  void Carry();

  std::array<int64_t, kDigits> digits_ = {};
  int64_t pending_ = 0;  // additions since the last Carry
  double others_ = 0.0;  // the sum of infinities and NaNs
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_EXACT_SUM_H_
