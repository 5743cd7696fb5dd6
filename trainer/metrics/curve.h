// SPDX-License-Identifier: Apache-2.0
//
// A run's losses, and what else it measures, as pictures.
#ifndef CAPSTAN_TRAINER_METRICS_CURVE_H_
#define CAPSTAN_TRAINER_METRICS_CURVE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/measurement.h"

namespace capstan {

struct CurvePoint {
  int64_t step = 0;
  double loss = 0.0;  // finite
};

struct LossCurves {
  std::vector<CurvePoint> train;
  std::vector<CurvePoint> eval;
  // The last values of what else evaluations have told, by name: "mean_return".
  std::map<std::string, double> measured;
};

// Those of a metrics.jsonl, without losses that aren't finite; of long runs
// every n-th step, so that there are at most 2000. Empty without the file.
absl::StatusOr<LossCurves> ReadLossCurves(const std::string& path);

// An SVG of 640 by 320 with both curves, axes and their names, readable on a
// light and a dark page. "" if there is nothing to draw.
std::string LossCurveSvg(const LossCurves& curves);

// The same of what has been measured after each step, of one name: the last in
// colour, the ones before in grey, the earlier the lighter; a legend names the
// steps of both, and each line says its own under the pointer.
std::string MeasuredCurvesSvg(
    const std::vector<std::pair<int64_t, MeasuredCurve>>& curves);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_CURVE_H_
