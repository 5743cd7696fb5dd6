// SPDX-License-Identifier: Apache-2.0
//
// Differences of numbers that NaN can't pass: std::max(worst, NaN) is `worst`,
// so a maximum made with it treats NaN as close. Here NaN is close to nothing.
#ifndef CAPSTAN_TESTS_CONFORMANCE_DIFFERENCE_H_
#define CAPSTAN_TESTS_CONFORMANCE_DIFFERENCE_H_

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace capstan {

// The maximum of the added values; infinite once one was NaN.
class Worst {
 public:
  void Add(double difference) {
    if (!(difference <= worst_)) worst_ = difference;
    if (std::isnan(difference)) {
      worst_ = std::numeric_limits<double>::infinity();
    }
  }
  double value() const { return worst_; }

 private:
  double worst_ = 0.0;
};

// |a - b| / |b|; 0 where both are 0.
inline double RelativeDifference(double a, double b) {
  return a == b ? 0.0 : std::fabs(a - b) / std::fabs(b);
}

// The largest difference between elements; infinite if sizes differ or either
// side has NaN.
inline double MaxDifference(const std::vector<double>& a,
                            const std::vector<double>& b) {
  Worst worst;
  if (a.size() != b.size()) worst.Add(std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    worst.Add(std::fabs(a[i] - b[i]));
  }
  return worst.value();
}

inline double MaxRelativeDifference(const std::vector<double>& got,
                                    const std::vector<double>& want) {
  Worst worst;
  if (got.size() != want.size()) {
    worst.Add(std::numeric_limits<double>::infinity());
  }
  for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
    worst.Add(RelativeDifference(got[i], want[i]));
  }
  return worst.value();
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_DIFFERENCE_H_
