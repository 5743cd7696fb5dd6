// SPDX-License-Identifier: Apache-2.0
//
// Plots of a run's losses and other measurements.
#ifndef CAPSTAN_TRAINER_METRICS_CURVE_H_
#define CAPSTAN_TRAINER_METRICS_CURVE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/objective.h"

namespace capstan {

struct CurvePoint {
  int64_t step = 0;
  double loss = 0.0;  // finite
};

struct LossCurves {
  std::vector<CurvePoint> train;
  std::vector<CurvePoint> eval;
  // Latest values of other evaluation measurements: "eval_mean_return".
  std::map<std::string, double> measured;
};

// Reads a metrics.jsonl, without non-finite losses; long runs are subsampled to
// at most 2000 steps. Empty without the file.
absl::StatusOr<LossCurves> ReadLossCurves(const std::string& path);

// A 640 x 320 SVG with both curves and labelled axes, readable on light and
// dark pages. "" if there is nothing to draw.
std::string LossCurveSvg(const LossCurves& curves);

// The same for one measurement's curve after each evaluated step: the latest in
// colour, earlier ones in ever lighter grey; a legend names the first and last
// steps, and each line has its step as tooltip.
std::string MeasuredCurvesSvg(
    const std::vector<std::pair<int64_t, MeasuredCurve>>& curves);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_CURVE_H_
