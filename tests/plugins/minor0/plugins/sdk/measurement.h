// SPDX-License-Identifier: Apache-2.0
//
// What an objective has measured of a model beyond its loss.
#ifndef CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_
#define CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

// Numbers over 1, 2, ..: episodes, say.
struct MeasuredCurve {
  // "return": OUTPUT/return.svg, and eval_return/step_N in TensorBoard, of the
  // evaluation after step N.
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
  // By full tag ("eval/mean_return"), in the order to show them.
  std::vector<std::pair<std::string, double>> scalars;
  std::vector<MeasuredCurve> curves;
  std::vector<MeasuredArray> arrays;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEASUREMENT_H_
