// SPDX-License-Identifier: Apache-2.0
#include "base/exact_sum.h"

#include <cmath>

namespace capstan {
namespace {

// The exponent of the smallest double.
constexpr int kLowest = -1074;

}  // namespace

void ExactSum::Carry() {
  for (int i = 0; i + 1 < kDigits; ++i) {
    // Rounds down, also below 0.
    const int64_t carry = digits_[i] >> 32;
    digits_[i] -= carry * (int64_t{1} << 32);
    digits_[i + 1] += carry;
  }
  pending_ = 0;
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum carried = other;
  carried.Carry();
  Carry();
  for (int i = 0; i < kDigits; ++i) digits_[i] += carried.digits_[i];
  others_ += other.others_;
  pending_ = 1;
}

double ExactSum::Value() const {
  if (others_ != 0.0) return others_;  // NaN, too
  ExactSum carried = *this;
  carried.Carry();
  const bool negative = carried.digits_[kDigits - 1] < 0;
  if (negative) {
    for (int64_t& digit : carried.digits_) digit = -digit;
    carried.Carry();
  }
  double sum = 0.0;
  for (int i = kDigits - 1; i >= 0; --i) {
    sum +=
        std::ldexp(static_cast<double>(carried.digits_[i]), 32 * i + kLowest);
  }
  return negative ? -sum : sum;
}

void ExactSum::Save(absl::Span<double> numbers) const {
  ExactSum carried = *this;
  carried.Carry();
  for (int i = 0; i < kDigits; ++i) {
    numbers[i] = static_cast<double>(carried.digits_[i]);
  }
  numbers[kDigits] = others_;
}

ExactSum ExactSum::Load(absl::Span<const double> numbers) {
  ExactSum sum;
  for (int i = 0; i < kDigits; ++i) {
    sum.digits_[i] = static_cast<int64_t>(numbers[i]);
  }
  sum.others_ = numbers[kDigits];
  sum.Carry();
  return sum;
}

}  // namespace capstan
