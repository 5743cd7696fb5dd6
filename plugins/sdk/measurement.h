// SPDX-License-Identifier: Apache-2.0
//
// What an objective measures besides the loss.
#ifndef CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_
#define CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

// Values at x = 1, 2, ..: one for each episode, say.
struct MeasuredCurve {
  // "return" is written to OUTPUT/return.svg; TensorBoard gets a histogram of
  // the values of each evaluation, eval/return.
  std::string name;
  std::string x_label;
  std::string y_label;
  std::vector<double> values;
};

// Written as OUTPUT/NAME.npy, float64.
struct MeasuredArray {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> values;  // row-major
};

struct Measurement {
  // By full tag ("eval/mean_return"), in display order.
  std::vector<std::pair<std::string, double>> scalars;
  std::vector<MeasuredCurve> curves;
  std::vector<MeasuredArray> arrays;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_
